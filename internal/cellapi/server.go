package cellapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/credentialproviders"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/tasks"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watches"
)

// Config is what a [Server] is made of. All fields are required unless they say otherwise.
type Config struct {
	// NodeName is the virtual node that a cell's kubelet believes to be, unless its
	// CellInfo names another.
	NodeName string
	// Node reaches the API server as the user system:node:<NodeName>. For cells of
	// another node that one is impersonated, with all else the same.
	Node *rest.Config
	// Own reaches the API server as Kip: for endpointslices, servicecidrs,
	// networkpolicies and namespaces, which a node may not read.
	Own *rest.Config
	// Pods informs of the pods of the virtual nodes, all of them. Its owner runs it.
	// Its objects are only read.
	Pods watches.Pods
	// IPv6 says that cells have IPv6 addresses: they are shown IPv6 EndpointSlices.
	IPv6 bool
	// Images has what pulls the images of pods; nil where nobody has.
	Images ImageCredentials
	// Events are those of pods. Required with Images and DaemonSets.
	Events Recorder
	// CloudDriver is that whose disks Kip attaches to cells; cells see their volumes as local
	// ones. Optional.
	CloudDriver volumes.CloudDriver
	// DaemonSets are those that run beside pods; nil for none. They need Events.
	DaemonSets *daemonsets.Rules
	// CredentialProviders are those that the cells' kubelets ask, for the tokens that they give them.
	CredentialProviders []credentialproviders.Provider
	// Observer is told what cells ask; nil for nobody.
	Observer Observer
	// Overdrawn, if not nil, is called with the context of each request that goes
	// beyond what its cell may ask, before its answer, which waits for the return.
	Overdrawn func(context.Context)
	// Log takes what happens; nil drops it.
	Log *slog.Logger
	// Clock is the time; nil is the real one.
	Clock clock.Clock
}

// Server serves each cell its own Kubernetes API. Run must run for anything to be
// answered.
type Server struct {
	nodeName   string
	nodeConfig *rest.Config
	log        *slog.Logger
	clock      clock.Clock
	observer   Observer
	images     ImageCredentials
	events     Recorder
	overdraw   func(context.Context)
	providers  []credentialproviders.Provider // that are given tokens
	passing    *keyed.Places[*limits]         // requests of cells that are open at the API server
	working    *keyed.Places[*limits]         // requests of cells that are worked on
	pods       watches.Pods
	sets       *setPods // nil where no DaemonSets run beside pods

	cloudDriver volumes.CloudDriver

	watches   *watches.Watches
	endpoints *endpoints // instead of the collection of EndpointSlices

	podsFollowed chan struct{} // closed when told is set
	told         cache.ResourceEventHandlerRegistration
	version      atomic.Uint64 // last resource version of objects that live here

	tasks *tasks.Group

	mu    sync.Mutex
	nodes map[string]*identity
	cells map[string]*Cell
	bound map[types.UID]*boundPod
}

// CellInfo is what Kip knows of a cell's machine before its kubelet reports it.
type CellInfo struct {
	// Node is the virtual node that the cell's kubelet believes to be; "" for
	// Config.NodeName.
	Node string
	// Capacity and Allocatable fill the node's status until the kubelet sends
	// its own. "pods" is the kubelet's default of 110 when absent.
	Capacity, Allocatable corev1.ResourceList
	// NodeIP is the cell's management address, NodeIPv6 that of IPv6 if it has one.
	NodeIP, NodeIPv6 netip.Addr
	// PodIP is the address of the cell's pod, PodIPv6 that of IPv6 if it has one. A
	// pod's status has no others, whatever the cell says.
	PodIP, PodIPv6 netip.Addr
}

