package pods

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// staleRetry is after how long a pod is looked at again of which the watch has yet
	// to tell what the API server knows.
	staleRetry = time.Second
	// behindRetry is after how long a pod is looked at again while a person has to decide
	// what becomes of the cells that this Kip does not know of.
	behindRetry = 10 * time.Second
)

// duplicates sees that nothing else may run a pod without a cell, before the pod gets one or ends.
type duplicates struct {
	cells   Cells
	api     *apiServer
	history *history
	waits   *waits
}

// behindWait is after how long a pod is looked at again that may run on a cell that this
// Kip does not know of. A list of the cloud, which makes it certain, comes soon.
func behindWait(sure bool) time.Duration {
	if sure {
		return behindRetry
	}
	return staleRetry
}

// end ends what may run a pod besides its cell. It returns why the pod may run there yet; "" if it does not.
func (s *duplicates) end(pod *corev1.Pod) (why string, sure bool) {
	noEarlierCell := false
	s.history.note(apiv1.Ref(pod), func(p *past) { noEarlierCell = p.cameLater && !p.ran && !started(pod) })
	return s.cells.EndDuplicates(pod.UID, pod.CreationTimestamp.Time, noEarlierCell)
}

// waitsForEnd reports what keeps a pod without a cell from being ended, since an instance may run it.
// It returns when to check again; 0 if nothing runs it.
func (s *duplicates) waitsForEnd(pod *corev1.Pod) time.Duration {
	why, sure := s.end(pod)
	if why == "" {
		return 0
	}
	event := events.NewCellUnknown(why)
	if behind, known := s.cells.Behind(); !sure {
		event = events.NewInstancesNotListed(why)
	} else if behind != "" && known {
		event = events.NewStoreBehind(why)
	}
	s.waits.report(pod, otherCause, event, why, time.Time{})
	return behindWait(sure)
}

// waitsForStore reports what keeps a pod without a cell from getting one, since it may run on a cell that the store does not know of.
// A pod that never ran waits only for a store that surely is behind. It returns when to check again; 0 if the pod need not wait.
func (s *duplicates) waitsForStore(pod *corev1.Pod, ran bool) time.Duration {
	why, sure := s.cells.Behind()
	if why == "" || !sure && !ran {
		return 0
	}
	event := events.NewStoreBehind(why)
	if !sure {
		event = events.NewInstancesNotListed(why)
	}
	s.waits.report(pod, otherCause, event, why, time.Time{})
	return behindWait(sure)
}

// changedSince asks the API server itself whether a pod that may have run has ended
// or is being deleted, of which the watch will tell: it may lag behind what the pod's
// last cell wrote, and a pod that has ended must not run again. A pod that never had
// a cell is as it was listed.
func (s *duplicates) changedSince(ctx context.Context, pod *corev1.Pod) (bool, error) {
	now, err := s.api.pods(pod).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look whether pod %s has ended: %w", apiv1.Ref(pod), err)
	}
	return now.UID != pod.UID || now.DeletionTimestamp != nil || watches.Ended(now), nil
}
