package cellapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/watches"
)

const (
	// copyPast is how many copies that a cell has no more are remembered: its kubelet goes on to speak of them.
	copyPast = 16
	// copyRest is how long a copy that has failed is not in the list of a kubelet's pods, before it is again: a kubelet starts
	// a pod anew when it has forgotten the one before, which it does every two seconds
	// (k8s.io/kubernetes/pkg/kubelet/kubelet.go, housekeepingPeriod).
	copyRest = 10 * time.Second
	// firstCopyRetry and lastCopyRetry are how long it stays in the list as failed, as the controller of DaemonSets waits before
	// it replaces a pod (k8s.io/kubernetes/pkg/controller/daemon, failedPodsBackoff).
	firstCopyRetry, lastCopyRetry = 10 * time.Second, 15 * time.Minute
	// delayTold is how long a pod waits for the copies beside it before its owner hears of it.
	delayTold = 5 * time.Second
	// copiesWithin is how long the kubelet of a cell that Kip has found waits for a list of its pods, while Kip does not know what
	// runs beside them.
	copiesWithin = time.Minute
)

// copies are the pods of DaemonSets that a cell runs beside its pod. boundPod.mu guards them.
type copies struct {
	able    *bool         // whether the cell's agent can; nil where it is not known
	known   chan struct{} // closed when a list of the cell's pods has all of them
	isKnown bool
	asked   bool // the kubelet waits for such a list
	overdue bool // for longer than copiesWithin
	none    bool // its agent says that nothing runs beside the pod yet
	all     map[types.UID]*copied
	ended   map[types.UID]bool                  // that the kubelet has ended, since they are being deleted
	leftOut map[types.UID]string                // why
	places  map[types.NamespacedName]*copyPlace // of sets whose copy has ended with its pod
	past    []types.UID
	late    bool               // the pod waits for them no longer
	told    bool               // that it waits
	again   context.CancelFunc // ends what lookAgain began

	lingering int           // copies that are ending with the cell's pod
	lingered  chan struct{} // closed when they have; nil before they are told to
}

// copied is a pod of a DaemonSet that a cell is shown.
type copied struct {
	shownPod
	set     *setPod // as it was when it was shown
	since   time.Time
	newer   bool         // the cell's pod began to run when the set's pod was there
	hidden  bool         // it rests after a failure
	ending  *metav1.Time // when it was told to end with the cell's pod; nil before
	retries int
	retry   context.CancelFunc // ends what retryCopy began

	status   corev1.PodStatus // as its kubelet says
	reported bool
	wasReady bool
	trouble  string // the last warning of its kubelet
}

func newCopies() copies {
	return copies{
		known:   make(chan struct{}),
		all:     map[types.UID]*copied{},
		ended:   map[types.UID]bool{},
		leftOut: map[types.UID]string{},
		places:  map[types.NamespacedName]*copyPlace{},
		again:   func() {},
	}
}

// know declares that a list of the cell's pods has all that it is to have.
func (c *copies) know() {
	if !c.isKnown {
		c.isKnown = true
		close(c.known)
	}
}

// runsBeside notes whether the cell's agent can run pods beside the cell's.
func (c *boundPod) runsBeside(can bool) {
	if c.server.sets == nil {
		return
	}
	c.mu.Lock()
	if c.copies.able == nil || *c.copies.able != can {
		c.copies.able = &can
		c.seeCopies()
	}
	c.mu.Unlock()
}

// setsChanged tells that the pods of DaemonSets on the cell's node have changed.
func (c *boundPod) setsChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seeCopies()
}

// seeCopies has the kubelet see its pod, and beside it what is to run there now. c.mu is held.
func (c *boundPod) seeCopies() {
	b := c.pod
	if b == nil || b.current == nil || b.gone || c.lifetime.Err() != nil {
		return
	}
	sets := c.server.sets
	if sets == nil || c.kept || c.copies.able != nil && !*c.copies.able {
		c.dropCopies(nil)
		c.putChanged()
		c.allowAll()
		c.copies.know()
		return
	}
	wanted := slices.DeleteFunc(sets.beside(c.as.name, b.current), func(set *setPod) bool { return !set.terms.Serves(c.drivers) })
	slices.SortStableFunc(wanted, c.orderCopies)
	c.pods.Keep(podHistory * (1 + min(len(wanted), daemonsets.MostCopies))) // all may change at once
	if !c.waitsForCopies(wanted) {
		c.putChanged()
	}
	if !c.decidesCopies() {
		c.allowAll()
		// A list that lacks copies ends them. But where the pod is deleted, the cell soon ends with them.
		if c.copies.none || c.copies.overdue && b.current.DeletionTimestamp != nil {
			c.copies.know()
		}
		return // runsBeside and the first report of the node come back here
	}
	c.dropCopies(wanted)
	c.seePlaces()
	for _, set := range wanted {
		c.seeCopy(set)
	}
	c.allowAll()
	c.copies.know()
}

