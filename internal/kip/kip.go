package kip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/internal/leader"
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
	setUp    cloudInitFile        // the last good one that this process has read
	clock    clock.WithTickerAndDelayedExecution
	metrics  *metrics.Metrics
	watchdog *watchdog.Watchdog
	api      *apiServer
	// controllerID is the owner of all that this Kip makes.
	controllerID string
	store        *store.Store

	// dial opens connections to cells; nil for TCP.
	dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

	elected atomic.Bool             // it is this process's turn
	aside   atomic.Pointer[string]  // why it does nothing all the same, while it does not
	leading atomic.Pointer[leading] // set a little later, when it has begun
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
	operators, err := readCloudInit(cfg)
	if err != nil {
		return err
	}
	k := &process{
		Options: o,
		cfg:     cfg,
		data:    data,
		setUp:   operators,
		clock:   clock.RealClock{},
	}
	k.watchdog = watchdog.New(k.clock, o.Log)
	k.metrics = metrics.New(metrics.Config{
		Read:  k.reading,
		Clock: k.clock,
		Log:   o.Log,
	})
	if k.api, err = connect(o, k.metrics.WrapTransport); err != nil {
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
	k.store = st.Observed(k.metrics.StoreObserver)
	if err := k.identify(ctx); err != nil {
		return errors.Join(err, st.Close())
	}
	o.Log.Info("starting", "version", version.String(), "node", o.NodeName, "controller", k.controllerID)
	err = runParts(ctx, k.parts())
	if ctx.Err() != nil {
		o.Log.Info("stopped; pods go on running on their cells")
	}
	return errors.Join(err, st.Close())
}

// identify finds out who this Kip is.
func (k *process) identify(ctx context.Context) error {
	if k.controllerID = k.cfg.Testing.ControllerID; k.controllerID != "" {
		return nil
	}
	uid, err := k.api.clusterUID(ctx, k.store, k.Log)
	k.controllerID = cells.ControllerID(string(uid), k.NodeName)
	return err
}

// parts are what runs in each process. The last one waits until this process leads,
// and then runs the parts of that.
func (k *process) parts() []part {
	own := k.store.Within(k.controllerID + "/")
	all := []part{
		{name: "watchdog", run: k.watchdog.Run},
		{name: "store", run: func(ctx context.Context) error { return k.keepStore(ctx, own) }},
	}
	if k.MetricsAddr != "0" {
		all = append(all, part{name: "metrics", run: k.serveMetrics})
	}
	if k.WebhookPort != 0 {
		all = append(all,
			part{name: "configuration of others", run: func(ctx context.Context) error { return k.followOthers(ctx, own) }},
			part{name: "admission", run: func(ctx context.Context) error { return k.answerAdmission(ctx, own) }})
	} else if len(k.cfg.Admission.Profiles) > 0 {
		k.Log.Warn("admission.profiles have no effect, since --webhook-port is 0: want a port at which the API server asks about pods")
	}
	return append(all, part{name: "leadership", run: func(ctx context.Context) error { return k.takeTurns(ctx, own, k.lead) }})
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

var (
	// errDeposed: the lease of the leader has run out.
	errDeposed = errors.New("this process no longer leads: another Kip may")
	// errStill: a loop of the leader has stood still, and another is to lead.
	errStill = errors.New("a loop has stood still, and the lease is given up")
)

// takeTurns does Kip's work whenever this process leads.
func (k *process) takeTurns(ctx context.Context, own *store.Store, lead task) error {
	for {
		err := k.turn(ctx, own, lead)
		deposed := errors.Is(err, errDeposed)
		if errors.Is(err, cells.ErrTakenOver) && !deposed && ctx.Err() == nil {
			k.Log.Warn("the store has taken over, and its cells are loaded anew")
			continue
		}
		if errors.Is(err, errNewCA) && !deposed && ctx.Err() == nil {
			k.Log.Info("cells are loaded anew, with the CAs that are stored", "err", err)
			continue
		}
		if errors.Is(err, cells.ErrBehindTime) && !deposed && ctx.Err() == nil {
			k.Log.Warn("a new term is begun, by a clock that has been set", "err", err)
			continue
		}
		if (errors.Is(err, holder.ErrOther) || errors.Is(err, holder.ErrFollowed)) && !deposed && ctx.Err() == nil {
			k.Log.Error("two Kips of one node run: what this one did is given up, and its pods go on running on their cells", "err", err)
			continue
		}
		// One that another has followed begins afresh, in a new process. While
		// the store does not answer nobody follows: this one goes on saying so,
		// and leads again.
		if !deposed || own.Healthy(ctx) == nil {
			return err
		}
		k.Log.Warn("the store does not answer; pods go on running on their cells until this process leads again", "err", err)
	}
}

// resignTimeout bounds the handing over to another replica, which otherwise waits
// for the lease to run out.
const resignTimeout = 3 * time.Second

// task is what a process does while it leads, with its fenced view of the store.
type task func(ctx context.Context, st *store.Store) error

// turn waits until this process leads, and does Kip's work as long as it does.
func (k *process) turn(ctx context.Context, own *store.Store, lead task) (err error) {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	leadership, err := leader.Elect(ctx, own, fmt.Sprintf("%s (process %d)", host, os.Getpid()), k.Log)
	if err != nil {
		return err
	}
	resign := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
		defer cancel()
		return leadership.Resign(ctx)
	}
	defer func() { err = errors.Join(err, resign()) }()
	k.elected.Store(true)
	defer func() {
		k.elected.Store(false)
		k.leading.Store(nil)
	}()
	work, stop := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-leadership.Lost():
			stop(errDeposed)
		case <-k.watchdog.Stalled():
			stop(errStill)
			// Now: what stands still may never end. The fence keeps it from writing.
			if err := resign(); err != nil {
				k.Log.Warn("give up the lease", "err", err)
			}
		case <-work.Done():
		}
	}()
	defer func() { stop(nil); <-watched }()
	st := leadership.Store()
	if err = st.Migrate(work); err == nil {
		err = lead(work, st)
	}
	if cause := context.Cause(work); errors.Is(cause, errDeposed) || errors.Is(cause, errStill) {
		return errors.Join(cause, err)
	}
	return err
}

// ofLeader asks what only a process that leads can answer.
func ofLeader[T any](k *process, ask func(*leading) T) (answer T) {
	if l := k.leading.Load(); l != nil {
		answer = ask(l)
	}
	return answer
}

// reading is what metrics tell of the moment.
func (k *process) reading() metrics.Reading {
	r := ofLeader(k, (*leading).reading)
	r.Aside = k.aside.Load() != nil
	return r
}

// reading is what a process that leads tells of it.
func (l *leading) reading() metrics.Reading {
	return metrics.Reading{
		Cells:   l.cells.List(),
		NodeOf:  l.cells.NodesOf(),
		Nodes:   l.nodes.Names(),
		Tunnels: l.cells.Connected(),
		Waiting: l.pods.WaitingPods(),
		Held:    l.guard.Held(),
		CA: metrics.CA{
			Ends:    l.ca.is.authorities.Signing.Certificate().NotAfter,
			Unmoved: len(l.cells.Unmoved()),
		},
		Behind: l.notBehind() != nil,
		Ledger: l.cells.Costs(),
		Spent:  l.cells.CostsByNamespace(),

		PricesTold: l.instanceTypes.PricesTold(),
	}
}
