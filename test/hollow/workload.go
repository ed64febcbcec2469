package hollow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of a pod that say how a hollow cell runs it.
const (
	// AnnotationRunSeconds is how long the pod's containers run, in seconds, a
	// decimal number. Then they end, as those of a Job do, and are started again
	// if the pod's restartPolicy says so, without the pause that a kubelet makes.
	// Without it they run until the pod is deleted.
	AnnotationRunSeconds = "hollow.kip.elotl.co/run-seconds"
	// AnnotationExitCode is what each of them ends with, 0 to 255; 0 if unset.
	AnnotationExitCode = "hollow.kip.elotl.co/exit-code"
)

// phase is how far a pod is.
type phase int

const (
	starting phase = iota
	running
	ended // for good
)

// workload is what a hollow cell keeps of its pod. The machine's mutex guards it.
type workload struct {
	namespace, name   string
	uid               types.UID
	init, containers  []container
	restarts          corev1.RestartPolicy
	runs              time.Duration // 0: until it is deleted
	exitCode          int32
	deleted           bool // its deletion was seen
	stopped           bool // and its containers have ended for it
	phase             phase
	seen              time.Time
	started, finished time.Time // of the latest run
	restartCount      int32
	ready             bool
	readyAt           time.Time
	// changes counts what is to be reported, reported what is; version is the
	// pod's resource version of the latest report.
	changes, reported int
	version           string

	// What follows is of a whole cell only.

	references     []reference
	serviceAccount string
	tokenSeconds   int64  // of the token that its volumes ask for, 0 for none
	seenVersion    string // the pod's resource version when it was seen first
	// lifetime is until the pod is lost, or the kubelet ends.
	lifetime context.Context
	end      context.CancelFunc
}

type container struct {
	name, image string
	resources   *corev1.ResourceRequirements // nil on a cell that is not whole
	mounts      []corev1.VolumeMountStatus
}

// keep has the workload know what a whole cell asks and reports of the pod.
func (w *workload) keep(pod *corev1.Pod) {
	w.references, w.tokenSeconds = referencesOf(pod), tokenOf(pod)
	w.serviceAccount, w.seenVersion = pod.Spec.ServiceAccountName, pod.ResourceVersion
	for i, c := range pod.Spec.Containers {
		w.containers[i].resources = c.Resources.DeepCopy()
		for _, m := range c.VolumeMounts {
			status := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
			if m.ReadOnly {
				mode := corev1.RecursiveReadOnlyDisabled
				status.RecursiveReadOnly = &mode
			}
			w.containers[i].mounts = append(w.containers[i].mounts, status)
		}
	}
}

func newWorkload(pod *corev1.Pod, now time.Time) (*workload, error) {
	w := &workload{
		namespace: pod.Namespace,
		name:      pod.Name,
		uid:       pod.UID,
		restarts:  pod.Spec.RestartPolicy,
		seen:      now,
		readyAt:   now,
	}
	for _, c := range pod.Spec.InitContainers {
		w.init = append(w.init, container{name: c.Name, image: c.Image})
	}
	for _, c := range pod.Spec.Containers {
		w.containers = append(w.containers, container{name: c.Name, image: c.Image})
	}
	var errs []error
	if text, ok := pod.Annotations[AnnotationRunSeconds]; ok {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0 && seconds < 1e9) {
			errs = append(errs, fmt.Errorf("annotation %s is %q, it must be a number of seconds above 0 and below 1e9", AnnotationRunSeconds, text))
		} else {
			w.runs = time.Duration(seconds * float64(time.Second))
		}
	}
	if text, ok := pod.Annotations[AnnotationExitCode]; ok {
		code, err := strconv.ParseUint(text, 10, 8)
		if err != nil {
			errs = append(errs, fmt.Errorf("annotation %s is %q, it must be a number from 0 to 255", AnnotationExitCode, text))
		} else {
			w.exitCode = int32(code)
		}
	}
	return w, errors.Join(errs...)
}

// podWatch judges the events of the kubelet's watch of its pods.
type podWatch struct {
	k *kubelet
	// found says that there is a pod among the objects that the watch began with.
	found bool
}

func (p *podWatch) see(e watched) error {
	switch e.Type {
	case listing:
		p.found = false
	case "ADDED", "MODIFIED", "DELETED":
		pod := &corev1.Pod{}
		if err := json.Unmarshal(e.Object, pod); err != nil {
			return fmt.Errorf("read a pod: %w", err)
		}
		if e.Type == "DELETED" {
			p.k.lose(pod.UID)
			return nil
		}
		p.found = true
		p.k.observe(pod)
	case listed:
		if !p.found {
			p.k.lose("") // a kubelet kills what its list lacks
		}
	}
	return nil
}

// lose drops the pod, if it is the one with this UID, or any for "".
func (k *kubelet) lose(uid types.UID) {
	m := k.m
	m.mu.Lock()
	if m.pod == nil || (uid != "" && m.pod.uid != uid) {
		m.mu.Unlock()
		return
	}
	w := m.pod
	m.pod, m.gone = nil, uid
	ran, end := w.phase == running, w.end
	m.mu.Unlock()
	if ran {
		k.announce(w, w.containers, "Killing")
	}
	if end != nil {
		end()
	}
	k.never(stepping)
	k.never(retrying)
	k.never(refreshing)
	m.fleet.pods(m, false)
}

