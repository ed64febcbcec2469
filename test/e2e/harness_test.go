//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
)

// patience is how long anything may take on a busy machine. No test asserts a
// duration; this only keeps a broken one from hanging.
const patience = 2 * time.Minute

// attempt is how long one of several attempts may take: what hangs, such as a
// request to a Kip that is paused, would else use up the patience of all.
const attempt = 15 * time.Second

// space is a namespace of a test's own, with what is in it.
type space struct {
	*testing.T
	ns string
}

// newSpace makes a namespace that is removed, with its pods and their cells,
// when the test ends.
func newSpace(t *testing.T) *space {
	t.Helper()
	ns, err := world.Admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &space{T: t, ns: ns.Name}
	s.eventually("the default service account", func(ctx context.Context) error {
		_, err := world.Admin.CoreV1().ServiceAccounts(s.ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	t.Cleanup(func() {
		if t.Failed() {
			s.describe()
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := world.Admin.CoreV1().Namespaces().Delete(ctx, s.ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := poll(ctx, func(ctx context.Context) error {
			_, err := world.Admin.CoreV1().Namespaces().Get(ctx, s.ns, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("namespace %s is still there (%v)", s.ns, err)
			}
			return s.noCells(ctx)
		}); err != nil {
			t.Errorf("after the test: %v", err)
		}
	})
	return s
}

// describe prints what a person would look at when a test has failed.
func (s *space) describe() {
	for _, args := range [][]string{{"get", "pods,cells", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"}, {"describe", "pods"}} {
		out, _, _ := run(world.Kubectl(context.Background(), append([]string{"-n", s.ns}, args...)...))
		s.Logf("kubectl %s\n%s", strings.Join(args, " "), out)
	}
}

func run(cmd *exec.Cmd) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// kubectl runs kubectl in the namespace and fails the test if it fails.
func (s *space) kubectl(args ...string) string {
	s.Helper()
	out, code, errs := s.try(args...)
	if code != 0 {
		s.Fatalf("kubectl %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// try runs kubectl once and returns its output and exit code.
func (s *space) try(args ...string) (stdout string, code int, stderr string) {
	s.Helper()
	return s.tryFor(s.Context(), patience, args...)
}

// attempt runs kubectl as one of several attempts.
func (s *space) attempt(ctx context.Context, args ...string) (stdout string, code int, stderr string) {
	s.Helper()
	return s.tryFor(ctx, attempt, args...)
}

func (s *space) tryFor(ctx context.Context, limit time.Duration, args ...string) (stdout string, code int, stderr string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, errs, err := run(s.command(ctx, args...))
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out, 0, errs
	case errors.As(err, &exit):
		return out, exit.ExitCode(), errs
	case ctx.Err() != nil:
		return out, -1, errs + ctx.Err().Error()
	}
	s.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	return
}

func (s *space) command(ctx context.Context, args ...string) *exec.Cmd {
	return world.Kubectl(ctx, append([]string{"-n", s.ns}, args...)...)
}

// apply applies a manifest in the namespace.
func (s *space) apply(manifest string) {
	s.Helper()
	cmd := s.command(s.Context(), "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, errs, err := run(cmd); err != nil {
		s.Fatalf("apply: %v\n%s%s", err, out, errs)
	}
}

func poll(ctx context.Context, check func(context.Context) error) error {
	last := errors.New("never checked")
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := check(ctx); err != nil {
			if ctx.Err() == nil {
				last = err
			}
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return last
	}
	return nil
}

// eventually waits until check returns nil.
func (s *space) eventually(what string, check func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if err := poll(ctx, check); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// pod returns a pod as it is now.
func (s *space) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return world.Admin.CoreV1().Pods(s.ns).Get(ctx, name, metav1.GetOptions{})
}

// waitPod waits until a pod is as wanted, and returns it.
func (s *space) waitPod(name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	s.eventually("pod "+name+" "+what, func(ctx context.Context) (err error) {
		if pod, err = s.pod(ctx, name); err != nil {
			return err
		}
		if !wanted(pod) {
			return fmt.Errorf("its phase is %s, its containers are %s", pod.Status.Phase, states(pod))
		}
		return nil
	})
	return pod
}

func states(pod *corev1.Pod) string {
	var b strings.Builder
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			switch {
			case c.State.Running != nil:
				fmt.Fprintf(&b, "%s running (ready %t, %d restarts) ", c.Name, c.Ready, c.RestartCount)
			case c.State.Terminated != nil:
				fmt.Fprintf(&b, "%s terminated (%s, exit %d) ", c.Name, c.State.Terminated.Reason, c.State.Terminated.ExitCode)
			case c.State.Waiting != nil:
				fmt.Fprintf(&b, "%s waiting (%s: %s) ", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message)
			}
		}
	}
	return b.String()
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func hasPhase(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool { return pod.Status.Phase == phase }
}

func (s *space) waitReady(name string) *corev1.Pod {
	s.Helper()
	return s.waitPod(name, "is Ready", isReady)
}

// execTrue checks that a command can be run in a pod.
func (s *space) execTrue(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, code, errs := s.attempt(ctx, "exec", name, "--", "true"); code != 0 {
			return fmt.Errorf("kubectl exec ended with %d: %s", code, errs)
		}
		return nil
	}
}

// cells returns the cells of the namespace's pods, as the Cell resource shows them.
func (s *space) cells(ctx context.Context) ([]apiv1.Cell, error) {
	list, err := world.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var cells []apiv1.Cell
	for _, item := range list.Items {
		cell, err := asCell(&item)
		if err != nil {
			return nil, err
		}
		if cell.Status.Pod.Namespace == s.ns {
			cells = append(cells, *cell)
		}
	}
	return cells, nil
}

func asCell(u *unstructured.Unstructured) (*apiv1.Cell, error) {
	var cell apiv1.Cell
	return &cell, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &cell)
}

// noOtherCells proves that only the named pods have cells. A Cell is shown a moment
// late, so it looks when a pod that comes later has its own and runs.
func (s *space) noOtherCells(pods ...string) {
	s.Helper()
	s.apply(sleeper("later"))
	s.waitReady("later")
	cells, err := s.cells(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range cells {
		if name := c.Status.Pod.Name; name != "later" && !slices.Contains(pods, name) {
			s.Errorf("pod %s has cell %s, which is %s", name, c.Name, c.Status.Phase)
		}
	}
	s.kubectl("delete", "pod", "later", "--wait=false")
	s.waitGone("later")
}

func (s *space) noCells(ctx context.Context) error {
	cells, err := s.cells(ctx)
	if err != nil {
		return err
	}
	if len(cells) > 0 {
		return fmt.Errorf("%d cells are still there, one is %s: %s", len(cells), cells[0].Name, cells[0].Status.Phase)
	}
	return nil
}

// waitGone waits until a pod and its cell are gone.
func (s *space) waitGone(name string) {
	s.Helper()
	s.eventually("pod "+name+" and its cell are gone", func(ctx context.Context) error {
		if _, err := s.pod(ctx, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod is still there (%v)", err)
		}
		cells, err := s.cells(ctx)
		if err != nil {
			return err
		}
		for _, c := range cells {
			if c.Status.Pod.Name == name {
				return fmt.Errorf("cell %s is %s", c.Name, c.Status.Phase)
			}
		}
		return nil
	})
}

// cellOf returns the one cell of a pod.
func (s *space) cellOf(name string) apiv1.Cell {
	s.Helper()
	var found apiv1.Cell
	s.eventually("pod "+name+" has its cell", func(ctx context.Context) error {
		cells, err := s.cells(ctx)
		if err != nil {
			return err
		}
		n := 0
		for _, c := range cells {
			if c.Status.Pod.Name == name {
				found = c
				n++
			}
		}
		if n != 1 {
			return fmt.Errorf("it has %d cells", n)
		}
		return nil
	})
	return found
}

// waitEvent waits for an event about a pod whose reason is given and whose
// message contains text.
func (s *space) waitEvent(pod, reason, text string) {
	s.Helper()
	s.eventually(fmt.Sprintf("event %s on pod %s with %q", reason, pod, text), func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Events(s.ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("the pod's events are\n  %s", strings.Join(seen, "\n  "))
	})
}

// onKip makes a pod's spec run on the virtual node: the beginning of every
// manifest here.
const onKip = `nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 2
`

// bare is a pod on the virtual node; spec is indented by two.
func bare(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  " + onKip + spec
}

// sleeper is a pod that runs a shell until it is told to stop.
func sleeper(name string) string {
	return bare(name, `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; echo started; while :; do sleep 0.1; done']
`)
}
