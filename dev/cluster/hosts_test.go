package cluster

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// roomy is a virtual node that is Ready, as its status says.
func roomy(t *testing.T, is identities) {
	t.Helper()
	nodes := is.admin.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "roomy", Labels: map[string]string{
		"type": "virtual-kubelet", corev1.LabelHostname: "roomy", "room": "yes",
	}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	capacity := corev1.ResourceList{"cpu": resource.MustParse("20"), "memory": resource.MustParse("100Gi"), "pods": resource.MustParse("20"),
		"ephemeral-storage": resource.MustParse("100Gi")}
	patch, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Capacity: capacity, Allocatable: capacity,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Patch(t.Context(), "roomy", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// resizesAreBoundedByTheMachine has pods on a virtual node resized. Kip answers that each has a nano.
func resizesAreBoundedByTheMachine(t *testing.T, is identities) {
	t.Helper()
	ctx, all := t.Context(), is.admin.CoreV1().Pods("for-anybody")
	requests := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
	pod, err := all.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "resized"}, Spec: corev1.PodSpec{
		NodeName: "roomy", Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "main", Image: "busybox",
			Resources: corev1.ResourceRequirements{Requests: requests("100m", "64Mi")}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ cpu, memory, words string }{
		{"250m", "192Mi", ""},
		{"15", "64Mi", "cpu, requested: 15, available: 250m"},
		{"100m", "50Gi", "memory, requested: 50Gi, available: 192Mi"},
	} {
		becomes(t, "a resize to "+c.cpu+" and "+c.memory, func() error {
			pod := pod.DeepCopy()
			pod.Spec.Containers[0].Resources.Requests = requests(c.cpu, c.memory)
			_, err := all.UpdateResize(ctx, "resized", pod, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			if c.words != "" {
				return refused(err, c.words)
			}
			return err
		})
	}
}

// eachPodHasAHostOfItsOwn has the scheduler place pods that want different hosts on one virtual
// node. Kip answers about them.
func eachPodHasAHostOfItsOwn(t *testing.T, is identities) {
	t.Helper()
	roomy(t, is)
	ctx, all := t.Context(), is.admin.CoreV1().Pods("for-anybody")
	for app, spec := range map[string]func(*corev1.PodSpec, *metav1.LabelSelector){
		"anti-affinity": func(s *corev1.PodSpec, own *metav1.LabelSelector) {
			terms := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: own}}
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		},
		"host-port": func(s *corev1.PodSpec, _ *metav1.LabelSelector) {
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
		},
		"host-network": func(s *corev1.PodSpec, _ *metav1.LabelSelector) {
			s.HostNetwork, s.Containers[0].Ports = true, []corev1.ContainerPort{{ContainerPort: 8081}}
		},
		"spread": func(s *corev1.PodSpec, own *metav1.LabelSelector) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, MinDomains: new(int32(3)),
				TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: own}}
		},
		"storage": func(s *corev1.PodSpec, _ *metav1.LabelSelector) {
			s.Containers[0].Resources.Requests = corev1.ResourceList{"ephemeral-storage": resource.MustParse("1Gi")}
		},
	} {
		own := map[string]string{"app": app}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: app + "-", Labels: own}, Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{"type": "virtual-kubelet", "room": "yes"},
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers:                    []corev1.Container{{Name: "main", Image: "busybox"}},
		}}
		spec(&pod.Spec, &metav1.LabelSelector{MatchLabels: own})
		const replicas = 3
		for range replicas {
			if _, err := all.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				t.Fatalf("%s: %v", app, err)
			}
		}
		becomes(t, app+" pods are scheduled", func() error {
			list, err := all.List(ctx, metav1.ListOptions{LabelSelector: labels.FormatLabels(own)})
			if err != nil {
				return err
			}
			placed := 0
			for _, p := range list.Items {
				if p.Spec.NodeName == "roomy" {
					placed++
				}
			}
			if placed != replicas {
				return fmt.Errorf("%d of %d are on the node", placed, replicas)
			}
			return nil
		})
	}
}
