package kip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
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

// What a process has while it leads is made in stages. Each stage has those before it, and is made of them alone:
// term, cloudSide, nodeSide, clusterSide, cellSide, podSide, and leading with all of them.

// term is what a process has from when it leads.
type term struct {
	*process
	store     *store.Store // fenced: it writes only while this process leads
	late      *stall.Meter
	termBegan time.Time    // by the clock as it was then
	hold      *holder.Hold // of the node
	holdLoop  *stoppable
	events    podEvents
	recorder  record.EventRecorder // of what is no pod's
	closers   *[]func()            // in the order in which they were made
}

// cloudSide is what reaches the cloud, and what is known of it.
type cloudSide struct {
	term
	ca            ca
	facts         *storedFacts // of the cloud's account
	machines      *pipe.Pipe
	generation    *cells.StoreGeneration
	guard         *guard.Guard // guards machines
	disks         cloud.Disks  // nil where the cloud has none
	instanceTypes *instancetypes.Provider
	shortages     *storedShortages
}

// nodeSide is which virtual nodes there are.
type nodeSide struct {
	cloudSide
	nodes       *nodes.Nodes
	provisioner *provisioner.Provisioner // nil without disks
}

// clusterSide follows the cluster and shows it to cells.
type clusterSide struct {
	nodeSide
	egress    *egress.Egress // nil where no cell masquerades
	logs      *podlogs.Saver
	cellAPI   *cellapi.Server
	firewalls *isolation.Controller
}

// cellSide launches cells, keeps them and ends them.
type cellSide struct {
	clusterSide
	cells     *cells.Controller
	cloudInit cloudInitLoop
	rotation  *rotation
	mirror    *cells.Mirror
	meter     *stats.Meter
}

// podSide matches pods to cells.
type podSide struct {
	cellSide
	claims cache.SharedIndexInformer
	pods   *pods.Controller
}

// leading is all that a process has while it leads.
type leading struct {
	podSide
	clientCA       dynamiccertificates.CAContentProvider // of those who call the kubelet ports
	nodeController *nodes.Controller                     // serves them
	nodeLoop       *stoppable
	socket         *adminapi.Server
	// crdAnswered is closed when the API server has answered whether it has the Cell resource.
	crdAnswered chan struct{}
}

// lead does Kip's work until ctx ends.
func (k *process) lead(ctx context.Context, st *store.Store) (err error) {
	t := term{
		process:   k,
		store:     st,
		late:      stall.New(k.clock),
		termBegan: k.clock.Now(),
		closers:   &[]func(){},
	}
	defer t.close()
	if t.hold, err = k.holdNode(ctx, st); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ctx, release := t.keepNode(ctx)
	defer release()
	l, err := t.begin(ctx)
	if err != nil {
		return cmp.Or(lost(ctx), err)
	}
	known := l.cells.List()
	k.metrics.Known(known)
	k.leading.Store(l)
	defer k.leading.Store(nil)
	err = runParts(ctx, l.parts(known))
	return cmp.Or(lost(ctx), err)
}

