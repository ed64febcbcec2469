package faults

import (
	"cmp"
	"context"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pods"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// shipper is the DaemonSet that runs beside pods.
const shipper = "shipper"

// copiesLabel is on its pods; the copies of those with the value bad never become ready.
const (
	copiesLabel = "copies"
	bad         = "bad"
)

// besidePods are the rules of Kip. A cell goes on until its copies have ended.
var besidePods = daemonsets.New([]daemonsets.Entry{{Namespace: namespace, Name: shipper, Linger: 10 * time.Second}}, nil)

func isShipper(p *corev1.Pod) bool {
	owner := apiv1.DaemonSetOf(p)
	return owner != nil && owner.Name == shipper
}

// addShipper makes a pod of that DaemonSet, as addPod does.
func (w *world) addShipper(copies string) types.UID {
	w.mu.Lock()
	w.nextOwner = metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: shipper, UID: shipper, Controller: new(true)}
	w.nextCopies = copies
	w.mu.Unlock()
	return w.addPod(corev1.RestartPolicyAlways, "small", true, 5)
}

// setCopy is a set's pod that a machine's kubelet runs beside its own.
type setCopy struct {
	since   time.Time
	ready   time.Time // when it is; zero for never
	stopped time.Time // when it has stopped; zero while nobody ends it
}

// knownCopy is what a Kip knows of one.
type knownCopy struct {
	name                             types.NamespacedName
	since                            time.Time
	newer, reported, ready, wasReady bool
}

// sets are the pods of the DaemonSet on a node, as Kip's informer has them.
func (k *kip) sets(node string) map[types.UID]*corev1.Pod {
	all := map[types.UID]*corev1.Pod{}
	for _, o := range k.informer.GetStore().List() {
		if p := o.(*corev1.Pod); isShipper(p) && p.Spec.NodeName == node && !terminal(p) {
			all[p.UID] = p
		}
	}
	return all
}

// setChanged has the cells of its node see a set's pod.
func (k *kip) setChanged(o any) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	p := o.(*corev1.Pod)
	if !isShipper(p) {
		return
	}
	w := k.w
	w.mu.Lock()
	for _, a := range k.apis {
		if a.node == p.Spec.NodeName {
			a.seeSets()
		}
	}
	k.shown[p.UID] = true
	for _, m := range w.machines {
		if m.node == p.Spec.NodeName {
			m.poke()
		}
	}
	w.mu.Unlock()
	k.copyChanged(p)
}

// copyChanged tells Kip that what is known of copies has changed.
func (k *kip) copyChanged(set *corev1.Pod) {
	k.w.mu.Lock()
	observers := slices.Clone(k.observers)
	k.w.mu.Unlock()
	for _, o := range observers {
		o.CopyChanged("", types.NamespacedName{Namespace: set.Namespace, Name: set.Name})
	}
}

// seeSets takes what the cell is to run beside its pod; under world.mu.
func (a *cellAPI) seeSets() {
	if a.uid == "" || !a.knows {
		return
	}
	wanted := a.kip.sets(a.node)
	if a.kept {
		wanted = nil
	}
	for uid, set := range wanted {
		if a.copies[uid] != nil || a.over[uid] || set.DeletionTimestamp != nil && !a.restored {
			continue
		}
		started := a.kip.w.started[a.uid]
		a.copies[uid] = &knownCopy{
			name:  types.NamespacedName{Namespace: set.Namespace, Name: set.Name},
			since: time.Now(),
			newer: started.IsZero() || set.CreationTimestamp.Time.Before(started),
		}
	}
	for uid := range a.copies {
		if wanted[uid] == nil {
			delete(a.copies, uid)
		}
	}
}

// Lingers implements what package cells asks of an API that ends copies.
func (a *cellAPI) Lingers() bool {
	a.kip.w.mu.Lock()
	defer a.kip.w.mu.Unlock()
	return len(a.copies) > 0
}

