package pods

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/watchdog"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Controller reconciles pods with cells. It wires the parts, and chooses between them.
type Controller struct {
	cells.Unobserved

	cells    Cells
	watchdog *watchdog.Watchdog
	ready    chan struct{}
	core     core
	shared   shared
	ends     ends
	attends  attends
	requests requests
}

var _ cells.Observer = (*Controller)(nil)

// New returns a controller, which is to observe the cells; Run starts it.
func New(cfg Config) (*Controller, error) {
	core := newCore(cfg)
	shared := newShared(cfg, core)
	c := &Controller{
		cells:    cfg.Cells,
		watchdog: cfg.Watchdog,
		ready:    make(chan struct{}),
		core:     core,
		shared:   shared,
		ends:     newEnds(cfg, core),
		attends:  newAttends(cfg, core, shared),
		requests: newRequests(cfg, core, shared),
	}
	if err := c.ends.watching.watch(cfg, c.requests.volumes); err != nil {
		return nil, err
	}
	return c, nil
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.core.loop.stop()
	known := []cache.InformerSynced{c.core.registry.listed.HasSynced}
	if c.core.beside.rules != nil { // else the first pods would be placed without room for DaemonSets
		known = append(known, c.core.beside.copies.PodsSeen)
	}
	if !cache.WaitForCacheSync(ctx.Done(), known...) {
		return nil
	}
	c.core.registry.forgetUnlisted()
	// Pods that went while nobody looked have no event any more; their cells do.
	for _, cell := range c.cells.List() {
		c.core.beside.cellChanged(cell)
		c.core.loop.wake(nameOf(cell))
	}
	c.core.beside.began = c.core.beside.clock.Now()
	c.core.loop.start(ctx, c.reconcile)
	c.core.loop.running.Go(func() { c.watchdog.TrackLock(ctx, "the lock of the pods", &c.core.registry.mu) })
	close(c.ready)
	<-ctx.Done()
	return nil
}

// Close lets go of what New began. It is for a controller that never ran as well: one whose
// pods were not listed before its process led no more.
func (c *Controller) Close() { c.core.loop.queue.ShutDown() }

// Ready is closed when pods are being reconciled.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// reconcile brings one pod and its cell together. It returns after how long to
// look again; 0 means when something changes.
func (c *Controller) reconcile(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	pod, err := c.core.registry.get(name)
	if err != nil {
		return 0, err
	}
	again := c.ends.releasing.release(ctx, name, pod)
	if pod == nil {
		return again, nil
	}
	switch {
	// Before the phase: the kubelet of a deleted pod reports its end first and
	// deletes it then, and must not lose its machine in between.
	case pod.DeletionTimestamp != nil:
		return c.ends.deleting.Step(ctx, pod)
	case watches.Ended(pod):
		return c.ends.completing.Step(ctx, pod)
	}
	if cell, has := c.cells.ForPod(pod.UID); has {
		if cell.Phase != apiv1.Bound {
			// The status that its kubelet sends wakes the pod once the cell runs it, and CellChanged does if the cell goes first.
			return c.requests.bounding.waitForCell(ctx, pod, cell)
		}
		return c.attends.attending.attend(ctx, pod, cell)
	}
	if why, is := c.requests.standing.noMachine(pod); is {
		return c.requests.standing.stand(ctx, pod, why)
	}
	return c.requests.requesting.Step(ctx, pod)
}

// CellChanged learns that a pod was bound to its cell, and from the cell's end, and wakes the pod then. It does not
// block.
func (c *Controller) CellChanged(cell cells.Cell) {
	if !cell.Live() {
		c.requests.volumes.disksFreed(cell.Disks)
	}
	if cell.Pod.UID == "" {
		return
	}
	c.core.beside.cellChanged(cell)
	if !cell.StepTime(apiv1.StepBound).IsZero() { // also of one that was bound when this process loaded it
		c.core.history.bound(cell)
	}
	if cell.Phase != apiv1.Gone {
		return
	}
	c.core.history.cellGone(cell) // first: a worker may find the pod without a cell already
	c.core.waits.cellGone(cell)
	c.ends.releasing.cellGone(cell.Pod.UID)
	c.attends.attending.rescuing.note(cell, time.Time{})
	if cell.Instance != nil {
		c.core.waits.foundCapacity(cell.Pod.UID)
	}
	c.core.loop.wake(nameOf(cell))
}

// CellSilent is told of a bound cell that has not been heard of for a while, again
// and again as long as it is silent. It does not block.
func (c *Controller) CellSilent(cell cells.Cell, _ time.Time) {
	c.attends.attending.silences.note(cell)
	c.core.loop.wake(nameOf(cell))
}

// CellInterrupted is told of a bound cell that the cloud takes back. It does not
// block.
func (c *Controller) CellInterrupted(cell cells.Cell) {
	c.attends.attending.rescuing.note(cell, cell.Interrupted)
	c.core.loop.wake(nameOf(cell))
}

// Choose returns what is to be requested for a pod. It changes nothing.
func (c *Controller) Choose(ctx context.Context, pod *corev1.Pod) (cells.Request, error) {
	return c.shared.choosing.Choose(ctx, pod)
}

// Rank returns where a pod's cell stands among the pod's choices; false if it has none, or that is not known.
func (c *Controller) Rank(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (placement.Standing, bool) {
	return c.attends.moving.rank(ctx, pod, cell)
}

// Pause requests no more cells, until the process ends: pods that wait for one
// get the reason why. Cells that there are go on, and deleted pods are seen out.
func (c *Controller) Pause(why string) {
	c.core.paused.begin(why)
	c.ends.watching.wakeAll()
}

// Waiting returns why a pod has no cell, and why it is left on a node that has none for it; ""
// when it has one or is unknown.
func (c *Controller) Waiting(uid types.UID) string {
	w := c.core.waits.get(uid)
	if w.why == "" {
		return ""
	}
	if stays := c.requests.returns.known(uid, w.node); stays != "" {
		return w.why + "; " + stays
	}
	return w.why
}

// WaitingPods returns how many pods have no cell, for a reason that was reported, by node.
func (c *Controller) WaitingPods() map[string]int { return c.core.waits.byNode() }