// decidesCopies reports whether it is known well enough what can run beside the pod. Of a cell from before a restart of Kip its kubelet
// says first what its machine has: a copy for which there is no room might end the pod. c.mu is held.
func (c *boundPod) decidesCopies() bool {
	return c.copies.able != nil && (!c.pod.restored || c.copies.overdue || c.node.isKnown())
}

// runsNone notes that nothing runs beside the pod yet.
func (c *boundPod) runsNone() {
	if c.server.sets == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.copies.none {
		c.copies.none = true
		c.seeCopies()
	}
}

// dropCopies takes those from the kubelet that are not to run any more. c.mu is held.
func (c *boundPod) dropCopies(wanted []*setPod) {
	is := map[types.UID]bool{}
	for _, set := range wanted {
		is[set.pod.UID] = true
	}
	for uid, p := range c.copies.all {
		if !is[uid] {
			c.forgetCopy(p)
			if !c.server.sets.has(c.as.name, uid) { // else it is to run beside this pod no more
				c.holdPlace(p)
			}
		}
	}
	for uid := range c.copies.ended {
		if !is[uid] {
			delete(c.copies.ended, uid)
		}
	}
	for uid := range c.copies.leftOut {
		if !is[uid] {
			delete(c.copies.leftOut, uid)
		}
	}
}

// forgetCopy takes a copy from the kubelet for good. c.mu is held.
func (c *boundPod) forgetCopy(p *copied) {
	p.retry()
	c.hideCopy(p)
	delete(c.copies.all, p.uid)
	if p.ending != nil {
		if c.copies.lingering--; c.copies.lingering == 0 {
			close(c.copies.lingered)
		}
	}
	if c.copies.past = append(c.copies.past, p.uid); len(c.copies.past) > copyPast {
		c.copies.past = c.copies.past[1:]
	}
	c.copyChanged(p.namespace, p.name)
	c.portsChanged(p.set.pod)
}

// hideCopy takes a copy from the kubelet. c.mu is held.
func (c *boundPod) hideCopy(p *copied) {
	if p.hidden || p.object == nil {
		return
	}
	c.pods.Remove(p.object.At(c.server.nextVersion()))
	c.part(&p.shownPod)
	p.hidden = true
}

// seeCopy has the kubelet see a copy, as it is now. c.mu is held.
func (c *boundPod) seeCopy(set *setPod) {
	uid := set.pod.UID
	if c.copies.ended[uid] {
		return
	}
	p := c.copies.all[uid]
	if p != nil {
		if p.set != set && !p.hidden {
			p.set = set
			c.putCopy(p)
		}
		p.set = set
		return
	}
	if set.pod.DeletionTimestamp != nil && !c.pod.restored {
		return // its kubelet has never had it
	}
	why := c.keepsOut(set)
	delete(c.copies.places, set.setName())
	if why != "" {
		c.leaveOut(set, why)
		return
	}
	delete(c.copies.leftOut, uid)
	started := c.pod.current.Status.StartTime
	p = &copied{
		shownPod: shownPod{namespace: set.pod.Namespace, name: set.pod.Name, uid: uid, refs: map[watches.Ref]*heldRef{}},
		set:      set,
		retry:    func() {},
		since:    c.server.clock.Now(),
		newer:    started == nil || set.pod.CreationTimestamp.Before(started),
	}
	p.pending()
	c.copies.all[uid] = p
	c.putCopy(p)
	c.copyChanged(p.namespace, p.name)
	c.portsChanged(set.pod)
}

// pending gives a copy the status of a pod of which its kubelet has said nothing.
func (p *copied) pending() {
	p.reported, p.hidden = false, false
	p.status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: p.set.pod.Status.QOSClass}
	for _, k := range p.set.pod.Status.Conditions {
		if k.Type == corev1.PodScheduled {
			p.status.Conditions = []corev1.PodCondition{k}
		}
	}
}

