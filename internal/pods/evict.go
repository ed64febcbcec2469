package pods

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// evictionCause is why a pod is to be evicted. A pod can have several.
type evictionCause int

const (
	interruption evictionCause = iota // the cloud takes its instance back
	noCapacity                        // its node has nothing for it
	oldCell
	betterChoice // its cell is not what it asked for first
	causes
)

// notice is what was last reported of why a pod is not evicted.
type notice int

const (
	_                  notice = iota
	evictionBlocked           // by a disruption budget
	interruptedStays          // no controller would replace the pod
	unservableStays           // likewise
	unservableCameBack        // others of its controller were evicted in vain
	undisruptedStays          // it could stay, and asks for that, or has no controller
)

// evicting evicts pods.
type evicting struct {
	api     *apiServer
	events  cells.Recorder
	noticed *notes[[causes]notice]
}

// eviction is one that is asked for.
type eviction struct {
	cause   evictionCause
	from    string // in errors
	grace   *int64 // in seconds; nil for the pod's own
	done    events.Event
	blocked func(why error) events.Event // by a disruption budget
	retry   time.Duration                // after that; 0 of a disruption for about disruptionRetry
}

// evict evicts a pod, if this process leads, and reports that. If it evicts none, it returns after how long
// to try again; 0 means when something changes.
func (s *evicting) evict(ctx context.Context, pod *corev1.Pod, e eviction) (evicted bool, again time.Duration, err error) {
	evicted, again, err = s.ask(ctx, pod, e)
	if evicted {
		s.events.Event(apiv1.Ref(pod), e.done)
	}
	return evicted, again, err
}

// allowed is a dry run of evict.
func (s *evicting) allowed(ctx context.Context, pod *corev1.Pod, e eviction) (allowed bool, again time.Duration, err error) {
	return s.ask(ctx, pod, e, metav1.DryRunAll)
}

func (s *evicting) ask(ctx context.Context, pod *corev1.Pod, e eviction, dryRun ...string) (bool, time.Duration, error) {
	err := s.api.leads(ctx)
	if err == nil {
		err = s.api.pods(pod).EvictV1(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			DeleteOptions: &metav1.DeleteOptions{
				GracePeriodSeconds: e.grace,
				Preconditions:      &metav1.Preconditions{UID: &pod.UID},
				DryRun:             dryRun,
			},
		})
	}
	switch {
	case err == nil:
		return true, 0, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return false, 0, nil // it is gone, or another of its name is there
	case apierrors.IsTooManyRequests(err):
		s.reportOnce(pod, e.cause, evictionBlocked, e.blocked(err))
		return false, e.retry, nil
	}
	return false, 0, fmt.Errorf("evict pod %s from %s: %w", apiv1.Ref(pod), e.from, err)
}

// reportOnce reports why a pod is not evicted for a cause, unless that was the last thing that was reported of both.
func (s *evicting) reportOnce(pod *corev1.Pod, cause evictionCause, of notice, event events.Event) {
	reported := false
	s.noticed.note(apiv1.Ref(pod), func(last *[causes]notice) { reported, last[cause] = last[cause] == of, of })
	if !reported {
		s.events.Event(apiv1.Ref(pod), event)
	}
}

// last returns what reportOnce has reported last of a pod and a cause; 0 for nothing.
func (s *evicting) last(pod *corev1.Pod, cause evictionCause) notice {
	return s.noticed.get(pod.UID)[cause]
}
