package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/control"
	"github.com/elotl/kip/internal/isolation"
	"github.com/elotl/kip/internal/leader"
	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/provisioner"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/internal/version"
	"github.com/elotl/kip/internal/volumes"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// run wires Kip together and runs it until ctx ends.
func run(ctx context.Context, o options) error {
	if err := o.complete(); err != nil {
		return err
	}
	log, err := o.logger()
	if err != nil {
		return err
	}
	slog.SetDefault(log)
	klog.SetSlogLogger(log)
	cfg, warnings, err := config.Load(o.providerConfig)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		log.Warn("provider.yaml", "warning", w.String())
	}
	for _, key := range withoutEffect(cfg) {
		log.Warn("provider.yaml", "warning", key+" has no effect in this build")
	}

	k := &kip{options: o, cfg: cfg, clock: clock.RealClock{}, log: log}
	k.metrics = metrics.New(metrics.Config{
		Cells:   func() []cells.Cell { return ofLeader(k, func(l *leading) []cells.Cell { return l.cells.List() }) },
		Tunnels: func() int { return ofLeader(k, func(l *leading) int { return l.cells.Connected() }) },
		Waiting: func() int { return ofLeader(k, func(l *leading) int { return l.pods.WaitingPods() }) },
		Ledger:  func() []metrics.Cost { return ofLeader(k, func(l *leading) []metrics.Cost { return l.cells.Costs() }) },
		Clock:   k.clock, Log: log,
	})
	api, err := connect(ctx, o, k.metrics.WrapTransport)
	if err != nil {
		return err
	}
	controllerID := cfg.Testing.ControllerID
	if controllerID == "" {
		controllerID = cells.ControllerID(string(api.clusterUID), o.nodeName)
	}
	log.Info("starting", "version", version.String(), "node", o.nodeName, "controller", controllerID)

	c := cfg.Etcd.Client
	st, err := store.Open(ctx, cfg.Etcd.Internal.DataDir, cfg.Etcd.Internal.ConfigFile,
		store.External{Endpoints: c.Endpoints, CertFile: c.CertFile, KeyFile: c.KeyFile, CAFile: c.CAFile})
	if err != nil {
		return err
	}
	k.store = st.Observed(k.metrics.StoreObserver)
	err = k.run(ctx, api, controllerID)
	if ctx.Err() != nil {
		log.Info("stopped; pods go on running on their cells")
		err = nil
	}
	return errors.Join(err, st.Close())
}

// kip is one process of Kip: it leads, or stands by until it does.
type kip struct {
	options options
	cfg     *config.Config
	clock   clock.WithTicker
	log     *slog.Logger
	metrics *metrics.Metrics
	store   *store.Store
	elected atomic.Bool             // it is this process's turn
	leading atomic.Pointer[leading] // set a little later, when it has begun
}

// leading is what runs in the one process of several that leads.
type leading struct {
	cells *cells.Controller
	pods  *pods.Controller
	ready []metrics.Check
}

// ofLeader asks what only a process that leads can answer.
func ofLeader[T any](k *kip, ask func(*leading) T) (answer T) {
	if l := k.leading.Load(); l != nil {
		answer = ask(l)
	}
	return answer
}

// resignTimeout bounds the handing over to another replica, which otherwise waits
// for the lease to run out.
const resignTimeout = 3 * time.Second

// run serves metrics and health, waits until this process leads, and then does
// Kip's work. Whatever ends ends the rest.
func (k *kip) run(ctx context.Context, api *apiServer, controllerID string) error {
	own := k.store.Within(controllerID + "/")
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return k.serveMetrics(ctx) })
	all.Go(func() error { own.Maintain(ctx, k.log); return nil })
	all.Go(func() error { return watchStore(ctx, k.store) })
	all.Go(func() error {
		for {
			err := k.turn(ctx, api, controllerID, own)
			// One that another has followed begins afresh, in a new process. While
			// the store does not answer nobody follows: this one goes on saying so,
			// and leads again.
			if !errors.Is(err, errDeposed) || own.Healthy(ctx) == nil {
				return err
			}
			k.log.Warn("the store does not answer; pods go on running on their cells until this process leads again", "err", err)
		}
	})
	return all.Wait()
}

// errDeposed: the lease of the leader has run out.
var errDeposed = errors.New("this process no longer leads: another Kip may")

