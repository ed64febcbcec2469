package networkpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/agentlimit"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/policy"
	"github.com/elotl/kip/internal/watchdog"
	"github.com/elotl/kip/internal/watches"
)

const (
	// within bounds what one agent is told at a time: ten thousand peers take 0.2 s.
	within = 10 * time.Second
	// pace is the least time between two sets of rules for one cell, so that a
	// burst of pods that others let in does not become a burst for each of them.
	pace = 500 * time.Millisecond
	// updateRate is how many bytes of rules in a second all cells together are handed that have some already: sets of rules
	// grow with the peers, and so do the changes. See agent.pace.
	updateRate = 32 << 20
	// largeSet is from how many bytes on a set of rules counts for that, and longestPace how long changes of it wait at most.
	largeSet    = 4 << 10
	longestPace = 30 * time.Second
	// patience is how long a pod waits in silence.
	patience = 5 * time.Second
	// linger is how long the cluster's pods are still watched when nobody asks
	// for them any more: the next pod of the same kind may be about to start.
	linger = time.Minute
)

// The kinds that are followed.
var (
	policies   = networkingv1.SchemeGroupVersion.WithResource("networkpolicies")
	namespaces = corev1.SchemeGroupVersion.WithResource("namespaces")
)

// Config of a Controller. All fields are required unless they say otherwise.
type Config struct {
	// Pods informs of the pods of the virtual nodes. Its owner runs it.
	Pods watches.Pods
	// Client reaches the API server as Kip, for the cluster's pods.
	Client kubernetes.Interface
	// Shared are the watches on NetworkPolicies and namespaces.
	Shared Shared
	// AllowsMetadata says whether a pod's annotations ask for the metadata service, and
	// its namespace may have it. It is pure.
	AllowsMetadata func(namespace string, annotations map[string]string) bool
	// Masquerade returns whether cells with a public address in a subnet masquerade what their
	// pods send, and the networks for which they do not. It is known once MasqueradeChanged was
	// called. It does not block. Optional: without it no cell masquerades.
	Masquerade func(subnet string) (except []netip.Prefix, does, known bool)
	// Beside is told which agents can run pods beside those of their cells, once they know them from these.
	// Optional: no cell is to.
	Beside Beside
	// Events are those of pods.
	Events Recorder
	// Watchdog tracks the tasks of the loops. Optional.
	Watchdog *watchdog.Watchdog
	// Queues measures the work queue. Optional.
	Queues workqueue.MetricsProvider
	// Random is for jitter. Optional.
	Random backoff.Random
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// Recorder reports Events to the owners of pods. Several goroutines use it at a time, and it
// does not block.
type Recorder interface {
	Event(pod apiv1.PodReference, e events.Event)
}

// Beside runs pods beside those of cells. It does not block.
type Beside interface {
	// RunsBeside tells whether a cell's agent can run them. It may be told of that again and again.
	RunsBeside(cell string, can bool)
	// RunsNone tells that nothing runs beside the cell's pod yet, whatever its agent can.
	RunsNone(cell string)
	// HostPorts are those at which pods of the cell's own network listen, sorted.
	HostPorts(cell string) []agentapi.Ports
	// ObservePorts has an observer told of changes of HostPorts.
	ObservePorts(daemonsets.PortObserver)
}

// Shared are watches that others keep; *watches.Watches says what its methods do.
type Shared interface {
	Follow(ctx context.Context, resource schema.GroupVersionResource, f watches.Follower) error
	Refusal(resource schema.GroupVersionResource) error
}

var _ Shared = (*watches.Watches)(nil)

// Cell is a cell with a pod.
type Cell struct {
	ID    string
	Pod   apiv1.PodReference
	PodIP netip.Addr
	// PodIPv6 is the zero address where the pod has none.
	PodIPv6 netip.Addr
	// Subnet is the cell's, in the cloud's words.
	Subnet string
	// PublicAt is the cell's own address, to which its public one leads; the zero address where
	// it has no public one.
	PublicAt netip.Addr
}

// Controller keeps the firewalls. Run starts it.
type Controller struct {
	cfg     Config
	queue   workqueue.TypedRateLimitingInterface[string]
	needs   chan struct{} // whether the cluster's pods are needed may have changed
	limiter *agentlimit.Limiter

	mu     sync.Mutex
	index  *policy.Index
	known  map[schema.GroupVersionResource]bool
	peers  *clusterPods // nil while they are not watched
	cells  map[string]*cell
	byPod  map[types.UID]*cell
	owners map[types.NamespacedName]*cell // whose pod is the subject of that name
	agents map[string]*agent
	large  sets // of rules, that these have
}

// sets are large sets of rules.
type sets struct{ count, bytes int }

// cell is what is known of a cell with a pod.
type cell struct {
	Cell
	since time.Time // when the pod and the agent were both there
	// allowMetadata and seen are of the pod as last seen.
	allowMetadata, seen bool
	isolated            bool            // as Isolate has it
	told                string          // the last Event
	pace                agentlimit.Pace // of its agent, whatever its connection
	// masquerade is in force, if inForce says that this process knows it.
	masquerade *agentapi.Masquerade
	inForce    bool
}

// agent is the connection to a cell's agent, and what it has in force.
type agent struct {
	conn agentapi.Conn
	// asked is false until this connection's agent has said what it has in force.
	asked  bool
	digest string
	// beside says that the agent can tell the pod from others.
	beside bool
	pushed time.Time // when rules were last handed over
	bytes  int       // of these
}

// pace is the least time until the cell is handed rules again. Cells with large sets share updateRate: each has an equal part of it, or
// one by the size of its set, whichever is more. So neither many small ones nor many larger ones of others delay it for long, large sets
// delay no small ones, and all together take twice updateRate at most.
func (a *agent) pace(large sets) time.Duration {
	share := min(float64(a.bytes)*float64(large.count), float64(large.bytes))
	return min(max(pace, time.Duration(share/updateRate*float64(time.Second))), longestPace)
}

// has notes how many bytes of rules an agent has. The lock is held.
func (c *Controller) has(a *agent, bytes int) {
	if a == nil {
		return
	}
	if a.bytes >= largeSet {
		c.large.count, c.large.bytes = c.large.count-1, c.large.bytes-a.bytes
	}
	if a.bytes = bytes; bytes >= largeSet {
		c.large.count, c.large.bytes = c.large.count+1, c.large.bytes+bytes
	}
}

// handed notes the rules that an agent has now. The lock is held.
func (c *Controller) handed(id string, a *agent, digest string, bytes int) {
	a.digest, a.pushed = digest, c.cfg.Clock.Now()
	if c.agents[id] == a { // else another connection has taken its place
		c.has(a, bytes)
	}
}

// New returns a controller that has not started.
func New(cfg Config) *Controller {
	c := &Controller{
		cfg: cfg,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(backoff.Items[string](100*time.Millisecond, 30*time.Second, cfg.Random),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "firewalls", MetricsProvider: cfg.Queues}),
		needs:   make(chan struct{}, 1),
		limiter: agentlimit.New(),
		index:   policy.NewIndex(),
		known:   map[schema.GroupVersionResource]bool{},
		cells:   map[string]*cell{},
		byPod:   map[types.UID]*cell{},
		owners:  map[types.NamespacedName]*cell{},
		agents:  map[string]*agent{},
	}
	if cfg.Beside != nil {
		cfg.Beside.ObservePorts(c)
	}
	return c
}