// putCopy shows the kubelet a copy: the set's pod itself, with the status that this kubelet gives it. c.mu is held.
func (c *boundPod) putCopy(p *copied) {
	pod := *p.set.pod
	pod.Status = p.status
	if p.ending != nil {
		grace := min(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds),
			int64(p.set.terms.Linger/time.Second))
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = p.ending, &grace
	}
	pod.ResourceVersion = strconv.FormatUint(c.server.nextVersion(), 10)
	o, err := watches.NewObject(podKind, &pod)
	if err != nil {
		c.server.log.Error("pod of a DaemonSet not shown to a cell", "cell", c.id, "err", err)
		return
	}
	p.object, p.current = o, &pod
	c.referUntil(&p.shownPod, referencesOf(&pod), func(h *heldRef) { h.end() })
	c.pods.Put(o)
}

// keepsOut says why a set's pod cannot run beside the cell's, or "". c.mu is held.
func (c *boundPod) keepsOut(set *setPod) string {
	others := []*corev1.Pod{c.pod.current}
	for _, p := range c.copies.all {
		others = append(others, p.current)
	}
	held, taken := c.heldFrom(set), "taken"
	if len(others)+len(held) > daemonsets.MostCopies {
		return fmt.Sprintf("the cell runs %d pods of DaemonSets, which is the most", daemonsets.MostCopies)
	}
	for _, other := range others {
		if port := daemonsets.Conflict(set.pod, other); port != "" {
			return fmt.Sprintf("host port %s is that of pod %s/%s there", port, other.Namespace, other.Name)
		}
	}
	for _, other := range held {
		if port := daemonsets.Conflict(set.pod, other.pod); port != "" {
			return fmt.Sprintf("host port %s is kept there for the next pod of DaemonSet %s", port, other.setName())
		}
		others, taken = append(others, other.pod), "taken, or kept for the next pods of DaemonSets"
	}
	allocatable := c.node.allocatable()
	used := corev1.ResourceList{}
	for name, q := range c.reserved {
		used[name] = q.DeepCopy()
	}
	for _, other := range others {
		for name, q := range resource.PodRequests(other, resource.PodResourcesOptions{}) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	// By the kubelet's own rule: one that does not fit it fails, or ends the cell's pod for it.
	asks, counted := countedOf(set.pod)
	for _, name := range counted {
		asked, has, sum := asks[name], allocatable[name], used[name]
		if asked.IsZero() {
			continue
		}
		sum.Add(asked)
		if sum.Cmp(has) > 0 {
			if has.IsZero() {
				return fmt.Sprintf("it asks for %s %s, and the cell has none", name, asked.String())
			}
			already := used[name]
			return fmt.Sprintf("it asks for %s %s, and %s of the %s of the cell are %s", name, asked.String(), already.String(), has.String(), taken)
		}
	}
	return ""
}

// countedOf returns the requests of a set's pod, and the names of those for which the cell must have room.
func countedOf(pod *corev1.Pod) (asks corev1.ResourceList, counted []corev1.ResourceName) {
	asks = resource.PodRequests(pod, resource.PodResourcesOptions{})
	var pages []corev1.ResourceName
	for name, q := range resource.PodLimits(pod, resource.PodResourcesOptions{}) {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			asks[name], pages = q, append(pages, name) // a set's template may have limits alone, which become the requests
		}
	}
	slices.Sort(pages)
	return asks, append([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}, pages...)
}

// leaveOut notes that the cell does not run a set, and tells the owners of both. c.mu is held.
func (c *boundPod) leaveOut(set *setPod, why string) {
	uid := set.pod.UID
	if c.copies.leftOut[uid] != "" { // what is told once is not told with every figure
		return
	}
	c.copies.leftOut[uid] = why
	c.server.log.Warn("a DaemonSet does not run beside a pod", "cell", c.id, "pod", watches.Key(c.pod.namespace, c.pod.name),
		"daemonset", watches.Key(set.pod.Namespace, set.name), "why", why)
	e := events.NewDaemonSetLeftOut(watches.Key(set.pod.Namespace, set.name), watches.Key(c.pod.namespace, c.pod.name), c.id, why)
	c.server.events.Event(apiv1.Ref(c.pod.current), e)
	c.server.events.Event(apiv1.Ref(set.pod), e)
	c.copyChanged(set.pod.Namespace, set.pod.Name)
}

