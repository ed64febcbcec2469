package cellapi

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/hostports"
	"github.com/elotl/kip/internal/watches"
)

const (
	// unboundVersion is the resource version of the empty list of a cell without
	// a pod: before every real one.
	unboundVersion = 1
	// podHistory is how many changes of each pod are kept.
	podHistory = 2
	// partingTime is how long watches on what a pod named outlive it.
	partingTime = time.Second
	// bindingSettles is how long after binding the API server's Node authorizer
	// may not have heard of the pod.
	bindingSettles = 10 * time.Second
)

// binding is the pod that a cell runs: once, and no other ever.
type binding struct {
	shownPod
	at time.Time
	// restored says that the kubelet may have had the pod before this process bound it.
	restored bool

	// What follows is guarded by the cell's mutex.

	known   chan struct{} // closed when it is known whether the pod exists
	isKnown bool
	gone    bool   // for good: a UID does not come back
	seen    uint64 // resource version of current at the API server
	shown   uint64 // and of what the kubelet was shown
	claims  sets.Set[string]
	// volumeOf is the volume of each claim that was read.
	volumeOf map[string]string
}

// shownPod is a pod that a cell's kubelet sees, with what it names.
type shownPod struct {
	namespace, name string
	uid             types.UID

	// What follows is guarded by the cell's mutex.

	current *corev1.Pod     // last seen, also after it is gone; nil before
	object  *watches.Object // as the kubelet was shown it last; nil before
	refs    map[watches.Ref]*heldRef
}

// heldRef is a cell's use of a referenced object.
type heldRef struct {
	shared   *watches.Source
	lifetime context.Context // as long as the pod names it
	end      context.CancelFunc
}

// boundPod is the pod of a cell, as the cell may see it.
type boundPod struct {
	*base
	node *cellNode
	pods *watches.Collection // the bound pod, if any, and what runs beside it

	mu     sync.Mutex
	pod    *binding
	copies copies
	// reserved is what static pods of the kubelet ask for.
	reserved corev1.ResourceList
	// drivers are the CSI drivers of the pod's volumes whose plugins run beside it.
	drivers []string
	kept    bool // the cell hears no more of its pod's deletion
}

// Bind shows the cell its pod, from now on and for good. A second call for the same
// pod does nothing; for another it is an error, as is a pod that another cell still
// has: two kubelets would run it.
//
// After a restart of Kip, Bind must be called for every cell that was bound, also
// when its pod is gone meanwhile, before its first request is served: what Bind has
// not named is truthfully absent, and a kubelet kills what is absent.
func (c *boundPod) Bind(namespace, name string, uid types.UID) error {
	s := c.server
	id := bindingID(namespace, name, uid)
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.pod; b != nil {
		if b.namespace == namespace && b.name == name && b.uid == uid {
			return nil
		}
		return fmt.Errorf("bind pod %s to cell %s: it has pod %s, and a cell runs one pod only", id, c.id, bindingID(b.namespace, b.name, b.uid))
	}
	if c.lifetime.Err() != nil {
		return fmt.Errorf("bind pod %s to cell %s: the cell has been removed", id, c.id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.bound[uid]; other != nil {
		return fmt.Errorf("bind pod %s to cell %s: it is bound to cell %s", id, c.id, other.id)
	}
	c.pod = &binding{
		shownPod: shownPod{namespace: namespace, name: name, uid: uid, refs: map[watches.Ref]*heldRef{}},
		at:       s.clock.Now(),
		restored: !c.node.wasReady(), // a pod is bound to a kubelet that is ready; of an earlier process, before that is dialled
		known:    make(chan struct{}),
		claims:   sets.New[string](),
		volumeOf: map[string]string{},
	}
	if s.sets == nil || !c.pod.restored {
		c.copies.know()
	} else {
		// Its kubelet may have copies of which this process will not tell it that they are gone: it is to list anew.
		c.pods.StartEmpty(s.nextVersion())
	}
	c.budget.admit(allowance{status: maxRequest}) // until the pod is known
	s.bound[uid] = c
	s.tasks.Start(c.find)
	return nil
}

// Reserve notes what static pods of the cell's kubelet ask for, of which this API has no objects, and the CSI drivers of the pod's
// volumes whose plugins run beside it. It is called before Bind.
func (c *boundPod) Reserve(requests corev1.ResourceList, drivers []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved, c.drivers = requests, drivers
}

// KeepPod has the cell hear no more that its pod is deleted or gone: its kubelet then keeps the file systems of the containers, and
// their logs. It is for a pod that has ended, and for good: the cell reads nothing more that the pod names, gets no tokens of it, and
// runs nothing beside it. After a restart of Kip it must be called before Bind.
func (c *boundPod) KeepPod() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept {
		return
	}
	c.kept = true
	if c.pod == nil || c.lifetime.Err() != nil {
		return
	}
	c.refer(references{})
	c.seeCopies()
}

// unbind gives up what the binding holds. The cell has ended.
func (c *boundPod) unbind() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pod == nil {
		return
	}
	c.refer(references{})
	c.unbindCopies()
	c.server.mu.Lock()
	delete(c.server.bound, c.pod.uid)
	c.server.mu.Unlock()
}

