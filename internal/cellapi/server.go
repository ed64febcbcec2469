package cellapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/watches"
)

// Config is what a [Server] is made of. All fields but Log and Clock are required.
type Config struct {
	// NodeName is the virtual node that every cell's kubelet believes to be.
	NodeName string
	// Node reaches the API server as the user system:node:<NodeName>.
	Node *rest.Config
	// Own reaches the API server as Kip: for endpointslices, servicecidrs,
	// networkpolicies and namespaces, which a node may not read.
	Own *rest.Config
	// Pods informs of the pods of this node, all of them. Its owner runs it. Its
	// objects are only read.
	Pods cache.SharedIndexInformer
	// IPv6 says that cells have IPv6 addresses: they are shown IPv6 EndpointSlices.
	IPv6 bool
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
	nodeName string
	log      *slog.Logger
	clock    clock.Clock
	observer Observer
	overdraw func(context.Context)
	node     kubernetes.Interface
	raw      *passer             // as the node
	passing  *semaphore.Weighted // requests of cells that are open at the API server
	working  *semaphore.Weighted // requests of cells that are worked on
	pods     cache.SharedIndexInformer

	renewal   *ask // of a lease, as each cell has one
	watches   *watches.Watches
	endpoints *endpoints // instead of the collection of EndpointSlices

	virtual     atomic.Pointer[corev1.Node] // the real virtual node
	virtualNode *watches.Source             // where that comes from
	podsHandled chan struct{}               // closed when the pod handler has seen all pods
	version     atomic.Uint64               // last resource version of objects that live here

	lifetime context.Context // from New to the end of Run
	end      context.CancelFunc
	tasks    sync.WaitGroup

	mu      sync.Mutex
	running bool
	pending []func() // tasks that Run starts
	cells   map[string]*Cell
	bound   map[types.UID]*Cell
}

// CellInfo is what Kip knows of a cell's machine before its kubelet reports it.
type CellInfo struct {
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
		return nil, errors.New("cell API: Pods is nil, it must be the informer of the node's pods")
	}
	s := &Server{
		nodeName:    cfg.NodeName,
		log:         cfg.Log,
		clock:       cfg.Clock,
		observer:    cfg.Observer,
		overdraw:    cfg.Overdrawn,
		pods:        cfg.Pods,
		podsHandled: make(chan struct{}),
		cells:       map[string]*Cell{},
		bound:       map[types.UID]*Cell{},
		renewal:     renewalOf(cfg.NodeName),
		passing:     semaphore.NewWeighted(passedAtOnce),
		working:     semaphore.NewWeighted(workedAtOnce()),
	}
	if s.observer == nil {
		s.observer = unobserved{}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	node := upstreamConfig(cfg.Node)
	var err error
	if s.node, err = kubernetes.NewForConfig(node); err != nil {
		return nil, fmt.Errorf("cell API: client of node %s: %w", cfg.NodeName, err)
	}
	own, err := kubernetes.NewForConfig(upstreamConfig(cfg.Own))
	if err != nil {
		return nil, fmt.Errorf("cell API: client of Kip's service account: %w", err)
	}
	if s.raw, err = newPasser(node); err != nil {
		return nil, fmt.Errorf("cell API: client of node %s: %w", cfg.NodeName, err)
	}
	started := uint64(s.clock.Now().UnixMicro())
	s.version.Store(started)
	s.watches = watches.New(s.node, own, s.log)
	s.endpoints = newEndpoints(s.watches.Of(watches.EndpointSlices).Kind, s.nodeName, cfg.IPv6, started)
	s.watches.Feed(watches.Services, serviceFeed{s.watches.Of(watches.Services).Collection, s.endpoints})
	s.watches.Feed(watches.EndpointSlices, s.endpoints)
	s.virtualNode = s.watches.Watch(nodeKind, s.nodeName, virtualNode{s})
	s.lifetime, s.end = context.WithCancel(context.Background())
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
	s.mu.Lock()
	if s.running || s.lifetime.Err() != nil {
		s.mu.Unlock()
		return errors.New("cell API: Run may be called once only")
	}
	s.running = true
	pending := s.pending
	s.pending = nil
	s.tasks.Add(len(pending))
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.end()
		s.mu.Unlock()
		s.tasks.Wait()
		s.raw.client.CloseIdleConnections()
	}()
	defer context.AfterFunc(ctx, s.end)()
	for _, task := range pending {
		go func() { defer s.tasks.Done(); task() }()
	}

	registration, err := s.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.podSeen(nil, o) },
		UpdateFunc: func(old, o any) { s.podSeen(old, o) },
		DeleteFunc: s.podGone,
	})
	if err != nil && ctx.Err() != nil {
		return nil // the informer, too, has been stopped
	}
	if err != nil {
		return fmt.Errorf("cell API: follow the pods of node %s: %w", s.nodeName, err)
	}
	defer func() {
		if err := s.pods.RemoveEventHandler(registration); err != nil {
			s.log.Warn("pod handler not removed", "err", err)
		}
	}()
	s.start(func() { _ = s.watches.Run(s.lifetime) }) // fails where it ran before

	select {
	case <-registration.HasSyncedChecker().Done():
		close(s.podsHandled)
	case <-ctx.Done():
		return nil
	}
	<-ctx.Done()
	return nil
}

// start runs task, now or when Run does. Every task ends when the lifetime does.
func (s *Server) start(task func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startLocked(task)
}

func (s *Server) startLocked(task func()) {
	switch {
	case s.lifetime.Err() != nil:
	case !s.running:
		s.pending = append(s.pending, task)
	default:
		s.tasks.Add(1)
		go func() { defer s.tasks.Done(); task() }()
	}
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
		c = newCell(s, id, info)
		s.cells[id] = c
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

func (s *Server) allCells() []*Cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	cells := make([]*Cell, 0, len(s.cells))
	for _, c := range s.cells {
		cells = append(cells, c)
	}
	return cells
}

// cellOf returns the cell that the pod is bound to, nil when there is none.
func (s *Server) cellOf(uid types.UID) *Cell {
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
}

// podGone tells the cell of a pod that the pod is deleted.
func (s *Server) podGone(o any) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	if c := s.cellOf(pod.UID); c != nil {
		c.lose(pod.ResourceVersion)
	}
}

// virtualNode receives the real virtual node from its watch.
type virtualNode struct{ *Server }

var _ cache.ReflectorStore = virtualNode{}

func (v virtualNode) Add(o any) error {
	n, ok := o.(*corev1.Node)
	if !ok {
		return fmt.Errorf("virtual node: got a %T", o)
	}
	v.virtual.Store(n)
	for _, c := range v.allCells() {
		c.node.refresh()
	}
	return nil
}

func (v virtualNode) Update(o any) error { return v.Add(o) }

// Delete keeps the node as it was: Kip makes it again, and no kubelet should
// believe that its node is gone.
func (v virtualNode) Delete(any) error {
	v.log.Warn("virtual node deleted, cells keep its last state")
	return nil
}

func (v virtualNode) Replace(list []any, _ string) error {
	for _, o := range list {
		if err := v.Add(o); err != nil {
			return err
		}
	}
	return nil
}

func (v virtualNode) Resync() error { return nil }