// waitsForCopies reports whether the kubelet is not to see its pod yet, since a set's copy is not ready. c.mu is held.
func (c *boundPod) waitsForCopies(wanted []*setPod) bool {
	b := c.pod
	if c.copies.late || b.restored || b.object != nil || b.current.DeletionTimestamp != nil || watches.Ended(b.current) {
		return false
	}
	now := c.server.clock.Now()
	var next time.Duration
	var slow, waited []*setPod
	due := c.server.sets.dueBeside(c.as.name, b.current, wanted)
	due = slices.DeleteFunc(due, func(set *setPod) bool { return !set.terms.Serves(c.drivers) })
	for _, set := range slices.Concat(wanted, due) {
		uid := set.pod.UID
		p := c.copies.all[uid]
		if set.terms.MaxDelay == 0 || set.pod.DeletionTimestamp != nil || c.copies.leftOut[uid] != "" || p != nil && p.isReady() {
			continue
		}
		if p == nil && c.keepsOut(set) != "" {
			continue
		}
		left := b.at.Add(set.terms.MaxDelay).Sub(now)
		if left <= 0 {
			slow = append(slow, set)
			continue
		}
		waited = append(waited, set)
		if next == 0 || left < next {
			next = left
		}
	}
	if next > 0 {
		c.tellWait(waited, now)
		if tell := b.at.Add(delayTold).Sub(now); tell > 0 {
			next = min(next, tell)
		}
		c.lookAgain(next)
		return true
	}
	c.copies.late = true
	c.copies.again()
	for _, set := range slow {
		why := "nothing was heard of it"
		if set.isDue() {
			why = "its node has no pod of it"
		}
		if p := c.copies.all[set.pod.UID]; p != nil {
			why = p.why()
		}
		c.server.events.Event(apiv1.Ref(b.current), events.NewDaemonSetNotReady(watches.Key(set.pod.Namespace, set.name), set.terms.MaxDelay,
			why))
	}
	return false
}

// tellWait tells the pod's owner that it waits for the copies of sets, once. c.mu is held.
func (c *boundPod) tellWait(waited []*setPod, now time.Time) {
	if c.copies.told || now.Sub(c.pod.at) < delayTold {
		return
	}
	c.copies.told = true
	var names []string
	most := time.Duration(0)
	for _, set := range waited {
		names, most = append(names, watches.Key(set.pod.Namespace, set.name)), max(most, set.terms.MaxDelay)
	}
	c.server.events.Event(apiv1.Ref(c.pod.current), events.NewWaitsForDaemonSets(names, most))
}

// lookAgain has the copies seen to after a while. A second call replaces the first. c.mu is held.
func (c *boundPod) lookAgain(after time.Duration) {
	c.copies.again()
	c.copies.again = c.later(after, c.seeCopies)
}

// later calls f after a while, unless the cell ends before, or the caller cancels it. c.mu is held for all three.
func (c *boundPod) later(after time.Duration, f func()) context.CancelFunc {
	ctx, cancel := context.WithCancel(c.lifetime)
	timer := c.server.clock.NewTimer(after)
	c.server.tasks.Start(func() {
		defer cancel()
		defer timer.Stop()
		select {
		case <-timer.C():
			c.mu.Lock()
			defer c.mu.Unlock()
			if ctx.Err() == nil {
				f()
			}
		case <-ctx.Done():
		}
	})
	return cancel
}

// unbindCopies gives up what the copies hold. c.mu is held.
func (c *boundPod) unbindCopies() {
	for _, p := range c.copies.all {
		c.referUntil(&p.shownPod, references{}, func(h *heldRef) { h.end() })
		c.copyChanged(p.namespace, p.name)
	}
	clear(c.copies.all)
	clear(c.copies.places)
}

// copyChanged has the observers of copies told. c.mu may be held.
func (c *boundPod) copyChanged(namespace, name string) {
	c.server.sets.changed(c.id, types.NamespacedName{Namespace: namespace, Name: name})
}

// shownPods are the pods that the kubelet sees, or is to see, its own first.
func (c *boundPod) shownPods() (all []*corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.pod; b != nil && b.current != nil && !b.gone && !c.kept {
		all = append(all, b.current)
	}
	for _, p := range c.copies.all {
		if !p.hidden {
			all = append(all, p.current)
		}
	}
	return all
}

// copyOf returns the copy of this name, as it is shown now; nil for none.
func (c *boundPod) copyOf(namespace, name string) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.copies.all {
		if p.namespace == namespace && p.name == name && !p.hidden {
			return p.current
		}
	}
	return nil
}

// ranBeside reports whether the cell runs this copy, or did.
func (c *boundPod) ranBeside(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.copies.all[uid] != nil || slices.Contains(c.copies.past, uid)
}