// find learns whether the bound pod exists. The informer's word is enough for a
// yes. For a no it is not, since it may have started from an API server that lags:
// then the API server is asked for its latest state. It is asked by a list,
// because the Node authorizer answers a get of a missing pod with 403.
func (c *boundPod) find() {
	s := c.server
	b := c.pod // set before find was started, never again
	s.sets.hasCell(c.as.name, b.uid)
	select {
	case <-s.podsFollowed:
	case <-c.lifetime.Done():
		return
	}
	select {
	case <-watches.Told(s.told, c.as.name):
	case <-c.lifetime.Done():
		return
	}
	if !s.sets.list(c.lifetime, c.as) {
		return
	}
	if o, exists, err := s.pods.GetStore().GetByKey(watches.Key(b.namespace, b.name)); err == nil && exists {
		if pod, ok := o.(*corev1.Pod); ok && pod.UID == b.uid {
			c.show(pod)
			return
		}
	}
	selector := fields.Set{metav1.ObjectNameField: b.name, "spec.nodeName": c.as.name}.AsSelector().String()
	for tries := 1; ; tries++ {
		list, err := c.as.client.CoreV1().Pods(b.namespace).List(c.lifetime, metav1.ListOptions{FieldSelector: selector})
		if err == nil {
			for i := range list.Items {
				if list.Items[i].UID == b.uid {
					c.show(&list.Items[i])
					return
				}
			}
			c.lose(list.ResourceVersion)
			return
		}
		if c.lifetime.Err() != nil {
			return
		}
		s.log.Warn("bound pod not looked up, retrying", "cell", c.id, "pod", watches.Key(b.namespace, b.name), "err", err)
		if backoff.Random(nil).Wait(c.lifetime, s.clock, tries, 200*time.Millisecond, 10*time.Second) != nil {
			return
		}
	}
}

// show makes pod, a state of the bound pod, visible to the cell.
func (c *boundPod) show(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.pod
	if b == nil || b.uid != pod.UID || b.gone || c.lifetime.Err() != nil || c.kept && pod.DeletionTimestamp != nil {
		return
	}
	if pod.Spec.NodeName != c.as.name {
		c.server.log.Error("pod not shown to its cell: it is on another node", "cell", c.id, "pod", watches.Key(b.namespace, b.name),
			"node", pod.Spec.NodeName, "cell_node", c.as.name)
		return
	}
	if !c.server.sets.knows(c.as.name) {
		return // find comes back here
	}
	rv, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		c.server.log.Error("pod not shown to its cell", "cell", c.id, "err", err)
		return
	}
	if b.current != nil && rv <= b.seen {
		return
	}
	// The informer's objects belong to others.
	shown := pod.DeepCopy()
	hostports.Restore(shown)
	b.current, b.seen = shown, rv
	if !c.kept {
		c.refer(referencesOf(b.current))
	}
	c.seeCopies()
	c.know()
}

// putChanged has the kubelet see the bound pod as it is now. c.mu is held.
func (c *boundPod) putChanged() {
	b := c.pod
	if b.shown == b.seen {
		return
	}
	shown := *b.current // the kubelet's objects never change
	if c.server.sets != nil {
		// What runs beside it changes by the cell's word alone, and has no versions of the API server.
		shown.ResourceVersion = strconv.FormatUint(c.server.nextVersion(), 10)
	}
	o, err := watches.NewObject(podKind, &shown)
	if err != nil {
		c.server.log.Error("pod not shown to its cell", "cell", c.id, "err", err)
		return
	}
	b.object, b.shown = o, b.seen
	c.pods.Put(o)
}

// lose makes the bound pod absent for the cell, as of a resource version.
func (c *boundPod) lose(resourceVersion string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.pod
	if b == nil || b.gone || c.lifetime.Err() != nil || c.kept { // of one that is not known yet, the kubelet asks again and again
		return
	}
	b.gone = true
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		c.server.log.Error("resource version of a deleted pod is not a number", "cell", c.id, "resource_version", resourceVersion)
	}
	if c.server.sets != nil {
		rv = c.server.nextVersion()
	}
	if b.object == nil {
		c.pods.StartEmpty(max(rv, unboundVersion))
	} else {
		c.pods.Remove(b.object.At(rv))
	}
	c.part(&b.shownPod)
	b.claims = nil
	c.budget.allow(c.server.clock.Now(), allowance{status: statusBody})
	c.know()
	c.copies.know()
	c.server.log.Info("pod of a cell is gone", "cell", c.id, "pod", watches.Key(b.namespace, b.name))
}

// part gives up what a pod named that its kubelet hears is gone: a while later, since it asks for that until then. c.mu is held.
func (c *boundPod) part(p *shownPod) {
	held := slices.Collect(maps.Values(p.refs))
	c.referUntil(p, references{}, func(*heldRef) {})
	c.server.tasks.Start(func() {
		select {
		case <-c.server.clock.After(partingTime):
		case <-c.lifetime.Done():
		}
		for _, h := range held {
			h.end()
		}
	})
}

