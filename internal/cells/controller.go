package cells

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Config of a Controller. All fields are required unless they say otherwise.
type Config struct {
	NodeName     string
	ControllerID string
	Cloud        cloud.Cloud
	// Disks are the cloud's; nil where it has none.
	Disks   cloud.Disks
	Store   *store.Store
	Tunnels Tunnels
	APIs    APIs
	// CAHash goes into user data, so that a cell knows its Kip.
	CAHash string
	// Cool is told of each offer that the cloud did not serve, and Unavailable
	// says of which offers that is known.
	Cool        func(Offer, error)
	Unavailable func(Offer) bool
	// Event reports to the pod's owner.
	Event func(pod apiv1.PodReference, kind, reason, message string)
	// SaveLogs keeps the container logs of a pod that has ended; the round
	// tripper leads to the cell's agent.
	SaveLogs func(ctx context.Context, pod apiv1.PodReference, cell http.RoundTripper) error
	// Changed is called after each change of a cell, also when it is Gone. It
	// must not block.
	Changed func(Cell)
	// Connected is called after each connection to a cell's agent that has its
	// configuration. It must not block. Optional.
	Connected func(cell Cell, agent http.RoundTripper)
	// Silent is called when a bound cell has not been heard of for a while, and
	// again as long as it is silent. It must not block.
	Silent func(cell Cell, since time.Time)
	// Interrupted is called when the cloud takes the instance of a bound cell
	// back, once in the life of this process. It must not block.
	Interrupted func(Cell)
	// Orphan is told of each instance that is first seen without a cell, and
	// Swept of each termination of one. Optional.
	Orphan func()
	Swept  func(err error)

	// ClusterDNS returns where pods ask for names, now; nil for nowhere. A cell is
	// told when it joins, and again if it changes before its pod is there.
	ClusterDNS          func() []netip.Addr
	ClusterDomain       string
	ReservedMemoryBytes int64
	RegistryMirrors     map[string][]string
	// HasPlugins says that cells may be given plugins.
	HasPlugins bool
	// NameTag is the value of the instances' Name tag.
	NameTag string
	// Pools are the standby cells to keep.
	Pools []Pool
	// RefillDelay is how long a pool waits once one of its cells is taken. Where
	// machines share processors, one that boots slows the start of that pod.
	RefillDelay time.Duration
	// Template names what cells are made of: image, cloud-init, settings. A
	// standby cell of another template is replaced.
	Template string
	Health   Health
	// ListLag is the longest that the cloud's list lags behind a launch. 0 for
	// a cloud whose list does not.
	ListLag time.Duration
	// SoonPoll is the least time between two calls for the cloud's list.
	SoonPoll time.Duration
	// Queues measures the work queue. Optional.
	Queues workqueue.MetricsProvider
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// workers is how many cells are moved along at the same time. A step waits for
// the cloud or the store, hardly for the processor.
const workers = 64

// Controller moves every cell through its life. One worker handles a cell at a
// time; while it is being launched, its group does.
type Controller struct {
	cfg    Config
	queue  workqueue.TypedRateLimitingInterface[string]
	polls  chan struct{} // asks the inventory for a fresh look
	refill chan struct{} // asks for a look at the standby pools
	failed chan error    // ends Run
	ready  chan struct{}

	launches     *gather[*entry]
	terminations *gather[*entry]
	ledger       ledger
	born         time.Time      // when the store was new
	running      sync.WaitGroup // what workers leave running

	mu    sync.Mutex
	cells map[string]*entry
	byPod map[types.UID]string // live or not, until Gone
	// byDisk has the cell that a disk was last promised to.
	byDisk map[string]*entry
	// named are the pods with a cell, by their names, which are reused.
	named map[cache.ObjectName][]types.UID
	pools map[string]*pool
	// standby are the cells that no pod has.
	standby map[string]*entry
	look    look // the last look at the cloud
}

// entry is a cell and what this process holds for it. Fields that others than
// the worker of the cell use are under Controller.mu, unless they say otherwise.
type entry struct {
	id       string
	current  atomic.Pointer[Cell] // never modified, only replaced
	writing  sync.Mutex           // held from reading current to replacing it
	revision int64                // of the stored record; under writing
	unsure   *Cell                // what was written if the lost answer was a yes; under writing

	// ending, once set, is why the cell must end; podEnded as in Cell.
	ending   string
	cause    Cause
	podEnded bool
	// binding is set when the worker has decided to show the pod.
	binding bool
	// launching is set while the cell is its group's, and terminating while a
	// call that ends its instance is being made.
	launching, terminating bool
	// pod is whose cell it is: for a moment before the record says so.
	pod apiv1.PodReference
	// disks are those of pod; under mu.
	disks []Disk

	api        API
	session    Session
	connecting time.Time          // when this process began to connect
	stopWait   context.CancelFunc // of the goroutine that waits for the kubelet
	shown      bool               // api shows the pod
	configured bool               // the agent has its configuration, on this connection
	dns        []netip.Addr       // of that configuration
	breaks     int                // how often the session has not been connected
	disksShown bool               // the agent has the disks from this process
	diskTold   string             // what was last reported of the disks and plugins
	terminated time.Time          // when the cloud accepted the termination
	told       bool               // Config.Interrupted was called
	missing    time.Time          // since when looks at the cloud do not show the instance

	pluginsSent time.Time // when the agent had the plugins from this process
	plugged     bool      // the kubelet knows their drivers
}

// cell is the record as it is now.
func (e *entry) cell() *Cell { return e.current.Load() }

func newEntry(cell Cell, revision int64) *entry {
	e := &entry{id: cell.ID, pod: cell.Pod, disks: cell.Disks, revision: revision}
	e.current.Store(&cell)
	return e
}

// New returns a controller; Run starts it.
func New(cfg Config) *Controller {
	c := &Controller{
		cfg:          cfg,
		queue:        workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 30*time.Second), workqueue.TypedRateLimitingQueueConfig[string]{Name: "cells", MetricsProvider: cfg.Queues}),
		polls:        make(chan struct{}, 1),
		refill:       make(chan struct{}, 1),
		failed:       make(chan error, 1),
		ready:        make(chan struct{}),
		launches:     newGather[*entry](),
		terminations: newGather[*entry](),
		cells:        map[string]*entry{},
		byPod:        map[types.UID]string{},
		byDisk:       map[string]*entry{},
		named:        map[cache.ObjectName][]types.UID{},
		pools:        map[string]*pool{},
		standby:      map[string]*entry{},
	}
	for _, p := range cfg.Pools {
		c.pools[p.Name] = &pool{Pool: p}
	}
	return c
}

