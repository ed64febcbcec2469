package pods

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/fairqueue"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watchdog"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Config of a Controller. All fields are required unless they say otherwise.
type Config struct {
	// Pods are those bound to the virtual nodes, each listed as its node.
	Pods watches.Pods
	// Nodes are these virtual nodes.
	Nodes Nodes
	Cells Cells
	// Volumes are those of pods. Optional: no pod has any.
	Volumes Volumes
	// Claims are those of all namespaces. Optional: pods that wait for one are looked at again and again.
	Claims Claims
	// Options are what a cell is launched with where its pod's annotations do not say
	// otherwise.
	Options cells.Options
	// Grants are what pods may ask for by annotation.
	Grants Grants
	// CostLabels are the keys of the labels that costs are kept by. Optional.
	CostLabels []string
	// Events are those of pods.
	Events cells.Recorder
	// Observer is told what becomes of pods.
	Observer Observer
	// MaxAttempts is how many cells in a row may be launched, or refused, for a pod and not
	// become ready before the pod is Failed; 0 for no bound.
	MaxAttempts int
	// Leadership is asked before a pod is ended: a process that does not lead knows too
	// little of cells. Optional: it leads.
	Leadership Leadership
	// Watchdog tracks the tasks of the loops. Optional.
	Watchdog *watchdog.Watchdog
	// Queues measures the work queue. Optional.
	Queues workqueue.MetricsProvider
	// Random is for jitter. Optional.
	Random backoff.Random
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// Nodes is what this package needs of the virtual nodes.
type Nodes interface {
	// Listed says that the pods of a node are known; "" is the one of cells whose record
	// says none.
	Listed(node string) bool
	// Client acts as a node.
	Client(node string) kubernetes.Interface
	// Choose returns what can be launched for a pod on its node, in a zone if one is given, and why nothing else can. Errors
	// that are not of placement say that Kip cannot tell now.
	Choose(ctx context.Context, pod *corev1.Pod, zone string) (placement.Chosen, error)
	// Elsewhere are the other nodes that the scheduler may give a pod instead of its own,
	// if pods may leave that: one of spot alone, or one that has nothing for anybody.
	Elsewhere(ctx context.Context, pod *corev1.Pod) []string
	// TurnsAway says that the node of a pod takes no other like it now: the one that its
	// controller makes in its place would come back. It may ask the node to, and be called
	// again.
	TurnsAway(ctx context.Context, pod *corev1.Pod) bool
}

// Volumes is what this package needs of package volumes.
type Volumes interface {
	// Needs returns what a pod's volumes need. The error is a *volumes.UnsupportedError or a
	// *volumes.NotReadyError where the pod must wait.
	Needs(ctx context.Context, pod *corev1.Pod) (volumes.Needs, error)
}

// Claims informs of changes of claims. A [cache.SharedIndexInformer] does; of a claim only the name is read.
type Claims interface {
	AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// Leadership is the right to act for the cluster, which another process may take over.
type Leadership interface {
	// Leads returns an error unless this process surely leads. It bounds its time.
	Leads(ctx context.Context) error
}

// Observer is told what becomes of pods, by several goroutines at a time. Until it returns
// the pods, or their watch, wait.
type Observer interface {
	// PodRunning is told, once or more, that a pod runs on its cell.
	PodRunning(cell cells.Cell, at time.Time)
	// PodGone is told of a pod that no longer exists, also of one that has had no cell.
	PodGone(uid types.UID)
}

// Cells is what this package needs of package cells.
type Cells interface {
	// Observe has an observer told of the cells.
	Observe(cells.Observer)
	// Request asks for a cell by those of the offerings that the pod's namespace can pay.
	Request(ctx context.Context, r cells.Request) (cells.Cell, error)
	// Behind says why a pod without a cell may run on one that this Kip does not know of;
	// "" if it does not. EndElsewhere ends what may run a pod besides the cell that it may have, and
	// says why that is not certain yet; arrived says whether the pod did.
	Behind() (why string, sure bool)
	EndElsewhere(uid types.UID, created time.Time, arrived bool) (why string, sure bool)
	Release(uid types.UID, why string, podEnded bool)
	// ReleaseVanished returns false while the end is held back.
	ReleaseVanished(ctx context.Context, uid types.UID, why string) bool
	ReleaseUnbound(uid types.UID, why string) bool
	ForPod(uid types.UID) (cells.Cell, bool)
	PodsNamed(name cache.ObjectName) []types.UID
	List() []cells.Cell
}

var (
	_ Cells          = (*cells.Controller)(nil)
	_ Volumes        = volumes.Resolver{}
	_ cells.Observer = (*Controller)(nil)
)

const (
	workers = 32
	// firstBackoff is the first wait between two cells for the same pod, or two looks that found none, and
	// longestBackoff the longest between two cells.
	firstBackoff, longestBackoff = time.Second, 5 * time.Minute
	// staleRetry is after how long a pod is looked at again of which the watch has yet
	// to tell what the API server knows.
	staleRetry = time.Second
	// behindRetry is after how long a pod is looked at again while a person has to decide
	// what becomes of the cells that this Kip does not know of.
	behindRetry = 10 * time.Second
	// changeSettles is how long a waiting pod that is changed waits at most: each look
	// for an instance is work.
	changeSettles = 3 * time.Second
	// unplaceableRetry is how long a pod that fits no type waits for another
	// look: types and prices change by the day.
	unplaceableRetry = 10 * time.Minute
	// scarceRetry is the longest wait between two looks for a pod of whose types there are
	// none: shortages are counted for minutes.
	scarceRetry = 30 * time.Second
	// connectRetry is how long a pod waits for another look while Kip connects to its
	// standby cells.
	connectRetry = 200 * time.Millisecond
	// budgetRetry is how long a pod waits for another look whose namespace has no money left
	// for it: until a cell of it ends, or a month.
	budgetRetry = 30 * time.Second
	// vanishedRetry is when a pod is looked for again that nobody has seen deleted, while
	// the end of its cell is held back.
	vanishedRetry = 15 * time.Second
	// overdue is how long after its grace period a deleted pod may still exist
	// before its cell is terminated under it: time enough for a kubelet that
	// kills what does not stop, and for a tunnel that is being mended.
	overdue = time.Minute
	// lastWords is how long a kubelet has to say how the containers of a pod ended of which it
	// has said that it ended: a moment, or more on a machine that is busy with just that, for which its
	// agent keeps the machine for as long, of the graces that pods have there.
	lastWords = 15 * time.Second
)

// Controller reconciles pods with cells.
type Controller struct {
	cells.Unobserved

	cfg   Config
	queue workqueue.TypedRateLimitingInterface[cache.ObjectName]
	ready chan struct{}

	mu   sync.Mutex
	pods map[types.UID]*waiting
	// gone are the pods with a cell of which it was seen that they were deleted.
	gone       map[types.UID]bool
	forbidden  map[types.UID]time.Time // since when one may not be looked for that is not listed
	paused     string                  // why no cells are requested, if set
	departures departures
	awaited    awaited
}

// waiting is what is known about a pod between its cells.
type waiting struct {
	seen     time.Time
	attempts int
	looks    int       // in a row that found nothing to launch for it, or its volumes not ready
	untold   int       // in a row that found that the cloud is being asked about its disks
	looked   time.Time // when its volumes were last found not ready
	awaits   []string  // what it waits for, as keys of Controller.awaited
	until    time.Time // no cell before then, unless the pod changes
	why      string    // why it has no cell
	node     string    // on which it waits; set with why
	reason   string    // that of the Event which said so
	// What placement reads of a pod and can change.
	generation  int64
	annotations map[string]string

	failures    int        // cells in a row that were launched and not ready, or refused for what the pod asks
	refusal     string     // why the last of them was refused; "" if it was launched
	ran         bool       // a kubelet has had the pod
	arrived     bool       // it came after its node's pods were listed, and no kubelet had had it then
	lacked      lacked     // what the machine of its last cell that was too small had not
	silent      time.Time  // when its cell was last found silent
	marked      time.Time  // when it was marked as not ready, since its cell is silent
	interrupted time.Time  // when the cloud takes its instance; zero if it does not
	told        string     // what was last reported of the interruption
	short       time.Time  // since when there is no capacity for it on its node; zero if there is
	back        *departure // of others of its controller, after which it came to the same node
	// deleted is the end of the grace period by the API server's clock, and deletedSeen
	// when that was first seen, by Kip's.
	deleted, deletedSeen time.Time
	stood                time.Time // when Kip last wrote its status as that of a pod without a machine
	endedSeen            time.Time // when it was first seen that it has ended
}

// lacked is what a machine had less than its type promises, and its pod needed.
type lacked struct {
	catalog.Room
	why string
}

// New returns a controller, which observes the cells; Run starts it.
func New(cfg Config) (*Controller, error) {
	c := &Controller{
		cfg: cfg,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			backoff.Items[cache.ObjectName](100*time.Millisecond, time.Minute, cfg.Random),
			fairqueue.InTurns(workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{Name: "pods", MetricsProvider: cfg.Queues},
				func(pod cache.ObjectName) string { return pod.Namespace })),
		ready:     make(chan struct{}),
		pods:      map[types.UID]*waiting{},
		gone:      map[types.UID]bool{},
		forbidden: map[types.UID]time.Time{},

		departures: departures{},
		awaited:    awaited{},
	}
	if _, err := cfg.Pods.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    c.added,
		UpdateFunc: func(_, obj any) { c.enqueue(obj) },
		DeleteFunc: c.deleted,
	}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if cfg.Claims != nil {
		if _, err := cfg.Claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    c.claimChanged,
			UpdateFunc: func(_, claim any) { c.claimChanged(claim) },
		}); err != nil {
			return nil, fmt.Errorf("watch claims: %w", err)
		}
	}
	cfg.Cells.Observe(c)
	return c, nil
}

