package pods

import (
	"fmt"

	apiv1 "github.com/elotl/kip/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// watching wakes pods that have changed, and has the other parts learn from that.
type watching struct {
	loop      *loop
	registry  *registry
	cells     Cells
	history   *history
	releasing *releasing
	observer  Observer
}

// watch has the informers tell of pods, and of claims if there are any.
func (s *watching) watch(cfg Config, claims *volumeWaits) error {
	if _, err := cfg.Pods.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    s.added,
		UpdateFunc: func(_, obj any) { s.enqueue(obj) },
		DeleteFunc: s.deleted,
	}); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if cfg.Claims == nil {
		return nil
	}
	if _, err := cfg.Claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    claims.claimChanged,
		UpdateFunc: func(_, claim any) { claims.claimChanged(claim) },
	}); err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	return nil
}

func (s *watching) enqueue(obj any) {
	if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
		s.loop.wake(name)
	}
}

// added hears of a pod. One that its node's first list lacked was given to the node since, so no
// Kip before this one can have launched a cell for it.
func (s *watching) added(obj any, isInInitialList bool) {
	if pod, ok := obj.(*corev1.Pod); ok && !isInInitialList && pod.Status.StartTime == nil && !started(pod) {
		s.history.note(apiv1.Ref(pod), func(p *past) { p.cameLater = true })
	}
	s.enqueue(obj)
}

// deleted hears of a pod that has gone, perhaps while nobody watched.
func (s *watching) deleted(obj any) {
	last, missed := obj.(cache.DeletedFinalStateUnknown)
	if missed {
		obj = last.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		if _, has := s.cells.ForPod(pod.UID); has && (!missed || pod.DeletionTimestamp != nil) {
			s.releasing.seenDeleted(pod.UID)
		}
		s.forget(pod.UID)
		s.enqueue(pod)
	}
}

func (s *watching) forget(uid types.UID) {
	s.registry.forget(uid)
	s.observer.PodGone(uid)
}

// wakeAll wakes all pods.
func (s *watching) wakeAll() {
	for _, obj := range s.registry.listed.GetStore().List() {
		s.enqueue(obj)
	}
}
