package pods

import (
	"context"
	"errors"
	"maps"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// requesting gets a pod that has no cell one. This file has in order what happens to the pod: Step, then what asking and placing do,
// then how it waits if it got none.
type requesting struct {
	bounding *bounding
	asking   *asking
	placing  *placing
}

// Step gets a pod a cell, unless it has waited for as long as it says at most, or something keeps it from one.
func (s *requesting) Step(ctx context.Context, pod *corev1.Pod) (again time.Duration, err error) {
	left, bounded := s.bounding.left(pod)
	if bounded && left <= 0 {
		return s.bounding.giveUp(ctx, pod)
	}
	is, again, err := s.asking.ask(ctx, pod)
	if is != nil {
		again, err = s.placing.place(ctx, pod, *is)
	}
	if bounded && (again == 0 || left < again) {
		again = left
	}
	return again, err
}

// asking finds out whether a pod may ask for a cell.
type asking struct {
	duplicates *duplicates
	failing    *failing
	waits      *waits
	history    *history
	paused     *pause
	clock      clock.PassiveClock
}

// asked is what is known of a pod that asks for a cell.
type asked struct {
	now           time.Time // when it asks
	attempt       int       // which cell in a row this would be
	seen          time.Time
	until         time.Time // it waits that long
	failures      int
	refusal       string
	ran           bool // a kubelet has had it, or may have
	noEarlierCell bool // as in cells.Request
}

// ask returns what is known of a pod that may ask for a cell; nil if something keeps it from one, and then after how long to look again.
func (s *asking) ask(ctx context.Context, pod *corev1.Pod) (is *asked, again time.Duration, err error) {
	if is = s.recall(pod); is == nil {
		return nil, 0, nil
	}
	// First: it may run on a cell that this Kip does not know of.
	if wait := s.duplicates.waitsForStore(pod, is.ran); wait > 0 {
		return nil, wait, nil
	}
	if why, hopeless := s.failing.hopeless(pod, *is); hopeless {
		again, err = s.failing.giveUp(ctx, pod, why)
		return nil, again, err
	}
	if why := s.paused.why(); why != "" {
		s.waits.report(pod, otherCause, events.NewPaused(why), why, time.Time{})
		return nil, 0, nil
	}
	if is.until.After(is.now) {
		return nil, is.until.Sub(is.now), nil
	}
	if !is.ran {
		return is, 0, nil
	}
	switch changed, err := s.duplicates.changedSince(ctx, pod); {
	case err != nil:
		s.waits.report(pod, otherCause, events.NewCellNotRequested(err), err.Error(), time.Time{})
		return nil, 0, err
	case changed:
		return nil, staleRetry, nil
	}
	return is, 0, nil
}

// recall notes what a pod asks for, and returns what is known of it; nil if the pod is not there any more.
func (s *asking) recall(pod *corev1.Pod) *asked {
	now := s.clock.Now()
	s.waits.registry.mu.Lock()
	defer s.waits.registry.mu.Unlock()
	w, p := s.waits.at(apiv1.Ref(pod)), s.history.at(apiv1.Ref(pod))
	if w == nil {
		return nil
	}
	if w.why != "" && (w.generation != pod.Generation || !maps.Equal(w.annotations, pod.Annotations)) {
		if soon := now.Add(changeSettles); w.until.After(soon) {
			w.until = soon // it may fit then
		}
	}
	w.generation, w.annotations = pod.Generation, pod.Annotations
	return &asked{
		now:           now,
		attempt:       p.attempts + 1,
		seen:          s.waits.registry.seen[pod.UID],
		until:         w.until,
		failures:      p.failures,
		refusal:       p.refusal,
		ran:           p.ran || started(pod),
		noEarlierCell: p.cameLater && !p.ran && !started(pod),
	}
}

// placing chooses what a pod's cell is, and has it made.
type placing struct {
	cells    Cells
	choosing *choosing
	waits    *waits
	unplaced *unplaced
	history  *history
	events   cells.Recorder
	random   backoff.Random
}

// place chooses what can be launched for a pod, and requests a cell.
func (s *placing) place(ctx context.Context, pod *corev1.Pod, is asked) (time.Duration, error) {
	c, err := s.choosing.choose(ctx, pod)
	if err != nil {
		return s.unplaced.waitsForChoice(ctx, pod, err, is.now)
	}
	cell, err := s.requestCell(ctx, c, is)
	if alone, less := s.choosing.withoutSets(ctx, pod, c, err); less {
		c = alone
		cell, err = s.requestCell(ctx, c, is)
	}
	if err != nil {
		return s.unplaced.waitsForCell(pod, err, is.now)
	}
	s.requested(cell, c.Pod, is)
	if c.without != nil {
		s.leftOut(c)
	}
	return 0, nil
}

// requestCell requests a cell by what was chosen.
func (s *placing) requestCell(ctx context.Context, c choice, is asked) (cells.Cell, error) {
	r := c.Request
	r.Attempt, r.Seen, r.NoEarlierCell = is.attempt, is.seen, is.noEarlierCell
	return s.cells.Request(ctx, r)
}

// requested notes and reports that a pod has a cell now.
func (s *placing) requested(cell cells.Cell, pod apiv1.PodReference, is asked) {
	s.history.note(pod, func(p *past) { p.attempts = is.attempt })
	s.waits.note(pod, func(w *waiting) {
		w.why = ""
		w.until = is.now.Add(s.random.After(is.attempt, firstBackoff, longestBackoff)) // of the next attempt, if this cell fails
		w.looks = 0
		s.waits.await(pod.UID, cache.ObjectName{})
	})
	offer := cell.Offering() // a budget may have struck out the best
	event := events.NewCellRequested(cell.ID, offer.String(), offer.Reason)
	if cell.Standby != "" {
		event = events.NewStandbyCellTaken(cell.ID, offer.String(), cell.Reason)
	}
	s.events.Event(pod, event)
}

// leftOut reports that a pod has a machine without room for the DaemonSets beside it, to the owners of all.
func (s *placing) leftOut(c choice) {
	for _, set := range c.leftOut {
		name := apiv1.DaemonSetOf(set).Name
		e := events.NewNoRoomForDaemonSet(cut(set.Namespace+"/"+name, mostName), c.Pod.String(), c.without)
		s.events.Event(c.Pod, e)
		if set.UID != "" {
			s.events.Event(apiv1.Ref(set), e)
		}
	}
}

// unplaced has pods wait that got no cell.
type unplaced struct {
	waits   *waits
	volumes *volumeWaits
	leaving *leaving
	random  backoff.Random
}

// waitsForChoice reports why a pod gets no cell before its volumes can be had, and there is something to launch for it.
func (s *unplaced) waitsForChoice(ctx context.Context, pod *corev1.Pod, err error, now time.Time) (time.Duration, error) {
	why, is := errors.AsType[*PlacementError](err)
	if !is {
		return s.volumes.waitsForVolume(pod, err)
	}
	looks := 1
	s.waits.note(apiv1.Ref(pod), func(w *waiting) {
		w.looks++
		looks = w.looks
	})
	because, event, wait := why.wait(looks, s.random, now)
	if because == outOfCapacity {
		if wait, err = s.leaving.leaveNode(ctx, pod, wait); err != nil {
			return 0, err
		}
	}
	s.waits.report(pod, because, event, why.Error(), now.Add(wait))
	return wait, nil
}

// waitsForCell reports why a pod got no cell that was requested for it.
func (s *unplaced) waitsForCell(pod *corev1.Pod, err error, now time.Time) (time.Duration, error) {
	var inUse *cells.DiskInUseError
	var over *cells.BudgetError
	switch {
	case errors.As(err, &inUse):
		return s.volumes.waitsForVolumes(pod, events.NewVolumeOfAnotherPod(inUse), inUse, diskKey(inUse.Disk.ID)), nil
	case errors.As(err, &over):
		s.waits.report(pod, overBudget, events.NewBudgetExceeded(over), over.Error(), now.Add(budgetRetry))
		return budgetRetry, nil
	case errors.Is(err, cells.ErrHasCell):
		return 0, nil
	case errors.Is(err, cells.ErrConnecting):
		s.waits.note(apiv1.Ref(pod), func(w *waiting) { w.why, w.node = err.Error(), pod.Spec.NodeName })
		return connectRetry, nil
	}
	s.waits.report(pod, otherCause, events.NewCellNotRequested(err), err.Error(), time.Time{})
	return 0, err
}