func (c *Controller) enqueue(obj any) {
	if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
		c.queue.Add(name)
	}
}

// added is told of a pod. One that its node's first list lacked was given to the node since, so no
// Kip before this one can have launched a cell for it.
func (c *Controller) added(obj any, isInInitialList bool) {
	if pod, ok := obj.(*corev1.Pod); ok && !isInInitialList && pod.Status.StartTime == nil && !started(pod) {
		c.note(apiv1.Ref(pod), func(w *waiting) { w.arrived = true })
	}
	c.enqueue(obj)
}

// deleted is told of a pod that has gone, perhaps while nobody watched.
func (c *Controller) deleted(obj any) {
	last, missed := obj.(cache.DeletedFinalStateUnknown)
	if missed {
		obj = last.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		if _, has := c.cfg.Cells.ForPod(pod.UID); has && (!missed || pod.DeletionTimestamp != nil) {
			c.mu.Lock()
			c.gone[pod.UID] = true
			c.mu.Unlock()
		}
		c.forget(pod.UID)
		c.enqueue(pod)
	}
}

// CellChanged learns from the end of a pod's cell, and wakes the pod. It does not
// block.
func (c *Controller) CellChanged(cell cells.Cell) {
	if !cell.Live() {
		c.disksFreed(cell.Disks)
	}
	if cell.Phase != apiv1.Gone || cell.Pod.UID == "" {
		return
	}
	c.mu.Lock()
	delete(c.gone, cell.Pod.UID)
	delete(c.forbidden, cell.Pod.UID)
	c.mu.Unlock()
	bound := !cell.StepTime(apiv1.StepBound).IsZero()
	c.note(cell.Pod, func(w *waiting) {
		if cell.Instance != nil {
			w.short = time.Time{} // there was capacity
		}
		switch {
		case bound:
			w.ran, w.failures = true, 0
		case cell.Cause == cells.CauseTooSmall:
			promised := catalog.Room{MilliCPU: cell.Offering().MilliCPU, MemoryBytes: cell.Offering().MemoryBytes}
			w.lacked = lacked{Room: promised.Beyond(cell.Room), why: cell.Reason}
		case slices.Contains([]cells.Cause{cells.CauseUnfit, cells.CauseNoDisk, cells.CauseNoRoute}, cell.Cause):
			// No fault of the pod's: it waits for who mends it.
		case cell.Instance != nil && cell.Interrupted.IsZero() && cell.Cause != cells.CauseInterrupted:
			w.failures, w.refusal = w.failures+1, ""
		case cell.Cause == cells.CauseNotLaunched && cell.Refusals > 0:
			w.failures, w.refusal = w.failures+1, cell.Reason
		}
		w.interrupted = time.Time{}
	})
	c.queue.Add(nameOf(cell))
}

