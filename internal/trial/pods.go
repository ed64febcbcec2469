package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
)

const (
	// lookEvery is how often a trial looks at what it waits for, and sayEvery how often it says what that is.
	lookEvery, sayEvery = 500 * time.Millisecond, 5 * time.Second
	// cellsEvery is how often it looks at Cells: the cell of a pod that ends is soon gone.
	cellsEvery = time.Second
	// cellSettles is how long a pod's Cell may take to say that the pod has it.
	cellSettles = 15 * time.Second
	// nobody is the user of containers, so that a namespace may enforce the Pod Security Standard restricted.
	nobody = 65534
)

// pod returns a pod of a step that runs a script. It lives for at most lives, also if nobody deletes it.
func (t *Trial) pod(step, name, image, script string, lives time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Namespace:   t.namespace,
			Labels:      t.labels(step),
			Annotations: map[string]string{placement.AnnotationMaxPrice: strconv.FormatFloat(t.MaxPricePerHour, 'f', -1, 64)},
		},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{"type": "virtual-kubelet"},
			Tolerations:                   []corev1.Toleration{{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists}},
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         new(int64(lives.Seconds())),
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				RunAsUser:      new(int64(nobody)),
				RunAsGroup:     new(int64(nobody)),
				FSGroup:        new(int64(nobody)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:    "main",
				Image:   image,
				Command: []string{"sh", "-c", script},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("100m"),
					corev1.ResourceMemory: resource.MustParse("64Mi"),
				}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// labels are those of all that a step makes.
func (t *Trial) labels(step string) map[string]string {
	return map[string]string{Label: t.ID, labelStep: step}
}

// ofTrial returns the metadata of what a step makes beside pods.
func (t *Trial) ofTrial(step, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:            name,
		Namespace:       t.namespace,
		Labels:          t.labels(step),
		OwnerReferences: t.owner,
	}
}

// notTriedError says what a step lacks.
type notTriedError struct{ why string }

func (e *notTriedError) Error() string { return e.why }

func notTried(format string, args ...any) error { return &notTriedError{fmt.Sprintf(format, args...)} }

// refusedError says that Kip gives a pod no cell while it is as it is.
type refusedError struct{ reason, message string }

func (e *refusedError) Error() string { return e.reason + ": " + e.message }

// refusals are reasons of Events of a pod that waiting does not help.
var refusals = []string{events.Unplaceable, events.InvalidAnnotation, events.NotGranted, events.BudgetExceeded, events.VolumeUnsupported}

// running is a step that runs.
type running struct {
	*Trial
	step   step
	report *StepReport
	// created is when each pod was created, and started when its container was first seen to have started.
	created, started map[string]time.Time
	// cells are those of the pods, as they were seen last, and seen is when.
	cells map[types.UID]apiv1.Cell
	seen  time.Time
}

// found notes what the step saw.
func (r *running) found(format string, args ...any) {
	r.report.Found = append(r.report.Found, fmt.Sprintf(format, args...))
}

// create makes pods of the step.
func (r *running) create(ctx context.Context, pods ...*corev1.Pod) error {
	for _, p := range pods {
		p = p.DeepCopy()
		p.OwnerReferences = r.owner
		if _, err := r.Kube.CoreV1().Pods(r.namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", p.Name, err)
		}
		r.created[p.Name] = r.Clock.Now()
	}
	return nil
}

// wait looks until check waits for nothing. It says from time to time what it waits for.
func (t *Trial) wait(ctx context.Context, check func(context.Context) (waits string, err error)) error {
	said := t.Clock.Now()
	for {
		waits, err := check(ctx)
		if err != nil {
			return err
		}
		if waits == "" {
			return nil
		}
		if now := t.Clock.Now(); now.Sub(said) >= sayEvery {
			t.Say("waiting for " + waits)
			said = now
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: it waited for %s", context.Cause(ctx), waits)
		case <-t.Clock.After(lookEvery):
		}
	}
}

// await waits until pods are as wanted. It fails if one fails, or if Kip refuses it.
func (r *running) await(ctx context.Context, wanted func(*corev1.Pod) bool, names ...string) error {
	return r.wait(ctx, func(ctx context.Context) (string, error) {
		list, err := r.Kube.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: labelStep + "=" + r.step.name})
		if err != nil {
			return "the list of pods: " + err.Error(), nil
		}
		for _, name := range names {
			n := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.Name == name })
			if n < 0 {
				return "", fmt.Errorf("pod %s is gone: somebody else has deleted it", name)
			}
			pod := &list.Items[n]
			r.note(pod)
			if !isBound(r.cells[pod.UID]) && r.Clock.Since(r.seen) >= cellsEvery {
				_ = r.see(ctx) // observe reports the error
			}
			switch {
			case wanted(pod):
			case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
				return "", ended(pod)
			default:
				return r.waitsFor(ctx, pod)
			}
		}
		return "", nil
	})
}

