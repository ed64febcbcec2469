package pods

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// requesting requests cells for pods, once nothing keeps a pod from one.
type requesting struct {
	exclusion *exclusion
	failing   *failing
	waits     *waits
	history   *history
	placing   *placing
	clock     clock.PassiveClock
	paused    atomic.Pointer[string] // why no cells are requested; nil if they are
}

// placing chooses what cells are, and has them made.
type placing struct {
	cells    Cells
	choosing *choosing
	waits    *waits
	unplaced *unplaced
	history  *history
	events   cells.Recorder
	random   backoff.Random
}

// unplaced has pods wait that got no cell.
type unplaced struct {
	waits   *waits
	volumes *volumeWaits
	leaving *leaving
	random  backoff.Random
}

// asked is what is known of a pod that asks for a cell.
type asked struct {
	attempt  int // which cell in a row this would be
	seen     time.Time
	until    time.Time // it waits that long
	failures int
	refusal  string
	ran      bool // a kubelet has had it, or may have
	arrived  bool // as in cells.Request
}

// asks notes what a pod without a cell asks for, and returns what is known of it; false if
// the pod is not there any more.
func (s *requesting) asks(pod *corev1.Pod, now time.Time) (asked, bool) {
	s.waits.registry.mu.Lock()
	defer s.waits.registry.mu.Unlock()
	w, p := s.waits.at(apiv1.Ref(pod)), s.history.at(apiv1.Ref(pod))
	if w == nil {
		return asked{}, false
	}
	if w.why != "" && (w.generation != pod.Generation || !maps.Equal(w.annotations, pod.Annotations)) {
		if soon := now.Add(changeSettles); w.until.After(soon) {
			w.until = soon // it may fit then
		}
	}
	w.generation, w.annotations = pod.Generation, pod.Annotations
	return asked{
		attempt:  p.attempts + 1,
		seen:     s.waits.registry.seen[pod.UID],
		until:    w.until,
		failures: p.failures,
		refusal:  p.refusal,
		ran:      p.ran || started(pod),
		arrived:  p.arrived && !p.ran && !started(pod),
	}, true
}

// Step places the pod and asks for a cell.
func (s *requesting) Step(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	now := s.clock.Now()
	known, here := s.asks(pod, now)
	if !here {
		return 0, nil
	}
	// First: it may run on a cell that this Kip does not know of.
	if wait := s.exclusion.waitsForStore(pod, known.ran); wait > 0 {
		return wait, nil
	}
	if why, hopeless := s.failing.hopeless(pod, known); hopeless {
		return s.failing.giveUp(ctx, pod, why)
	}
	if why := s.paused.Load(); why != nil {
		s.waits.report(pod, otherCause, events.NewPaused(*why), *why, time.Time{})
		return 0, nil
	}
	if known.until.After(now) {
		return known.until.Sub(now), nil
	}
	if known.ran {
		if changed, err := s.exclusion.changedSince(ctx, pod); err != nil {
			s.waits.report(pod, otherCause, events.NewCellNotRequested(err), err.Error(), time.Time{})
			return 0, err
		} else if changed {
			return staleRetry, nil
		}
	}
	return s.placing.place(ctx, pod, known, now)
}

// place chooses what can be launched for a pod, and requests a cell.
func (s *placing) place(ctx context.Context, pod *corev1.Pod, is asked, now time.Time) (time.Duration, error) {
	c, err := s.choosing.choose(ctx, pod)
	if err != nil {
		return s.unplaced.waitsForChoice(ctx, pod, err, now)
	}
	var cell cells.Cell
	err = s.choosing.request(ctx, pod, &c, func(r cells.Request) (err error) {
		r.Attempt, r.Seen, r.Arrived = is.attempt, is.seen, is.arrived
		cell, err = s.cells.Request(ctx, r)
		return err
	})
	if err != nil {
		return s.unplaced.waitsForCell(pod, err, now)
	}
	s.requested(cell, c.Pod, is.attempt, now)
	if c.without != nil {
		s.leftOut(c)
	}
	return 0, nil
}

// leftOut reports that a pod has a machine without room for the DaemonSets beside it, to the owners of all.
func (s *placing) leftOut(c choice) {
	for _, set := range c.sets {
		name := apiv1.DaemonSetOf(set).Name
		e := events.NewNoRoomForDaemonSet(cut(set.Namespace+"/"+name, mostName), c.Pod.String(), c.without)
		s.events.Event(c.Pod, e)
		s.events.Event(apiv1.Ref(set), e)
	}
}

// waitsForChoice says why a pod gets no cell before its volumes can be had, and there is something to launch for it.
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
	because, said, wait := why.wait(looks, s.random)
	if because == outOfCapacity {
		if wait, err = s.leaving.leaveNode(ctx, pod, wait); err != nil {
			return 0, err
		}
	}
	s.waits.report(pod, because, said, why.Error(), now.Add(wait))
	return wait, nil
}

// waitsForCell says why a pod got no cell that was requested for it.
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

// requested notes and reports that a pod has a cell now.
func (s *placing) requested(cell cells.Cell, pod apiv1.PodReference, attempt int, now time.Time) {
	s.history.note(pod, func(p *past) { p.attempts = attempt })
	s.waits.note(pod, func(w *waiting) {
		w.why = ""
		w.until = now.Add(s.random.After(attempt, firstBackoff, longestBackoff)) // of the next attempt, if this cell fails
		w.looks = 0
		s.waits.await(pod.UID, cache.ObjectName{})
	})
	offer := cell.Offering() // a budget may have struck out the best
	said := events.NewCellRequested(cell.ID, offer.String(), offer.Reason)
	if cell.Standby != "" {
		said = events.NewStandbyCellTaken(cell.ID, offer.String(), cell.Reason)
	}
	s.events.Event(pod, said)
}
