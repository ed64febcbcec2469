package kip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloudinitfile"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/version"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Options are what the flags of Kip's command say.
type Options struct {
	// Clouds are those that this program can open.
	Clouds clouds.Set
	// Kubeconfig is the file with the way to the API server; "" for the service
	// account of the pod that Kip is in.
	Kubeconfig string
	// NodeName is that of the virtual node.
	NodeName string
	// ProviderConfig is the file provider.yaml.
	ProviderConfig string
	// InstanceDataPath is a file with types and prices of one's own; "" for none.
	InstanceDataPath string
	// ClusterDNS is what pods ask for names; the zero one for the usual Service.
	ClusterDNS    netip.Addr
	ClusterDomain string
	// DisableTaint leaves the virtual node without a taint.
	DisableTaint bool
	// NodeIPs are where the API server reaches the kubelet port: one, or one of each
	// family; none for this host's own.
	NodeIPs     []netip.Addr
	KubeletPort int
	// ClientCA is the file with the CA of client certificates that the kubelet port
	// accepts; "" for the one that the API server publishes.
	ClientCA string
	// WebhookPort is where the API server asks about pods before it makes them; 0 for
	// nowhere.
	WebhookPort int
	// MetricsAddr is where metrics and health are served; "0" for nowhere.
	MetricsAddr string
	// MetricsCertFile and MetricsKeyFile are the files of the certificate there; "" for
	// that of the kubelet port.
	MetricsCertFile, MetricsKeyFile string
	// MetricsAudience is what the tokens of those who scrape are for; "" for the API server.
	MetricsAudience string
	// Provisioner is the service account that makes and removes the volumes of claims:
	// deploy/ gives it the rights for that, and bounds what it makes.
	Provisioner types.NamespacedName
	// QPS and Burst are the requests to the API server in a second, and at once.
	QPS   float32
	Burst int
	Log   *slog.Logger
}

// credentials names what Kip reaches the API server with, for errors.
func (o Options) credentials() string {
	if o.Kubeconfig == "" {
		return "the pod's service account, since there is no --kubeconfig"
	}
	return fmt.Sprintf("the kubeconfig %s (--kubeconfig, $KUBECONFIG)", o.Kubeconfig)
}

// process is one process of Kip: it leads, or stands by until it does.
type process struct {
	Options
	cfg      *config.Config
	data     catalog.InstanceData // nil for none
	setUp    cloudinitfile.File   // as it was when this process began
	clock    clock.WithTickerAndDelayedExecution
	metrics  *metrics.Metrics
	watchdog *watchdog.Watchdog
	api      *apiServer
	// controllerID is the owner of all that this Kip makes.
	controllerID string
	store        *store.Store

	// dial opens connections to cells; nil for TCP.
	dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

	role *role
	// others is what holds of the nodes where another leads; nil where that is not known.
	others atomic.Pointer[config.Config]
}

// Run runs Kip until ctx ends, or a part of it fails.
func Run(ctx context.Context, o Options) error {
	cfg, warnings, err := config.Load(o.ProviderConfig)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		o.Log.Warn("provider.yaml", "warning", w.String())
	}
	if err := o.Clouds.CheckBuild(cfg); err != nil {
		return err
	}
	if err := checkServingCertificate(cfg); err != nil {
		return err
	}
	data, err := instanceData(o.InstanceDataPath)
	if err != nil {
		return err
	}
	setUp, err := cloudInitSource(cfg).Read()
	if err != nil {
		return err
	}
	now, clk := &role{}, clock.RealClock{}
	measures := metrics.New(metrics.Config{
		Read:  now.reading,
		Clock: clk,
		Log:   o.Log,
	})
	api, err := connect(o, measures.WrapTransport)
	if err != nil {
		return err
	}
	c := cfg.Etcd.Client
	st, err := store.Open(ctx, cfg.Etcd.Internal.DataDir, cfg.Etcd.Internal.ConfigFile,
		store.External{
			Endpoints: c.Endpoints,
			CertFile:  c.CertFile,
			KeyFile:   c.KeyFile,
			CAFile:    c.CAFile,
		})
	if err != nil {
		return err
	}
	observed := st.Observed(measures.StoreObserver)
	id, err := identify(ctx, cfg, o, api, observed)
	if err != nil {
		return errors.Join(err, st.Close())
	}
	k := &process{
		Options:      o,
		cfg:          cfg,
		data:         data,
		setUp:        setUp,
		clock:        clk,
		metrics:      measures,
		watchdog:     watchdog.New(clk, o.Log),
		api:          api,
		controllerID: id,
		store:        observed,
		role:         now,
	}
	if len(cfg.Admission.Profiles) > 0 && o.WebhookPort == 0 {
		const why = "admission.profiles have no effect, since --webhook-port is 0: want a port at which the API server asks about pods"
		o.Log.Warn(why)
		recorder, stop := k.api.eventRecorder(ctx, k.NodeName)
		defer stop()
		reportOfNode(recorder, k.NodeName, events.NewProfilesIgnored(why))
	}
	o.Log.Info("starting", "version", version.String(), "node", o.NodeName, "controller", k.controllerID)
	err = runParts(ctx, k.parts())
	if ctx.Err() != nil {
		o.Log.Info("stopped; pods go on running on their cells")
	}
	return errors.Join(err, st.Close())
}

// identify returns who this Kip is, the owner of all that it makes.
func identify(ctx context.Context, cfg *config.Config, o Options, api *apiServer, st *store.Store) (string, error) {
	if id := cfg.Testing.ControllerID; id != "" {
		return id, nil
	}
	uid, err := api.clusterUID(ctx, st, o.Log)
	return cells.ControllerID(string(uid), o.NodeName), err
}

// parts are what runs in each process. The last one waits until this process leads,
// and then runs the parts of that.
func (k *process) parts() []part {
	own := k.store.Within(k.controllerID + "/")
	asked := k.WebhookPort != 0
	return []part{
		{name: "watchdog", run: k.watchdog.Run},
		{name: "store", run: func(ctx context.Context) error { return k.keepStore(ctx, own) }},
		{name: "metrics", run: k.serveMetrics, left: k.MetricsAddr == "0"},
		{name: "configuration of others", run: func(ctx context.Context) error { return k.followOthers(ctx, own) }, left: !asked},
		{name: "admission", run: func(ctx context.Context) error { return k.answerAdmission(ctx, own) }, left: !asked},
		{name: "leadership", run: func(ctx context.Context) error { return k.takeTurns(ctx, own, k.lead) }},
	}
}

// keepStore keeps the store in order. It ends Kip when the embedded one has stopped:
// without it nothing may be done, and a fresh start repairs what can be.
func (k *process) keepStore(ctx context.Context, own *store.Store) error {
	maintaining, stop := context.WithCancel(ctx)
	maintained := make(chan struct{})
	go func() { defer close(maintained); _ = own.Maintain(maintaining, k.Log) }() // it is always nil
	defer func() { stop(); <-maintained }()
	select {
	case <-ctx.Done():
		return nil
	case <-k.store.Done():
		return fmt.Errorf("etcd has stopped: %w", k.store.Err())
	}
}