// EndCopies has the kubelet end its copies, and waits for that.
func (a *cellAPI) EndCopies(ctx context.Context) {
	w := a.kip.w
	w.mu.Lock()
	var m *machine
	if s := a.session; s != nil && s.flows() {
		m = s.machine
	}
	w.mu.Unlock()
	if m == nil || !sleep(ctx, containerStop) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.copies, m.lingered = nil, true
	w.plays["lingered"]++
}

// runCopies has the kubelet run what it is shown beside its pod, and say how that fares. It returns after how long to look again; 0 for
// not.
func (m *machine) runCopies(a *cellAPI) (again time.Duration) {
	w := m.w
	var changed []*corev1.Pod
	defer func() {
		for _, set := range changed {
			a.kip.copyChanged(set)
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !a.kip.informer.HasSynced() {
		return retry
	}
	a.knows = true
	a.seeSets()
	if m.lingered {
		return 0
	}
	now, sets := time.Now(), a.kip.sets(a.node)
	at := func(t time.Time) {
		if left := t.Sub(now); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	for uid, known := range a.copies {
		set, c := sets[uid], m.copies[uid]
		switch ending := set.DeletionTimestamp != nil; {
		case c == nil && !ending:
			if m.copies == nil {
				m.copies = map[types.UID]*setCopy{}
			}
			c = &setCopy{since: now}
			if set.Labels[copiesLabel] != bad {
				c.ready = now.Add(containerStart)
			}
			m.copies[uid] = c
			w.plays["copy"]++
		case ending && c != nil && c.stopped.IsZero():
			c.stopped = now.Add(containerStop)
		case ending && (c == nil || !now.Before(c.stopped)):
			delete(m.copies, uid)
			delete(a.copies, uid)
			a.over[uid] = true
			w.plays["copy of a deleted pod"]++
			changed = append(changed, set)
			continue
		}
		if c == nil {
			continue
		}
		at(c.ready)
		at(c.stopped)
		ready := !c.ready.IsZero() && !now.Before(c.ready) && c.stopped.IsZero()
		if !known.reported || known.ready != ready {
			known.reported, known.ready, known.wasReady = true, ready, known.wasReady || ready
			changed = append(changed, set)
		}
	}
	for uid := range m.copies {
		if a.copies[uid] == nil {
			delete(m.copies, uid) // its pod is gone
		}
	}
	return again
}

// stepBeside does what the kubelet has to do for copies. It returns after how long to look again; 0 for not.
func (m *machine) stepBeside() time.Duration {
	m.w.mu.Lock()
	s := m.session
	ready := m.configured && !m.hung && !m.started.IsZero() && s != nil && s.flows() && m.node == s.api.node && s.api.uid != "" && !s.api.kept
	m.w.mu.Unlock()
	if !ready {
		return 0
	}
	return m.runCopies(s.api)
}

// copies are what package cellapi tells the controller of pods of them.
type copies struct{ k *kip }

var _ pods.Copies = copies{}

func (c copies) ObserveCopies(o daemonsets.CopyObserver) {
	c.k.w.mu.Lock()
	defer c.k.w.mu.Unlock()
	c.k.observers = append(c.k.observers, o)
}

func (c copies) PodsSeen() bool { return c.k.informer.HasSynced() }

func (c copies) SetsBeside(pod *corev1.Pod) (all []*corev1.Pod) {
	for _, set := range c.k.sets(pod.Spec.NodeName) {
		all = append(all, set)
	}
	return all
}

func (c copies) Shown(set types.UID) bool {
	c.k.w.mu.Lock()
	defer c.k.w.mu.Unlock()
	return c.k.shown[set]
}

func (c copies) HasPod(uid types.UID) bool {
	c.k.w.mu.Lock()
	defer c.k.w.mu.Unlock()
	for _, a := range c.k.apis {
		if a.uid == uid {
			return a.knows
		}
	}
	return false
}

func (c copies) Copies(set types.UID) (all []daemonsets.Copy) {
	c.k.w.mu.Lock()
	defer c.k.w.mu.Unlock()
	for id, a := range c.k.apis {
		known := a.copies[set]
		if known == nil {
			continue
		}
		all = append(all, daemonsets.Copy{
			Cell:     id,
			Pod:      apiv1.PodReference{Namespace: a.pod.Namespace, Name: a.pod.Name, UID: a.uid},
			Set:      known.name,
			UID:      set,
			Shown:    known.since,
			Newer:    known.newer,
			Reported: known.reported,
			Ready:    known.ready,
			WasReady: known.wasReady,
			Why:      "it is starting",
		})
	}
	slices.SortFunc(all, func(a, b daemonsets.Copy) int { return cmp.Compare(a.Cell, b.Cell) })
	return all
}

// isReady reports whether a set's pod is Ready.
func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// copiesBound is how long the state of a set's pod may lag behind its copies: as long as a copy may take to become ready, and what Kip
// takes to see and write that.
const copiesBound = daemonsets.StartsWithin + reasonBound

// runsLocked reports whether a machine has run a pod of its own and a copy of a set's for so long, connected to Kip.
func (m *machine) runsLocked(set types.UID, now time.Time, most time.Duration) bool {
	c := m.copies[set]
	return c != nil && c.stopped.IsZero() && now.Sub(c.since) > most && m.up && m.running && !m.hung && m.session != nil && m.session.flows()
}

// checkSetLocked checks that the pod of a set that runs beside pods has no machine, and is Ready if its copies are, and only then.
func (w *world) checkSetLocked(k *kip, p *corev1.Pod, runs string, now, calm time.Time) {
	if cell, has := k.cells.ForPod(p.UID); has || runs != "" {
		w.violateLocked("pod %s of a DaemonSet beside pods has cell %s, or runs on cell %q", p.Name, cell.ID, runs)
	}
	since := w.created[p.UID]
	if calm.After(since) {
		since = calm
	}
	waits := now.Sub(since)
	if waits > reasonBound && apiv1.WithoutMachine(p) == nil && k.pods.Waiting(p.UID) == "" {
		w.violateLocked("pod %s of a DaemonSet beside pods does not stand in %s: %+v", p.Name, waits, p.Status)
	}
	told := 0
	for _, r := range w.reports[p.UID] {
		if r.reason == events.BesidePods {
			told++
		}
	}
	if told > 1 {
		w.violateLocked("pod %s of a DaemonSet is told %d times that it runs beside pods", p.Name, told)
	}
	if waits <= copiesBound || apiv1.WithoutMachine(p) == nil {
		return
	}
	unready := ""
	for _, m := range w.machines {
		if p.Labels[copiesLabel] == bad && m.node == p.Spec.NodeName && m.runsLocked(p.UID, now, copiesBound) && w.boundTo(m.pod) != nil {
			unready = m.cell
		}
	}
	switch {
	case unready != "" && isReady(p):
		w.violateLocked("the pod of a DaemonSet is Ready only if its copies are: %s is, and that on cell %s is not", p.Name, unready)
	case p.Labels[copiesLabel] != bad && !isReady(p):
		w.violateLocked("the pod of a DaemonSet is Ready if its copies are: %s is not: %+v", p.Name, p.Status.Conditions)
	}
	w.live["set"]++
	if unready != "" {
		w.live["set that is not ready"]++
	}
}

// writes checks a status of a set's pod that Kip is about to write: it does not become Ready while a copy that never is runs beside a pod
// that is older than it.
func (w *world) writesSet(before, after *corev1.Pod) {
	if !isShipper(after) || after.Labels[copiesLabel] != bad || isReady(before) || !isReady(after) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Sub(w.calm()) < reasonBound {
		return
	}
	for _, m := range w.machines {
		if m.node == after.Spec.NodeName && m.runsLocked(after.UID, now, 0) && w.boundTo(m.pod) != nil &&
			w.started[m.pod].Before(w.created[after.UID]) {
			w.violateLocked("the pod of a DaemonSet is Ready only if its copies are: %s becomes so, and that on cell %s is not", after.Name, m.cell)
		}
	}
}

// deletesSetLocked checks a deletion of Kip's: a set's pod goes when its copies have ended, or have had their grace period and a minute.
func (w *world) deletesSetLocked(uid types.UID) {
	at := w.deleted[uid]
	for _, m := range w.machines {
		if !at.IsZero() && m.runsLocked(uid, time.Now(), 0) && w.boundTo(m.pod) != nil && time.Since(at) < overdue {
			w.violateLocked("the pod of a DaemonSet goes after its copies: %s does %s after it was deleted, and cell %s runs one", uid, time.Since(at), m.cell)
		}
	}
}

// setSettledLocked reports whether a set's pod is as it stays while nothing changes.
func (w *world) setSettledLocked(p *corev1.Pod) bool {
	want := true
	for _, m := range w.machines {
		if !m.up || !m.running || m.node != p.Spec.NodeName {
			continue
		}
		c := m.copies[p.UID]
		if c == nil || !c.ready.IsZero() && time.Now().Before(c.ready) {
			return false
		}
		known := (*knownCopy)(nil)
		if m.session != nil {
			known = m.session.api.copies[p.UID]
		}
		if known == nil || !known.reported || !known.ready && time.Since(known.since) <= copiesBound {
			return false
		}
		want = want && !c.ready.IsZero()
	}
	return apiv1.WithoutMachine(p) != nil && isReady(p) == want && time.Since(w.created[p.UID]) > time.Minute
}

// aSetRollsOut is a story of updates of a DaemonSet beside pods, of which one is bad: no pod of a user notices.
func aSetRollsOut(s *stage) {
	users := []types.UID{}
	for range 4 { // two on each node
		users = append(users, s.pod(corev1.RestartPolicyNever, "small"))
	}
	s.until("they run", s.runs(users...))
	before := map[types.UID]string{}
	for _, uid := range users {
		before[uid] = s.machineOf(uid)
	}
	stands := func(ready bool, sets ...types.UID) func() bool {
		return func() bool {
			n := 0
			for _, p := range s.api.list() {
				if slices.Contains(sets, p.UID) && apiv1.WithoutMachine(p) != nil && isReady(p) == ready {
					n++
				}
			}
			return n == len(sets)
		}
	}
	copied := func(sets ...types.UID) int {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for _, m := range s.machines {
			for _, set := range sets {
				if m.up && m.running && m.copies[set] != nil {
					n++
				}
			}
		}
		return n
	}
	rollOut := func(old []types.UID, copies string) []types.UID {
		s.delete(old...)
		s.until("the old pods of the set are gone", s.gone(old...))
		made := []types.UID{s.addShipper(copies), s.addShipper(copies)}
		s.until("each user's pod has a copy beside it", func() bool { return copied(made...) == len(users) })
		return made
	}
	sets := rollOut(nil, "")
	s.until("the set is Ready", stands(true, sets...))
	sets = rollOut(sets, bad)
	for range 3 { // and it does not become so when its copies have had their time
		s.until("the bad set is not Ready", stands(false, sets...))
		time.Sleep(time.Minute)
		s.rest()
		s.check()
	}
	sets = rollOut(sets, "")
	s.until("the set is Ready again", stands(true, sets...))
	for _, uid := range users {
		s.mu.Lock()
		ran := s.ran[uid]
		s.mu.Unlock()
		if on := s.machineOf(uid); on != before[uid] || ran != 1 || s.phase(uid) != corev1.PodRunning {
			s.violate("no pod ends or starts again for a DaemonSet: pod %s ran on %s, and runs on %q, was started %d times, and is %s", uid, before[uid],
				on, ran, s.phase(uid))
		}
	}
	s.delete(users[0])
	s.until("a pod of a user is gone", s.gone(users[0]))
	users = users[1:]
	s.until("its copies are, too", func() bool { return copied(sets...) == len(users) })
	s.delete(sets...)
	s.until("the set is gone", s.gone(sets...))
	if n := copied(sets...); n > 0 {
		s.violate("the set is gone, and %d copies run", n)
	}
}
