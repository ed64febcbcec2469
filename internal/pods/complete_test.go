package pods

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
)

func TestAnEndedPodLetsItsCellGoWithItsLogs(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		h := newHarness(t)
		h.put(pod("a"))
		h.must("a")
		h.put(pod("a", func(p *corev1.Pod) { p.Status.Phase = phase }))
		h.must("a")
		h.want("released", h.cells.released, "uid-a ended=true")
		h.cells.gone("uid-a")
		h.must("a")
		h.want("requests", h.cells.requests, "uid-a#1") // and no second cell
	}
}

func TestAnEndedPodKeepsItsCellUntilItsKubeletHasSaidHowItsContainersEnded(t *testing.T) {
	ended := func(state corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://1", State: state}}
		}
	}
	runs := ended(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	told := ended(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}})
	begin := func() *harness {
		h := newHarness(t)
		h.put(pod("a", running))
		h.must("a")
		h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
		h.put(pod("a", runs))
		if again := h.must("a"); again != lastWords {
			t.Errorf("looked at again after %v, want %v", again, lastWords)
		}
		h.want("released", h.cells.released)
		return h
	}

	h := begin()
	h.put(pod("a", told))
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=true")

	// One that never says it.
	h = begin()
	h.clock.Step(lastWords - time.Second)
	if again := h.must("a"); again != time.Second {
		t.Errorf("looked at again after %v, want a second", again)
	}
	h.want("released", h.cells.released)
	h.clock.Step(time.Second)
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=true")

	// One that cannot.
	h = begin()
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Terminating })
	h.must("a")
	h.want("released", h.cells.released, "uid-a ended=true")
}

func TestTheCellOfAFailedPodIsKeptForAsLongAsIsGranted(t *testing.T) {
	for name, tc := range map[string]struct {
		asked string
		phase corev1.PodPhase
		want  string
	}{
		"as long as it asks for":         {"30m", corev1.PodFailed, "uid-a kept=30m0s most=2"},
		"no longer than is granted":      {"2h", corev1.PodFailed, "uid-a kept=1h0m0s most=2"},
		"not if its time is not valid":   {"soon", corev1.PodFailed, "uid-a ended=true"},
		"not if it asks for none":        {"0", corev1.PodFailed, "uid-a ended=true"},
		"not without the annotation":     {"", corev1.PodFailed, "uid-a ended=true"},
		"not that of a pod that has run": {"30m", corev1.PodSucceeded, "uid-a ended=true"},
	} {
		h := newHarness(t)
		h.restarted(func(c *Config) { c.Grants.MaxKeepFailed, c.Grants.MaxKeptCells = time.Hour, 2 })
		h.put(pod("a", running))
		h.must("a")
		h.cells.set("uid-a", func(c *cells.Cell) { c.Phase = apiv1.Bound })
		h.put(pod("a", func(p *corev1.Pod) {
			p.Status.Phase = tc.phase
			if tc.asked != "" {
				p.Annotations = map[string]string{placement.AnnotationKeepFailed: tc.asked}
			}
		}))
		h.must("a")
		h.want(name, h.cells.released, tc.want)
	}
}
