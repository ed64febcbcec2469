package kip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/catalog/books"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/crd"
	"github.com/elotl/kip/internal/egress"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/isolation"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/provisioner"
	"github.com/elotl/kip/internal/stall"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/internal/version"
	"github.com/elotl/kip/internal/volumes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// leading is what a process has while it leads, each made of those above it.
type leading struct {
	*process
	store    *store.Store // fenced: it writes only while this process leads
	ca       ca
	hold     *holder.Hold // of the node
	holdLoop *stoppable
	late     *stall.Meter

	machines      *pipe.Pipe
	generation    *cells.StoreGeneration
	guard         *guard.Guard // guards machines
	disks         cloud.Disks  // nil where the cloud has none
	instanceTypes *instancetypes.Provider
	termBegan     time.Time   // by the clock as it was then
	uses          *stats.Uses // what the meter notes
	meter         *stats.Meter
	shortages     *storedShortages
	facts         *storedFacts // of the cloud's account

	nodes       *nodes.Nodes
	provisioner *provisioner.Provisioner // nil without disks
	events      podEvents
	recorder    record.EventRecorder // of what is no pod's
	logs        *podlogs.Saver
	cellAPI     *cellapi.Server

	egress    *egress.Egress // nil where no cell masquerades
	firewalls *isolation.Controller
	mirror    *cells.Mirror
	rotation  *rotation
	cloudInit cloudInitLoop
	// crdAnswered is closed when the API server has answered whether it has the Cell resource.
	crdAnswered chan struct{}

	cells  *cells.Controller
	claims cache.SharedIndexInformer
	pods   *pods.Controller

	nodeLoop *stoppable
	clientCA dynamiccertificates.CAContentProvider // of those who call the kubelet ports
	socket   *adminapi.Server

	closers []func() // in the order in which they were made
}

// lead does Kip's work until ctx ends.
func (k *process) lead(ctx context.Context, st *store.Store) (err error) {
	l := &leading{
		process:     k,
		store:       st,
		late:        stall.New(k.clock),
		crdAnswered: make(chan struct{}),
	}
	defer l.close()
	l.termBegan = k.clock.Now()
	if l.hold, err = k.holdNode(ctx, st); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ctx, release := l.keepNode(ctx)
	defer release()
	if err := l.wire(ctx); err != nil {
		return cmp.Or(lost(ctx), err)
	}
	known := l.cells.List()
	k.metrics.Known(known)
	k.leading.Store(l)
	defer k.leading.Store(nil)
	err = runParts(ctx, l.parts(known))
	return cmp.Or(lost(ctx), err)
}

// wire makes what works while this process leads, and loads the cells.
func (l *leading) wire(ctx context.Context) error {
	for _, wire := range []func(context.Context) error{
		l.wireEvents, l.wireCloud, l.wireShortages, l.wireNodes, l.wireProvisioner, l.wireEgress, l.wireClusterAPI, l.wireCells, l.wireMeter,
		l.wirePods, l.wireNodeObjects, l.wireSocket,
	} {
		if err := wire(ctx); err != nil {
			return err
		}
	}
	for _, o := range l.observers() {
		l.cells.Observe(o)
	}
	return l.cells.Load(ctx)
}