const keyPrefix = "cells/"

// Load reads the stored cells and takes up their lives again: a cell that is
// bound shows its pod before its tunnel is dialled, so that its kubelet is never
// told that the pod is gone. Call it once, before Run.
func (c *Controller) Load(ctx context.Context) error {
	if err := c.loadBorn(ctx); err != nil {
		return err
	}
	if err := c.ledger.load(ctx, c.cfg.Store); err != nil {
		return err
	}
	err := c.cfg.Store.List(ctx, keyPrefix, func(key string, data []byte, revision int64) error {
		var cell Cell
		if err := json.Unmarshal(data, &cell); err != nil {
			return fmt.Errorf("read the stored cell %s: %w", key, err)
		}
		e := newEntry(cell, revision)
		if other := c.cells[c.byPod[cell.Pod.UID]]; other != nil {
			// A write whose answer was lost came through late: its cell is the
			// one that got less far.
			if order(other.cell().Phase) >= order(cell.Phase) {
				other, e = e, other
			}
			other.pod, other.ending = apiv1.PodReference{}, "another cell has its pod"
			c.cells[other.id] = other
			c.cells[e.id] = e
			c.byPod[cell.Pod.UID] = e.id
			c.claim(e)
			return nil
		}
		c.reserve(e)
		c.cells[cell.ID] = e
		return nil
	})
	if err != nil {
		return err
	}
	for id := range c.cells {
		c.queue.Add(id)
	}
	return nil
}

const bornKey = "born"

// loadBorn reads when the store was new. Instances that are older were launched
// by a Kip whose store was lost.
func (c *Controller) loadBorn(ctx context.Context) error {
	revision, err := c.cfg.Store.Get(ctx, bornKey, &c.born)
	if err != nil || revision != 0 {
		return err
	}
	c.born = c.cfg.Clock.Now()
	_, err = c.cfg.Store.Put(ctx, bornKey, c.born, 0)
	return err
}

