package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/agentapi"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/tunnel"
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
	Store        *store.Store
	Tunnels      *tunnel.Dialer
	CellAPI      *cellapi.Server
	// CAHash goes into user data, so that a cell knows its Kip.
	CAHash string
	// Unavailable is told of each offer that the cloud could not serve.
	Unavailable func(instanceType, zone string, spot bool)
	// Event reports to the pod's owner.
	Event func(pod apiv1.PodReference, kind, reason, message string)
	// SaveLogs keeps the container logs of a pod that has ended; the round
	// tripper leads to the cell's agent.
	SaveLogs func(ctx context.Context, pod apiv1.PodReference, cell http.RoundTripper) error
	// Changed is called after each change of a cell, also when it is Gone. It
	// must not block.
	Changed func(Cell)

	ClusterDNS          []netip.Addr
	ClusterDomain       string
	ReservedMemoryBytes int64
	RegistryMirrors     map[string][]string
	// NameTag is the value of the instances' Name tag.
	NameTag string
	// BootTimeout is how long a cell may take from launch to a ready kubelet.
	BootTimeout time.Duration
	Clock       clock.WithTicker
	Log         *slog.Logger
}

// workers is how many cells are moved along at the same time. A step waits for
// the cloud or the store, hardly for the processor.
const workers = 64

// Controller moves every cell through its life. One worker handles a cell at a
// time: it is the only writer of that cell's record.
type Controller struct {
	cfg    Config
	queue  workqueue.TypedRateLimitingInterface[string]
	polls  chan struct{} // asks the inventory for a fresh look
	failed chan error    // ends Run
	ready  chan struct{}

	mu    sync.Mutex
	cells map[string]*entry
	byPod map[types.UID]string // live or not, until Gone
	// named are the pods with a cell, by their names, which are reused.
	named map[cache.ObjectName][]types.UID
	look  look // the last look at the cloud
}

// entry is a cell and what this process holds for it. The worker of the cell
// writes; others read under Controller.mu.
type entry struct {
	current  atomic.Pointer[Cell] // never modified, only replaced
	writing  sync.Mutex           // held from reading current to replacing it
	revision int64                // of the stored record; under writing

	// ending, once set, is why the cell must end; podEnded as in Cell.
	ending   string
	podEnded bool
	// binding is set when the worker has decided to show the pod.
	binding bool

	api        *cellapi.Cell
	session    *tunnel.Session
	stopWait   context.CancelFunc // of the goroutine that waits for the kubelet
	configured bool               // the agent has its configuration from this process
	terminated time.Time          // when the cloud accepted the termination
	missing    time.Time          // since when looks at the cloud do not show the instance
}

// cell is the record as it is now.
func (e *entry) cell() *Cell { return e.current.Load() }

func newEntry(cell Cell, revision int64) *entry {
	e := &entry{revision: revision}
	e.current.Store(&cell)
	return e
}

// New returns a controller; Run starts it.
func New(cfg Config) *Controller {
	return &Controller{
		cfg:    cfg,
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 30*time.Second)),
		polls:  make(chan struct{}, 1),
		failed: make(chan error, 1),
		ready:  make(chan struct{}),
		cells:  map[string]*entry{},
		byPod:  map[types.UID]string{},
		named:  map[cache.ObjectName][]types.UID{},
	}
}

const keyPrefix = "cells/"

