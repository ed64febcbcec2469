package command

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/elotl/kip/internal/kip"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// provider is the only name that --provider takes; manifests of the original
// give it.
const provider = "kip"

// What --nodename and --kubelet-port are where the environment does not say.
const (
	defaultNode = "virtual-kubelet"
	defaultPort = 10250
)

// options are the flags of the command line. Those of the original keep their
// names; those that mean nothing any more are accepted with a warning, so that
// its users' manifests still start.
type options struct {
	kip.Options
	provider    string
	clusterDNS  string
	provisioner string
	nodeIP      string
	verbosity   int
	logFormat   string
}

func (o *options) add(f *pflag.FlagSet) {
	f.StringVar(&o.Kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"),
		"kubeconfig `file`; default $KUBECONFIG, then ~/.kube/config if it exists, then the pod's service account")
	f.StringVar(&o.NodeName, "nodename", env("DEFAULTNODE_NAME", defaultNode),
		"`name` of the virtual node, after which those that provider.yaml lists are numbered (NAME-1); or $DEFAULTNODE_NAME")
	f.StringVar(&o.provider, "provider", provider, "`name` of the provider: the only one is "+provider)
	f.StringVar(&o.ProviderConfig, "provider-config", "/etc/kip/provider.yaml",
		"`file` provider.yaml: the cloud, the store, the cells (docs/provider-configuration.md)")
	f.StringVar(&o.InstanceDataPath, "instance-data-path", "",
		"`file` with instance types and prices of your own, by region or zone (docs/placement.md); default: those that the cloud tells")
	f.StringVar(&o.clusterDNS, "cluster-dns", "",
		"`address` of the cluster's DNS service for pods; "+
			"default: the cluster IP of service kube-system/kube-dns, none if there is no such service")
	f.StringVar(&o.ClusterDomain, "cluster-domain", "cluster.local", "the cluster's DNS `domain`")
	f.BoolVar(&o.DisableTaint, "disable-taint", false, "do not put the taint virtual-kubelet.io/provider on virtual nodes")
	f.StringVar(&o.nodeIP, "node-ip", os.Getenv("VKUBELET_POD_IP"),
		"`address` at which the API server reaches Kip's kubelet port, or one of each family, parted by a comma, "+
			"the API server's first; default $VKUBELET_POD_IP, then this host's own address")
	f.IntVar(&o.KubeletPort, "kubelet-port", intEnv("KUBELET_PORT", defaultPort),
		"`port` for logs, exec, attach, port-forward and stats, or $KUBELET_PORT")
	f.StringVar(&o.ClientCA, "client-ca-file", "",
		"`file` with the CA of client certificates that the kubelet port accepts; default: the one that the API server publishes, if Kip may read it, "+
			"else only tokens that the API server reviews")
	f.IntVar(&o.WebhookPort, "webhook-port", 9443,
		"`port` at which the API server asks about pods before it makes them, where the webhook of deploy/ is installed; 0 for none")
	f.StringVar(&o.MetricsAddr, "metrics-addr", ":10255", "`address` of /metrics, /healthz and /readyz; 0 for none")
	f.StringVar(&o.MetricsCertFile, "metrics-cert-file", "",
		"`file` with the certificate of --metrics-addr, followed when it changes; default: that of the kubelet port")
	f.StringVar(&o.MetricsKeyFile, "metrics-key-file", "", "`file` with its key")
	f.StringVar(&o.MetricsAudience, "metrics-audience", "",
		"`audience` that the tokens of those who scrape must be for; default: the API server's, so that Kip is shown a token of theirs that is good there, too")
	f.StringVar(&o.provisioner, "provisioner-account", "kip-system/kip-provisioner",
		"service `account` that makes and removes the volumes of claims, as NAMESPACE/NAME: Kip acts as it for that")
	f.Float32Var(&o.QPS, "kube-api-qps", 1000,
		"`requests` a second to the API server: Kip asks for all its cells what as many kubelets would, each with 50")
	f.IntVar(&o.Burst, "kube-api-burst", 2000, "`requests` at once to the API server")
	f.IntVar(&o.verbosity, "v", 0, "`level`: 0 logs what an operator needs, 1 and more everything")
	f.IntVar(&o.verbosity, "klog.v", 0, "`level`, the same as --v")
	f.StringVar(&o.logFormat, "log-format", "text", "`format` of the log: text or json")

	// What the environment says is no default of the program: the texts say where it comes from.
	for name, is := range map[string]string{
		"kubeconfig":   "",
		"nodename":     defaultNode,
		"node-ip":      "",
		"kubelet-port": strconv.Itoa(defaultPort),
	} {
		f.Lookup(name).DefValue = is
	}

	var ignored string
	for name, why := range map[string]string{
		"namespace":                "virtual nodes run the pods of all namespaces",
		"os":                       "cells run Linux",
		"taint":                    "set the taint with VKUBELET_TAINT_KEY, VKUBELET_TAINT_VALUE and VKUBELET_TAINT_EFFECT",
		"pod-sync-workers":         "Kip chooses",
		"enable-node-lease":        "each node always has a lease",
		"full-resync-period":       "Kip watches",
		"startup-timeout":          "nodes are Ready when Kip can do its work",
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
	if problems := validation.IsDNS1123Subdomain(o.NodeName); len(problems) > 0 {
		return fmt.Errorf("--nodename is %q, which is no name of a node: %s", o.NodeName, strings.Join(problems, "; "))
	}
	if !(o.QPS > 0) { // NaN neither
		return fmt.Errorf("--kube-api-qps is %v: it must be above 0", o.QPS)
	}
	if o.Burst < 1 {
		return fmt.Errorf("--kube-api-burst is %d: it must be above 0", o.Burst)
	}
	if v := os.Getenv("KUBELET_PORT"); v != "" && strconv.Itoa(o.KubeletPort) != v {
		if _, err := strconv.Atoi(v); err != nil {
			return fmt.Errorf("KUBELET_PORT is %q: it must be a port number", v)
		}
	}
	if o.KubeletPort < 1 || o.KubeletPort > 65535 {
		return fmt.Errorf("--kubelet-port is %d: it must be from 1 to 65535", o.KubeletPort)
	}
	if o.WebhookPort < 0 || o.WebhookPort > 65535 {
		return fmt.Errorf("--webhook-port is %d: it must be from 0 to 65535", o.WebhookPort)
	}
	var err error
	if o.clusterDNS != "" {
		if o.ClusterDNS, err = netip.ParseAddr(o.clusterDNS); err != nil {
			return fmt.Errorf("--cluster-dns is %q: it must be an IP address", o.clusterDNS)
		}
	}
	account := strings.Split(o.provisioner, "/")
	if len(account) != 2 || account[0] == "" || account[1] == "" {
		return fmt.Errorf("--provisioner-account is %q: it must be NAMESPACE/NAME, such as kip-system/kip-provisioner", o.provisioner)
	}
	o.Provisioner = types.NamespacedName{Namespace: account[0], Name: account[1]}
	if o.nodeIP != "" {
		if o.NodeIPs, err = parseNodeIP(o.nodeIP); err != nil {
			return err
		}
	}
	if o.Log, err = o.logger(); err != nil {
		return err
	}
	if o.Kubeconfig == "" {
		if home, err := os.UserHomeDir(); err == nil {
			if path := filepath.Join(home, ".kube", "config"); fileExists(path) {
				o.Kubeconfig = path
			}
		}
	}
	f, err := os.Open(o.ProviderConfig)
	if err != nil {
		return fmt.Errorf("--provider-config is %q, and Kip does not start without it: %w", o.ProviderConfig, err)
	}
	return f.Close()
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
