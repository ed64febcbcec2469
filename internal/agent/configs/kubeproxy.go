package configs

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agentapi"
)

// KubeProxyHealth is where kube-proxy serves its health, on loopback: it tells when
// it has written its rules.
const KubeProxyHealth = "127.0.0.1:10256"

// KubeProxyFlag is, with its file after it, the first argument of a kubelet in
// whose process kube-proxy is to run.
const KubeProxyFlag = "--kube-proxy-config="

// PodInterfaces is what the names of the cell's ends of pods' veths begin with
// (package network).
const PodInterfaces = "pod"

// KubeProxy renders kube-proxy's configuration file. ownConntrack says that kube-proxy may size the
// kernel's table of connections (OwnsConntrack).
func KubeProxy(c agentapi.Config, ownConntrack bool) ([]byte, error) {
	// A map, for the reason that Kubelet has. A test decodes it strictly.
	config := map[string]any{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"hostnameOverride": c.NodeName,
		// The node's first family, and what it takes for its own address in it; the
		// other one it reads from its Node.
		"bindAddress": c.NodeIP.String(),
		"clientConnection": map[string]any{
			"kubeconfig": Kubeconfig,
			// Smaller and cheaper to decode than JSON.
			"contentType":        "application/vnd.kubernetes.protobuf",
			"acceptContentTypes": "application/vnd.kubernetes.protobuf,application/json",
		},
		"mode": "nftables",
		"nftables": map[string]any{
			// How soon a failed write is retried.
			"syncPeriod": "5s",
			// The pod of a cold cell waits for the first write, which comes no
			// sooner than this after a first look that found too little.
			"minSyncPeriod": "100ms",
		},
		// What comes from the pod keeps its address on the way to a Service.
		"detectLocalMode": "InterfaceNamePrefix",
		"detectLocal":     map[string]any{"interfaceNamePrefix": PodInterfaces},
		// Loopback: nothing of the cell's own is offered to its neighbours.
		"metricsBindAddress": "127.0.0.1:10249",
		"healthzBindAddress": KubeProxyHealth,
		"enableProfiling":    false,
		// The informers' resync, for which nothing here has a use.
		"configSyncPeriod": "12h",
	}
	// kube-proxy's defaults are what other nodes have: 32768 connections a core, 131072 at least. The
	// kernel's are by memory, some 4,000 for 512 MiB, and beyond them packets are dropped
	// (https://github.com/kubernetes/kubernetes/issues/32435). Entries cost memory only when used.
	if !ownConntrack {
		config["conntrack"] = map[string]any{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
		}
	}
	b, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("render kube-proxy's configuration: %w", err)
	}
	return b, nil
}