// Run keeps firewalls until ctx ends. They stay as they are without it.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	registration, err := c.cfg.Pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { c.podSeen(o) },
		UpdateFunc: func(_, o any) { c.podSeen(o) },
	})
	if err != nil && ctx.Err() != nil {
		return nil // the informer, too, has been stopped
	}
	if err != nil {
		return fmt.Errorf("follow the pods of the node: %w", err)
	}
	var running sync.WaitGroup
	failed := make(chan error, 2)
	for resource, f := range map[schema.GroupVersionResource]watches.Follower{policies: policyFollower{c}, namespaces: namespaceFollower{c}} {
		running.Go(func() {
			if err := c.cfg.Shared.Follow(ctx, resource, f); err != nil {
				failed <- err
			}
		})
	}
	running.Go(func() { c.watchPods(ctx) })
	running.Go(func() {
		for {
			id, shutdown := c.queue.Get()
			if shutdown {
				return
			}
			running.Go(func() {
				defer c.queue.Done(id)
				c.cfg.Watchdog.Track(ctx, "firewalls", func(ctx context.Context) { c.turn(ctx, id) })
			})
		}
	})
	running.Go(func() { c.cfg.Watchdog.TrackLock(ctx, "the lock of the firewalls", &c.mu) })
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	c.queue.ShutDown()
	running.Wait()
	return errors.Join(err, c.cfg.Pods.RemoveEventHandler(registration))
}

