package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	cliflag "k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the components' clients
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	controllermanageroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// kubeletClient is the user that the API server is to the kubelet port.
const kubeletClient = "kube-apiserver-kubelet-client"

// Issuer is that of the tokens of service accounts.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// nodeRanges is what the node IPAM controller gives nodes from. Nothing here routes or uses
// it: the addresses of pods are those of machines.
const nodeRanges = "100.64.0.0/12"

// maxSocketPath is the size of sun_path, with its final NUL: unix(7).
const maxSocketPath = 108

// startEtcd starts etcd on sockets in the state folder, which only the owner may
// enter: etcd has no other guard. It returns the URL for its clients.
func (c *Cluster) startEtcd(ctx context.Context) (string, error) {
	client, peer := c.files.path("etcd/client.sock"), c.files.path("etcd/peer.sock")
	if len(client) >= maxSocketPath {
		return "", fmt.Errorf("state folder %s is too long: the socket of etcd in it would have a path of %d bytes, the most is %d",
			c.files.state, len(client), maxSocketPath-1)
	}
	cfg := embed.NewConfig()
	cfg.Dir = c.files.path("etcd/data")
	cfg.LogLevel = "warn"
	cfg.LogOutputs = []string{c.LogFile()}
	// etcd takes the address of a unix socket from the URL's host.
	cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: peer}}
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Host: client}}
	// Advertised to other members, of which there are none.
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "localhost:2379"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// The only member waits for nobody's vote: it need not wait a second for one.
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration // or every request is warned of
	cfg.UnsafeNoFsync = c.opts.NoFsync
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return "", fmt.Errorf("start etcd: %w", err)
	}
	c.etcd = c.run(context.WithoutCancel(ctx), "etcd", func(ctx context.Context) error {
		defer e.Close()
		select {
		case <-ctx.Done():
			return nil
		case err := <-e.Err():
			return err
		case <-e.Server.StopNotify():
			return errors.New("the server stopped")
		}
	})
	select {
	case <-e.Server.ReadyNotify():
		return "unix://" + client, nil
	case <-c.etcd.done:
		return "", c.etcd.err
	case <-ctx.Done():
		return "", fmt.Errorf("wait for etcd: %w", ctx.Err())
	}
}

// serviceRanges are the Services' networks, one of each family.
func (c *Cluster) serviceRanges() string {
	if c.opts.ServiceIPv6CIDR.IsValid() {
		return c.opts.ServiceCIDR.String() + "," + c.opts.ServiceIPv6CIDR.String()
	}
	return c.opts.ServiceCIDR.String()
}

