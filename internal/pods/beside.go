package pods

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/clock"
)

// besides has pods of DaemonSets stand for their copies, which run beside pods on their cells.
type besides struct {
	rules    *daemonsets.Rules // nil for none
	copies   Copies
	cells    Cells
	loop     *loop
	registry *registry
	contacts *notes[contact]
	clock    clock.PassiveClock
	began    time.Time // when this process began to hear of copies

	mu      sync.Mutex           // held for no call to another part
	unknown map[types.UID]string // the cells of pods whose cell is bound, and of which it was not known yet what runs beside them
}

// newBesides returns what observes the copies, if any are to run.
func newBesides(cfg Config, loop *loop, registry *registry) *besides {
	s := &besides{
		rules:    cfg.DaemonSets,
		copies:   cfg.Copies,
		cells:    cfg.Cells,
		loop:     loop,
		registry: registry,
		contacts: newNotes[contact](registry),
		clock:    cfg.Clock,
		began:    cfg.Clock.Now(),
		unknown:  map[types.UID]string{},
	}
	if s.rules != nil {
		s.copies.ObserveCopies(s)
	}
	return s
}

// runs reports whether a pod stands for copies, and says so.
func (s *besides) runs(pod *corev1.Pod) (events.Event, bool) {
	terms, runs, _ := s.rules.Of(pod)
	if !runs {
		return events.Event{}, false
	}
	return events.NewBesidePods(cut(apiv1.DaemonSetOf(pod).Name, mostName), terms.By), true
}

// refused returns why a pod stands for no copies though its DaemonSet is to run beside pods; false for one of another.
func (s *besides) refused(pod *corev1.Pod) (events.Event, bool) {
	_, _, why := s.rules.Of(pod)
	if why == nil {
		return events.Event{}, false
	}
	return events.NewNotBesidePods(cut(apiv1.DaemonSetOf(pod).Name, mostName), why), true
}

// stance is how a pod without a machine stands.
type stance struct {
	unready string        // why it is not Ready; "" where it is
	few     string        // which of its copies are not ready although it is
	again   time.Duration // after how long to look again, 0 for not
}

// copiesAgain is after how long to look again at a pod with copies that are not ready, or not heard of.
const copiesAgain = 30 * time.Second

// stanceOf returns how a pod stands by its copies. Those on cells that are silent do not count.
func (s *besides) stanceOf(pod *corev1.Pod, now time.Time) stance {
	if _, runs, _ := s.rules.Of(pod); !runs {
		return stance{}
	}
	all := s.copies.Copies(pod.UID)
	heard := slices.DeleteFunc(slices.Clone(all), func(c daemonsets.Copy) bool { return s.silent(c.Pod.UID, now) })
	silent := len(heard) < len(all)
	for _, cell := range s.unknownTo(pod) {
		since := s.began
		if bound := cell.StepTime(apiv1.StepBound); bound.After(since) {
			since = bound
		}
		if now.Sub(since) < daemonsets.StartsWithin && !s.silent(cell.Pod.UID, now) {
			heard = append(heard, daemonsets.Copy{Cell: cell.ID, Pod: cell.Pod, Shown: since})
		}
	}
	state := daemonsets.Sum(heard, now)
	is := stance{again: state.Again}
	switch {
	case state.Failing:
		is.unready = notReady(state)
	case state.Pending && !isReady(pod): // as it was: an earlier process of Kip knew
		is.unready = fmt.Sprintf("Kip has yet to hear that the copies are ready, and waits for %s at most.", daemonsets.StartsWithin)
	case !isReady(pod) && s.unshown(pod, now):
		is.unready, is.again = "Kip has yet to show the pod to the cells of the node.", shownAgain
	case len(state.NotReady) > 0:
		is.few = notReady(state)
	}
	if (len(state.NotReady) > 0 || silent) && (is.again == 0 || is.again > copiesAgain) {
		is.again = copiesAgain
	}
	return is
}

// shownAgain is after how long to look again whether the cells know of a pod: a moment later, unless much happens.
const shownAgain = time.Second / 2

// unshown reports whether the cells of its node have yet to hear of a pod, so that none can have said how its copy fares. The pod waits
// no longer for that than for a copy.
func (s *besides) unshown(pod *corev1.Pod, now time.Time) bool {
	since := pod.CreationTimestamp.Time
	if s.began.After(since) {
		since = s.began
	}
	return !s.copies.Shown(pod.UID) && now.Sub(since) < daemonsets.StartsWithin
}

// silent reports whether the cell of a pod is not heard of.
func (s *besides) silent(pod types.UID, now time.Time) bool {
	found := s.contacts.get(pod).found
	return !found.IsZero() && now.Sub(found) < silenceFresh
}