// observe starts a pod that is new, and stops one that is being deleted.
func (k *kubelet) observe(pod *corev1.Pod) {
	m, now := k.m, k.clock.Now()
	m.mu.Lock()
	if pod.UID == m.gone {
		m.mu.Unlock()
		return // an event from before
	}
	w, prepare := m.pod, false
	if w == nil || w.uid != pod.UID {
		var err error
		if w, err = newWorkload(pod, now); err != nil {
			m.log.Warn("pod runs as if it had no such annotation", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
		m.pod = w
		if k.whole() {
			w.keep(pod)
			w.lifetime, w.end = context.WithCancel(k.ctx)
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
			// Ended before this agent forgot it.
			w.phase, w.finished = ended, now
		case pod.DeletionTimestamp != nil:
			w.phase, w.started, w.finished = ended, now, now
		case k.whole():
			w.changes++
			prepare = true
		case m.fleet.cfg.StartTime > 0:
			w.changes++
			k.later(stepping, m.fleet.cfg.StartTime, k.step)
		default:
			k.startLocked(w, now)
		}
	}
	if pod.DeletionTimestamp != nil && !w.deleted {
		w.deleted = true
		takes := m.fleet.cfg.StopTime
		if grace := pod.DeletionGracePeriodSeconds; grace != nil {
			takes = min(takes, time.Duration(*grace)*time.Second)
		}
		if takes > 0 && w.phase != ended {
			k.later(stepping, takes, k.step)
		} else {
			k.stopLocked(w, now)
		}
	}
	m.mu.Unlock()
	k.settle()
	if prepare {
		k.spawn(func() { k.prepare(w) })
	}
}

// resume goes on with the pod that ran when the agent was restarted.
func (k *kubelet) resume() {
	m := k.m
	m.mu.Lock()
	w := m.pod
	if w != nil {
		if k.whole() {
			w.lifetime, w.end = context.WithCancel(k.ctx)
			k.spawn(func() { k.prepare(w) })
		}
		switch {
		case w.deleted && !w.stopped, w.phase == starting && !k.whole():
			k.later(stepping, 0, k.step)
		case w.phase == running && w.runs > 0:
			k.later(stepping, max(0, w.started.Add(w.runs).Sub(k.clock.Now())), k.step)
		}
	}
	m.mu.Unlock()
	if w != nil {
		k.settle()
	}
}

// step is what comes next in the pod's life.
func (k *kubelet) step() {
	m, now := k.m, k.clock.Now()
	m.mu.Lock()
	if w := m.pod; w != nil {
		switch {
		case w.deleted:
			k.stopLocked(w, now)
		case w.phase == starting:
			k.announce(w, append(w.init[:len(w.init):len(w.init)], w.containers...), "Pulled", "Created", "Started")
			k.startLocked(w, now)
		case w.phase == running:
			k.finishLocked(w, now)
		}
	}
	m.mu.Unlock()
	k.settle()
}

func (k *kubelet) startLocked(w *workload, now time.Time) {
	w.phase, w.started, w.ready, w.readyAt = running, now, true, now
	w.changes++
	if w.runs > 0 {
		k.later(stepping, w.runs, k.step)
	}
}

// finishLocked is the end of a run.
func (k *kubelet) finishLocked(w *workload, now time.Time) {
	w.finished = now
	if w.restarts == corev1.RestartPolicyAlways || (w.restarts == corev1.RestartPolicyOnFailure && w.exitCode != 0) {
		w.restartCount++
		k.startLocked(w, now)
		return
	}
	w.phase, w.ready, w.readyAt = ended, false, now
	w.changes++
}

// stopLocked ends the containers of a deleted pod.
func (k *kubelet) stopLocked(w *workload, now time.Time) {
	if w.phase != ended {
		if w.phase == running {
			k.announce(w, w.containers, "Killing")
		}
		if w.phase == starting {
			w.started = now
		}
		w.phase, w.finished, w.ready, w.readyAt = ended, now, false, now
		w.changes++
	}
	w.stopped = true
}

// settle reports what is not reported of the pod, and deletes it when it has
// stopped. What fails is retried.
func (k *kubelet) settle() {
	m := k.m
	m.mu.Lock()
	m.fleet.pods(m, m.pod != nil && m.pod.phase == running)
	m.mu.Unlock()
	if _, err := k.reportPod(k.ctx); err != nil {
		m.log.Debug("pod not reported", "err", err)
		k.later(retrying, retryAfter, k.settle)
	}
}

// reportPod patches the pod's status, if there is something new in it, and
// returns the resource version of the latest report. A pod that has stopped it
// then deletes.
func (k *kubelet) reportPod(ctx context.Context) (string, error) {
	select {
	case k.reports <- struct{}{}:
		defer func() { <-k.reports }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	m := k.m
	m.mu.Lock()
	w := m.pod
	if w == nil {
		m.mu.Unlock()
		return "", nil
	}
	news, changes, stopped, version := w.changes > w.reported, w.changes, w.stopped, w.version
	path := "/api/v1/namespaces/" + w.namespace + "/pods/" + w.name
	status := m.statusLocked(w)
	m.mu.Unlock()

	if news {
		var stored struct {
			Metadata struct{ ResourceVersion string }
		}
		if k.whole() {
			if err := k.ask(ctx, http.MethodGet, path, "", nil, nil); err != nil {
				return "", k.unlessGone(w, err)
			}
		}
		patch := map[string]any{"metadata": map[string]any{"uid": w.uid}, "status": status}
		if err := k.ask(ctx, http.MethodPatch, path+"/status", mergePatch, patch, &stored); err != nil {
			return "", k.unlessGone(w, err)
		}
		m.mu.Lock()
		version = stored.Metadata.ResourceVersion
		w.reported, w.version = changes, version
		m.mu.Unlock()
	}
	if stopped {
		now, uid := int64(0), w.uid
		options := metav1.DeleteOptions{
			TypeMeta:           metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &uid},
		}
		if err := k.ask(ctx, http.MethodDelete, path, jsonBody, options, nil); err != nil {
			return "", k.unlessGone(w, err)
		}
		k.lose(w.uid)
	}
	return version, nil
}

// unlessGone is err, or nil if it says that the pod is no longer there.
func (k *kubelet) unlessGone(w *workload, err error) error {
	if refused(err) == http.StatusNotFound {
		k.lose(w.uid)
		return nil
	}
	return err
}

// statusLocked is the pod's status as a kubelet reports it. m.mu is held.
func (m *machine) statusLocked(w *workload) corev1.PodStatus {
	at := func(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
	condition := func(t corev1.PodConditionType, holds bool, since time.Time, reason string) corev1.PodCondition {
		c := corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: at(since)}
		if !holds {
			c.Status, c.Reason = corev1.ConditionFalse, reason
		}
		return c
	}
	seen := at(w.seen)
	status := corev1.PodStatus{Phase: corev1.PodPending, StartTime: &seen}
	if m.config != nil {
		status.HostIP, status.HostIPs = m.config.NodeIP.String(), []corev1.HostIP{{IP: m.config.NodeIP.String()}}
		if w.phase != starting {
			status.PodIP, status.PodIPs = m.config.PodIP.String(), []corev1.PodIP{{IP: m.config.PodIP.String()}}
		}
	}
	terminated := func(start, finish time.Time, code int32) *corev1.ContainerStateTerminated {
		t := &corev1.ContainerStateTerminated{
			ExitCode:   code,
			Reason:     "Completed",
			StartedAt:  at(start),
			FinishedAt: at(finish),
		}
		if code != 0 {
			t.Reason = "Error"
		}
		return t
	}
	notReady := "ContainersNotReady"
	switch w.phase {
	case running:
		status.Phase = corev1.PodRunning
	case ended:
		status.Phase, notReady = corev1.PodSucceeded, "PodCompleted"
		if w.exitCode != 0 {
			status.Phase, notReady = corev1.PodFailed, "PodFailed"
		}
	}
	status.Conditions = []corev1.PodCondition{
		condition(corev1.PodReadyToStartContainers, w.phase == running, w.seen, ""),
		condition(corev1.PodInitialized, true, w.seen, ""),
		condition(corev1.PodReady, w.ready, w.readyAt, notReady),
		condition(corev1.ContainersReady, w.ready, w.readyAt, notReady),
	}
	for _, c := range w.init {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name:        c.name,
			Image:       c.image,
			ImageID:     c.image,
			ContainerID: m.containerID(c.name, 0),
			Ready:       true,
			State:       corev1.ContainerState{Terminated: terminated(w.seen, w.seen, 0)},
		})
	}
	for _, c := range w.containers {
		s := corev1.ContainerStatus{
			Name:         c.name,
			Image:        c.image,
			ImageID:      c.image,
			ContainerID:  m.containerID(c.name, w.restartCount),
			Ready:        w.ready,
			RestartCount: w.restartCount,
			Resources:    c.resources,
			VolumeMounts: c.mounts,
		}
		if c.resources != nil {
			s.AllocatedResources = c.resources.Requests
			s.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{SupplementalGroups: []int64{0}}}
		}
		up := w.phase == running
		s.Started = &up
		switch w.phase {
		case starting:
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
			s.ContainerID, s.ImageID = "", ""
		case running:
			s.State.Running = &corev1.ContainerStateRunning{StartedAt: at(w.started)}
			if w.restartCount > 0 {
				// A run ends where the next begins.
				s.LastTerminationState.Terminated = terminated(w.started.Add(-w.runs), w.started, w.exitCode)
			}
		case ended:
			s.State.Terminated = terminated(w.started, w.finished, w.exitCode)
		}
		status.ContainerStatuses = append(status.ContainerStatuses, s)
	}
	return status
}

func (m *machine) containerID(name string, run int32) string {
	return fmt.Sprintf("hollow://%s/%s/%d", m.instanceID, name, run)
}
