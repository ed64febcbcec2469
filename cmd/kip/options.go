package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// provider is the only name that --provider takes; manifests of the original
// give it.
const provider = "kip"

// options are the flags of the command line. Those of the original keep their
// names; those that mean nothing any more are accepted with a warning, so that
// its users' manifests still start.
type options struct {
	kubeconfig     string
	nodeName       string
	provider       string
	providerConfig string
	clusterDNS     string
	clusterDomain  string
	disableTaint   bool
	nodeIP         string
	kubeletPort    int
	clientCA       string
	metricsAddr    string
	qps            float32
	burst          int
	verbosity      int
	logFormat      string
}

func (o *options) add(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig `file`; default $KUBECONFIG, then ~/.kube/config if it exists, then the pod's service account")
	f.StringVar(&o.nodeName, "nodename", env("DEFAULTNODE_NAME", "virtual-kubelet"), "`name` of the virtual node; default $DEFAULTNODE_NAME")
	f.StringVar(&o.provider, "provider", provider, "must be "+provider)
	f.StringVar(&o.providerConfig, "provider-config", "/etc/kip/provider.yaml", "provider.yaml: the cloud, the store, the cells (docs/provider-configuration.md)")
	f.StringVar(&o.clusterDNS, "cluster-dns", "", "`address` of the cluster's DNS service for pods; default: the cluster IP of service kube-system/kube-dns, none if there is no such service")
	f.StringVar(&o.clusterDomain, "cluster-domain", "cluster.local", "the cluster's DNS `domain`")
	f.BoolVar(&o.disableTaint, "disable-taint", false, "do not taint the virtual node")
	f.StringVar(&o.nodeIP, "node-ip", os.Getenv("VKUBELET_POD_IP"), "`address` at which the API server reaches Kip's kubelet port, or one of each family, parted by a comma, the API server's first; default $VKUBELET_POD_IP, then this host's own address")
	f.IntVar(&o.kubeletPort, "kubelet-port", intEnv("KUBELET_PORT", 10250), "`port` for logs, exec, attach, port-forward and stats; default $KUBELET_PORT, then 10250")
	f.StringVar(&o.clientCA, "client-ca-file", "", "`file` with the CA of client certificates that the kubelet port accepts; default: none, only tokens that the API server reviews")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":10255", "`address` of /metrics, /healthz and /readyz; 0 for none")
	f.Float32Var(&o.qps, "kube-api-qps", 1000, "requests a second to the API server: Kip asks for all its cells what as many kubelets would, each with 50")
	f.IntVar(&o.burst, "kube-api-burst", 2000, "requests at once to the API server")
	f.IntVar(&o.verbosity, "v", 0, "0 logs what an operator needs, 1 and more everything")
	f.IntVar(&o.verbosity, "klog.v", 0, "the same as --v")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")

	var ignored string
	for name, why := range map[string]string{
		"namespace":                "the virtual node runs the pods of all namespaces",
		"os":                       "cells run Linux",
		"taint":                    "set the taint with VKUBELET_TAINT_KEY, VKUBELET_TAINT_VALUE and VKUBELET_TAINT_EFFECT",
		"pod-sync-workers":         "Kip chooses",
		"enable-node-lease":        "the node always has a lease",
		"full-resync-period":       "Kip watches",
		"startup-timeout":          "the node is Ready when Kip can do its work",
		"network-agent-secret":     "cells need no kubeconfig",
		"network-agent-kubeconfig": "cells need no kubeconfig",
		"debug-server":             "kipctl uses a local socket, which is always there",
		"klog.logtostderr":         "logs always go to standard error",
		"klog.alsologtostderr":     "logs always go to standard error",
	} {
		f.StringVar(&ignored, name, "", "ignored: "+why)
		f.Lookup(name).NoOptDefVal = "true"
		if err := f.MarkDeprecated(name, why); err != nil {
			panic(err) // the flag was added a line above
		}
	}
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func intEnv(name string, otherwise int) int {
	if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return v
	}
	return otherwise
}

// complete checks the flags and fills in what depends on the machine.
func (o *options) complete() error {
	if o.provider != provider {
		return fmt.Errorf("--provider is %q: the only provider is %q", o.provider, provider)
	}
	if problems := validation.IsDNS1123Subdomain(o.nodeName); len(problems) > 0 {
		return fmt.Errorf("--nodename is %q, which is no name of a node: %s", o.nodeName, strings.Join(problems, "; "))
	}
	if !(o.qps > 0) { // NaN neither
		return fmt.Errorf("--kube-api-qps is %v: it must be above 0", o.qps)
	}
	if o.burst < 1 {
		return fmt.Errorf("--kube-api-burst is %d: it must be above 0", o.burst)
	}
	if v := os.Getenv("KUBELET_PORT"); v != "" && strconv.Itoa(o.kubeletPort) != v {
		if _, err := strconv.Atoi(v); err != nil {
			return fmt.Errorf("KUBELET_PORT is %q: it must be a port number", v)
		}
	}
	if o.kubeletPort < 1 || o.kubeletPort > 65535 {
		return fmt.Errorf("--kubelet-port is %d: it must be from 1 to 65535", o.kubeletPort)
	}
	if _, err := netip.ParseAddr(o.clusterDNS); o.clusterDNS != "" && err != nil {
		return fmt.Errorf("--cluster-dns is %q: it must be an IP address", o.clusterDNS)
	}
	if _, err := parseNodeIP(o.nodeIP); o.nodeIP != "" && err != nil {
		return err
	}
	if o.kubeconfig == "" {
		if home, err := os.UserHomeDir(); err == nil {
			if path := filepath.Join(home, ".kube", "config"); fileExists(path) {
				o.kubeconfig = path
			}
		}
	}
	f, err := os.Open(o.providerConfig)
	if err != nil {
		return fmt.Errorf("--provider-config is %q, and Kip does not start without it: %w", o.providerConfig, err)
	}
	return f.Close()
}

// credentials names what Kip reaches the API server with, for errors.
func (o *options) credentials() string {
	if o.kubeconfig == "" {
		return "the pod's service account, since there is no --kubeconfig"
	}
	return fmt.Sprintf("the kubeconfig %s (--kubeconfig, $KUBECONFIG)", o.kubeconfig)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// logger writes to standard error, as --v and --log-format say.
func (o *options) logger() (*slog.Logger, error) {
	h := &slog.HandlerOptions{Level: slog.LevelInfo}
	if o.verbosity > 0 {
		h.Level = slog.LevelDebug
	}
	switch o.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, h)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, h)), nil
	}
	return nil, fmt.Errorf("--log-format is %q: it must be text or json", o.logFormat)
}

// parseNodeIP reads the value of --node-ip.
func parseNodeIP(v string) ([]netip.Addr, error) {
	var all []netip.Addr
	for one := range strings.SplitSeq(v, ",") {
		a, err := netip.ParseAddr(one)
		if err != nil || len(all) == 2 || len(all) == 1 && all[0].Is4() == a.Is4() {
			return nil, fmt.Errorf("--node-ip is %q: it must be an IP address, or one of each family, parted by a comma", v)
		}
		all = append(all, a)
	}
	return all, nil
}

// second is the second of addresses, the zero one where there is none.
func second(addresses []netip.Addr) netip.Addr {
	if len(addresses) > 1 {
		return addresses[1]
	}
	return netip.Addr{}
}
