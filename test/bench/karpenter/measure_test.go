package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsThatAreLostDoNotCount(t *testing.T) {
	pod := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Phase: phase}}
	}
	going := pod("c", "n3", corev1.PodRunning)
	going.DeletionTimestamp = &metav1.Time{}
	p := &pods{nodes: map[string]string{}, running: map[string]bool{}, lost: map[string]bool{}}
	for _, see := range []struct {
		pod                  *corev1.Pod
		deleted              bool
		bound, running, lost int
	}{
		{pod("a", "", corev1.PodPending), false, 0, 0, 0},
		{pod("a", "n1", corev1.PodPending), false, 1, 0, 0},
		{pod("a", "n1", corev1.PodRunning), false, 1, 1, 0},
		{pod("a", "n1", corev1.PodRunning), false, 1, 1, 0},
		{pod("b", "n2", corev1.PodRunning), false, 2, 2, 0},
		{pod("b", "n2", corev1.PodFailed), false, 1, 1, 1},
		{pod("b", "n2", corev1.PodFailed), true, 1, 1, 1},
		{pod("c", "n3", corev1.PodRunning), false, 2, 2, 1},
		{going, false, 1, 1, 2},
		{pod("a", "n1", corev1.PodRunning), true, 0, 0, 3},
	} {
		p.see(see.pod, see.deleted)
		if len(p.nodes) != see.bound || len(p.running) != see.running || len(p.lost) != see.lost {
			t.Fatalf("after %s on %q, %s, deleted %t: got %+v, want %d bound, %d running, %d lost", see.pod.Name, see.pod.Spec.NodeName,
				see.pod.Status.Phase, see.deleted, *p, see.bound, see.running, see.lost)
		}
	}
}
