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
	cells     Cells
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
func (c *requesting) asks(pod *corev1.Pod, now time.Time) (asked, bool) {
	c.waits.registry.mu.Lock()
	defer c.waits.registry.mu.Unlock()
	w, p := c.waits.at(apiv1.Ref(pod)), c.history.at(apiv1.Ref(pod))
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
		seen:     c.waits.registry.seen[pod.UID],
		until:    w.until,
		failures: p.failures,
		refusal:  p.refusal,
		ran:      p.ran || started(pod),
		arrived:  p.arrived && !p.ran && !started(pod),
	}, true
}

// Step places the pod and asks for a cell.
func (c *requesting) Step(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	now := c.clock.Now()
	known, here := c.asks(pod, now)
	if !here {
		return 0, nil
	}
	// First: it may run on a cell that this Kip does not know of.
	if why, sure := c.cells.Behind(); why != "" && (sure || known.ran) {
		said := events.NewStoreBehind(why)
		if !sure {
			said = events.NewInstancesNotListed(why)
		}
		c.waits.report(pod, otherCause, said, why, time.Time{})
		return behindWait(sure), nil
	}
	if why, hopeless := c.failing.hopeless(pod, known); hopeless {
		return c.failing.giveUp(ctx, pod, why)
	}
	if why := c.paused.Load(); why != nil {
		c.waits.report(pod, otherCause, events.NewPaused(*why), *why, time.Time{})
		return 0, nil
	}
	if known.until.After(now) {
		return known.until.Sub(now), nil
	}
	if known.ran {
		if changed, err := c.exclusion.changedSince(ctx, pod); err != nil {
			c.waits.report(pod, otherCause, events.NewCellNotRequested(err), err.Error(), time.Time{})
			return 0, err
		} else if changed {
			return staleRetry, nil
		}
	}
	return c.placing.place(ctx, pod, known, now)
}

// place chooses what can be launched for a pod, and requests a cell.
func (c *placing) place(ctx context.Context, pod *corev1.Pod, is asked, now time.Time) (time.Duration, error) {
	r, err := c.choosing.Choose(ctx, pod)
	var unplaced *PlacementError
	switch {
	case errors.As(err, &unplaced):
		return c.unplaced.waitsForPlace(ctx, pod, unplaced, now)
	case err != nil:
		return c.unplaced.volumes.waitsForVolume(pod, err)
	}
	r.Attempt, r.Seen, r.Arrived = is.attempt, is.seen, is.arrived
	cell, err := c.cells.Request(ctx, r)
	if err != nil {
		return c.unplaced.waitsForCell(pod, err, now)
	}
	c.requested(cell, r.Pod, is.attempt, now)
	return 0, nil
}

// hopeless reports whether a pod is to have no cell any more, and says why.
func (c *failing) hopeless(pod *corev1.Pod, is asked) (why failure, hopeless bool) {
	switch {
	case is.ran && pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
		return failure{said: events.NewNotRestarted(), lost: true}, true
	case c.maxAttempts <= 0 || is.failures < c.maxAttempts:
		return failure{}, false
	case is.refusal != "":
		return failure{said: events.NewCellsRefused(is.failures, is.refusal)}, true
	}
	return failure{said: events.NewCellsNotReady(is.failures)}, true
}

// waitsForPlace says why a pod gets no cell before there is something to launch for it.
func (c *unplaced) waitsForPlace(ctx context.Context, pod *corev1.Pod, why *PlacementError, now time.Time) (time.Duration, error) {
	looks := 1
	c.waits.note(apiv1.Ref(pod), func(w *waiting) {
		w.looks++
		looks = w.looks
	})
	because, said, wait := why.wait(looks, c.random)
	if because == outOfCapacity {
		var err error
		if wait, err = c.leaving.leaveNode(ctx, pod, wait); err != nil {
			return 0, err
		}
	}
	c.waits.report(pod, because, said, why.Error(), now.Add(wait))
	return wait, nil
}

// waitsForCell says why a pod got no cell that was requested for it.
func (c *unplaced) waitsForCell(pod *corev1.Pod, err error, now time.Time) (time.Duration, error) {
	var inUse *cells.DiskInUseError
	var over *cells.BudgetError
	switch {
	case errors.As(err, &inUse):
		return c.volumes.waitsForVolumes(pod, events.NewVolumeOfAnotherPod(inUse), inUse, diskKey(inUse.Disk.ID)), nil
	case errors.As(err, &over):
		c.waits.report(pod, overBudget, events.NewBudgetExceeded(over), over.Error(), now.Add(budgetRetry))
		return budgetRetry, nil
	case errors.Is(err, cells.ErrHasCell):
		return 0, nil
	case errors.Is(err, cells.ErrConnecting):
		c.waits.note(apiv1.Ref(pod), func(w *waiting) { w.why, w.node = err.Error(), pod.Spec.NodeName })
		return connectRetry, nil
	}
	c.waits.report(pod, otherCause, events.NewCellNotRequested(err), err.Error(), time.Time{})
	return 0, err
}

// requested notes and reports that a pod has a cell now.
func (c *placing) requested(cell cells.Cell, pod apiv1.PodReference, attempt int, now time.Time) {
	c.history.note(pod, func(p *past) { p.attempts = attempt })
	c.waits.note(pod, func(w *waiting) {
		w.why = ""
		w.until = now.Add(c.random.After(attempt, firstBackoff, longestBackoff)) // of the next attempt, if this cell fails
		w.looks = 0
		c.waits.await(pod.UID, cache.ObjectName{})
	})
	offer := cell.Offering() // a budget may have struck out the best
	said := events.NewCellRequested(cell.ID, offer.String(), offer.Reason)
	if cell.Standby != "" {
		said = events.NewStandbyCellTaken(cell.ID, offer.String(), cell.Reason)
	}
	c.events.Event(pod, said)
}