// Run moves cells until ctx ends, or until the store has failed for good. Cells
// go on running without it.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range workers {
		c.running.Go(func() {
			for {
				id, shutdown := c.queue.Get()
				if shutdown {
					return
				}
				c.process(ctx, id)
				c.queue.Done(id)
			}
		})
	}
	terminating := make(chan struct{}, terminateCalls)
	for _, loop := range []func(){
		func() { c.takeInventory(ctx) },
		func() { c.checkHealth(ctx) },
		func() { c.fillPools(ctx) },
		func() { c.hearInterruptions(ctx) },
		func() { c.launches.run(ctx, func(entries []*entry) { c.launchAll(ctx, entries) }) },
		func() {
			c.terminations.run(ctx, func(entries []*entry) {
				for group := range slices.Chunk(entries, terminateMost) {
					terminating <- struct{}{}
					c.running.Go(func() {
						c.terminateAll(ctx, group)
						<-terminating
					})
				}
			})
		},
	} {
		c.running.Go(loop)
	}
	close(c.ready)

	var err error
	select {
	case <-ctx.Done():
	case err = <-c.failed:
	}
	cancel()
	c.queue.ShutDown()
	c.running.Wait()
	c.mu.Lock()
	entries := slices.Collect(maps.Values(c.cells))
	c.mu.Unlock()
	for _, e := range entries {
		c.disconnect(e)
	}
	return err
}

// Ready is closed when cells are being moved.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// Request is what a pod asks for.
type Request struct {
	Pod     apiv1.PodReference
	Attempt int
	// Seen is when Kip first saw the pod.
	Seen time.Time
	// Offers come best first; there is at least one.
	Offers []Offer
	// Disks are those of the pod's volumes, all in the zone of each offer.
	Disks []Disk
	// Plugins are those of the CSI drivers of the pod's volumes.
	Plugins []Plugin
	// Special says that the pod asks for what only a launch can give, so that no
	// standby cell fits.
	Special bool
	// HealthyTimeout is as in Cell.
	HealthyTimeout *time.Duration
}

// Request asks for a cell for a pod, and takes a standby cell where there is one
// of the type that the pod would get. It returns when the request is stored. A pod
// that has a cell that is not Gone gets no other: ErrHasCell. Nor does one with a
// disk that the cell of another pod has, as long as that is not ending:
// *DiskInUseError.
func (c *Controller) Request(ctx context.Context, r Request) (Cell, error) {
	if len(r.Offers) == 0 {
		return Cell{}, fmt.Errorf("request a cell for pod %s: no offers", r.Pod)
	}
	c.mu.Lock()
	if _, has := c.byPod[r.Pod.UID]; has {
		c.mu.Unlock()
		return Cell{}, fmt.Errorf("request a cell for pod %s: %w", r.Pod, ErrHasCell)
	}
	if err := c.claimed(r.Disks); err != nil {
		c.mu.Unlock()
		return Cell{}, fmt.Errorf("request a cell for pod %s: %w", r.Pod, err)
	}
	if e := c.takeStandby(r); e != nil {
		c.mu.Unlock()
		return c.give(ctx, e, r)
	}
	cell := Cell{
		ID: newID("cell-"), Pod: r.Pod, Phase: apiv1.Requested, Attempt: r.Attempt, Offers: r.Offers, Reason: r.Offers[0].Reason,
		HealthyTimeout: r.HealthyTimeout, Template: c.cfg.Template, Disks: r.Disks, Plugins: r.Plugins,
	}
	cell.step(apiv1.StepSeen, r.Seen)
	cell.step(apiv1.StepPlaced, c.cfg.Clock.Now())
	e := newEntry(cell, 0)
	c.reserve(e) // while it is being stored
	c.mu.Unlock()
	return cell, c.store(ctx, e)
}

// store writes the record of a new cell, which is reserved, and starts its life.
func (c *Controller) store(ctx context.Context, e *entry) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	cell := e.cell()
	revision, err := c.cfg.Store.Put(ctx, keyPrefix+e.id, cell, 0)
	c.mu.Lock()
	if notWritten(err) {
		c.unreserve(e)
		c.mu.Unlock()
		if refusedWrite(err) {
			c.fail(err)
		}
		return fmt.Errorf("request a cell for pod %s: %w", cell.Pod, err)
	}
	c.cells[e.id] = e
	if err != nil {
		// It may be stored all the same: the cell's worker finds out.
		e.unsure, e.ending = cell, "the store did not answer"
		c.mu.Unlock()
		c.queue.AddRateLimited(e.id)
		return fmt.Errorf("request a cell for pod %s: %w", cell.Pod, err)
	}
	e.revision = revision
	c.mu.Unlock()
	c.cfg.Changed(*cell)
	c.queue.Add(e.id)
	return nil
}