// Close lets go of what New began, also of a controller that never ran.
func (c *Controller) Close() { c.queue.ShutDown() }

// Bound tells of a cell that has a pod, as often as one likes. It does not block.
func (c *Controller) Bound(b Cell) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cells[b.ID] != nil {
		return
	}
	x := &cell{Cell: b}
	if c.agents[b.ID] != nil {
		x.since = c.cfg.Clock.Now()
	}
	c.cells[b.ID], c.byPod[b.Pod.UID] = x, x
	if o, there, err := c.cfg.Pods.GetStore().GetByKey(b.Pod.Namespace + "/" + b.Pod.Name); err == nil && there {
		pod := o.(*corev1.Pod)
		c.see(pod)
		// The cluster's pods may have been listed before the cell was known.
		if peer := c.index.Pod(x.name()); peer != nil && pod.UID == b.Pod.UID {
			c.index.SetPod(c.believed(peer, x))
			c.changed()
		}
	}
	c.queue.Add(b.ID)
}

// Connected tells that a new connection to a cell's agent is up: what the agent
// has in force is to be seen. It does not block.
func (c *Controller) Connected(cellID string, conn agentapi.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has(c.agents[cellID], 0)
	c.agents[cellID] = &agent{conn: conn}
	if x := c.cells[cellID]; x != nil && x.since.IsZero() {
		x.since = c.cfg.Clock.Now()
	}
	c.queue.Add(cellID) // with the back-off of before: who comes and goes does not undo it
}

// Isolate has nothing pass to the pod of a cell and from it any more, whatever policies say: the pod has ended, and its cell stays for
// people to look inside. Policies are not followed there, since another pod may have its name. The machine itself is reached as
// before. It does not block.
func (c *Controller) Isolate(cellID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.cells[cellID]; x != nil && !x.isolated {
		x.isolated = true
		c.queue.Add(cellID)
	}
}

// Gone tells that a cell has let its pod go. It does not block.
func (c *Controller) Gone(cellID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has(c.agents[cellID], 0)
	delete(c.agents, cellID)
	x := c.cells[cellID]
	if x == nil {
		return
	}
	delete(c.cells, cellID)
	if c.byPod[x.Pod.UID] == x {
		delete(c.byPod, x.Pod.UID)
	}
	if name := x.name(); c.owners[name] == x { // else another pod has the name
		delete(c.owners, name)
		c.index.RemoveSubject(name)
		c.changed()
	}
	c.queue.Forget(cellID)
}

func (x *cell) name() types.NamespacedName {
	return types.NamespacedName{Namespace: x.Pod.Namespace, Name: x.Pod.Name}
}

func (c *Controller) podSeen(o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.see(pod)
}

// see notes a state of a pod of this node. The lock is held.
func (c *Controller) see(pod *corev1.Pod) {
	x := c.byPod[pod.UID]
	if x == nil {
		return
	}
	allow := c.cfg.AllowsMetadata(pod.Namespace, pod.Annotations)
	if !x.seen || x.allowMetadata != allow {
		x.seen, x.allowMetadata = true, allow
		c.queue.Add(x.ID)
	}
	c.owners[x.name()] = x
	c.index.SetSubject(policy.PodOf(pod))
	c.changed()
}

// changed sees to the cells whose rules may have changed. The lock is held.
func (c *Controller) changed() {
	for _, name := range c.index.Changed() {
		if x := c.owners[name]; x != nil {
			c.queue.Add(x.ID)
		}
	}
	if c.index.NeedsPods() != (c.peers != nil) {
		select {
		case c.needs <- struct{}{}:
		default:
		}
	}
}

// all sees to all cells. The lock is held.
func (c *Controller) all() {
	for id := range c.cells {
		c.queue.Add(id)
	}
}

