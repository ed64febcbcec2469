package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// asked is what is known of a pod that asks for a cell.
type asked struct {
	attempt  int // which cell in a row this would be
	seen     time.Time
	until    time.Time // it waits that long
	failures int
	refusal  string
	ran      bool   // a kubelet has had it, or may have
	arrived  bool   // as in cells.Request
	paused   string // why no cells are requested, if set
}

// asks notes what a pod without a cell asks for, and returns what is known of it; false if
// the pod is not there any more.
func (c *Controller) asks(pod *corev1.Pod, now time.Time) (asked, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.known(apiv1.Ref(pod))
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
		attempt:  w.attempts + 1,
		seen:     w.seen,
		until:    w.until,
		failures: w.failures,
		refusal:  w.refusal,
		ran:      w.ran || started(pod),
		arrived:  w.arrived && !w.ran && !started(pod),
		paused:   c.paused,
	}, true
}

// request places the pod and asks for a cell.
func (c *Controller) request(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	now := c.cfg.Clock.Now()
	is, here := c.asks(pod, now)
	if !here {
		return 0, nil
	}
	// First: it may run on a cell that this Kip does not know of.
	if why, sure := c.cfg.Cells.Behind(); why != "" && (sure || is.ran) {
		said := events.NewStoreBehind(why)
		if !sure {
			said = events.NewInstancesNotListed(why)
		}
		c.waits(pod, said, why, time.Time{})
		return behindWait(sure), nil
	}
	if why, is := c.hopeless(pod, is); is {
		return c.giveUp(ctx, pod, why)
	}
	if is.paused != "" {
		c.waits(pod, events.NewPaused(is.paused), is.paused, time.Time{})
		return 0, nil
	}
	if is.until.After(now) {
		return is.until.Sub(now), nil
	}
	if is.ran {
		if changed, err := c.changedSince(ctx, pod); err != nil {
			c.waits(pod, events.NewCellNotRequested(err), err.Error(), time.Time{})
			return 0, err
		} else if changed {
			return staleRetry, nil
		}
	}
	r, err := c.Choose(ctx, pod)
	var unplaced *PlacementError
	switch {
	case errors.As(err, &unplaced):
		return c.waitsForPlace(ctx, pod, unplaced, now)
	case err != nil:
		return c.waitsForVolume(pod, err)
	}
	r.Attempt, r.Seen, r.Arrived = is.attempt, is.seen, is.arrived
	cell, err := c.cfg.Cells.Request(ctx, r)
	if err != nil {
		return c.waitsForCell(pod, err, now)
	}
	c.requested(cell, r.Pod, is.attempt, now)
	return 0, nil
}

// hopeless reports whether a pod is to have no cell any more, and says why.
func (c *Controller) hopeless(pod *corev1.Pod, is asked) (why events.Event, hopeless bool) {
	switch {
	case is.ran && pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
		return events.NewNotRestarted(), true
	case c.cfg.MaxAttempts <= 0 || is.failures < c.cfg.MaxAttempts:
		return events.Event{}, false
	case is.refusal != "":
		return events.NewCellsRefused(is.failures, is.refusal), true
	}
	return events.NewCellsNotReady(is.failures), true
}

// waitsForPlace says why a pod gets no cell before there is something to launch for it.
func (c *Controller) waitsForPlace(ctx context.Context, pod *corev1.Pod, unplaced *PlacementError, now time.Time) (time.Duration, error) {
	looks := 1
	c.note(apiv1.Ref(pod), func(w *waiting) {
		w.looks++
		looks = w.looks
	})
	said, wait := unplaced.wait(looks, c.cfg.Random)
	if said.Reason == events.NoCapacity {
		var err error
		if wait, err = c.leaveNode(ctx, pod, wait); err != nil {
			return 0, err
		}
	}
	c.waits(pod, said, unplaced.Error(), now.Add(wait))
	return wait, nil
}

// waitsForCell says why a pod got no cell that was requested for it.
func (c *Controller) waitsForCell(pod *corev1.Pod, err error, now time.Time) (time.Duration, error) {
	var inUse *cells.DiskInUseError
	var over *cells.BudgetError
	switch {
	case errors.As(err, &inUse):
		return c.waitsForVolumes(pod, events.NewVolumeOfAnotherPod(inUse), inUse, diskKey(inUse.Disk.ID)), nil
	case errors.As(err, &over):
		c.waits(pod, events.NewBudgetExceeded(over), over.Error(), now.Add(budgetRetry))
		return budgetRetry, nil
	case errors.Is(err, cells.ErrHasCell):
		return 0, nil
	case errors.Is(err, cells.ErrConnecting):
		c.note(apiv1.Ref(pod), func(w *waiting) { w.why, w.node = err.Error(), pod.Spec.NodeName })
		return connectRetry, nil
	}
	c.waits(pod, events.NewCellNotRequested(err), err.Error(), time.Time{})
	return 0, err
}

// requested notes and reports that a pod has a cell now.
func (c *Controller) requested(cell cells.Cell, pod apiv1.PodReference, attempt int, now time.Time) {
	c.note(pod, func(w *waiting) {
		w.attempts, w.why = attempt, ""
		w.until = now.Add(c.cfg.Random.After(attempt, firstBackoff, longestBackoff)) // of the next attempt, if this cell fails
		w.looks = 0
		c.awaits(pod.UID, cache.ObjectName{})
	})
	offer := cell.Offering() // a budget may have struck out the best
	said := events.NewCellRequested(cell.ID, offer.String(), offer.Reason)
	if cell.Standby != "" {
		said = events.NewStandbyCellTaken(cell.ID, offer.String(), cell.Reason)
	}
	c.cfg.Events.Event(pod, said)
}

// changedSince asks the API server itself whether a pod that may have run has ended
// or is being deleted, of which the watch will tell: it may lag behind what the pod's
// last cell wrote, and a pod that has ended must not run again. A pod that never had
// a cell is as it was listed.
func (c *Controller) changedSince(ctx context.Context, pod *corev1.Pod) (bool, error) {
	now, err := c.client(pod).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look whether pod %s has ended: %w", apiv1.Ref(pod), err)
	}
	return now.UID != pod.UID || now.DeletionTimestamp != nil || watches.Ended(now), nil
}