// note notes when a pod's container was first seen to have started.
func (r *running) note(pod *corev1.Pod) {
	if _, known := r.started[pod.Name]; known {
		return
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil || c.State.Terminated != nil {
			r.started[pod.Name] = r.Clock.Now()
		}
	}
}

// ended says how a pod ended that should not have.
func ended(pod *corev1.Pod) error {
	words := []string{fmt.Sprintf("pod %s is %s", pod.Name, pod.Status.Phase), pod.Status.Reason, pod.Status.Message}
	for _, c := range pod.Status.ContainerStatuses {
		if e := c.State.Terminated; e != nil {
			words = append(words, fmt.Sprintf("its container ended with %d", e.ExitCode), e.Reason, e.Message)
		}
	}
	words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
	return errors.New(strings.Join(words, ": "))
}

// tellLogs adds to the report what the pods have written of which the step failed.
func (r *running) tellLogs(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(r.started)) {
		log, err := r.Logs(ctx, r.namespace, name)
		if err != nil {
			log = err.Error()
		}
		r.found("log of pod %s: %s", name, cmp.Or(strings.TrimSpace(log), "empty"))
	}
}

// waitsFor says what a pod waits for. The error is a refusedError if Kip gives it no cell.
func (r *running) waitsFor(ctx context.Context, pod *corev1.Pod) (string, error) {
	what := "pod " + pod.Name
	if _, runs := r.started[pod.Name]; runs {
		return fmt.Sprintf("%s, which is %s", what, pod.Status.Phase), nil
	}
	all, err := r.eventsOf(ctx, pod.UID)
	if err != nil {
		return what + ": " + err.Error(), nil
	}
	last := ""
	for _, e := range all {
		if slices.Contains(refusals, e.Reason) {
			return "", &refusedError{e.Reason, e.Message}
		}
		last = e.Message
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			last = c.Message
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Message != "" {
			last = w.Reason + ": " + w.Message
		}
	}
	return fmt.Sprintf("%s (%s)", what, cmp.Or(last, "nothing is said of it yet")), nil
}

// eventsOf returns the Events of an object, oldest first.
func (t *Trial) eventsOf(ctx context.Context, uid types.UID) ([]corev1.Event, error) {
	list, err := t.Kube.CoreV1().Events(t.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	all := slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.UID != uid })
	at := func(e corev1.Event) time.Time {
		if !e.LastTimestamp.IsZero() {
			return e.LastTimestamp.Time
		}
		return cmp.Or(e.EventTime.Time, e.CreationTimestamp.Time)
	}
	slices.SortStableFunc(all, func(a, b corev1.Event) int { return at(a).Compare(at(b)) })
	return all, nil
}

// hasStarted reports whether a pod's container has started.
func hasStarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil }) ||
		hasSucceeded(pod)
}

func hasSucceeded(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded }

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// isBound reports whether the Cell says that its pod has it.
func isBound(c apiv1.Cell) bool {
	return slices.ContainsFunc(c.Status.Steps, func(s apiv1.Step) bool { return s.Name == apiv1.StepBound })
}

// see looks at the cells of the step's pods.
func (r *running) see(ctx context.Context) error {
	r.seen = r.Clock.Now()
	all, err := r.look(ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.Status.Pod.Namespace != r.namespace {
			continue
		}
		if was, known := r.cells[c.Status.Pod.UID]; !known || was.Status.Attempt <= c.Status.Attempt {
			r.cells[c.Status.Pod.UID] = c
		}
	}
	return nil
}

// observe adds the pods of the step to its report, with their cells. Cells of pods that started settle first.
func (r *running) observe(ctx context.Context) error {
	var pods []corev1.Pod
	settles, cancel := context.WithTimeoutCause(ctx, cellSettles, fmt.Errorf("not within %s", cellSettles))
	defer cancel()
	err := r.wait(settles, func(ctx context.Context) (string, error) {
		list, err := r.Kube.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: labelStep + "=" + r.step.name})
		if err != nil {
			return "the list of pods: " + err.Error(), nil
		}
		pods = list.Items
		if err := r.see(ctx); err != nil {
			return "the list of cells: " + err.Error(), nil
		}
		for n := range pods {
			r.note(&pods[n])
			if _, runs := r.started[pods[n].Name]; runs && !isBound(r.cells[pods[n].UID]) {
				return "the Cell of pod " + pods[n].Name, nil
			}
		}
		return "", nil
	})
	for n := range pods {
		r.report.Pods = append(r.report.Pods, r.podReport(&pods[n]))
	}
	return err
}