// Load reads the stored cells and takes up their lives again: a cell that is
// bound shows its pod before its tunnel is dialled, so that its kubelet is never
// told that the pod is gone. Call it once, before Run.
func (c *Controller) Load(ctx context.Context) error {
	err := c.cfg.Store.List(ctx, keyPrefix, func(key string, data []byte, revision int64) error {
		var cell Cell
		if err := json.Unmarshal(data, &cell); err != nil {
			return fmt.Errorf("read the stored cell %s: %w", key, err)
		}
		c.reserve(cell)
		c.cells[cell.ID] = newEntry(cell, revision)
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

// Run moves cells until ctx ends, or until the store has failed for good. Cells
// go on running without it.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
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
	wg.Go(func() { c.takeInventory(ctx) })
	close(c.ready)

	var err error
	select {
	case <-ctx.Done():
	case err = <-c.failed:
	}
	cancel()
	c.queue.ShutDown()
	wg.Wait()
	c.mu.Lock()
	entries := make([]*entry, 0, len(c.cells))
	for _, e := range c.cells {
		entries = append(entries, e)
	}
	c.mu.Unlock()
	for _, e := range entries {
		c.disconnect(e)
	}
	return err
}

// Ready is closed when cells are being moved.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// Request asks for a cell for a pod. The offers come best first, and at least
// one. It returns when the request is stored. A pod that has a cell that is not
// Gone gets no other: ErrHasCell.
func (c *Controller) Request(ctx context.Context, pod apiv1.PodReference, attempt int, seen time.Time, offers []Offer) (Cell, error) {
	if len(offers) == 0 {
		return Cell{}, fmt.Errorf("request a cell for pod %s: no offers", pod)
	}
	now := c.cfg.Clock.Now()
	cell := Cell{ID: newID(), Pod: pod, Phase: apiv1.Requested, Attempt: attempt, Offers: offers, Reason: offers[0].Reason}
	cell.step(apiv1.StepSeen, seen)
	cell.step(apiv1.StepPlaced, now)

	c.mu.Lock()
	if _, has := c.byPod[pod.UID]; has {
		c.mu.Unlock()
		return Cell{}, fmt.Errorf("request a cell for pod %s: %w", pod, ErrHasCell)
	}
	c.reserve(cell) // while it is being stored
	c.mu.Unlock()

	revision, err := c.cfg.Store.Put(ctx, keyPrefix+cell.ID, cell, 0)
	c.mu.Lock()
	if err != nil {
		c.unreserve(cell)
		c.mu.Unlock()
		return Cell{}, fmt.Errorf("request a cell for pod %s: %w", pod, err)
	}
	c.cells[cell.ID] = newEntry(cell, revision)
	c.mu.Unlock()
	c.cfg.Changed(cell)
	c.queue.Add(cell.ID)
	return cell, nil
}

// reserve notes, under mu, that a cell is its pod's.
func (c *Controller) reserve(cell Cell) {
	c.byPod[cell.Pod.UID] = cell.ID
	name := nameOf(cell.Pod)
	c.named[name] = append(c.named[name], cell.Pod.UID)
}

// unreserve undoes reserve, under mu.
func (c *Controller) unreserve(cell Cell) {
	delete(c.byPod, cell.Pod.UID)
	name := nameOf(cell.Pod)
	c.named[name] = slices.DeleteFunc(c.named[name], func(uid types.UID) bool { return uid == cell.Pod.UID })
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
	e.ending, e.podEnded = why, podEnded
	c.queue.Add(e.cell().ID)
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
		e.ending = why
		c.queue.Add(e.cell().ID)
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
	case errors.Is(err, store.ErrConflict):
		// Somebody else writes our records: two Kips with one identity. To go
		// on would double instances.
		select {
		case c.failed <- err:
		default:
		}
	case err != nil:
		c.cfg.Log.Warn("a cell's step failed, it is tried again", "cell", id, "pod", e.cell().Pod.String(), "phase", e.cell().Phase, "err", err)
		c.queue.AddRateLimited(id)
	case again > 0:
		c.queue.Forget(id)
		c.queue.AddAfter(id, again)
	default:
		c.queue.Forget(id)
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
		return c.launch
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

// save changes the record: first in the store, then here.
func (c *Controller) save(ctx context.Context, e *entry, change func(*Cell) error) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	cell := e.cell().clone()
	if err := change(&cell); err != nil {
		return err
	}
	revision, err := c.cfg.Store.Put(ctx, keyPrefix+cell.ID, cell, e.revision)
	if err != nil {
		return err
	}
	e.revision = revision
	e.current.Store(&cell)
	c.cfg.Changed(cell)
	return nil
}

// endingOf returns why the cell must end, or "".
func (c *Controller) endingOf(e *entry) (why string, podEnded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.ending, e.podEnded
}

// end marks the cell as ending for a reason of its own.
func (c *Controller) end(e *entry, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.ending == "" {
		e.ending = why
	}
}

// disconnect closes what this process holds for a cell.
func (c *Controller) disconnect(e *entry) {
	c.mu.Lock()
	session, stopWait, api := e.session, e.stopWait, e.api
	e.session, e.stopWait, e.api, e.configured = nil, nil, nil, false
	c.mu.Unlock()
	if stopWait != nil {
		stopWait()
	}
	if session != nil {
		session.Close()
	}
	if api != nil {
		c.cfg.CellAPI.RemoveCell(e.cell().ID)
	}
}

// agentConfig is what a cell is told after it has joined.
func (c *Controller) agentConfig(cell *Cell) agentapi.Config {
	return agentapi.Config{
		NodeName: c.cfg.NodeName, NodeIP: cell.Instance.ManagementIP, PodIP: cell.Instance.PodIP,
		ClusterDNS: c.cfg.ClusterDNS, ClusterDomain: c.cfg.ClusterDomain,
		ReservedMemoryBytes: c.cfg.ReservedMemoryBytes, RegistryMirrors: c.cfg.RegistryMirrors,
	}
}

// warn reports an event of type Warning on the cell's pod.
func (c *Controller) warn(cell *Cell, reason, format string, args ...any) {
	c.cfg.Event(cell.Pod, corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...))
}

// tell reports an event of type Normal on the cell's pod.
func (c *Controller) tell(cell *Cell, reason, format string, args ...any) {
	c.cfg.Event(cell.Pod, corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...))
}