// CellSilent is told of a bound cell that has not been heard of for a while, again
// and again as long as it is silent. It does not block.
func (c *Controller) CellSilent(cell cells.Cell, _ time.Time) {
	c.note(cell.Pod, func(w *waiting) { w.silent = c.cfg.Clock.Now() })
	c.queue.Add(nameOf(cell))
}

// CellInterrupted is told of a bound cell that the cloud takes back. It does not
// block.
func (c *Controller) CellInterrupted(cell cells.Cell) {
	c.note(cell.Pod, func(w *waiting) { w.interrupted = cell.Interrupted })
	c.queue.Add(nameOf(cell))
}

func nameOf(cell cells.Cell) cache.ObjectName {
	return cache.ObjectName{Namespace: cell.Pod.Namespace, Name: cell.Pod.Name}
}

// note changes what is known about a pod, if it exists.
func (c *Controller) note(pod apiv1.PodReference, change func(*waiting)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.known(pod); w != nil {
		change(w)
	}
}

// known is what is known about a pod; nil if it is not there any more: what was
// noted then would be kept for ever. The caller holds mu, without which the pod
// could be forgotten between the look and the note.
func (c *Controller) known(pod apiv1.PodReference) *waiting {
	w := c.pods[pod.UID]
	if w == nil {
		here, err := c.get(cache.ObjectName{Namespace: pod.Namespace, Name: pod.Name})
		// Before the pods are listed it may be one of them: Run forgets it if not.
		if (err != nil || here == nil || here.UID != pod.UID) && c.cfg.Pods.HasSynced() {
			return nil
		}
		w = &waiting{seen: c.cfg.Clock.Now()}
		c.pods[pod.UID] = w
	}
	return w
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), c.cfg.Pods.HasSynced) {
		return nil
	}
	c.forgetUnlisted()
	// Pods that went while nobody looked have no event any more; their cells do.
	for _, cell := range c.cfg.Cells.List() {
		c.queue.Add(nameOf(cell))
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				name, shutdown := c.queue.Get()
				if shutdown {
					return
				}
				c.cfg.Watchdog.Track(ctx, "pods", func(ctx context.Context) { c.process(ctx, name) })
				c.queue.Done(name)
			}
		})
	}
	wg.Go(func() { c.cfg.Watchdog.TrackLock(ctx, "the lock of the pods", &c.mu) })
	close(c.ready)
	<-ctx.Done()
	c.queue.ShutDown()
	wg.Wait()
	return nil
}