// know declares that the pod's existence is known. c.mu is held.
func (c *boundPod) know() {
	if !c.pod.isKnown {
		c.pod.isKnown = true
		close(c.pod.known)
	}
}

// refer makes refs what the cell may read for its pod. c.mu is held.
func (c *boundPod) refer(refs references) {
	c.referUntil(&c.pod.shownPod, refs, func(h *heldRef) { h.end() })
	c.pod.claims = refs.claims
}

// referUntil makes refs what the cell may read for one of the pods that it sees. It leaves it to end when watches end on what the
// cell may not read for that any more. c.mu is held.
func (c *boundPod) referUntil(b *shownPod, refs references, end func(*heldRef)) {
	wanted := sets.New[watches.Ref]()
	for name := range refs.secrets {
		wanted.Insert(watches.Ref{
			Node:      c.as.name,
			Kind:      secretKind,
			Namespace: b.namespace,
			Name:      name,
		})
	}
	for name := range refs.configMaps {
		wanted.Insert(watches.Ref{
			Node:      c.as.name,
			Kind:      configMapKind,
			Namespace: b.namespace,
			Name:      name,
		})
	}
	if refs.trustBundles {
		wanted.Insert(watches.Ref{Node: c.as.name, Kind: trustBundleKind})
	}
	for k := range wanted {
		if b.refs[k] == nil {
			held := &heldRef{shared: c.server.watches.Acquire(k, c.as.client)}
			held.lifetime, held.end = context.WithCancel(c.lifetime)
			b.refs[k] = held
		}
	}
	for k, held := range b.refs {
		if !wanted.Has(k) {
			end(held)
			c.server.watches.Release(k)
			delete(b.refs, k)
		}
	}
}

// reference returns the cell's use of a referenced object, nil when no pod that it sees names it.
func (c *boundPod) reference(k watches.Ref) *heldRef {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pod == nil {
		return nil
	}
	if held := c.pod.refs[k]; held != nil {
		return held
	}
	for _, p := range c.copies.all {
		if held := p.refs[k]; held != nil {
			return held
		}
	}
	return nil
}

// references returns how many objects the pods name that the cell sees.
func (c *boundPod) references() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pod == nil {
		return 0
	}
	n = len(c.pod.refs)
	for _, p := range c.copies.all {
		n += len(p.refs)
	}
	return n
}

// bound returns the cell's binding, nil without one.
func (c *boundPod) bound() *binding {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pod
}

// lastPod returns the pod as last seen, and whether it is gone.
func (c *boundPod) lastPod() (*corev1.Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pod == nil {
		return nil, false
	}
	return c.pod.current, c.pod.gone
}

// knowsPod waits until it is known whether the bound pod exists, and holds no turn meanwhile.
// Without a binding there is nothing to wait for.
func (c *boundPod) knowsPod(w http.ResponseWriter, r *http.Request) error {
	b := c.bound()
	if b == nil {
		return nil
	}
	return c.awaits(w, r, b.known, func() string { return fmt.Sprintf("pod %s/%s", b.namespace, b.name) })
}

// awaits waits until known is closed, and holds no turn meanwhile. what is to be known is for the client that waits in vain.
func (c *boundPod) awaits(w http.ResponseWriter, r *http.Request, known <-chan struct{}, what func() string) error {
	select {
	case <-known:
		return nil
	default:
	}
	rests(w)
	timer := c.server.clock.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-known:
		return c.worksAgain(r.Context(), w)
	case <-r.Context().Done():
	case <-timer.C():
	}
	return notYet(what())
}

// isOwn reports whether a pod is the one that the cell is of.
func (c *boundPod) isOwn(pod *corev1.Pod) bool {
	b := c.bound()
	return b != nil && b.uid == pod.UID
}

// settling says that the API server's Node authorizer may not know of the binding.
func (c *boundPod) settling() bool {
	b := c.bound()
	return b != nil && c.server.clock.Since(b.at) < bindingSettles
}

// names reports whether the pod names a claim.
func (c *boundPod) names(namespace, claim string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pod != nil && c.pod.namespace == namespace && c.pod.claims.Has(claim)
}

// noteClaim notes the volume that a claim of the pod is bound to, which does not change. It says
// only which claim is asked for first.
func (c *boundPod) noteClaim(claim, volume string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if volume != "" && c.pod != nil && c.pod.claims.Has(claim) {
		c.pod.volumeOf[claim] = volume
	}
}

// claimHas reports whether a claim of the pod was bound to a volume when it was read last.
func (c *boundPod) claimHas(claim, volume string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return volume != "" && c.pod != nil && c.pod.volumeOf[claim] == volume
}

// bindingID names a pod for logs and messages.
func bindingID(namespace, name string, uid types.UID) string {
	return fmt.Sprintf("%s/%s (%s)", namespace, name, uid)
}