// parts are all that runs while this process leads.
func (l *leading) parts(known []cells.Cell) []part {
	all := []part{
		{name: "stall meter", run: l.late.Run},
		{name: "local socket", run: l.socket.Run},
		{name: "client CA", run: func(ctx context.Context) error { return node.FollowClientCA(ctx, l.clientCA) }},
		{name: "shortages", run: l.shortages.keep},
		{name: "facts", run: l.facts.keep},
		{name: "catalogue", run: l.instanceTypes.Run},
		{name: "meter", run: l.meter.Run},
	}
	if l.provisioner != nil {
		all = append(all, part{name: "provisioner", run: l.provisioner.Run})
	}
	if l.egress != nil {
		all = append(all, part{name: "egress", run: l.egress.Run})
	}
	if l.WebhookPort != 0 {
		all = append(all, part{name: "pods without a toleration", run: l.reportUntolerating})
	}
	return append(all,
		part{name: "pod informer", run: l.nodes.Follow}, // and the kubelet port, of each node
		part{name: "cell API", run: l.cellAPI.Run},
		part{name: "firewalls", run: l.firewalls.Run},
		// Before the API server has answered: cells run on meanwhile, and are heard.
		part{name: "cells", run: l.cells.Run},
		part{name: "rotation of the CA", run: l.rotation.Run},
		part{name: "cloud-init file", run: l.cloudInit.Run},
		part{name: "saved logs", run: l.sweepLogs},
		part{
			name:  "cell mirror",
			run:   func(ctx context.Context) error { return l.mirrorCells(ctx, known) },
			ready: func(ctx context.Context) { await(ctx, l.crdAnswered) },
		},
		part{
			name:  "pods of the node",
			run:   func(ctx context.Context) error { <-ctx.Done(); return nil },
			ready: func(ctx context.Context) { cache.WaitForCacheSync(ctx.Done(), l.nodes.Pods().HasSynced) },
		},
		part{name: "virtual node", run: l.nodeLoop.Run, ready: l.nodes.Registered},
		part{name: "capacity of virtual nodes", run: l.nodes.KeepCapacity},
		part{name: "claims of pods", run: func(ctx context.Context) error { l.claims.RunWithContext(ctx); return nil }},
		// Only when the node is ours: a real node of the same name has its own
		// kubelet for its pods.
		part{name: "pods", run: l.pods.Run},
	)
}

// await waits until c is closed, or ctx ends.
func await(ctx context.Context, c <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-c:
	}
}

// crdRetry is the pause between two checks of the definition of cells.
const crdRetry = 5 * time.Second

// mirrorCells waits until the cluster has the definition of the Cell resource, and writes the cells to it until ctx ends.
// Pods run without it.
func (l *leading) mirrorCells(ctx context.Context, known []cells.Cell) error {
	if !awaitCRD(ctx, crdWait{
		check:    l.api.checkCRD,
		clock:    l.clock,
		answered: sync.OnceFunc(func() { close(l.crdAnswered) }),
		say:      l.sayOfNode,
		log:      l.Log,
	}) {
		return nil
	}
	return l.mirror.Run(ctx, known)
}

// sayOfNode reports an Event of Kip's own virtual node.
func (l *leading) sayOfNode(e events.Event) {
	l.recorder.Event(nodeReference(l.NodeName), e.Type, e.Reason, e.Message)
	l.Log.Info(e.Message, "node", l.NodeName, "reason", e.Reason)
}

// crdWait is what awaitCRD needs.
type crdWait struct {
	check    func(context.Context) error // crd.Check
	clock    clock.Clock
	answered func() // called once the API server has answered
	say      func(events.Event)
	log      *slog.Logger
}

// awaitCRD waits until cells can be written. It reports whether they can before ctx ends.
func awaitCRD(ctx context.Context, w crdWait) bool {
	var said string
	for {
		err := w.check(ctx)
		if ctx.Err() != nil {
			return false
		}
		var older *crd.OlderError
		switch {
		case err == nil:
			w.answered()
			return true
		case errors.As(err, &older), apierrors.IsForbidden(err):
			// Then the mirror itself shows whether cells can be written.
			w.answered()
			w.say(events.NewCellDefinitionUnfit(err))
			return true
		case errors.Is(err, crd.ErrNotServed):
			w.answered()
			w.log.Info("waiting until the API server serves the Cell resource")
		case unanswered(err):
			w.log.Warn("check the definition of the Cell resource, retrying", "err", err)
		default:
			w.answered()
			if said != err.Error() {
				said = err.Error()
				w.say(events.NewCellDefinitionUnfit(err))
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.clock.After(crdRetry):
		}
	}
}

// atEnd has f called when this process leads no more, the last given first.
func (l *leading) atEnd(f func()) { l.closers = append(l.closers, f) }

func (l *leading) close() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
}

// wireEvents makes what reports Events, which the cloud does, too.
func (l *leading) wireEvents(ctx context.Context) error {
	recorder, stop := l.api.eventRecorder(ctx, l.NodeName)
	l.events, l.recorder = podEvents{recorder}, recorder
	l.atEnd(stop)
	return nil
}