// Close lets go of what New began. It is for a controller that never ran as well: one whose
// pods were not listed before its process led no more.
func (c *Controller) Close() { c.queue.ShutDown() }

// forgetUnlisted forgets what was noted of pods that turn out not to be there.
func (c *Controller) forgetUnlisted() {
	there := map[types.UID]bool{}
	for _, obj := range c.cfg.Pods.GetStore().List() {
		there[obj.(*corev1.Pod).UID] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid := range c.pods {
		if !there[uid] {
			c.awaits(uid, cache.ObjectName{})
			delete(c.pods, uid)
		}
	}
}

// Ready is closed when pods are being reconciled.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

func (c *Controller) process(ctx context.Context, name cache.ObjectName) {
	again, err := c.reconcile(ctx, name)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.cfg.Log.Warn("reconcile a pod, retrying", "pod", name.String(), "err", err)
		c.queue.AddRateLimited(name)
	case again > 0:
		c.queue.Forget(name)
		c.queue.AddAfter(name, again)
	default:
		c.queue.Forget(name)
	}
}

// reconcile brings one pod and its cell together. It returns after how long to
// look again; 0 means when something changes.
func (c *Controller) reconcile(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	pod, err := c.get(name)
	if err != nil {
		return 0, err
	}
	// Cells of earlier pods of this name: a name is reused, a UID is not.
	again := time.Duration(0)
	for _, uid := range c.cfg.Cells.PodsNamed(name) {
		cell, has := c.cfg.Cells.ForPod(uid)
		c.mu.Lock()
		gone := pod != nil || c.gone[uid] // another has its name
		c.mu.Unlock()
		switch {
		case pod != nil && pod.UID == uid:
		case gone:
			c.cfg.Cells.Release(uid, "the pod was deleted", false)
		case has && !c.cfg.Nodes.Listed(cell.Node):
			again = staleRetry // whether it is there is not known: its cell stays
		case has && cell.Node != "" && c.mayExist(ctx, name, uid, cell.Node):
			again = vanishedRetry
		case !c.cfg.Cells.ReleaseVanished(ctx, uid, "the API server does not show the pod any more"):
			again = cmp.Or(again, vanishedRetry)
			if _, sure := c.cfg.Cells.Behind(); !sure {
				again = staleRetry // a list of the cloud comes soon
			}
		}
	}
	if pod == nil {
		return again, nil
	}
	switch {
	// Before the phase: the kubelet of a deleted pod reports its end first and
	// deletes it then, and must not lose its machine in between.
	case pod.DeletionTimestamp != nil:
		return c.finishDeletion(ctx, pod)
	case watches.Ended(pod):
		if left := c.untold(pod); left > 0 {
			return left, nil
		}
		c.cfg.Cells.Release(pod.UID, "the pod has "+string(pod.Status.Phase), true)
		return 0, nil
	}
	if cell, has := c.cfg.Cells.ForPod(pod.UID); has {
		if !cell.Live() || cell.Phase != apiv1.Bound {
			return 0, nil
		}
		return c.attend(ctx, pod, cell)
	}
	if none, is := c.noMachine(pod); is {
		return c.stand(ctx, pod, none)
	}
	return c.request(ctx, pod)
}