// reserve notes, under mu, whose a cell is.
func (c *Controller) reserve(e *entry) {
	if e.pod.UID == "" {
		c.standby[e.id] = e
		return
	}
	c.byPod[e.pod.UID] = e.id
	c.claim(e)
	name := nameOf(e.pod)
	c.named[name] = append(c.named[name], e.pod.UID)
}

// unreserve undoes reserve, under mu.
func (c *Controller) unreserve(e *entry) {
	delete(c.standby, e.id)
	if e.pod.UID == "" {
		return
	}
	delete(c.byPod, e.pod.UID)
	c.unclaim(e)
	name := nameOf(e.pod)
	c.named[name] = slices.DeleteFunc(c.named[name], func(uid types.UID) bool { return uid == e.pod.UID })
	if len(c.named[name]) == 0 {
		delete(c.named, name)
	}
}

func nameOf(pod apiv1.PodReference) cache.ObjectName {
	return cache.ObjectName{Namespace: pod.Namespace, Name: pod.Name}
}

// PodsNamed returns the pods of this name, of the past or the present, that have
// a cell.
func (c *Controller) PodsNamed(name cache.ObjectName) []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.named[name])
}

// ErrHasCell: a pod has at most one cell at a time.
var ErrHasCell = errors.New("the pod has a cell already")

// Release lets a pod's cell go: its instance is terminated. podEnded says that
// the pod ran to its end, so that its logs are saved first. A pod without a
// cell is no error.
func (c *Controller) Release(uid types.UID, why string, podEnded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cells[c.byPod[uid]]
	if !ok || e.ending != "" {
		return
	}
	e.ending, e.podEnded, e.cause = why, podEnded, CausePodDeleted
	if podEnded {
		e.cause = CausePodEnded
	}
	c.queue.Add(e.id)
}

// ReleaseUnbound lets a pod's cell go if its kubelet cannot have seen the pod
// yet, and from then on cannot. It returns false when the cell is bound: the
// kubelet then ends the pod.
func (c *Controller) ReleaseUnbound(uid types.UID, why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cells[c.byPod[uid]]
	if !ok {
		return true
	}
	if e.binding || e.cell().Phase == apiv1.Bound || e.cell().Phase == apiv1.Draining {
		return false
	}
	if e.ending == "" {
		e.ending, e.cause = why, CausePodDeleted
		c.queue.Add(e.id)
	}
	return true
}

// ForPod returns the cell of a pod.
func (c *Controller) ForPod(uid types.UID) (Cell, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cells[c.byPod[uid]]
	if !ok {
		return Cell{}, false
	}
	return *e.cell(), true
}

// List returns all cells that are not Gone.
func (c *Controller) List() []Cell {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Cell, 0, len(c.cells))
	for _, e := range c.cells {
		list = append(list, *e.cell())
	}
	return list
}

// RoundTripper leads to the agent of the pod's cell. ErrNoCell when the pod has
// none, ErrNotConnected when its tunnel is down.
func (c *Controller) RoundTripper(uid types.UID) (http.RoundTripper, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cells[c.byPod[uid]]
	if !ok {
		return nil, ErrNoCell
	}
	if e.session == nil || !e.session.Connected() {
		return nil, fmt.Errorf("cell %s (%s): %w", e.cell().ID, e.cell().Phase, ErrNotConnected)
	}
	return e.session.RoundTripper(), nil
}

// Link is how the connection to a cell fares.
type Link struct {
	Connected bool
	LastHeard time.Time // zero if never
	LastError error
}

// Link returns the state of a cell's connection; false when there is none yet.
func (c *Controller) Link(id string) (Link, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cells[id]
	if !ok || e.session == nil {
		return Link{}, false
	}
	return Link{Connected: e.session.Connected(), LastHeard: e.session.LastHeard(), LastError: e.session.LastError()}, true
}

// Connected is how many cells this process is connected to.
func (c *Controller) Connected() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.cells {
		if e.session != nil && e.session.Connected() {
			n++
		}
	}
	return n
}

// WaitsFor says what a cell that is not bound yet waits for.
func (c *Controller) WaitsFor(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.cells[id]
	if !ok {
		return "it is gone"
	}
	switch cell := e.cell(); cell.Phase {
	case apiv1.Requested, apiv1.Launching:
		return "the cloud has not answered yet"
	case apiv1.Booting, apiv1.Ready:
		return waitsFor(e)
	default:
		return cell.Reason
	}
}

var (
	ErrNoCell       = errors.New("the pod has no cell")
	ErrNotConnected = errors.New("the cell is not connected")
)