func isReady(pod *corev1.Pod) bool {
	ready := conditionOf(pod, corev1.PodReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

func conditionOf(pod *corev1.Pod, condition corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if k := &pod.Status.Conditions[i]; k.Type == condition {
			return k
		}
	}
	return nil
}

// namedCells is how many cells a message names.
const namedCells = 3

// notReady returns which copies are not ready. It changes as seldom as it may: each change is a write.
func notReady(state daemonsets.State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The copies on %d of %d cells are not ready", len(state.NotReady), state.Cells)
	for i, c := range state.NotReady[:min(namedCells, len(state.NotReady))] {
		reason, _, _ := strings.Cut(c.Why, ": ") // what follows has figures
		fmt.Fprintf(&b, "%s %s beside pod %s (%s)", [...]string{":", ","}[min(i, 1)], c.Cell, c.Pod, reason)
	}
	if more := len(state.NotReady) - namedCells; more > 0 {
		fmt.Fprintf(&b, ", and %d more", more)
	}
	return b.String() + "."
}

// cellChanged notes a cell that is bound: it may run copies that this process has not been told of. It forgets one that is not bound any
// more.
func (s *besides) cellChanged(cell cells.Cell) {
	if s.rules == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch uid := cell.Pod.UID; {
	case cell.Phase == apiv1.Bound:
		s.unknown[uid] = cell.ID
	case s.unknown[uid] == cell.ID: // else the pod has another cell by now
		delete(s.unknown, uid)
	}
}

// unknownTo are the cells that may run copies of a pod that this process has not been told of. It forgets those of which it has.
func (s *besides) unknownTo(pod *corev1.Pod) (list []cells.Cell) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.unknown))
	s.mu.Unlock()
	for _, uid := range all {
		cell, is := s.unknownCell(uid)
		if !is {
			s.mu.Lock()
			delete(s.unknown, uid)
			s.mu.Unlock()
			if cell, is = s.unknownCell(uid); is { // it was bound in between
				s.cellChanged(cell)
			}
			continue
		}
		of, err := s.registry.get(nameOf(cell))
		if err != nil || of == nil || of.UID == cell.Pod.UID && of.Spec.NodeName == pod.Spec.NodeName {
			list = append(list, cell)
		}
	}
	return list
}

// unknownCell returns the bound cell of a pod, if it is not known what runs beside that.
func (s *besides) unknownCell(uid types.UID) (cell cells.Cell, is bool) {
	cell, has := s.cells.ForPod(uid)
	return cell, has && cell.Phase == apiv1.Bound && !s.copies.HasPod(uid)
}

// ending returns how long a deleted pod still waits for its copies to end, of what it has left.
func (s *besides) ending(pod *corev1.Pod, left time.Duration) time.Duration {
	_, runs, _ := s.rules.Of(pod)
	if k := apiv1.WithoutMachine(pod); left <= 0 || s.rules == nil || !runs && (k == nil || k.Reason != events.BesidePods) {
		return 0
	}
	running := len(s.unknownTo(pod))
	for _, c := range s.copies.Copies(pod.UID) {
		if !c.LeftOut {
			running++
		}
	}
	if running == 0 {
		return 0
	}
	return left
}

// sets are the pods of DaemonSets that run beside a pod whose volumes need this, and ask for room there: those with node plugins of the
// volumes, and the others.
func (s *besides) sets(pod *corev1.Pod, needs volumes.Needs) (plugins, others []*corev1.Pod) {
	if s.rules == nil {
		return nil, nil
	}
	drivers := driversBeside(needs)
	for _, set := range s.copies.SetsBeside(pod) {
		terms, runs, _ := s.rules.Of(set)
		switch {
		case !runs || !terms.Serves(drivers) || len(resource.PodRequests(set, resource.PodResourcesOptions{})) == 0:
		case terms.HasPlugin(drivers):
			plugins = append(plugins, set)
		default:
			others = append(others, set)
		}
	}
	return plugins, others
}

// delaying returns those of the DaemonSets beside a pod that may delay it still, and until when the first of them may. Their time began
// when the pod was bound to its node.
func (s *besides) delaying(pod *corev1.Pod, sets []*corev1.Pod, now time.Time) (list []*corev1.Pod, until time.Time) {
	for _, set := range sets {
		terms, _, _ := s.rules.Of(set)
		ends := boundAt(pod).Add(terms.MaxDelay)
		if !ends.After(now) {
			continue
		}
		if list = append(list, set); until.IsZero() || ends.Before(until) {
			until = ends
		}
	}
	return list, until
}

// driversBeside are the CSI drivers whose plugins run beside a pod whose volumes need this.
func driversBeside(needs volumes.Needs) (drivers []string) {
	for _, p := range needs.Plugins {
		if p.Beside {
			drivers = append(drivers, p.Driver)
		}
	}
	return drivers
}

// unserved returns a *volumes.NotReadyError where a plugin is to run beside a pod, and its DaemonSet has no pod on the pod's node: the
// pod's machine would wait for it in vain.
func (s *besides) unserved(pod *corev1.Pod, needs volumes.Needs) error {
	for _, p := range needs.Plugins {
		if !p.Beside || s.rules == nil || slices.ContainsFunc(s.copies.SetsBeside(pod), func(set *corev1.Pod) bool {
			return set.UID != "" && set.Namespace == p.DaemonSet.Namespace && apiv1.DaemonSetOf(set).Name == p.DaemonSet.Name
		}) {
			continue
		}
		return &volumes.NotReadyError{Volume: p.Volume, Why: fmt.Sprintf("DaemonSet %s with the node plugin of CSI driver %s has no pod "+
			"on the pod's node that can run beside it: it must tolerate the node's taints, and its affinity must not leave out the node",
			p.DaemonSet, p.Driver)}
	}
	return nil
}

// copiesGather is how long changes of a pod's copies are gathered: all cells tell of an update at once.
const copiesGather = time.Second / 2

// CopyChanged wakes a pod of a DaemonSet whose copies have changed. It does not block.
func (s *besides) CopyChanged(_ string, set types.NamespacedName) {
	s.loop.wakeAfter(cache.ObjectName{Namespace: set.Namespace, Name: set.Name}, copiesGather)
}

var _ daemonsets.CopyObserver = (*besides)(nil)