// unknown returns what the rules of a cell depend on and Kip does not know; nil for
// nothing. The lock is held.
func (c *Controller) unknown(x *cell) *events.Unlisted {
	for _, resource := range []schema.GroupVersionResource{policies, namespaces} {
		if !c.known[resource] {
			return &events.Unlisted{What: resource.Resource, Refusal: c.cfg.Shared.Refusal(resource)}
		}
	}
	if c.index.DependsOnPods(x.name()) && !c.peers.synced() {
		return &events.Unlisted{What: "pods, which a NetworkPolicy of this pod asks for,", Refusal: c.peers.refusal()}
	}
	return nil
}

// turn processes a cell when fewer agents are being told than may be. Cells whose
// agents do not answer wait for one another.
func (c *Controller) turn(ctx context.Context, id string) {
	c.mu.Lock()
	x, a := c.cells[id], c.agents[id]
	c.mu.Unlock()
	if x == nil || a == nil {
		return // whatever is missing, its arrival comes back here
	}
	err := c.limiter.Ask(ctx, &x.pace, x.name().Namespace, within, func(ctx context.Context) error {
		c.process(ctx, id)
		return context.Cause(ctx)
	})
	if err != nil && ctx.Err() == nil { // it came to no end that it knows of
		c.queue.AddRateLimited(id)
	}
}

// process hands the agent of a cell its rules, if they are others than those in
// force.
func (c *Controller) process(ctx context.Context, id string) {
	c.mu.Lock()
	x, a := c.cells[id], c.agents[id]
	if x == nil || a == nil || !x.isolated && (!x.seen || c.owners[x.name()] != x) {
		c.mu.Unlock()
		return // whatever is missing, its arrival comes back here
	}
	agent := agentapi.Client{Conn: a.conn}
	if !a.asked {
		c.mu.Unlock()
		inForce, err := agent.Firewall(ctx)
		if err != nil {
			c.failed(ctx, x, fmt.Errorf("ask which rules are in force: %w", err))
			return
		}
		c.mu.Lock()
		a.asked, a.digest, a.beside = true, inForce.Digest, inForce.Beside
		c.found(x, inForce)
	}
	if c.cfg.Beside != nil && !a.beside {
		c.cfg.Beside.RunsBeside(id, false)
	}
	missing := c.unknown(x)
	if missing != nil && !x.isolated {
		c.wait(x, a, *missing)
		// Rules in force stay until better is known, unless it never will be:
		// pods that Kip may not list are nobody's peers.
		if a.digest == "" || !c.known[policies] || !c.known[namespaces] || c.peers.refusal() == nil {
			c.mu.Unlock()
			return
		}
	}
	masquerade, known := c.masquerade(x)
	if !known {
		c.mu.Unlock()
		return // MasqueradeChanged comes back here
	}
	if now, next := c.cfg.Clock.Now(), a.pushed.Add(a.pace(c.large)); now.Before(next) {
		c.queue.AddAfter(id, next.Sub(now))
		c.mu.Unlock()
		return
	}
	fw := c.firewall(x, a, masquerade)
	was := a.digest
	c.mu.Unlock()

	// The slices of rules are never changed, only replaced.
	encoded, err := json.Marshal(fw)
	if err != nil {
		c.failed(ctx, x, err)
		return
	}
	digest := agentapi.Digest(encoded)
	if digest != was {
		err = agent.PutFirewall(ctx, encoded)
	}
	c.mu.Lock()
	if err != nil {
		a.asked = false // an answer that was lost may have been a yes
		c.mu.Unlock()
		c.failed(ctx, x, err)
		return
	}
	if digest != was || a.pushed.IsZero() { // else it has them of this connection
		c.handed(id, a, digest, len(encoded))
	}
	x.masquerade, x.inForce = masquerade, true
	c.mu.Unlock()
	if fw.Beside != nil {
		c.cfg.Beside.RunsBeside(id, true) // not before: the pod's network would be theirs
	}
	c.queue.Forget(id)
	c.cfg.Log.Debug("firewall in force", "cell", id, "pod", fw.Pod, "ingress_isolated", fw.Ingress.Isolated,
		"egress_isolated", fw.Egress.Isolated,
		"bytes", len(encoded))
}