// process moves one cell as far as it goes now.
func (c *Controller) process(ctx context.Context, id string) {
	c.mu.Lock()
	e := c.cells[id]
	c.mu.Unlock()
	if e == nil {
		return
	}
	again, err := c.advance(ctx, e)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.again(e, err)
	case again > 0:
		c.queue.Forget(id)
		c.queue.AddAfter(id, again)
	default:
		c.queue.Forget(id)
	}
}

// again has a step that failed tried again, or ends Run where that would be wrong.
func (c *Controller) again(e *entry, err error) {
	if errors.Is(err, errMoved) {
		c.queue.Add(e.id)
		return
	}
	if refusedWrite(err) {
		// Somebody else writes our records: two Kips with one identity. To go
		// on would double instances.
		c.fail(err)
		return
	}
	c.cfg.Log.Warn("a cell's step failed, it is tried again", "cell", e.id, "pod", e.cell().Pod.String(), "phase", e.cell().Phase, "err", err)
	c.queue.AddRateLimited(e.id)
}

// fail ends Run.
func (c *Controller) fail(err error) {
	select {
	case c.failed <- err:
	default:
	}
}

// advance runs the steps of a cell's life until one waits. It returns after how
// long to look again; 0 means that something else will wake the cell.
func (c *Controller) advance(ctx context.Context, e *entry) (time.Duration, error) {
	for {
		before := e.cell().Phase
		again, err := c.stepOf(before)(ctx, e)
		if err != nil || e.cell().Phase == before || e.cell().Phase == apiv1.Gone {
			return again, err
		}
	}
}

func (c *Controller) stepOf(p apiv1.Phase) func(context.Context, *entry) (time.Duration, error) {
	switch p {
	case apiv1.Requested:
		return c.request
	case apiv1.Launching:
		return c.resume
	case apiv1.Booting:
		return c.join
	case apiv1.Ready:
		return c.bind
	case apiv1.Bound:
		return c.watch
	case apiv1.Draining:
		return c.drain
	case apiv1.Terminating:
		return c.terminate
	}
	return func(context.Context, *entry) (time.Duration, error) {
		return 0, fmt.Errorf("a stored cell has the unknown phase %q", p)
	}
}

// endingOf returns why the cell must end, or "".
func (c *Controller) endingOf(e *entry) (why string, podEnded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.ending, e.podEnded
}

// causeOf returns why the cell must end, in kind.
func (c *Controller) causeOf(e *entry) Cause {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(e.cause, CauseOther)
}

// disconnect closes what this process holds for a cell.
func (c *Controller) disconnect(e *entry) {
	c.mu.Lock()
	session, stopWait, api := e.session, e.stopWait, e.api
	e.session, e.stopWait, e.api, e.shown, e.configured, e.disksShown = nil, nil, nil, false, false, false
	c.mu.Unlock()
	if stopWait != nil {
		stopWait()
	}
	if session != nil {
		session.Close()
	}
	if api != nil {
		c.cfg.APIs.RemoveCell(e.id)
	}
}

// clusterDNS is where pods ask for names.
func (c *Controller) clusterDNS() []netip.Addr {
	if c.cfg.ClusterDNS == nil {
		return nil
	}
	return c.cfg.ClusterDNS()
}

// agentConfig is what a cell is told after it has joined.
func (c *Controller) agentConfig(cell *Cell, dns []netip.Addr) agentapi.Config {
	return agentapi.Config{
		NodeName: c.cfg.NodeName, NodeIP: cell.Instance.ManagementIP, PodIP: cell.Instance.PodIP,
		NodeIPv6: cell.Instance.ManagementIPv6, PodIPv6: cell.Instance.PodIPv6,
		ClusterDNS: dns, ClusterDomain: c.cfg.ClusterDomain,
		ReservedMemoryBytes: c.cfg.ReservedMemoryBytes, RegistryMirrors: c.cfg.RegistryMirrors,
		Plugins: c.cfg.HasPlugins || len(cell.Plugins) > 0,
	}
}

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// warn reports an event of type Warning on the cell's pod.
func (c *Controller) warn(cell *Cell, reason, format string, args ...any) {
	c.report(cell, warning, reason, fmt.Sprintf(format, args...))
}

// report reports an event on the cell's pod; in the log, where it has none.
func (c *Controller) report(cell *Cell, kind, reason, message string) {
	if cell.Pod.UID == "" {
		c.cfg.Log.Info(message, "cell", cell.ID, "standby", cell.Standby, "reason", reason)
		return
	}
	c.cfg.Event(cell.Pod, kind, reason, message)
}