// New returns a server that has not started. It fails on a configuration that
// cannot work, without asking the API server.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("cell API: NodeName is empty, it must name the virtual node")
	case cfg.Node == nil:
		return nil, errors.New("cell API: Node is nil, it must be the client configuration of the node user")
	case cfg.Own == nil:
		return nil, errors.New("cell API: Own is nil, it must be the client configuration of Kip's service account")
	case cfg.Pods == nil:
		return nil, errors.New("cell API: Pods is nil, it must be the informer of the nodes' pods")
	case cfg.Images != nil && cfg.Events == nil:
		return nil, errors.New("cell API: Events is nil, it must report that a pod's images cannot be pulled")
	case cfg.DaemonSets != nil && cfg.Events == nil:
		return nil, errors.New("cell API: Events is nil, it must report that a DaemonSet does not run beside a pod")
	}
	s := &Server{
		nodeName:     cfg.NodeName,
		log:          cfg.Log,
		clock:        cfg.Clock,
		observer:     cfg.Observer,
		images:       cfg.Images,
		events:       cfg.Events,
		overdraw:     cfg.Overdrawn,
		providers:    withTokens(cfg.CredentialProviders),
		pods:         cfg.Pods,
		cloudDriver:  cfg.CloudDriver,
		podsFollowed: make(chan struct{}),
		nodes:        map[string]*identity{},
		cells:        map[string]*Cell{},
		bound:        map[types.UID]*boundPod{},
		passing:      keyed.NewPlaces[*limits](passedAtOnce, passedOfOne),
		working:      keyed.NewPlaces[*limits](workedAtOnce(), workedOfOne),
	}
	s.sets = newSetPods(s, cfg.DaemonSets)
	if s.observer == nil {
		s.observer = unobserved{}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	s.nodeConfig = upstreamConfig(cfg.Node)
	base, err := newIdentity(s.nodeConfig, cfg.NodeName)
	if err != nil {
		return nil, err
	}
	own, err := kubernetes.NewForConfig(upstreamConfig(cfg.Own))
	if err != nil {
		return nil, fmt.Errorf("cell API: client of Kip's service account: %w", err)
	}
	started := uint64(s.clock.Now().UnixMicro())
	s.version.Store(started)
	s.watches = watches.New(base.client, own, s.log)
	s.endpoints = newEndpoints(s.watches.Of(watches.EndpointSlices).Kind, s.nodeName, cfg.IPv6, started)
	s.watches.Feed(watches.Services, serviceFeed{s.watches.Of(watches.Services).Collection, s.endpoints})
	s.watches.Feed(watches.EndpointSlices, s.endpoints)
	s.tasks = tasks.New()
	s.follow(base)
	return s, nil
}

// upstreamConfig returns a copy of cfg that speaks protobuf and leaves pacing to
// the API server unless cfg says otherwise.
func upstreamConfig(cfg *rest.Config) *rest.Config {
	c := rest.CopyConfig(cfg)
	if c.ContentType == "" {
		c.ContentType = runtime.ContentTypeProtobuf
	}
	if c.AcceptContentTypes == "" {
		c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	if c.QPS == 0 && c.RateLimiter == nil {
		c.QPS = -1
	}
	return c
}

// Run watches the API server and answers cells until ctx ends, then ends every
// watch of a cell and returns once nothing of it is left running. It runs once.
func (s *Server) Run(ctx context.Context) error {
	if !s.tasks.Run() {
		return errors.New("cell API: Run may be called once only")
	}
	defer func() {
		s.tasks.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range s.nodes {
			n.raw.client.CloseIdleConnections()
		}
	}()
	defer context.AfterFunc(ctx, s.tasks.End)()

	registration, err := s.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.podSeen(nil, o) },
		UpdateFunc: func(old, o any) { s.podSeen(old, o) },
		DeleteFunc: s.podGone,
	})
	if err != nil && ctx.Err() != nil {
		return nil // the informer, too, has been stopped
	}
	if err != nil {
		return fmt.Errorf("cell API: follow the pods: %w", err)
	}
	defer func() {
		if err := s.pods.RemoveEventHandler(registration); err != nil {
			s.log.Warn("pod handler not removed", "err", err)
		}
	}()
	s.told = registration
	close(s.podsFollowed)
	s.tasks.Start(func() { _ = s.watches.Run(s.tasks.Lifetime()) }) // fails where it ran before
	<-ctx.Done()
	return nil
}