// wireCloud makes what reaches the cloud.
func (l *leading) wireCloud(ctx context.Context) (err error) {
	if l.ca, err = l.loadCA(ctx); err != nil {
		return err
	}
	if l.facts, err = loadFacts(ctx, l.store, l.clock, l.Log); err != nil {
		return err
	}
	bare, closeIt, err := l.Clouds.Open(ctx, l.cfg, clouds.By{
		Owner:      l.controllerID,
		Facts:      l.facts,
		AgentsOpen: func(group string, port int, rules string) { l.sayOfNode(events.NewAgentPortOpen(group, port, rules)) },
	}, l.Log)
	if err != nil {
		return err
	}
	l.atEnd(func() {
		if err := closeIt(); err != nil {
			l.Log.Warn("close the cloud", "err", err)
		}
	})
	l.generation = cells.NewStoreGeneration(l.store, bare.Traits().ListLag)
	l.guard = guard.New(guard.Config{
		Behind: l.generation.Behind,
		Limit:  guard.Limit(l.cfg.Cells.EndLimit),
		Store:  l.store,
		Clock:  l.clock,
	})
	l.machines = pipe.New(pipe.Config{
		Cloud:    bare,
		Guard:    l.guard.Intercept,
		Leads:    l.store.Leads,
		Meter:    l.metrics,
		Watchdog: l.watchdog,
		Clock:    l.clock,
	})
	l.disks = l.machines.Features().Disks
	if err := l.checkRegion(ctx); err != nil {
		return err
	}
	return l.openShop(ctx)
}

// checkRegion returns an error where this Kip has cells or volumes in another region than the cloud's. The lists of that region lack them
// all, so Kip would launch other cells for their pods, and never end these. It would let the volumes of deleted claims go without their
// disks.
func (l *leading) checkRegion(ctx context.Context) error {
	name, region := l.machines.Name(), l.machines.Traits().Region
	was, err := instancetypes.StoredRegion(ctx, l.store, name)
	if err != nil || was == "" || region == "" || was == region {
		return err
	}
	refuse := func(why string) error {
		return l.cfg.Refuse(map[string]string{"cloud." + name + ".region": region + " is not valid: this Kip has " + why})
	}
	there := 0
	err = cells.Stored(ctx, l.store, func(cell cells.Cell) {
		if cell.Phase != apiv1.Gone && (cell.Instance != nil || cell.Launch != nil) {
			there++
		}
	})
	if err != nil {
		return err
	}
	if there > 0 {
		return refuse(fmt.Sprintf("cells in %s (%d), and would launch others for their pods: want %s until they have ended", was, there, was))
	}
	left, err := l.volumesOutside(ctx, region)
	if err != nil {
		return fmt.Errorf("change cloud.%s.region from %s to %s: %w", name, was, region, err)
	}
	if len(left) > 0 {
		return refuse(fmt.Sprintf("PersistentVolumes with disks in %s (%d, such as %s), which would stay there when their claims are deleted: "+
			"want %s until these claims and PersistentVolumes are deleted", was, len(left), left[0], was))
	}
	return nil
}

// volumesOutside returns the names of the PersistentVolumes whose disks this Kip made, or is to delete, and that are in no zone whose name
// begins with the region's.
func (l *leading) volumesOutside(ctx context.Context, region string) (names []string, err error) {
	all, err := l.api.asProvisioner.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the PersistentVolumes with disks of this Kip: %w", err)
	}
	for _, pv := range all.Items {
		csi := pv.Spec.CSI
		if csi != nil && csi.Driver == volumes.Driver && csi.VolumeAttributes[volumes.AttributeNode] == l.NodeName &&
			!strings.HasPrefix(csi.VolumeAttributes[volumes.AttributeZone], region) {
			names = append(names, pv.Name)
		}
	}
	return names, nil
}

// wireProvisioner makes what makes disks for claims.
func (l *leading) wireProvisioner(ctx context.Context) (err error) {
	if l.disks == nil {
		return nil
	}
	l.provisioner, err = provisioner.New(ctx, provisioner.Config{
		Node:         l.NodeName,
		ControllerID: l.controllerID,
		NodeLabel:    apiv1.LabelController,
		NameTag:      l.nameTag(),
		Disks:        l.disks,
		Checker:      l.machines.Features().DiskChecker,
		Grower:       l.machines.Features().DiskGrower,
		ListLag:      l.machines.Traits().ListLag,
		Nodes:        l.nodes,
		Client:       l.api.asProvisioner,
		Queues:       l.metrics.WorkqueueProvider(),
		Clock:        l.clock,
		Log:          l.Log,
	})
	return err
}

