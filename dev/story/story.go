// Package story owns the telling of what happens to one Job's pod on its way
// through Kip: it turns what is observed of pods, cells and Events into one line
// a step. It observes nothing itself and keeps no clock.
package story

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	kipv1 "github.com/elotl/kip/api/v1"
)

// Step is one line of the story.
type Step struct {
	After time.Duration // since the beginning
	Text  string
	Trial bool // something that did not go well
}

func (s Step) String() string {
	mark := " "
	if s.Trial {
		mark = "!"
	}
	return fmt.Sprintf("%+8.2fs %s %s", s.After.Seconds(), mark, s.Text)
}

// Story follows one pod. It is not safe for concurrent use.
type Story struct {
	began time.Time
	tell  func(Step)
	told  map[string]bool

	pod     *corev1.Pod   // as last seen
	early   []*kipv1.Cell // seen before the pod
	cells   map[string]*kipv1.Cell
	gone    map[string]bool // cells
	waiting string          // what the last trial said
}

// New begins a story at the moment at which the pod was asked for. tell gets
// each step once.
func New(began time.Time, tell func(Step)) *Story {
	return &Story{
		began: began,
		tell:  tell,
		told:  map[string]bool{},
		cells: map[string]*kipv1.Cell{},
		gone:  map[string]bool{},
	}
}

// Pod observes the pod as it is now. The first pod that is observed is the
// story's; others are ignored.
func (s *Story) Pod(now time.Time, p *corev1.Pod) {
	if s.pod != nil && s.pod.UID != p.UID {
		return
	}
	first := s.pod == nil
	s.pod = p
	if first {
		s.step("pod", now, "pod %s created", p.Name)
		for _, c := range s.early {
			s.Cell(c)
		}
		s.early = nil
	}
	switch p.Status.Phase {
	case corev1.PodRunning:
		s.running(now)
	case corev1.PodSucceeded:
		s.running(now)
		// Events are reported at the kubelet's best effort: its cell may be gone
		// before it has.
		for _, c := range p.Status.ContainerStatuses {
			s.step("image", now, "image: %s is %s", c.Image, c.ImageID)
		}
		s.step("ended", now, "succeeded")
	case corev1.PodFailed:
		why := p.Status.Reason
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
				why = strings.TrimSpace(fmt.Sprintf("%s container %s: %s, exit code %d %s", why, c.Name, t.Reason, t.ExitCode, t.Message))
			}
		}
		if p.Status.Message != "" {
			why += ": " + p.Status.Message
		}
		s.trial("ended", now, "failed: %s", why)
	case corev1.PodPending:
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if w := c.State.Waiting; w != nil && w.Message != "" {
				s.waiting = fmt.Sprintf("container %s: %s: %s", c.Name, w.Reason, w.Message)
			}
		}
	case corev1.PodUnknown:
	}
}

// Event observes an Event about the pod.
func (s *Story) Event(now time.Time, e *corev1.Event) {
	switch {
	case s.pod == nil || e.InvolvedObject.UID != s.pod.UID:
	case e.Type == corev1.EventTypeWarning:
		s.waiting = e.Message
		s.trial(string(e.UID)+e.Message, now, "%s: %s", e.Reason, e.Message)
	case e.Reason == "Pulled":
		s.step("image", now, "image: %s", strings.TrimPrefix(e.Message, "Container "))
	case e.Reason == "Started":
		s.running(now)
	}
}

