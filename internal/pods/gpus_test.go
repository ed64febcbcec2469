package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestACellIsToHaveTheGPUsOfItsPod(t *testing.T) {
	asking := func(count string) corev1.Container {
		gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(count), "amd.com/gpu": resource.MustParse("7")}
		return corev1.Container{Resources: corev1.ResourceRequirements{Limits: gpus, Requests: gpus}}
	}
	spec := func(main, first corev1.Container) corev1.PodSpec {
		return corev1.PodSpec{InitContainers: []corev1.Container{first}, Containers: []corev1.Container{main}}
	}
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want int64
	}{
		"none":                   {corev1.PodSpec{Containers: []corev1.Container{{}}}, 0},
		"of another maker":       {corev1.PodSpec{Containers: []corev1.Container{asking("0")}}, 0},
		"of all containers":      {corev1.PodSpec{Containers: []corev1.Container{asking("1"), asking("2")}}, 3},
		"of one at the start":    {spec(asking("1"), asking("4")), 4},
		"used again after start": {spec(asking("1"), asking("1")), 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.put(pod("a", func(p *corev1.Pod) {
				p.Spec.Containers, p.Spec.InitContainers = c.spec.Containers, c.spec.InitContainers
			}))
			h.must("a")
			if h.cells.gpus != c.want {
				t.Errorf("its cell is to have %d GPUs: want %d", h.cells.gpus, c.want)
			}
			if got := h.cells.accelerators; (c.want > 0 || name == "of another maker") != (got["amd.com/gpu"] >= 7) || len(got) > 1 {
				t.Errorf("its cell is to have %v", got)
			}
		})
	}
}