// forbiddenFor is how long a look for a pod is forbidden before that is taken for good. An API server that has just begun refuses for
// some minutes what it will allow (kubernetes/kubernetes#121635).
const forbiddenFor = 15 * time.Minute

// mayExist reports whether the API server has a pod that the watch does not show, or cannot tell. It is asked for a list with a
// selector: to get a pod that does not exist is forbidden to a node (k8s.io/kubernetes/plugin/pkg/auth/authorizer/node).
func (c *Controller) mayExist(ctx context.Context, name cache.ObjectName, uid types.UID, node string) bool {
	list, err := c.cfg.Nodes.Client(node).CoreV1().Pods(name.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", node),
			fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name)).String(),
	})
	c.mu.Lock()
	if !apierrors.IsForbidden(err) {
		delete(c.forbidden, uid)
	} else if c.forbidden[uid].IsZero() {
		c.forbidden[uid] = c.cfg.Clock.Now()
	}
	since := c.forbidden[uid]
	c.mu.Unlock()
	if err != nil {
		c.cfg.Log.Warn("look for a pod that is not listed any more", "pod", name.String(), "err", err)
		return since.IsZero() || c.cfg.Clock.Since(since) < forbiddenFor
	}
	return slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.UID == uid })
}

// client acts as the node of a pod.
func (c *Controller) client(pod *corev1.Pod) corev1client.PodInterface {
	return c.cfg.Nodes.Client(pod.Spec.NodeName).CoreV1().Pods(pod.Namespace)
}