// firewall returns the rules of a cell's pod. The lock is held.
func (c *Controller) firewall(x *cell, a *agent, masquerade *agentapi.Masquerade) agentapi.Firewall {
	if x.isolated {
		nothing := agentapi.Direction{Isolated: true}
		return agentapi.Firewall{
			Pod:        x.name().String(),
			PodIP:      x.PodIP,
			PodIPv6:    x.PodIPv6,
			Ingress:    nothing,
			Egress:     nothing,
			Masquerade: masquerade,
			Beside:     c.beside(x, a),
		}
	}
	ingress, egress, _ := c.index.Rules(x.name())
	return agentapi.Firewall{
		Pod:           x.name().String(),
		PodIP:         x.PodIP,
		PodIPv6:       x.PodIPv6,
		AllowMetadata: x.allowMetadata,
		Ingress:       ingress,
		Egress:        egress,
		Masquerade:    masquerade,
		Beside:        c.beside(x, a),
	}
}

// wait reports what a pod waits for, if it has waited for long. The lock is held.
func (c *Controller) wait(x *cell, a *agent, missing events.Unlisted) {
	if left := patience - c.cfg.Clock.Since(x.since); left > 0 {
		c.queue.AddAfter(x.ID, left)
		return
	}
	said := events.NewNetworkPolicyUnknown(missing)
	if a.digest != "" {
		said = events.NewNetworkPolicyOutdated(missing)
	}
	c.tell(x, said)
}

// tell reports to the pod's owner, each thing once. The lock is held.
func (c *Controller) tell(x *cell, e events.Event) {
	if x.told == e.Message {
		return
	}
	x.told = e.Message
	c.cfg.Log.Warn(e.Message, "pod", x.Pod.Namespace+"/"+x.Pod.Name, "cell", x.ID)
	c.cfg.Events.Event(x.Pod, e)
}

// failed tries a cell again later. What the agent says itself is for the pod's
// owner; that it cannot be reached others tell.
func (c *Controller) failed(ctx context.Context, x *cell, err error) {
	if ctx.Err() != nil {
		return
	}
	c.cfg.Log.Debug("firewall not in force, retrying", "cell", x.ID, "err", err)
	var refused *agentapi.StatusError
	if errors.As(err, &refused) && !errors.Is(err, agentapi.ErrNotYet) { // else it is starting
		c.mu.Lock()
		c.tell(x, events.NewFirewallFailed(x.ID, err))
		c.mu.Unlock()
	}
	c.queue.AddRateLimited(x.ID)
}

// policyFollower takes the NetworkPolicies.
type policyFollower struct{ *Controller }

func (f policyFollower) Replace(objects []runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := map[types.NamespacedName]bool{}
	for _, name := range f.index.Policies() {
		gone[name] = true
	}
	for _, o := range objects {
		p := o.(*networkingv1.NetworkPolicy)
		delete(gone, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		f.set(p)
	}
	for name := range gone {
		f.index.RemovePolicy(name)
	}
	f.know(policies)
}

// know declares that a kind is known. The lock is held.
func (c *Controller) know(resource schema.GroupVersionResource) {
	if !c.known[resource] {
		c.known[resource] = true
		c.all()
	}
	c.changed()
}

func (f policyFollower) set(p *networkingv1.NetworkPolicy) {
	if err := f.index.SetPolicy(p); err != nil {
		f.cfg.Log.Warn("a NetworkPolicy cannot be read as a whole: what is not read allows nothing", "err", err)
	}
}

func (f policyFollower) Set(o runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(o.(*networkingv1.NetworkPolicy))
	f.changed()
}

func (f policyFollower) Delete(o runtime.Object) {
	p := o.(*networkingv1.NetworkPolicy)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index.RemovePolicy(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
	f.changed()
}

// namespaceFollower takes the namespaces.
type namespaceFollower struct{ *Controller }

func (f namespaceFollower) Replace(objects []runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := map[string]bool{}
	for _, name := range f.index.Namespaces() {
		gone[name] = true
	}
	for _, o := range objects {
		ns := o.(*corev1.Namespace)
		delete(gone, ns.Name)
		f.index.SetNamespace(ns.Name, ns.Labels)
	}
	for name := range gone {
		f.index.RemoveNamespace(name)
	}
	f.know(namespaces)
}

func (f namespaceFollower) Set(o runtime.Object) {
	ns := o.(*corev1.Namespace)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index.SetNamespace(ns.Name, ns.Labels)
	f.changed()
}

func (f namespaceFollower) Delete(o runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index.RemoveNamespace(o.(*corev1.Namespace).Name)
	f.changed()
}
