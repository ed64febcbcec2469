package node

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agent/configs"
)

// PluginDir is where the root of a node's machine has the standard CNI plugins.
const PluginDir = "opt/cni/bin"

// Places in the machine beside those of package configs.
const (
	binDir          = "/run/kip-node/bin"
	pkiDir          = configs.KubeletRoot + "/pki"
	proxyConfig     = "/var/lib/kube-proxy/config.yaml"
	proxyKubeconfig = "/var/lib/kube-proxy/kubeconfig"
)

// file is one that the node writes before it starts anything.
type file struct {
	path    string
	content []byte
	mode    fs.FileMode
}

// files are all configuration of the node's parts. portmap says whether the root
// has the CNI plugin for hostPorts.
func (c Config) files(h configs.Host, pause string, portmap bool) ([]file, error) {
	kubelet, err := c.kubelet()
	if err != nil {
		return nil, err
	}
	pki := configs.Files{
		CA:          pkiDir + "/ca.crt",
		ClientCert:  pkiDir + "/client.crt",
		ClientKey:   pkiDir + "/client.key",
		ServingCert: pkiDir + "/serving.crt",
		ServingKey:  pkiDir + "/serving.key",
	}
	kubeconfig, err := configs.KubeconfigFile(c.Server, pki)
	if err != nil {
		return nil, err
	}
	asProxy := pki
	asProxy.ClientCert, asProxy.ClientKey = pkiDir+"/proxy.crt", pkiDir+"/proxy.key"
	proxyKubeconfigFile, err := configs.KubeconfigFile(c.Server, asProxy)
	if err != nil {
		return nil, err
	}
	proxy, err := c.kubeProxy()
	if err != nil {
		return nil, err
	}
	cni, err := c.cni(portmap)
	if err != nil {
		return nil, err
	}
	mirrors, err := configs.RegistryHosts(c.Mirrors, nil)
	if err != nil {
		return nil, err
	}
	files := []file{
		{configs.ContainerdConfig, []byte(configs.Containerd(h, "/"+PluginDir, pause)), 0o644},
		{configs.KubeletConfig, kubelet, 0o644},
		{configs.Kubeconfig, kubeconfig, 0o600},
		{configs.CNIConfFile, cni, 0o644},
		{proxyConfig, proxy, 0o644},
		{proxyKubeconfig, proxyKubeconfigFile, 0o600},
		{pki.CA, c.PKI.CA, 0o644},
		{asProxy.ClientCert, c.PKI.ProxyCert, 0o644},
		{asProxy.ClientKey, c.PKI.ProxyKey, 0o600},
		{pki.ClientCert, c.PKI.ClientCert, 0o644},
		{pki.ClientKey, c.PKI.ClientKey, 0o600},
		{pki.ServingCert, c.PKI.ServingCert, 0o644},
		{pki.ServingKey, c.PKI.ServingKey, 0o600},
		{"/etc/hostname", []byte(c.Name + "\n"), 0o644},
		// The kubelet looks its own name up.
		{"/etc/hosts", fmt.Appendf(nil, "127.0.0.1 localhost\n::1 localhost\n%s %s\n", c.IP, c.Name), 0o644},
	}
	for host, text := range mirrors {
		files = append(files, file{filepath.Join(configs.RegistryDir, host, "hosts.toml"), []byte(text), 0o644})
	}
	return files, nil
}

// kubelet is upstream's defaults but for what the cluster and the machine ask
// for.
func (c Config) kubelet() ([]byte, error) {
	cfg := kubeletv1beta1.KubeletConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: kubeletv1beta1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		Authentication: kubeletv1beta1.KubeletAuthentication{
			X509:      kubeletv1beta1.KubeletX509Authentication{ClientCAFile: pkiDir + "/ca.crt"},
			Webhook:   kubeletv1beta1.KubeletWebhookAuthentication{Enabled: ptr.To(true)},
			Anonymous: kubeletv1beta1.KubeletAnonymousAuthentication{Enabled: ptr.To(false)},
		},
		Authorization:            kubeletv1beta1.KubeletAuthorization{Mode: kubeletv1beta1.KubeletAuthorizationModeWebhook},
		TLSCertFile:              pkiDir + "/serving.crt",
		TLSPrivateKeyFile:        pkiDir + "/serving.key",
		ContainerRuntimeEndpoint: "unix://" + configs.ContainerdSocket,
		CgroupDriver:             "cgroupfs",
		FailCgroupV1:             ptr.To(false),
		FailSwapOn:               ptr.To(false), // the host's, which no pod uses
		MaxPods:                  110,
		ClusterDomain:            c.ClusterDomain,
		ResolverConfig:           ptr.To("/etc/resolv.conf"),
		VolumePluginDir:          configs.KubeletRoot + "/volumeplugins",
		SerializeImagePulls:      ptr.To(false),
		// The chains that it would make are for an older kube-proxy, and want an
		// iptables binary.
		MakeIPTablesUtilChains: ptr.To(false),
		// Where a machine cannot have a disk of its own it sees the host's, which
		// others fill: upstream's 10 and 15 % would then end pods.
		EvictionHard: map[string]string{"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%",
			"imagefs.available": "1%"},
		ImageGCHighThresholdPercent: ptr.To[int32](99),
		ImageGCLowThresholdPercent:  ptr.To[int32](98),
	}
	if c.ClusterDNS.IsValid() {
		cfg.ClusterDNS = []string{c.ClusterDNS.String()}
	}
	b, err := yaml.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("render the kubelet's configuration: %w", err)
	}
	return b, nil
}

// kubeletArgs are what has no key in the configuration file.
func (c Config) kubeletArgs() []string {
	return []string{
		"--config=" + configs.KubeletConfig, "--kubeconfig=" + configs.Kubeconfig, "--root-dir=" + configs.KubeletRoot,
		"--cert-dir=" + pkiDir, "--hostname-override=" + c.Name, "--node-ip=" + c.IP.String(),
	}
}

// kubeProxy is upstream's defaults too, in nftables mode.
func (c Config) kubeProxy() ([]byte, error) {
	b, err := yaml.Marshal(map[string]any{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"hostnameOverride": c.Name,
		"bindAddress":      c.IP.String(),
		"clientConnection": map[string]any{"kubeconfig": proxyKubeconfig},
		"mode":             "nftables",
		// The names that the CNI plugin ptp gives to the node's ends of cables.
		"detectLocalMode": "InterfaceNamePrefix",
		"detectLocal":     map[string]any{"interfaceNamePrefix": "veth"},
		// A machine that is a namespace may not set the kernel's values.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
	if err != nil {
		return nil, fmt.Errorf("render kube-proxy's configuration: %w", err)
	}
	return b, nil
}

// cni is the standard plugins: each pod at the end of a cable of its own, with an
// address that this node chooses.
func (c Config) cni(portmap bool) ([]byte, error) {
	plugins := []any{map[string]any{
		"type": "ptp",
		"ipam": map[string]any{
			"type":   "host-local",
			"ranges": []any{[]any{map[string]any{"subnet": c.PodCIDR.String()}}},
			"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
		},
	}}
	if portmap {
		plugins = append(plugins, map[string]any{"type": "portmap", "backend": "nftables", "snat": true,
			"capabilities": map[string]any{"portMappings": true}})
	}
	b, err := json.MarshalIndent(map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the CNI configuration: %w", err)
	}
	return append(b, '\n'), nil
}

func write(files []file) error {
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
		if err := os.WriteFile(f.path, f.content, f.mode); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
	}
	return nil
}