// Watches are what all cells are shown the objects of. The server runs them.
func (s *Server) Watches() *watches.Watches { return s.watches }

// nextVersion returns a resource version for an object that lives here.
func (s *Server) nextVersion() uint64 { return s.version.Add(1) }

// AddCell returns the cell with this ID, which it makes if there is none. Its node
// exists from here on. info is that of the first call.
func (s *Server) AddCell(id string, info CellInfo) *Cell {
	s.mu.Lock()
	c := s.cells[id]
	if c == nil {
		as, err := s.userOf(cmp.Or(info.Node, s.nodeName))
		c = newCell(s, id, as, info)
		s.cells[id] = c
		if err != nil {
			// Rather nothing is answered than in the name of another node.
			s.log.Error("cell not served", "cell", id, "err", err)
			c.end()
		}
	}
	s.mu.Unlock()
	c.node.refresh()
	return c
}

// RemoveCell forgets a cell: its watches end, what it still asks is refused, and
// watches on what only its pod named are given up.
func (s *Server) RemoveCell(id string) {
	s.mu.Lock()
	c := s.cells[id]
	delete(s.cells, id)
	s.mu.Unlock()
	if c != nil {
		c.remove()
	}
}

// Usage is what each cell has asked of this process, by the cell's ID.
func (s *Server) Usage() map[string]Usage {
	all := map[string]Usage{}
	for _, c := range s.allCells() {
		all[c.id] = c.Usage()
	}
	return all
}

func (s *Server) allCells() []*Cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	cells := make([]*Cell, 0, len(s.cells))
	for _, c := range s.cells {
		cells = append(cells, c)
	}
	return cells
}

// cellOf returns that of the cell which the pod is bound to, nil when there is none.
func (s *Server) cellOf(uid types.UID) *boundPod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bound[uid]
}

// podSeen tells the cell of a pod of its new state.
func (s *Server) podSeen(old, o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	if before, ok := old.(*corev1.Pod); ok && before.UID != pod.UID {
		// Deleted and made anew under the same name while nobody watched.
		s.podGone(before)
	}
	if c := s.cellOf(pod.UID); c != nil {
		c.show(pod)
	}
	s.sets.see(pod)
}

// PodsSeen reports whether Run has seen the pods that there were when it began.
func (s *Server) PodsSeen() bool {
	select {
	case <-s.podsFollowed:
		return s.told.HasSynced()
	default:
		return false
	}
}

// podGone tells the cell of a pod that the pod is deleted. Of one that was in a list and is in the next no more it does not: an
// API server that was restored from a backup lacks pods that run. Kip ends such a cell, if the gate lets it; until then
// its kubelet goes on, and has the pod again if that comes back.
func (s *Server) podGone(o any) {
	unknown, missed := o.(cache.DeletedFinalStateUnknown)
	if missed {
		o = unknown.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if ok && missed {
		s.sets.lost(pod)
	}
	if !ok || missed && pod.DeletionTimestamp == nil {
		return
	}
	if c := s.cellOf(pod.UID); c != nil {
		c.lose(pod.ResourceVersion)
	}
	s.sets.gone(pod)
}

// RunsNone tells that nothing runs beside the pod of a cell yet, as its agent says.
func (s *Server) RunsNone(cell string) {
	s.mu.Lock()
	c := s.cells[cell]
	s.mu.Unlock()
	if c != nil {
		c.runsNone()
	}
}

// RunsBeside tells whether a cell's agent can run pods beside the cell's own.
func (s *Server) RunsBeside(cell string, can bool) {
	s.mu.Lock()
	c := s.cells[cell]
	s.mu.Unlock()
	if c != nil {
		c.runsBeside(can)
	}
}