// cloudDriver is the cloud's own CSI driver, if it has one whose disks Kip can attach.
func (l *leading) cloudDriver() volumes.CloudDriver {
	if l.disks == nil {
		return volumes.CloudDriver{}
	}
	return volumes.CloudDriver(l.machines.Traits().DiskDriver)
}

// openShop makes what knows what can be launched, and at what price.
func (l *leading) openShop(ctx context.Context) error {
	rates, err := books.Rates(l.machines.Name(), l.machines.Traits().Region)
	if err != nil {
		return err
	}
	l.instanceTypes, err = instancetypes.Open(ctx, instancetypes.Config{
		Cloud: l.machines,
		Store: l.store,
		Placement: placement.Config{
			DefaultInstanceType: l.cfg.Cells.DefaultInstanceType,
			DefaultArch:         runtime.GOARCH,
			ReservedMemoryBytes: l.cfg.Cells.ReservedMemory.Value(),
			DefaultDiskBytes:    l.cfg.Cells.DefaultVolumeSize.Value(),
			PrivateIPOnly:       l.cfg.Cells.PrivateIPOnly,
			SpotSpread:          float64(l.cfg.Cells.SpotSpread) / 100,
			Rates:               rates,
		},
		Data:  l.data,
		Terms: terms(l.cfg),
		Image: imageName(launchOptions(l.cfg)),

		InterruptionShare: float64(l.cfg.Cells.InterruptionPenalty) / 100,

		Clock: l.clock,
		Log:   l.Log,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", l.ProviderConfig, err)
	}
	return nil
}

// nameTag is the name of what this Kip makes in the cloud, for people.
func (l *leading) nameTag() string { return cmp.Or(l.cfg.Cells.Nametag, l.controllerID) }

// wireShortages makes what knows which capacity is missing.
func (l *leading) wireShortages(ctx context.Context) (err error) {
	l.shortages, err = loadShortages(ctx, l.store, l.clock, l.Log)
	return err
}

// wireClusterAPI makes what follows the cluster and shows it to cells.
func (l *leading) wireClusterAPI(ctx context.Context) (err error) {
	if l.logs, err = podlogs.Open(podlogs.Config{Dir: filepath.Join(l.cfg.Etcd.Internal.DataDir, "podlogs"), Log: l.Log}); err != nil {
		return err
	}
	l.cellAPI, err = cellapi.New(cellapi.Config{
		NodeName:  l.NodeName,
		Node:      l.api.nodeConfig,
		Own:       l.api.ownConfig,
		Pods:      l.nodes.Pods(),
		IPv6:      l.machines.Traits().IPv6,
		Images:    l.imageCredentials(),
		Events:    l.events,
		Observer:  l.metrics,
		Overdrawn: tunnel.Hold,
		Log:       l.Log,

		CloudDriver: l.cloudDriver(),
	})
	if err != nil {
		return err
	}
	many, err := l.api.protobuf()
	if err != nil {
		return err
	}
	l.firewalls = isolation.New(isolation.Config{
		Pods:           l.nodes.Pods(),
		Client:         many,
		Shared:         l.cellAPI.Watches(),
		AllowsMetadata: allowsMetadata(grants(l.cfg)),
		Masquerade:     l.masquerade(),
		Events:         l.events,
		Watchdog:       l.watchdog,
		Queues:         l.metrics.WorkqueueProvider(),
		Clock:          l.clock,
		Log:            l.Log,
	})
	l.atEnd(l.firewalls.Close)
	return nil
}

// wireCells makes what launches cells, keeps them and ends them.
func (l *leading) wireCells(ctx context.Context) error {
	authorities := l.ca.is.authorities
	cloudInit, err := l.openCloudInit(ctx, l.sayOfNode)
	if err != nil {
		return err
	}
	tunnels, err := tunnel.NewDialer(tunnel.DialerConfig{
		Authority: authorities.Signing,
		Before:    authorities.Before,
		Term:      l.hold.Term(),
		Log:       l.Log,
		Late:      l.late,
		Dial:      l.dial,
	})
	if err != nil {
		return err
	}
	dns, err := l.api.clusterDNS(ctx, l.ClusterDNS, l.cellAPI.Watches(), l.store, l.Log)
	if err != nil {
		return err
	}
	pools, err := l.standbyPools()
	if err != nil {
		return err
	}
	traits := l.machines.Traits()
	l.uses = stats.NewUses()
	l.cells = cells.New(cells.Config{
		NodeName:     l.NodeName,
		Nodes:        l.nodes,
		ControllerID: l.controllerID,
		TermBegan:    l.termBegan,
		NameTag:      l.nameTag(),
		Budgets:      budgets(l.cfg),
		Calls:        l.machines,
		Guard:        l.guard,
		Store:        l.store,
		Generation:   l.generation,
		Tunnels:      cells.OverTunnels(tunnels),
		APIs:         cells.ServedBy(l.cellAPI),
		CAHash:       authorities.Signing.Hash(),
		OldCAHash:    l.ca.oldHash(),
		Template:     template(l.cfg, authorities.Signing.Hash()),
		CloudInit:    cloudInit,
		NodeEvents:   l.nodes,
		Agent:        agentOf(l.cfg),
		Version:      version.String(),

		Pools:     pools,
		Options:   standbyOptions(l.cfg),
		Shortages: seenShortages{l.shortages, l.nodes, l.instanceTypes},

		Meter:    useOfCells{l.uses},
		Events:   l.events,
		Logs:     l.savedLogs(),
		Watchdog: l.watchdog,
		Queues:   l.metrics.WorkqueueProvider(),

		ClusterDNS:          dns,
		ClusterDomain:       l.ClusterDomain,
		ReservedMemoryBytes: l.cfg.Cells.ReservedMemory.Value(),
		RegistryMirrors:     l.cfg.Cells.RegistryMirrors,
		ImagesOfCloud:       l.imagesOfCloud(),
		HasPlugins:          len(l.cfg.Cells.CSIDrivers) > 0,

		Health:      health(l.cfg),
		ListLag:     traits.ListLag,
		SoonPoll:    traits.Poll,
		RefillDelay: traits.RefillDelay,
		Late:        l.late,
		Clock:       l.clock,
		Log:         l.Log,
	})
	l.atEnd(l.cells.Close)
	l.cloudInit = newCloudInitLoop(cloudInit, l.cells)
	l.rotation = l.newRotation(l.cells, l.sayOfNode)
	l.mirror = cells.NewMirror(l.api.ownDynamic, l.NodeName, l.controllerID, version.String(), l.cells.WaitsFor, l.Log)
	l.atEnd(l.mirror.Close)
	return nil
}

// wireMeter makes what asks cells what their pods use.
func (l *leading) wireMeter(context.Context) error {
	l.meter = stats.NewMeter(stats.Config{
		Cells: func() []stats.Cell { return statsCells(l.cells.Endpoints(), "") },
		Clock: l.clock,
		Log:   l.Log,
	}, l.uses)
	return nil
}

// wirePods makes the loop that matches pods to cells.
func (l *leading) wirePods(context.Context) (err error) {
	resolver := volumes.Resolver{Client: l.api.asKip.CoreV1(), Drivers: l.api.csiDrivers(l.cfg)}
	if l.provisioner != nil {
		resolver.Owned, resolver.Others, resolver.CloudDriver = l.provisioner.Owned, l.provisioner.Others, l.cloudDriver()
		resolver.Attachable, resolver.OurInstance = l.provisioner.Attachable, l.cells.HasInstance
	}
	if l.claims, err = volumes.WatchClaims(l.api.asKip); err != nil {
		return err
	}
	l.pods, err = pods.New(pods.Config{
		Pods:        l.nodes.Pods(),
		Nodes:       l.nodes,
		Cells:       l.cells,
		Volumes:     resolver,
		Claims:      l.claims,
		Options:     launchOptions(l.cfg),
		Grants:      grants(l.cfg),
		CostLabels:  l.cfg.Costs.Labels,
		Events:      l.events,
		Observer:    podObserver{metrics: l.metrics, logs: l.savedLogs(), cells: l.cells},
		MaxAttempts: l.cfg.Cells.MaxAttempts,
		Leadership:  l.store,
		Watchdog:    l.watchdog,
		Queues:      l.metrics.WorkqueueProvider(),
		Clock:       l.clock,
		Log:         l.Log,
	})
	if err != nil {
		return err
	}
	l.atEnd(l.pods.Close)
	return nil
}