// setCopyStatus stores what the kubelet says of a copy, and returns the pod as it is shown then. It is false when the copy is not what
// it was, and nil when it is gone.
func (c *boundPod) setCopyStatus(was *corev1.Pod, status corev1.PodStatus, same bool) (*corev1.Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.copies.all[was.UID]
	switch {
	case p == nil || p.hidden:
		return nil, true
	case p.current != was:
		return nil, false
	case same && p.reported:
		return p.current, true
	}
	p.status, p.reported = status, true
	if p.isReady() {
		p.wasReady, p.trouble, p.retries = true, "", 0
	}
	c.putCopy(p)
	switch {
	case !watches.Ended(p.current):
		p.retry()
	case !watches.Ended(was): // else the kubelet says more of the same failure
		c.retryCopy(p)
	}
	c.copyChanged(p.namespace, p.name)
	if c.pod.object == nil {
		c.seeCopies() // the pod may have waited for this one
	}
	return p.current, true
}

// retryCopy has a copy that has failed start anew after a while: a pod of a DaemonSet that has failed is replaced, and there is no
// other pod here. c.mu is held.
func (c *boundPod) retryCopy(p *copied) {
	p.retries++
	p.retry()
	p.retry = c.later(backoff.Random(nil).After(p.retries, firstCopyRetry, lastCopyRetry), func() {
		if p.set.pod.DeletionTimestamp != nil || p.ending != nil {
			return // its kubelet is to end it
		}
		c.hideCopy(p)
		p.retry = c.later(copyRest, func() {
			p.pending()
			c.putCopy(p)
		})
	})
}

// endCopy notes that the kubelet has ended a copy that is being deleted. It reports whether it may.
func (c *boundPod) endCopy(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.copies.all[uid]
	if p == nil {
		return slices.Contains(c.copies.past, uid)
	}
	if p.set.pod.DeletionTimestamp == nil && p.ending == nil {
		return false
	}
	c.copies.ended[uid] = true
	c.forgetCopy(p)
	if p.ending == nil { // else the cell ends
		c.holdPlace(p)
	}
	return true
}

// Lingers reports whether copies on the cell are to end before it does.
func (c *boundPod) Lingers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.copies.all {
		if p.set.terms.Linger > 0 {
			return true
		}
	}
	return false
}

// EndCopies has the kubelet end the copies that are to end before the cell, since its pod has ended. It returns when they have, or had
// their time.
func (c *boundPod) EndCopies(ctx context.Context) {
	c.mu.Lock()
	var most time.Duration
	now := metav1.NewTime(c.server.clock.Now())
	if c.copies.lingered == nil {
		for _, p := range c.copies.all {
			if p.set.terms.Linger == 0 || p.hidden {
				continue
			}
			p.ending, most = &now, max(most, p.set.terms.Linger)
			c.copies.lingering++
			c.putCopy(p)
		}
	}
	if most > 0 {
		c.copies.lingered = make(chan struct{})
	}
	lingered := c.copies.lingered
	c.mu.Unlock()
	if most == 0 {
		return
	}
	timer := c.server.clock.NewTimer(most)
	defer timer.Stop()
	select {
	case <-lingered:
	case <-timer.C():
	case <-ctx.Done():
	case <-c.lifetime.Done():
	}
}

// troubleOf notes a warning of the kubelet about a copy.
func (c *boundPod) troubleOf(uid types.UID, trouble string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.copies.all[uid]; p != nil && p.trouble != trouble {
		p.trouble = trouble
		c.copyChanged(p.namespace, p.name)
	}
}

// knowsCopies waits until a list of the cell's pods has all of them, and holds no turn meanwhile.
func (c *boundPod) knowsCopies(w http.ResponseWriter, r *http.Request) error {
	if c.bound() == nil {
		return nil
	}
	c.mu.Lock()
	if !c.copies.isKnown && !c.copies.asked {
		c.copies.asked = true
		c.later(copiesWithin, func() {
			c.copies.overdue = true
			c.seeCopies()
		})
	}
	c.mu.Unlock()
	return c.awaits(w, r, c.copies.known, func() string { return "what runs beside the pod of cell " + c.id })
}

// isReady reports whether a copy is, as its kubelet says.
func (p *copied) isReady() bool {
	return slices.ContainsFunc(p.status.Conditions, func(k corev1.PodCondition) bool {
		return k.Type == corev1.PodReady && k.Status == corev1.ConditionTrue
	})
}
