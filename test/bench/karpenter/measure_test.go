package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
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

// settles is a product that notes for which nodes it was to be done.
type settles struct {
	product

	nodes [][]string
}

func (s *settles) settled(_ context.Context, nodes []string) error {
	s.nodes = append(s.nodes, nodes)
	return nil
}

func TestAPodRunsBeforeTheWindowAndIsNotCounted(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pod := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		pod.Namespace, pod.Spec.NodeName, pod.Status.Phase = namespace, "node-"+pod.Name, corev1.PodRunning
		return false, nil, nil
	})
	product := &settles{}
	m := measure{cluster: &cluster{client: client}, options: options{pods: 2, untilRunning: true}, product: product}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := m.warmUp(ctx); err != nil {
		t.Fatal(err)
	}
	if len(product.nodes) != 1 || !slices.Equal(product.nodes[0], []string{"node-first"}) {
		t.Errorf("the product was to be done with %v, want the node of the first pod", product.nodes)
	}
	d := m.deployment()
	for i := range m.pods {
		pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
		pod.Name = fmt.Sprint(name, i)
		if _, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	counted, err := m.await(ctx, name, m.pods)
	if err != nil || len(counted.nodes) != m.pods || counted.nodes[first] != "" {
		t.Errorf("counted are %+v, %v", counted, err)
	}
	if _, err := client.CoreV1().Pods(namespace).Get(ctx, first, metav1.GetOptions{}); err != nil {
		t.Errorf("the first pod does not stay, and another gets its machine: %v", err)
	}
}