func (c *Cluster) apiserverArgs(etcd string, bridge *net.TCPAddr) []string {
	f := c.files
	args := []string{
		"--etcd-servers=" + etcd,
		"--advertise-address=" + bridge.IP.String(),
		"--service-cluster-ip-range=" + c.serviceRanges(),
		"--tls-cert-file=" + f.cert("apiserver"),
		"--tls-private-key-file=" + f.key("apiserver"),
		"--client-ca-file=" + f.cert("ca"),
		"--anonymous-auth=false",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
		"--service-account-issuer=" + Issuer,
		"--service-account-signing-key-file=" + f.key("service-account"),
		"--service-account-key-file=" + f.pki + "/service-account.pub",
		"--kubelet-certificate-authority=" + f.cert("ca"),
		"--kubelet-client-certificate=" + f.cert("kubelet-client"),
		"--kubelet-client-key=" + f.key("kubelet-client"),
		// The virtual node's name does not resolve.
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + f.cert("front-proxy-ca"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + f.cert("front-proxy"),
		"--proxy-client-key-file=" + f.key("front-proxy"),
		// This host has routes to pods, and none to Services.
		"--enable-aggregator-routing=true",
		// Otherwise its end waits a minute for watches of clients that vanished without closing their connections, such as
		// the pods of an ordinary node whose machine has ended.
		"--shutdown-send-retry-after=true",
	}
	if v := c.opts.EmulatedVersion; v != "" { // the other components share the registry of versions in this process
		args = append(args, "--emulated-version=kube="+v)
	} else {
		// Kubernetes has trust bundles, and has them off by default.
		args = append(args, "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true",
			"--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true")
	}
	if n := c.opts.TolerationSeconds; n > 0 {
		args = append(args, fmt.Sprint("--default-not-ready-toleration-seconds=", n), fmt.Sprint("--default-unreachable-toleration-seconds=", n))
	}
	return args
}

// auditPolicy logs who asked for what and the answer's code, without bodies,
// once the answer is there or, for a watch, has begun.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

// auditArgs are the flags for Options.AuditLog.
func (c *Cluster) auditArgs() ([]string, error) {
	policy := c.files.path("pki/audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("write the audit policy: %w", err)
	}
	return []string{
		"--audit-policy-file=" + policy,
		"--audit-log-path=" + c.opts.AuditLog,
		// Megabytes: one file, however long the run.
		"--audit-log-maxsize=100000",
	}, nil
}

func (c *Cluster) controllerManagerArgs() []string {
	f := c.files
	args := c.clientLimits()
	if c.opts.NodeGrace > 0 {
		args = append(args, "--node-monitor-grace-period="+c.opts.NodeGrace.String())
	}
	return append(args,
		"--kubeconfig="+f.path("controller-manager.kubeconfig"),
		"--leader-elect=false",
		"--secure-port=0",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+f.key("service-account"),
		"--root-ca-file="+f.cert("ca"),
		"--cluster-signing-cert-file="+f.cert("ca"),
		"--cluster-signing-key-file="+f.key("ca"),
		// As in most clusters, every node gets a range, also one that has no use for it.
		"--allocate-node-cidrs=true",
		"--cluster-cidr="+nodeRanges,
		// A third of the default, for those who wait for it.
		"--horizontal-pod-autoscaler-sync-period=5s",
	)
}

// clientLimits let the components ask more than by default, which is 20 requests a
// second for the controller manager and makes the start four seconds longer.
func (c *Cluster) clientLimits() []string {
	if c.opts.UpstreamLimits {
		return nil
	}
	return []string{"--kube-api-qps=500", "--kube-api-burst=1000"}
}

func (c *Cluster) schedulerArgs() []string {
	return append(c.clientLimits(), "--kubeconfig="+c.files.path("scheduler.kubeconfig"), "--leader-elect=false", "--secure-port=0")
}

// parse gives args to the flags of a component, as its own command line would.
func parse(name string, sets cliflag.NamedFlagSets, args []string) error {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, s := range sets.FlagSets {
		fs.AddFlagSet(s)
	}
	return fs.Parse(args)
}

func runAPIServer(ctx context.Context, args []string, l net.Listener) error {
	s := apiserveroptions.NewServerRunOptions()
	if err := parse("kube-apiserver", s.Flags(), args); err != nil {
		return err
	}
	if err := s.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	s.SecureServing.Listener = l
	completed, err := s.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return utilerrors.NewAggregate(errs)
	}
	return apiserver.Run(ctx, completed)
}

func runControllerManager(ctx context.Context, args []string) error {
	s, err := controllermanageroptions.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	known, disabled, aliases := controllermanager.KnownControllers(), controllermanager.ControllersDisabledByDefault(),
		controllermanager.ControllerAliases()
	sets := s.Flags(known, disabled, aliases)
	if err := parse("kube-controller-manager", sets, args); err != nil {
		return err
	}
	s.ParsedFlags = &sets
	cfg, err := s.Config(ctx, known, disabled, aliases)
	if err != nil {
		return err
	}
	return controllermanager.Run(ctx, cfg.Complete())
}

func runScheduler(ctx context.Context, args []string) error {
	s := scheduleroptions.NewOptions()
	if err := parse("kube-scheduler", *s.Flags, args); err != nil {
		return err
	}
	cfg, sched, err := scheduler.Setup(ctx, s)
	if err != nil {
		return err
	}
	return scheduler.Run(ctx, cfg, sched)
}