func (c *Controller) get(name cache.ObjectName) (*corev1.Pod, error) {
	obj, exists, err := c.cfg.Pods.GetStore().GetByKey(name.String())
	if err != nil || !exists {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// behindWait is after how long a pod is looked at again that may run on a cell that this
// Kip does not know of. A list of the cloud, which makes it certain, comes soon.
func behindWait(sure bool) time.Duration {
	if sure {
		return behindRetry
	}
	return staleRetry
}

// endElsewhere ends what may run a pod besides its cell. It returns why the pod may run there yet; "" if it does not.
func (c *Controller) endElsewhere(pod *corev1.Pod) (why string, sure bool) {
	arrived := false
	c.note(apiv1.Ref(pod), func(w *waiting) { arrived = w.arrived && !w.ran && !started(pod) })
	return c.cfg.Cells.EndElsewhere(pod.UID, pod.CreationTimestamp.Time, arrived)
}

// waits records and reports why a pod has no cell, once for each reason.
// keys are what wakes it, as keys of awaited.
func (c *Controller) waits(pod *corev1.Pod, e events.Event, why string, until time.Time, keys ...string) {
	c.mu.Lock()
	w := c.known(apiv1.Ref(pod))
	// The figures of a budget change all the time: who asks is told, the Event is enough once.
	changed := w != nil && w.why != why && !(e.Reason == events.BudgetExceeded && w.reason == e.Reason && w.why != "")
	if w != nil {
		w.why, w.node, w.reason, w.until = why, pod.Spec.NodeName, e.Reason, until
		c.awaits(pod.UID, cache.ObjectName{Namespace: pod.Namespace, Name: pod.Name}, keys...)
		if e.Reason != events.NoCapacity {
			w.short = time.Time{} // whether there is any is not known
		}
	}
	c.mu.Unlock()
	if changed {
		c.cfg.Events.Event(apiv1.Ref(pod), e)
	}
}

// waitsForEnd reports what keeps a pod without a cell from being ended, since an instance may run it.
// It returns when to check again; 0 if nothing runs it.
func (c *Controller) waitsForEnd(pod *corev1.Pod) time.Duration {
	why, sure := c.endElsewhere(pod)
	if why == "" {
		return 0
	}
	said := events.NewCellUnknown(why)
	if behind, known := c.cfg.Cells.Behind(); !sure {
		said = events.NewInstancesNotListed(why)
	} else if behind != "" && known {
		said = events.NewStoreBehind(why)
	}
	c.waits(pod, said, why, time.Time{})
	return behindWait(sure)
}

// finishDeletion sees a deleted pod out. Where a kubelet has it, the kubelet
// does; else Kip.
func (c *Controller) finishDeletion(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	if !c.cfg.Cells.ReleaseUnbound(pod.UID, "the pod was deleted before it ran") {
		// The kubelet ends the pod and deletes it.
		if left := c.graceLeft(pod) + overdue; left > 0 {
			return left, nil
		}
		late := events.NewDeletionOverdue(overdue)
		c.cfg.Events.Event(apiv1.Ref(pod), late)
		c.cfg.Cells.Release(pod.UID, late.Message, false)
		return 0, nil // the cell wakes the pod when it is gone
	}
	// A cell that was bound may run the pod, also if nothing was heard of that.
	if cell, has := c.cfg.Cells.ForPod(pod.UID); has && (started(pod) || !cell.StepTime(apiv1.StepBound).IsZero()) {
		return 0, nil // a lost or overdue cell: wait until the cloud has confirmed its end
	}
	if apiv1.WithoutMachine(pod) == nil { // nothing has ever run one
		if wait := c.waitsForEnd(pod); wait > 0 {
			return wait, nil
		}
	}
	if err := c.leads(ctx); err != nil {
		return 0, fmt.Errorf("delete pod %s, which no cell runs: %w", apiv1.Ref(pod), err)
	}
	zero := int64(0)
	err := c.client(pod).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("delete pod %s, which no cell runs: %w", apiv1.Ref(pod), err)
	}
	return 0, nil
}

// leads returns an error unless this process surely leads.
func (c *Controller) leads(ctx context.Context) error {
	if c.cfg.Leadership == nil {
		return nil
	}
	return c.cfg.Leadership.Leads(ctx)
}

// graceLeft is how much of its grace period a deleted pod has left, negative once it is
// over. The deletion timestamp is by the API server's clock, which need not be Kip's:
// what is counted is how long Kip has seen it.
func (c *Controller) graceLeft(pod *corev1.Pod) time.Duration {
	now := c.cfg.Clock.Now()
	seen := now
	c.note(apiv1.Ref(pod), func(w *waiting) {
		if !w.deleted.Equal(pod.DeletionTimestamp.Time) {
			w.deleted, w.deletedSeen = pod.DeletionTimestamp.Time, now
		}
		seen = w.deletedSeen
	})
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		grace = *g
	}
	return seen.Add(time.Duration(grace) * time.Second).Sub(now)
}