// turn waits until this process leads, and does Kip's work as long as it does.
func (k *kip) turn(ctx context.Context, api *apiServer, controllerID string, own *store.Store) (err error) {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	leadership, err := leader.Elect(ctx, own, fmt.Sprintf("%s (process %d)", host, os.Getpid()), k.log)
	if err != nil {
		return err
	}
	defer func() {
		resign, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
		defer cancel()
		err = errors.Join(err, leadership.Resign(resign))
	}()
	k.elected.Store(true)
	defer func() {
		k.elected.Store(false)
		k.leading.Store(nil)
	}()
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-leadership.Lost():
			stop(errDeposed)
		case <-work.Done():
		}
	}()
	st := leadership.Store()
	err = st.Migrate(work)
	if err == nil {
		err = k.lead(work, api, controllerID, st)
	}
	if context.Cause(work) == errDeposed {
		return errors.Join(errDeposed, err)
	}
	return err
}

// serveMetrics serves metrics, health and readiness until ctx ends.
func (k *kip) serveMetrics(ctx context.Context) error {
	if k.options.metricsAddr == "0" {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", k.options.metricsAddr)
	if err != nil {
		return fmt.Errorf("serve metrics on --metrics-addr: %w", err)
	}
	ready := []metrics.Check{{Name: "store", Func: k.store.Ready}}
	for _, name := range []string{"pods", "node"} {
		ready = append(ready, metrics.Check{Name: name, Func: func(ctx context.Context) error {
			// A process that stands by is ready to.
			if k.elected.Load() && k.leading.Load() == nil {
				return errors.New("the work has not begun yet")
			}
			return ofLeader(k, func(l *leading) error {
				for _, c := range l.ready {
					if c.Name == name {
						return c.Func(ctx)
					}
				}
				return nil
			})
		}})
	}
	server := &http.Server{Handler: k.metrics.Handler(nil, ready), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(k.log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// withoutEffect lists the keys that are set and that this build does not act on.
func withoutEffect(cfg *config.Config) (keys []string) {
	c := cfg.Cells
	for key, set := range map[string]bool{
		"cells.cloudInitFile": c.CloudInitFile != "",
		"cells.cellConfig":    len(c.CellConfig) > 0,
	} {
		if set {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// lead does Kip's work until ctx ends.
func (k *kip) lead(ctx context.Context, api *apiServer, controllerID string, st *store.Store) error {
	o, cfg, real, log := k.options, k.cfg, k.clock, k.log
	authority, err := loadAuthority(ctx, st, real)
	if err != nil {
		return err
	}
	bare, err := openCloud(cfg, log)
	if err != nil {
		return err
	}
	machines, disks := k.metrics.Cloud(bare), k.metrics.Disks(bare)
	if c, ok := bare.(interface{ Close() error }); ok {
		defer func() {
			if err := c.Close(); err != nil {
				log.Warn("close the cloud", "err", err)
			}
		}()
	}
	catalogue, err := machines.Catalogue(ctx)
	if err != nil {
		return fmt.Errorf("read the catalogue of cloud %s: %w", machines.Name(), err)
	}
	provision := func(ctx context.Context) error { <-ctx.Done(); return nil }
	if disks != nil { // first, as it asks for
		p, err := provisioner.New(ctx, provisioner.Config{
			Node: o.nodeName, ControllerID: controllerID, NameTag: cmp.Or(cfg.Cells.Nametag, controllerID), Disks: disks, Zones: zones(catalogue),
			Client: api.asKip, Log: log,
		})
		if err != nil {
			return err
		}
		provision = p.Run
	}
	reserved := cfg.Cells.ReservedMemory.Value()
	placer, err := placement.New(catalogue, placement.Config{
		DefaultInstanceType: cfg.Cells.DefaultInstanceType, DefaultArch: runtime.GOARCH,
		ReservedMemoryBytes: reserved, DefaultDiskBytes: cfg.Cells.DefaultVolumeSize.Value(),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", o.providerConfig, err)
	}
	unavailable, err := loadShortages(ctx, st, real, log)
	if err != nil {
		return err
	}
	shortages := unavailable.shortages
	disk := cfg.Cells.DefaultVolumeSize.Value()
	place := func(pod *corev1.Pod, zone string) ([]cells.Offer, error) {
		candidates, err := placer.Candidates(placement.InZone(pod, zone), shortages.Unavailable)
		return offers(candidates, disk), err
	}
	pools, err := standbyPools(cfg, o.providerConfig, machines, catalogue, unavailable.unavailable, disk)
	if err != nil {
		return err
	}
	if err := api.installCRD(ctx, log); err != nil {
		return err
	}

	logs, err := podlogs.Open(podlogs.Config{Dir: filepath.Join(cfg.Etcd.Internal.DataDir, "podlogs"), Log: log})
	if err != nil {
		return err
	}
	tunnels, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: log})
	if err != nil {
		return err
	}
	podInformer := api.podInformer(o.nodeName)
	cellAPI, err := cellapi.New(cellapi.Config{NodeName: o.nodeName, Node: api.nodeConfig, Own: api.ownConfig, Pods: podInformer, IPv6: givesIPv6(cfg.Cloud), Log: log})
	if err != nil {
		return err
	}
	dns, err := api.clusterDNS(ctx, o.clusterDNS, cellAPI, log)
	if err != nil {
		return err
	}
	events, stopEvents := api.eventRecorder(ctx, o.nodeName)
	defer stopEvents()

	asKipProtobuf, err := api.protobuf()
	if err != nil {
		return err
	}
	firewalls := isolation.New(isolation.Config{
		Pods: podInformer, Client: asKipProtobuf, Shared: cellAPI, AllowsMetadata: allowsMetadata, Event: events,
		Queues: k.metrics.WorkqueueProvider(), Clock: real, Log: log,
	})
	mirror := cells.NewMirror(api.ownDynamic, o.nodeName, controllerID, log)
	var podLoop *pods.Controller
	cellLoop := cells.New(cells.Config{
		NodeName: o.nodeName, ControllerID: controllerID, Cloud: machines, Disks: disks, Store: st, Tunnels: cells.OverTunnels(tunnels), APIs: cells.ServedBy(cellAPI),
		CAHash:      authority.Hash(),
		Cool:        unavailable.mark,
		Unavailable: unavailable.unavailable,
		Event:       events,
		SaveLogs:    logSaver(podInformer, logs),
		Changed: func(c cells.Cell) {
			k.metrics.CellChanged(c)
			mirror.Changed(c)
			podLoop.CellChanged(c)
			isolate(firewalls, c)
		},
		Connected: func(c cells.Cell, agent http.RoundTripper) {
			isolate(firewalls, c)
			firewalls.Connected(c.ID, agent)
		},
		Swept:       k.metrics.Swept,
		Queues:      k.metrics.WorkqueueProvider(),
		Silent:      func(c cells.Cell, since time.Time) { podLoop.CellSilent(c, since) },
		Interrupted: func(c cells.Cell) { podLoop.CellInterrupted(c) },
		ClusterDNS:  dns, ClusterDomain: o.clusterDomain, ReservedMemoryBytes: reserved, RegistryMirrors: cfg.Cells.RegistryMirrors, HasPlugins: len(cfg.Cells.CSIDrivers) > 0,
		NameTag: cmp.Or(cfg.Cells.Nametag, controllerID), Pools: pools, Template: template(cfg, authority.Hash()), Health: health(cfg),
		ListLag: pace(machines).listLag, SoonPoll: pace(machines).soonPoll, RefillDelay: pace(machines).refillDelay, Clock: real, Log: log,
	})
	podLoop, err = pods.New(pods.Config{
		Pods: podInformer, Client: api.asNode.CoreV1(), Cells: cellLoop, Volumes: volumes.Resolver{Client: api.asKip.CoreV1(), HasDisks: disks != nil, Drivers: api.csiDrivers(cfg)}.Needs, Place: place, Event: events,
		Forget: func(uid types.UID) {
			if err := logs.Remove(uid); err != nil {
				log.Warn("remove the saved logs of a pod", "uid", uid, "err", err)
			}
		},
		MaxAttempts: cfg.Cells.MaxAttempts, Running: k.metrics.PodRunning, Queues: k.metrics.WorkqueueProvider(),
		Clock: real, Log: log,
	})
	if err != nil {
		return err
	}

	addresses, err := o.addresses()
	if err != nil {
		return err
	}
	healthy := func(ctx context.Context) error {
		if err := st.Healthy(ctx); err != nil {
			return err
		}
		if !podInformer.HasSynced() {
			return errors.New("pods are not listed yet")
		}
		return nil
	}
	var taint *corev1.Taint
	if !o.disableTaint {
		t, err := node.TaintFromEnv(os.LookupEnv)
		if err != nil {
			return err
		}
		taint = &t
	}
	zone, region := location(catalogue)
	virtual, err := node.New(node.Config{
		Name: o.nodeName, Own: api.asKip, Node: api.asNode, Capacity: cfg.Kubelet.Capacity, Labels: cfg.Kubelet.Labels, Taint: taint,
		Zone: zone, Region: region, Arch: runtime.GOARCH, InternalIP: addresses[0], SecondIP: second(addresses), Port: uint16(o.kubeletPort),
		Version: version.String(), Healthy: healthy, Log: log,
	})
	if err != nil {
		return err
	}
	podStats := stats.New(stats.Config{
		NodeName: o.nodeName, Cells: statsCells(cellLoop), Gathered: k.metrics.StatsGathered, Clock: clock.RealClock{}, Log: log,
	})
	port, err := kubeletPort(ctx, o, api, authority, addresses, podInformer, cellLoop, podLoop, logs, podStats, healthy, log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(addresses[0].String(), strconv.Itoa(o.kubeletPort)))
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	nodeLoop := newStoppable(func(ctx context.Context) error { return after(ctx, podInformer.HasSynced, virtual.Run) })
	socket, err := control.New(control.Config{
		Dir: cfg.Etcd.Internal.DataDir, Version: version.String(), Log: log,
		Backup: backup(st, real),
		Cleaner: &cleaner{
			node: o.nodeName, controllerID: controllerID, pods: listed(podInformer), pause: podLoop.Pause, cells: cellLoop, status: mirror.Status,
			cloud: machines, disks: disks, listLag: pace(machines).listLag, asKip: api.asKip, asNode: api.asNode, resources: api.ownDynamic.Resource(apiv1.Resource),
			store: st, storeHint: storeHint(cfg, st.Prefix()), stopNode: nodeLoop.Stop, clock: real,
		},
		Explainer: &explainer{
			node: o.nodeName, pods: podInformer, cells: cellLoop, loop: podLoop, mirror: mirror, placer: placer, shortages: shortages,
		},
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := cellLoop.Load(ctx); err != nil {
		return errors.Join(err, listener.Close())
	}
	known := cellLoop.List()
	k.metrics.Known(known)
	synced := func(context.Context) error {
		if !podInformer.HasSynced() {
			return errors.New("the pods of the node are not listed yet")
		}
		return nil
	}
	registered := func(context.Context) error {
		select {
		case <-virtual.Ready():
			return nil
		default:
			return fmt.Errorf("node %s is not registered yet", o.nodeName)
		}
	}
	k.leading.Store(&leading{cells: cellLoop, pods: podLoop, ready: []metrics.Check{{Name: "pods", Func: synced}, {Name: "node", Func: registered}}})
	defer k.leading.Store(nil)

	// All that runs, in one list. Whatever ends ends the rest.
	all, ctx := errgroup.WithContext(ctx)
	for name, runs := range map[string]func(context.Context) error{
		"pod informer": func(ctx context.Context) error { podInformer.RunWithContext(ctx); return nil },
		"cell API":     cellAPI.Run,
		"firewalls":    func(ctx context.Context) error { return after(ctx, podInformer.HasSynced, firewalls.Run) },
		"cells":        func(ctx context.Context) error { return after(ctx, podInformer.HasSynced, cellLoop.Run) },
		"cell mirror":  func(ctx context.Context) error { return mirror.Run(ctx, known) },
		"pods":         func(ctx context.Context) error { return whenRegistered(ctx, virtual, podLoop.Run) },
		"virtual node": nodeLoop.Run,
		"pod stats":    podStats.Run,
		"kubelet port": func(ctx context.Context) error { return port.Serve(ctx, listener) },
		"local socket": socket.Run,
		"saved logs":   func(ctx context.Context) error { return sweepLogs(ctx, logs, podInformer, real, log) },
		"shortages":    unavailable.keep,
		"provisioner":  provision,
	} {
		all.Go(func() error {
			if err := runs(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	return all.Wait()
}

// after runs a component when what it needs is there.
func after(ctx context.Context, synced cache.InformerSynced, runs func(context.Context) error) error {
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return nil
	}
	return runs(ctx)
}

// whenRegistered runs a component once the node is ours: a real node of the same
// name has its own kubelet for its pods.
func whenRegistered(ctx context.Context, n *node.Node, runs func(context.Context) error) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.Ready():
		return runs(ctx)
	}
}

// watchStore ends Kip when its embedded store has stopped: without it nothing
// may be done, and a fresh start repairs what can be.
func watchStore(ctx context.Context, st *store.Store) error {
	select {
	case <-ctx.Done():
		return nil
	case <-st.Done():
		return fmt.Errorf("etcd has stopped: %w", st.Err())
	}
}

// authorityKey is where the CA is stored.
const authorityKey = "ca"

// loadAuthority returns the CA of the cells, which is made at the first start.
func loadAuthority(ctx context.Context, st *store.Store, clock clock.PassiveClock) (*pki.Authority, error) {
	var stored []byte
	revision, err := st.Get(ctx, authorityKey, &stored)
	if err != nil {
		return nil, err
	}
	if revision != 0 {
		return pki.Decode(stored, clock.Now)
	}
	authority, err := pki.New(clock.Now)
	if err != nil {
		return nil, fmt.Errorf("make the CA of the cells: %w", err)
	}
	if stored, err = authority.Encode(); err != nil {
		return nil, err
	}
	if _, err := st.Put(ctx, authorityKey, stored, 0); err != nil {
		return nil, err
	}
	return authority, nil
}

// addresses are where the API server reaches this Kip: one, or one of each family.
func (o *options) addresses() ([]netip.Addr, error) {
	if o.nodeIP != "" {
		return parseNodeIP(o.nodeIP)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("find this host's address: %w", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			return []netip.Addr{p.Addr()}, nil
		}
	}
	return nil, errors.New("this host has no address but the loopback's: give --node-ip")
}

func kubeletPort(ctx context.Context, o options, api *apiServer, authority *pki.Authority, addresses []netip.Addr, podInformer cache.SharedIndexInformer,
	cellLoop *cells.Controller, podLoop *pods.Controller, logs *podlogs.Saver, podStats *stats.Stats, healthy func(context.Context) error, log *slog.Logger,
) (*node.Port, error) {
	var certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	if certFile, keyFile := os.Getenv(node.CertFileEnv), os.Getenv(node.KeyFileEnv); certFile != "" || keyFile != "" {
		files, err := node.NewFileCertificate(certFile, keyFile, log)
		if err != nil {
			return nil, err
		}
		certificate = files.GetCertificate
	} else {
		own, err := authority.Server([]string{o.nodeName}, addresses)
		if err != nil {
			return nil, err
		}
		certificate = own.GetCertificate
	}
	clientCA, err := node.ClientCA(ctx, o.clientCA, api.asKip, api.ownConfig.CAData, log)
	if err != nil {
		return nil, err
	}
	return node.NewPort(node.PortConfig{
		NodeName: o.nodeName, Reviews: api.asKip, ClientCA: clientCA, Certificate: certificate,
		Cells: wayToCells{pods: podInformer, cells: cellLoop, loop: podLoop}, Logs: logs, Stats: podStats,
		Pods: func() []*corev1.Pod { return podsOf(podInformer) }, Healthy: healthy, Log: log,
	})
}

// zones are where the catalogue has offerings, that of the cheapest one first.
func zones(types []catalog.InstanceType) (all []string) {
	var offerings []catalog.Offering
	for _, t := range types {
		offerings = append(offerings, t.Offerings...)
	}
	slices.SortStableFunc(offerings, func(a, b catalog.Offering) int {
		return cmp.Or(cmp.Compare(a.PricePerHour, b.PricePerHour), cmp.Compare(a.Zone, b.Zone))
	})
	for _, o := range offerings {
		if !slices.Contains(all, o.Zone) {
			all = append(all, o.Zone)
		}
	}
	return all
}

// location is the zone and the region of the virtual node: the one zone that the
// catalogue offers, "" where there are several.
func location(types []catalog.InstanceType) (zone, region string) {
	zones := map[string]bool{}
	for _, t := range types {
		for _, o := range t.Offerings {
			zones[o.Zone] = true
			zone = o.Zone
		}
	}
	if len(zones) != 1 {
		zone = ""
	}
	return zone, zone
}
