package pods

import (
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPodThatFailsHasEndedContainersAndADisruptionOnlyIfItsCellWasLost(t *testing.T) {
	now, ended := metav1.NewTime(time.Unix(1e9, 0)), corev1.ContainerStateTerminated{ExitCode: 3}
	p := pod("a", running, func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: corev1.ContainerState{Terminated: &ended}}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	for _, why := range []failure{
		{event: events.NewNotRestarted(), lost: true}, {event: events.NewCellsNotReady(2)}, {event: events.NewCellsNotReady(3), unstarted: true},
	} {
		got := failed(p, why, now)
		s := got.Status
		if s.Phase != corev1.PodFailed || s.Reason != why.event.Reason || s.Message != why.event.Message {
			t.Errorf("%s: its status is %+v", why.event.Reason, s)
		}
		if code := s.InitContainerStatuses[0].State.Terminated.ExitCode; code != 3 {
			t.Errorf("%s: a container that ended with 3 has ended with %d", why.event.Reason, code)
		}
		if c := s.ContainerStatuses[0]; c.Ready || c.State.Running != nil || c.State.Terminated == nil || c.State.Terminated.ExitCode != 137 {
			t.Errorf("%s: a container that ran is %+v", why.event.Reason, c)
		}
		if s.Conditions[0].Status != corev1.ConditionFalse {
			t.Errorf("%s: it is ready", why.event.Reason)
		}
		has := func(condition corev1.PodConditionType) bool {
			return slices.ContainsFunc(s.Conditions, func(k corev1.PodCondition) bool {
				return k.Type == condition && k.Status == corev1.ConditionTrue && k.Reason == why.event.Reason
			})
		}
		if has(corev1.DisruptionTarget) != why.lost || has(apiv1.NeverStarted) != why.unstarted {
			t.Errorf("%+v: it is the target of a disruption: %t, and has never started: %t", why, has(corev1.DisruptionTarget),
				has(apiv1.NeverStarted))
		}
	}
	if p.Status.Phase != corev1.PodRunning {
		t.Error("the pod of the watch was changed")
	}
}
