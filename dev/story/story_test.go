package story

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kipv1 "github.com/elotl/kip/api/v1"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }

func pod(phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello-abcde", UID: "pod-1"},
		Spec:       corev1.PodSpec{NodeName: "kip-0", Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

func cell(name string, attempt int, phase kipv1.Phase, steps ...kipv1.Step) *kipv1.Cell {
	return &kipv1.Cell{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: kipv1.CellStatus{
		Phase: phase, Pod: kipv1.PodReference{UID: "pod-1"}, Node: "kip-0", Attempt: attempt, Steps: steps,
		InstanceID: "i-1", InstanceType: "nano", PricePerHour: "0.009", ManagementIP: "10.110.0.2", IP: "10.110.128.2",
		Reason: "cheapest of 7 types that fit cpu 100m, memory 64Mi",
	}}
}

func step(name string, seconds float64) kipv1.Step {
	return kipv1.Step{Name: name, Time: metav1.NewMicroTime(at(seconds))}
}

func event(kind, reason, message string) *corev1.Event {
	return &corev1.Event{Type: kind, Reason: reason, Message: message, InvolvedObject: corev1.ObjectReference{UID: "pod-1"}}
}

// tell runs f with a new story and returns its lines.
func tell(f func(s *Story)) (*Story, []string) {
	var lines []string
	s := New(began, func(st Step) { lines = append(lines, strings.Join(strings.Fields(st.String()), " ")) })
	f(s)
	return s, lines
}

func TestAPodsWayIsToldStepByStepWithItsTimes(t *testing.T) {
	steps := []kipv1.Step{
		step(kipv1.StepSeen, 0.1), step(kipv1.StepPlaced, 0.11), step(kipv1.StepLaunched, 0.2), step(kipv1.StepJoined, 0.8),
		step(kipv1.StepReady, 1.3), step(kipv1.StepBound, 1.31), step(kipv1.StepEnded, 2.1), step(kipv1.StepLogsSaved, 2.2),
		step(kipv1.StepTerminated, 2.5),
	}
	s, lines := tell(func(s *Story) {
		s.Cell(cell("c1", 1, kipv1.Launching, steps[:2]...)) // nobody knows yet whose this is
		s.Pod(at(0.05), pod(corev1.PodPending))
		s.Cell(cell("c1", 1, kipv1.Bound, steps[:6]...))
		s.Event(at(1.5), event("Normal", "Pulled", "Successfully pulled image \"busybox:1.36\" in 90ms"))
		s.Pod(at(1.7), pod(corev1.PodRunning))
		s.Event(at(1.8), event("Normal", "Started", "Started container main"))
		s.Pod(at(2.0), pod(corev1.PodSucceeded))
		if s.Done() {
			t.Error("done although the cell is there")
		}
		s.Cell(cell("c1", 1, kipv1.Gone, steps...))
		s.CellDeleted(at(2.6), cell("c1", 1, kipv1.Gone, steps...))
	})
	want := []string{
		"+0.05s pod hello-abcde created",
		"+0.10s seen by Kip on node kip-0",
		"+0.11s placed on nano at $0.009 an hour: cheapest of 7 types that fit cpu 100m, memory 64Mi",
		"+0.20s launched i-1 at 10.110.0.2 as cell c1",
		"+0.80s joined: its agent proved the one-time token and has a certificate",
		"+1.30s ready: its kubelet can take a pod",
		"+1.31s bound: its kubelet sees the pod, address 10.110.128.2",
		"+1.50s image: Successfully pulled image \"busybox:1.36\" in 90ms",
		"+1.70s running",
		"+2.00s succeeded",
		"+2.20s logs saved",
		"+2.50s cell c1 terminated",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if !s.Done() {
		t.Error("not done")
	}
	if got, want := s.Outcome(), (Outcome{Namespace: "default", Pod: "hello-abcde", Container: "main", Cell: "c1",
		Succeeded: true}); got != want {
		t.Errorf("outcome %+v, want %+v", got, want)
	}
}

func TestTheImageIsToldWithoutTheKubeletsEvent(t *testing.T) {
	done := pod(corev1.PodSucceeded)
	done.Status.ContainerStatuses = []corev1.ContainerStatus{{Image: "busybox:1.36", ImageID: "busybox@sha256:1"}}
	_, lines := tell(func(s *Story) {
		s.Pod(at(0), pod(corev1.PodPending))
		s.Pod(at(2), done)
		s.Event(at(2.1), event("Normal", "Pulled", "late"))
	})
	want := []string{"+0.00s pod hello-abcde created", "+2.00s running", "+2.00s image: busybox:1.36 is busybox@sha256:1", "+2.00s succeeded"}
	if !slices.Equal(lines, want) {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestASecondCellIsNamedAndTheLastOneIsTheOutcome(t *testing.T) {
	s, lines := tell(func(s *Story) {
		s.Pod(at(0), pod(corev1.PodPending))
		s.Cell(cell("c1", 1, kipv1.Launching, step(kipv1.StepPlaced, 0.1)))
		s.CellDeleted(at(1), cell("c1", 1, kipv1.Terminating))
		s.Cell(cell("c2", 2, kipv1.Booting, step(kipv1.StepPlaced, 1.1), step(kipv1.StepJoined, 2)))
		s.Pod(at(3), pod(corev1.PodSucceeded))
	})
	if s.Done() {
		t.Error("done although the second cell is there")
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{"+1.00s cell c1 terminated", "(cell c2)"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not told:\n%s", want, all)
		}
	}
	s.CellDeleted(at(4), cell("c2", 2, kipv1.Gone))
	if !s.Done() || s.Outcome().Cell != "c2" {
		t.Errorf("done = %v, outcome %+v", s.Done(), s.Outcome())
	}
}

func TestWarningsAndFailuresSayWhyOnceEach(t *testing.T) {
	s, lines := tell(func(s *Story) {
		s.Pod(at(0), pod(corev1.PodPending))
		for range 2 {
			s.Event(at(1), event("Warning", "NoCapacity", "no capacity for nano"))
		}
		failed := pod(corev1.PodFailed)
		failed.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 3}}}}
		s.Pod(at(2), failed)
	})
	want := []string{"+0.00s pod hello-abcde created", "+1.00s ! NoCapacity: no capacity for nano",
		"+2.00s ! failed: container main: Error, exit code 3"}
	if !slices.Equal(lines, want) {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	s.CellDeleted(at(3), cell("c1", 1, kipv1.Gone))
	if !s.Done() || s.Outcome().Succeeded {
		t.Errorf("done = %v, outcome %+v, want a failure", s.Done(), s.Outcome())
	}
}

func TestOtherPodsAndTheirCellsAreNotTold(t *testing.T) {
	other := pod(corev1.PodRunning)
	other.UID, other.Name = "pod-2", "other"
	stranger := cell("c9", 1, kipv1.Gone, step(kipv1.StepPlaced, 1))
	stranger.Status.Pod.UID = "pod-2"
	foreign := event("Warning", "X", "y")
	foreign.InvolvedObject.UID = "pod-2"
	_, lines := tell(func(s *Story) {
		s.Pod(at(0), pod(corev1.PodPending))
		s.Pod(at(1), other)
		s.Cell(stranger)
		s.CellDeleted(at(2), stranger)
		s.Event(at(3), foreign)
	})
	if len(lines) != 1 {
		t.Errorf("told:\n%s\nwant only the first pod's creation", strings.Join(lines, "\n"))
	}
}

func TestWaitingSaysForWhat(t *testing.T) {
	unscheduled := pod(corev1.PodPending)
	unscheduled.Spec.NodeName = ""
	pulling := pod(corev1.PodPending)
	pulling.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
	tests := []struct {
		see  func(s *Story)
		want string
	}{
		{func(*Story) {}, "the Job's pod to be created"},
		{func(s *Story) { s.Pod(at(0), unscheduled) }, "the scheduler to place the pod"},
		{func(s *Story) { s.Pod(at(0), pod(corev1.PodPending)) }, "Kip to request a cell"},
		{func(s *Story) { s.Cell(cell("c1", 1, kipv1.Booting)) }, "the pod on its cell, which is Booting"},
		{func(s *Story) { s.Pod(at(0), pulling) }, "container main: ImagePullBackOff: no such image"},
		{func(s *Story) { s.Pod(at(0), pod(corev1.PodSucceeded)) }, "the cell to be terminated"},
	}
	for i, tt := range tests {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s, _ := tell(func(s *Story) {
				for _, before := range tests[:i+1] {
					before.see(s)
				}
			})
			if got := s.Waiting(); got != tt.want {
				t.Errorf("waiting for %q, want %q", got, tt.want)
			}
		})
	}
}
