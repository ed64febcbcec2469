package pods

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// silenceFresh is how long it counts that a cell was found silent; it is
	// said again every few seconds.
	silenceFresh = 15 * time.Second
	// evictionRetry is the wait after an eviction that a disruption budget
	// forbade.
	evictionRetry = 5 * time.Second
	// evictionMargin is left of the notice when the pod's grace period ends: to
	// report its end.
	evictionMargin = 5 * time.Second
)

// attend does for a pod on a bound cell what its kubelet cannot.
func (c *Controller) attend(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (time.Duration, error) {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	var w waiting
	if known := c.pods[pod.UID]; known != nil {
		w = *known
	}
	c.mu.Unlock()
	if !w.short.IsZero() {
		c.note(apiv1.Ref(pod), func(w *waiting) { w.short = time.Time{} })
	}
	if pod.Status.Phase == corev1.PodRunning {
		c.cfg.Observer.PodRunning(cell, now)
	}
	if !w.silent.IsZero() && now.Sub(w.silent) < silenceFresh {
		marked, err := c.markSilent(ctx, pod)
		if err != nil {
			return 0, err
		}
		// Once each time that it was found silent: its kubelet, when it is back,
		// says that the pod is ready, and must not be contradicted.
		if marked {
			w.marked = now
		}
		c.note(apiv1.Ref(pod), func(known *waiting) { known.silent, known.marked = time.Time{}, w.marked })
	}
	if w.interrupted.After(now) {
		// A disruption budget counts a pod as ready until its controller has seen that it is
		// not, and would let it go.
		if wait := w.marked.Add(evictionRetry).Sub(now); wait > 0 {
			return wait, nil
		}
		return c.moveAway(ctx, pod, w.interrupted)
	}
	return 0, nil
}

// markSilent takes a pod that cannot be reached out of its Services, and says whether it
// was in them. Its kubelet puts it back when it is heard again.
func (c *Controller) markSilent(ctx context.Context, pod *corev1.Pod) (marked bool, err error) {
	ready := slices.ContainsFunc(pod.Status.Conditions, func(k corev1.PodCondition) bool {
		return k.Type == corev1.PodReady && k.Status == corev1.ConditionTrue
	})
	if !ready {
		return false, nil
	}
	said := events.NewCellSilent()
	changed := pod.DeepCopy()
	for i := range changed.Status.Conditions {
		if k := &changed.Status.Conditions[i]; k.Type == corev1.PodReady {
			k.Status, k.Reason, k.Message = corev1.ConditionFalse, said.Reason, said.Message
			k.LastTransitionTime = metav1.NewTime(c.cfg.Clock.Now())
		}
	}
	_, err = c.client(pod).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("mark pod %s as not ready: %w", apiv1.Ref(pod), err)
	}
	if err == nil {
		c.cfg.Events.Event(apiv1.Ref(pod), said)
	}
	return true, nil
}

// moveAway ends a pod in good order before the cloud takes its instance: its
// controller then makes another, which gets a cell at once. A pod without a
// controller would be lost that way; it runs to the end of the notice.
func (c *Controller) moveAway(ctx context.Context, pod *corev1.Pod, at time.Time) (time.Duration, error) {
	ref := apiv1.Ref(pod)
	if metav1.GetControllerOf(pod) == nil {
		c.tellOnce(pod, events.NewInterruptedPodStays(at))
		return 0, nil
	}
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = *g
	}
	left := at.Sub(c.cfg.Clock.Now())
	grace = min(grace, max(1, int64((left-evictionMargin)/time.Second)))
	err := c.evict(ctx, pod, &grace)
	switch {
	case err == nil:
		c.cfg.Events.Event(ref, events.NewInterruptedPodEvicted(at))
		return 0, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return 0, nil // it is gone, or another of its name is there
	case apierrors.IsTooManyRequests(err):
		c.tellOnce(pod, events.NewInterruptedPodBlocked(at, err))
		return min(left, evictionRetry), nil
	}
	return 0, fmt.Errorf("evict pod %s from an instance that the cloud takes back: %w", ref, err)
}

// evict asks for a pod's eviction, or with a dry run whether it may be, if this process
// leads; without a grace period that of the pod is its own.
func (c *Controller) evict(ctx context.Context, pod *corev1.Pod, grace *int64, dryRun ...string) error {
	if err := c.leads(ctx); err != nil {
		return err
	}
	return c.client(pod).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{
			GracePeriodSeconds: grace,
			Preconditions:      &metav1.Preconditions{UID: &pod.UID},
			DryRun:             dryRun,
		},
	})
}

// tellOnce reports something of an interruption or an eviction, unless it was the last
// thing that was.
func (c *Controller) tellOnce(pod *corev1.Pod, e events.Event) {
	told := false
	c.note(apiv1.Ref(pod), func(w *waiting) { told, w.told = w.told == e.Reason, e.Reason })
	if !told {
		c.cfg.Events.Event(apiv1.Ref(pod), e)
	}
}

// toldLast is the reason of what tellOnce has reported last of a pod, or "".
func (c *Controller) toldLast(pod *corev1.Pod) (reason string) {
	c.note(apiv1.Ref(pod), func(w *waiting) { reason = w.told })
	return reason
}

// notReady says in the pod's conditions that it no longer is.
func notReady(pod *corev1.Pod, now metav1.Time, reason, message string) {
	for i := range pod.Status.Conditions {
		if k := &pod.Status.Conditions[i]; k.Type == corev1.PodReady || k.Type == corev1.ContainersReady {
			k.Status, k.Reason, k.Message, k.LastTransitionTime = corev1.ConditionFalse, reason, message, now
		}
	}
}

// setCondition adds a condition, or replaces the one of its type.
func setCondition(pod *corev1.Pod, condition corev1.PodCondition) {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == condition.Type {
			pod.Status.Conditions[i] = condition
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, condition)
}