// Cell observes a cell as it is now, whose steps carry their own times. Cells of
// other pods are ignored.
func (s *Story) Cell(c *kipv1.Cell) {
	if s.pod == nil {
		s.early = append(s.early, c)
		return
	}
	if !s.ours(c) {
		return
	}
	s.cells[c.Name] = c
	again := ""
	if len(s.cells) > 1 {
		again = fmt.Sprintf(" (cell %s)", c.Name)
	}
	for _, step := range c.Status.Steps {
		at, key := step.Time.Time, c.Name+"/"+step.Name
		switch step.Name {
		case kipv1.StepSeen:
			s.step(key, at, "seen by Kip on node %s", c.Status.Node)
		case kipv1.StepPlaced:
			s.step(key, at, "placed on %s at $%s an hour: %s%s", c.Status.InstanceType, c.Status.PricePerHour, c.Status.Reason, again)
		case kipv1.StepLaunched:
			s.step(key, at, "launched %s at %s as cell %s", c.Status.InstanceID, c.Status.ManagementIP, c.Name)
		case kipv1.StepJoined:
			s.step(key, at, "joined: its agent proved the one-time token and has a certificate%s", again)
		case kipv1.StepReady:
			s.step(key, at, "ready: its kubelet can take a pod%s", again)
		case kipv1.StepBound:
			s.step(key, at, "bound: its kubelet sees the pod, address %s%s", c.Status.IP, again)
		case kipv1.StepEnded:
			// The pod's own end is told by its phase.
		case kipv1.StepLogsSaved:
			s.step(key, at, "logs saved%s", again)
		case kipv1.StepTerminated:
			s.step(key, at, "cell %s terminated", c.Name)
		default:
			s.step(key, at, "%s%s", step.Name, again)
		}
	}
	if c.Status.Phase == kipv1.Gone {
		s.gone[c.Name] = true
	}
}

// CellDeleted observes that the record of a cell was removed, which Kip does
// when the cloud no longer has the instance.
func (s *Story) CellDeleted(now time.Time, c *kipv1.Cell) {
	if !s.ours(c) {
		return
	}
	s.cells[c.Name] = c
	s.gone[c.Name] = true
	s.step(c.Name+"/"+kipv1.StepTerminated, now, "cell %s terminated", c.Name)
}

// Done is true when the pod has ended and none of its cells is left.
func (s *Story) Done() bool {
	if s.pod == nil || !ended(s.pod) {
		return false
	}
	for name := range s.cells {
		if !s.gone[name] {
			return false
		}
	}
	return len(s.cells) > 0
}

// Outcome is how the story ended. It is for when it is Done.
type Outcome struct {
	Namespace, Pod, Container string
	Cell                      string // the last one
	Succeeded                 bool
}

// Outcome returns how the story ended.
func (s *Story) Outcome() Outcome {
	o := Outcome{
		Namespace: s.pod.Namespace,
		Pod:       s.pod.Name,
		Container: s.pod.Spec.Containers[0].Name,
		Succeeded: s.pod.Status.Phase == corev1.PodSucceeded,
	}
	last := 0
	for name, c := range s.cells {
		if c.Status.Attempt >= last {
			o.Cell, last = name, c.Status.Attempt
		}
	}
	return o
}

// Waiting says what the pod waits for now, as far as is known.
func (s *Story) Waiting() string {
	switch {
	case s.pod == nil:
		return "the Job's pod to be created"
	case s.pod.Spec.NodeName == "":
		return "the scheduler to place the pod"
	case len(s.cells) == 0 && s.waiting == "":
		return "Kip to request a cell"
	case ended(s.pod):
		return "the cell to be terminated"
	case s.waiting != "":
		return s.waiting
	}
	phase := kipv1.Phase("")
	for name, c := range s.cells {
		if !s.gone[name] {
			phase = c.Status.Phase
		}
	}
	return fmt.Sprintf("the pod on its cell, which is %s", phase)
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (s *Story) ours(c *kipv1.Cell) bool { return s.pod != nil && c.Status.Pod.UID == s.pod.UID }

func (s *Story) running(now time.Time) { s.step("running", now, "running") }

func (s *Story) step(key string, at time.Time, format string, args ...any) {
	s.once(key, at, false, format, args...)
}

func (s *Story) trial(key string, at time.Time, format string, args ...any) {
	s.once(key, at, true, format, args...)
}

func (s *Story) once(key string, at time.Time, trial bool, format string, args ...any) {
	if s.told[key] {
		return
	}
	s.told[key] = true
	s.tell(Step{After: at.Sub(s.began), Text: fmt.Sprintf(format, args...), Trial: trial})
}