func (r *running) podReport(pod *corev1.Pod) PodReport {
	p := PodReport{Name: pod.Name, IP: pod.Status.PodIP}
	var took time.Duration
	if at, runs := r.started[pod.Name]; runs {
		took = at.Sub(r.created[pod.Name])
		p.Seconds = took.Seconds()
	}
	c, known := r.cells[pod.UID]
	if !known {
		return p
	}
	s := c.Status
	p.Cell, p.Instance, p.InstanceType, p.Zone = c.Name, s.InstanceID, s.InstanceType, s.Zone
	p.LaunchType, p.PricePerHour, p.Attempt, p.Boot = s.LaunchType, s.PricePerHour, s.Attempt, s.Boot
	if took > 0 {
		p.Phases = phases(s.Steps, took)
	}
	return p
}

// phases returns what each phase of a cell took of the time from the creation of its pod to the start of its container. Those of a standby
// cell begin when the pod took it.
func phases(steps []apiv1.Step, took time.Duration) (all []PhaseTook) {
	if n := slices.IndexFunc(steps, func(s apiv1.Step) bool { return s.Name == apiv1.StepGiven }); n >= 0 {
		steps = steps[n:]
	}
	if n := slices.IndexFunc(steps, func(s apiv1.Step) bool { return s.Name == apiv1.StepBound }); n >= 0 {
		steps = steps[:n+1]
	}
	rest := took
	for n := 1; n < len(steps); n++ {
		one := steps[n].Time.Sub(steps[n-1].Time.Time)
		all, rest = append(all, PhaseTook{steps[n].Name, one.Seconds()}), rest-one
	}
	return append(all, PhaseTook{started, rest.Seconds()})
}

// remove deletes what a step has made, and waits until it is gone.
func (t *Trial) remove(ctx context.Context, step string) error {
	return t.wait(ctx, func(ctx context.Context) (string, error) {
		var left []string
		for _, k := range t.kinds(t.namespace) {
			found, err := k.list(ctx, labelStep+"="+step)
			if err != nil {
				return "an answer: " + err.Error(), nil
			}
			for _, o := range found {
				if err := deleted(o, func() error { return k.delete(ctx, o.Name, metav1.DeleteOptions{}) }); err != nil {
					return fmt.Sprintf("the deletion of %s %s: %v", k.name, o.Name, err), nil
				}
				left = append(left, k.name+" "+o.Name)
			}
		}
		if len(left) == 0 {
			return "", nil
		}
		return "the end of " + strings.Join(left, ", "), nil
	})
}

// kind is a kind of objects that cost money.
type kind struct {
	name   string
	list   func(ctx context.Context, labels string) ([]metav1.ObjectMeta, error)
	delete func(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// kinds returns those that trials make, in the order in which they are deleted.
func (t *Trial) kinds(namespace string) []kind {
	services, pods, claims := t.Kube.CoreV1().Services(namespace), t.Kube.CoreV1().Pods(namespace),
		t.Kube.CoreV1().PersistentVolumeClaims(namespace)
	return []kind{
		{"Service", listed(services.List, func(l *corev1.ServiceList) (all []metav1.ObjectMeta) {
			for _, o := range l.Items {
				all = append(all, o.ObjectMeta)
			}
			return all
		}), services.Delete},
		{"pod", listed(pods.List, func(l *corev1.PodList) (all []metav1.ObjectMeta) {
			for _, o := range l.Items {
				all = append(all, o.ObjectMeta)
			}
			return all
		}), pods.Delete},
		{"PersistentVolumeClaim", listed(claims.List, func(l *corev1.PersistentVolumeClaimList) (all []metav1.ObjectMeta) {
			for _, o := range l.Items {
				all = append(all, o.ObjectMeta)
			}
			return all
		}), claims.Delete},
	}
}

// listed returns what lists the metadata of a kind's objects with some labels.
func listed[L any](list func(context.Context, metav1.ListOptions) (L, error), items func(L) []metav1.ObjectMeta) func(
	context.Context, string) ([]metav1.ObjectMeta, error) {
	return func(ctx context.Context, labels string) ([]metav1.ObjectMeta, error) {
		found, err := list(ctx, metav1.ListOptions{LabelSelector: labels})
		if err != nil {
			return nil, err
		}
		return items(found), nil
	}
}

// deleted deletes what is not being deleted yet.
func deleted(o metav1.ObjectMeta, remove func() error) error {
	if o.DeletionTimestamp != nil {
		return nil
	}
	if err := remove(); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