// untold is how long the kubelet of a pod that has ended may still take to say how its containers
// did, negative once that is over; 0 if it has. A kubelet that ends a pod itself, for its deadline or
// as its machine goes down, may say so in two steps, of which the exit codes are the second.
func (c *Controller) untold(pod *corev1.Pod) time.Duration {
	if !slices.ContainsFunc(statuses(pod), func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) {
		return 0
	}
	if cell, has := c.cfg.Cells.ForPod(pod.UID); !has || !cell.Live() || cell.Phase != apiv1.Bound {
		return 0 // no kubelet says more
	}
	now := c.cfg.Clock.Now()
	seen := now
	c.note(apiv1.Ref(pod), func(w *waiting) {
		if w.endedSeen.IsZero() {
			w.endedSeen = now
		}
		seen = w.endedSeen
	})
	return seen.Add(lastWords).Sub(now)
}

// statuses are those of all of a pod's containers.
func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	s := &pod.Status
	return slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
}

// started says that a kubelet has run containers of the pod.
func started(pod *corev1.Pod) bool {
	return slices.ContainsFunc(statuses(pod), func(s corev1.ContainerStatus) bool { return s.ContainerID != "" })
}

// giveUp fails a pod without a cell as soon as nothing else may run it: who replaces it
// does so at once.
func (c *Controller) giveUp(ctx context.Context, pod *corev1.Pod, why events.Event) (time.Duration, error) {
	if wait := c.waitsForEnd(pod); wait > 0 {
		return wait, nil
	}
	return 0, c.fail(ctx, pod, why)
}

// fail ends a pod that no kubelet owns any more.
func (c *Controller) fail(ctx context.Context, pod *corev1.Pod, why events.Event) error {
	if err := c.leads(ctx); err != nil {
		return fmt.Errorf("fail pod %s: %w", apiv1.Ref(pod), err)
	}
	pod = pod.DeepCopy()
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, why.Reason, why.Message
	now := metav1.NewTime(c.cfg.Clock.Now())
	s := &pod.Status
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			s := &list[i]
			if s.State.Terminated != nil {
				continue
			}
			t := &corev1.ContainerStateTerminated{
				ExitCode:    137,
				Reason:      "ContainerStatusUnknown",
				Message:     why.Message,
				FinishedAt:  now,
				ContainerID: s.ContainerID,
			}
			if s.State.Running != nil {
				t.StartedAt = s.State.Running.StartedAt
			}
			s.State, s.Ready = corev1.ContainerState{Terminated: t}, false
		}
	}
	notReady(pod, now, "PodFailed", why.Message)
	if why.Reason == events.CellLost {
		// So that a Job's podFailurePolicy can tell this from a failure of its own.
		setCondition(pod, corev1.PodCondition{
			Type:               corev1.DisruptionTarget,
			Status:             corev1.ConditionTrue,
			Reason:             why.Reason,
			Message:            why.Message,
			LastTransitionTime: now,
		})
	}
	// The version that was read goes along: whoever wrote since is not overwritten.
	_, err := c.client(pod).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("fail pod %s: %w", apiv1.Ref(pod), err)
	}
	c.cfg.Events.Event(apiv1.Ref(pod), why)
	return nil
}

// Waiting says why a pod has no cell, and why it is left on a node that has none for it; ""
// when it has one or is unknown.
func (c *Controller) Waiting(uid types.UID) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.pods[uid]
	if w == nil {
		return ""
	}
	if stays := w.stays(w.node, c.cfg.Clock.Now()); w.why != "" && stays != "" {
		return w.why + "; " + stays
	}
	return w.why
}

// WaitingPods is how many pods have no cell, for a reason that was reported, by node.
func (c *Controller) WaitingPods() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := map[string]int{}
	for _, w := range c.pods {
		if w.why != "" {
			count[w.node]++
		}
	}
	return count
}

func (c *Controller) forget(uid types.UID) {
	c.mu.Lock()
	c.awaits(uid, cache.ObjectName{})
	delete(c.pods, uid)
	c.mu.Unlock()
	c.cfg.Observer.PodGone(uid)
}