// begin makes what works while this process leads, and loads the cells.
func (t term) begin(ctx context.Context) (*leading, error) {
	t.reportEvents(ctx)
	toCloud, err := t.openCloud(ctx)
	if err != nil {
		return nil, err
	}
	ofNodes, err := toCloud.openNodes(ctx)
	if err != nil {
		return nil, err
	}
	ofCluster, err := ofNodes.followCluster(ctx)
	if err != nil {
		return nil, err
	}
	ofCells, err := ofCluster.keepCells(ctx)
	if err != nil {
		return nil, err
	}
	ofPods, err := ofCells.matchPods()
	if err != nil {
		return nil, err
	}
	l, err := ofPods.serve(ctx)
	if err != nil {
		return nil, err
	}
	return l, l.cells.Load(ctx)
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
		all = append(all, part{
			name: "egress",
			run:  func(ctx context.Context) error { return l.egress.Run(ctx, l.firewalls.MasqueradeChanged) },
		})
	}
	if l.WebhookPort != 0 {
		all = append(all, part{name: "pods without a toleration", run: l.reportUntolerating})
	}
	return append(all,
		part{name: "pod informer", run: l.nodeController.Follow}, // and the kubelet port, of each node
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
		part{name: "virtual node", run: l.nodeLoop.Run, ready: l.nodeController.Registered},
		part{name: "capacity of virtual nodes", run: l.nodeController.KeepCapacity},
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
func (t *term) sayOfNode(e events.Event) {
	t.recorder.Event(nodeReference(t.NodeName), e.Type, e.Reason, e.Message)
	t.Log.Info(e.Message, "node", t.NodeName, "reason", e.Reason)
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
func (t *term) atEnd(f func()) { *t.closers = append(*t.closers, f) }

func (t *term) close() {
	for _, f := range slices.Backward(*t.closers) {
		f()
	}
}

// reportEvents makes what reports Events, which the cloud does, too.
func (t *term) reportEvents(ctx context.Context) {
	recorder, stop := t.api.eventRecorder(ctx, t.NodeName)
	t.events, t.recorder = podEvents{recorder}, recorder
	t.atEnd(stop)
}

// openCloud makes what reaches the cloud.
func (t term) openCloud(ctx context.Context) (l cloudSide, err error) {
	l.term = t
	if l.ca, err = l.loadCA(ctx); err != nil {
		return l, err
	}
	if l.facts, err = loadFacts(ctx, l.store, l.clock, l.Log); err != nil {
		return l, err
	}
	bare, closeIt, err := l.Clouds.Open(ctx, l.cfg, clouds.By{
		Owner:      l.controllerID,
		Facts:      l.facts,
		AgentsOpen: func(group string, port int, rules string) { t.sayOfNode(events.NewAgentPortOpen(group, port, rules)) },
	}, l.Log)
	if err != nil {
		return l, err
	}
	l.atEnd(func() {
		if err := closeIt(); err != nil {
			t.Log.Warn("close the cloud", "err", err)
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
		return l, err
	}
	if l.instanceTypes, err = l.openInstanceTypes(ctx); err != nil {
		return l, err
	}
	l.shortages, err = loadShortages(ctx, l.store, l.clock, l.Log)
	return l, err
}

// checkRegion returns an error where this Kip has cells or volumes in another region than the cloud's. The lists of that region lack them
// all, so Kip would launch other cells for their pods, and never end these. It would let the volumes of deleted claims go without their
// disks.
func (l *cloudSide) checkRegion(ctx context.Context) error {
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
func (l *cloudSide) volumesOutside(ctx context.Context, region string) (names []string, err error) {
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

// cloudDriver is the cloud's own CSI driver, if it has one whose disks Kip can attach.
func (l *cloudSide) cloudDriver() volumes.CloudDriver {
	if l.disks == nil {
		return volumes.CloudDriver{}
	}
	return volumes.CloudDriver(l.machines.Traits().DiskDriver)
}

// openInstanceTypes makes what knows what can be launched, and at what price.
func (l *cloudSide) openInstanceTypes(ctx context.Context) (*instancetypes.Provider, error) {
	rates, err := books.Rates(l.machines.Name(), l.machines.Traits().Region)
	if err != nil {
		return nil, err
	}
	types, err := instancetypes.Open(ctx, instancetypes.Config{
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
		return nil, fmt.Errorf("%s: %w", l.ProviderConfig, err)
	}
	return types, nil
}

// nameTag is the name of what this Kip makes in the cloud, for people.
func (t *term) nameTag() string { return cmp.Or(t.cfg.Cells.Nametag, t.controllerID) }

// followCluster makes what follows the cluster and shows it to cells.
func (n nodeSide) followCluster(ctx context.Context) (l clusterSide, err error) {
	l.nodeSide = n
	if l.egress, err = l.openEgress(ctx); err != nil {
		return l, err
	}
	if l.logs, err = podlogs.Open(podlogs.Config{Dir: filepath.Join(l.cfg.Etcd.Internal.DataDir, "podlogs"), Log: l.Log}); err != nil {
		return l, err
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
		return l, err
	}
	many, err := l.api.protobuf()
	if err != nil {
		return l, err
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
	return l, nil
}

// keepCells makes what launches cells, keeps them and ends them.
func (c clusterSide) keepCells(ctx context.Context) (l cellSide, err error) {
	l.clusterSide = c
	cloudInit, err := l.openCloudInit(ctx, c.sayOfNode)
	if err != nil {
		return l, err
	}
	uses := stats.NewUses()
	cfg, err := c.cellsConfig(ctx, cloudInit, uses)
	if err != nil {
		return l, err
	}
	l.cells = cells.New(cfg)
	l.atEnd(l.cells.Close)
	l.cloudInit = newCloudInitLoop(cloudInit, l.cells)
	l.rotation = l.newRotation(l.cells, c.sayOfNode)
	l.mirror = cells.NewMirror(l.cells, l.api.ownDynamic, l.NodeName, l.controllerID, version.String(), l.Log)
	l.atEnd(l.mirror.Close)
	l.meter = stats.NewMeter(stats.Config{
		Cells: func() []stats.Cell { return statsCells(l.cells.Endpoints(), "") },
		Clock: l.clock,
		Log:   l.Log,
	}, uses)
	return l, nil
}

// cellsConfig is what cells are kept by.
func (l *clusterSide) cellsConfig(ctx context.Context, cloudInit *operatorsCloudInit, uses *stats.Uses) (cells.Config, error) {
	authorities := l.ca.is.authorities
	tunnels, err := tunnel.NewDialer(tunnel.DialerConfig{
		Authority: authorities.Signing,
		Before:    authorities.Before,
		Term:      l.hold.Term(),
		Log:       l.Log,
		Late:      l.late,
		Dial:      l.dial,
	})
	if err != nil {
		return cells.Config{}, err
	}
	dns, err := l.api.clusterDNS(ctx, l.ClusterDNS, l.cellAPI.Watches(), l.store, l.Log)
	if err != nil {
		return cells.Config{}, err
	}
	pools, err := l.standbyPools()
	if err != nil {
		return cells.Config{}, err
	}
	traits := l.machines.Traits()
	return cells.Config{
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

		Meter:     useOfCells{uses},
		Events:    l.events,
		Observers: []cells.Observer{l.metrics}, // what is counted and shown comes first, then what acts
		Logs:      l.savedLogs(),
		Watchdog:  l.watchdog,
		Queues:    l.metrics.WorkqueueProvider(),

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
	}, nil
}

// matchPods makes the loop that matches pods to cells.
func (c cellSide) matchPods() (l podSide, err error) {
	l.cellSide = c
	resolver := volumes.Resolver{Client: l.api.asKip.CoreV1(), Drivers: l.api.csiDrivers(l.cfg)}
	if l.provisioner != nil {
		resolver.Owned, resolver.Others, resolver.CloudDriver = l.provisioner.Owned, l.provisioner.Others, l.cloudDriver()
		resolver.Attachable, resolver.OurInstance = l.provisioner.Attachable, l.cells.HasInstance
	}
	if l.claims, err = volumes.WatchClaims(l.api.asKip); err != nil {
		return l, err
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
		return l, err
	}
	l.cells.Observe(isolated{firewalls: l.firewalls})
	l.cells.Observe(learning{types: l.instanceTypes})
	l.atEnd(l.pods.Close)
	return l, nil
}
