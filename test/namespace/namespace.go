// Package namespace owns a namespace of a test's own in the world of package harness,
// and what a test does there: apply, wait, look several times. It starts and ends no
// world, and knows nothing of what the tests prove.
package namespace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/test/harness"
)

// Patience is how long anything may take on a busy machine. No test asserts a
// duration; this only keeps a broken one from hanging.
const Patience = 5 * time.Minute

// attempt is how long one of several attempts may take: what hangs, such as a
// request to a Kip that is paused, would else use up the patience of all.
const attempt = 40 * time.Second

// Looks is how many times is looked for what must not be.
const Looks = 3

// Space is a namespace of a test's own, with what is in it.
type Space struct {
	*testing.T
	World *harness.World
	NS    string
}

// New makes a namespace that is removed, with its pods and their cells, when the
// test ends, once it is the test's turn.
func New(t *testing.T, world *harness.World) *Space {
	t.Helper()
	ours.take(t)
	ns, err := world.Admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "e2e-",
			// As an admin grants them.
			Annotations: map[string]string{
				"allow.kip.elotl.co/allow-metadata": "true", "allow.kip.elotl.co/machine": "true",
				"allow.kip.elotl.co/host-sysctls": "*", "allow.kip.elotl.co/host-modules": "*",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &Space{T: t, World: world, NS: ns.Name}
	s.Eventually("the default service account", func(ctx context.Context) error {
		_, err := world.Admin.CoreV1().ServiceAccounts(s.NS).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	t.Cleanup(func() {
		if t.Failed() {
			s.describe()
		}
		ctx, cancel := context.WithTimeout(context.Background(), max(Patience, world.Patience))
		defer cancel()
		if err := world.Admin.CoreV1().Namespaces().Delete(ctx, s.NS, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := Poll(ctx, func(ctx context.Context) error {
			_, err := world.Admin.CoreV1().Namespaces().Get(ctx, s.NS, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("namespace %s is still there (%v)", s.NS, err)
			}
			return s.NoCells(ctx)
		}); err != nil {
			t.Errorf("after the test: %v", err)
		}
	})
	return s
}

// For is the same namespace for a subtest.
func (s *Space) For(t *testing.T) *Space { return &Space{T: t, World: s.World, NS: s.NS} }

// describe prints what a person would look at when a test has failed.
func (s *Space) describe() {
	for _, args := range [][]string{{"get", "pods,services,endpointslices,cells", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"}, {"describe", "pods"}} {
		out, _, _ := Run(s.World.Kubectl(context.Background(), append([]string{"-n", s.NS}, args...)...))
		s.Logf("kubectl %s\n%s", strings.Join(args, " "), out)
	}
}

// Run runs a command and returns what it prints.
func Run(cmd *exec.Cmd) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// Kubectl runs kubectl in the namespace and fails the test if it fails.
func (s *Space) Kubectl(args ...string) string {
	s.Helper()
	out, code, errs := s.Try(args...)
	if code != 0 {
		s.Fatalf("kubectl %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// Try runs kubectl once and returns its output and exit code.
func (s *Space) Try(args ...string) (stdout string, code int, stderr string) {
	s.Helper()
	return s.tryFor(s.Context(), Patience, args...)
}

// Attempt runs kubectl as one of several attempts.
func (s *Space) Attempt(ctx context.Context, args ...string) (stdout string, code int, stderr string) {
	s.Helper()
	return s.tryFor(ctx, attempt, args...)
}

func (s *Space) tryFor(ctx context.Context, limit time.Duration, args ...string) (stdout string, code int, stderr string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, errs, err := Run(s.Command(ctx, args...))
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

// Command is kubectl in the namespace.
func (s *Space) Command(ctx context.Context, args ...string) *exec.Cmd {
	return s.World.Kubectl(ctx, append([]string{"-n", s.NS}, args...)...)
}

// Apply applies a manifest in the namespace.
func (s *Space) Apply(manifest string) {
	s.Helper()
	cmd := s.Command(s.Context(), "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, errs, err := Run(cmd); err != nil {
		s.Fatalf("apply: %v\n%s%s", err, out, errs)
	}
}

// A check is made again after leastPause, or twice what it took, but for longestPause: one by kubectl and
// exec costs all that it goes through most of a second of CPU, which other tests wait for.
const leastPause, longestPause = 100 * time.Millisecond, time.Second

// Poll waits until check returns nil, and returns its last error when ctx ends first.
func Poll(ctx context.Context, check func(context.Context) error) error {
	last := errors.New("never checked")
	for ctx.Err() == nil {
		began := time.Now()
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		_ = harness.Sleep(ctx, min(max(leastPause, 2*time.Since(began)), longestPause)) // that ctx has ended, the loop sees
	}
	return last
}

// Eventually waits until check returns nil.
func (s *Space) Eventually(what string, check func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), max(Patience, s.World.Patience))
	defer cancel()
	if err := Poll(ctx, check); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// Pod returns a pod as it is now.
func (s *Space) Pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return s.World.Admin.CoreV1().Pods(s.NS).Get(ctx, name, metav1.GetOptions{})
}

// WaitPod waits until a pod is as wanted, and returns it.
func (s *Space) WaitPod(name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	s.Eventually("pod "+name+" "+what, func(ctx context.Context) (err error) {
		if pod, err = s.Pod(ctx, name); err != nil {
			return err
		}
		if !wanted(pod) {
			return fmt.Errorf("its phase is %s, its containers are %s", pod.Status.Phase, States(pod))
		}
		return nil
	})
	if pod.Spec.NodeName == harness.Node && pod.Status.PodIP != "" {
		s.World.SawMachine()
	}
	return pod
}

// States says how the containers of a pod are.
func States(pod *corev1.Pod) string {
	var b strings.Builder
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses} {
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

// IsReady says that a pod is Ready.
func IsReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// HasPhase asks whether a pod is in a phase.
func HasPhase(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool { return pod.Status.Phase == phase }
}

// Reconfigure starts the world's Kip with another provider.yaml, until restore is called or the test ends.
func Reconfigure(t testing.TB, world *harness.World, change func(provider map[string]any)) (restore func()) {
	t.Helper()
	undo, err := world.Reconfigure(t.Context(), change)
	if undo != nil {
		restore = sync.OnceFunc(func() {
			if err := undo(context.Background()); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(restore)
	}
	if err != nil {
		t.Fatal(err)
	}
	return restore
}

// FailedAndTold says that a pod has Failed, and how its first container ended: of a pod that it ends
// itself a kubelet may say so in two steps.
func FailedAndTold(pod *corev1.Pod) bool {
	all := pod.Status.ContainerStatuses
	return pod.Status.Phase == corev1.PodFailed && len(all) > 0 && all[0].State.Terminated != nil
}

// Follow follows a pod's log, of which it waits for the first line. The rest comes when the log has ended.
func (s *Space) Follow(pod, first string) (rest func() (string, error)) {
	s.Helper()
	follow := s.Command(s.Context(), "logs", "-f", pod)
	pipe, err := follow.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		s.Fatal(err)
	}
	lines := bufio.NewReader(pipe)
	if got, err := lines.ReadString('\n'); got != first+"\n" {
		s.Fatalf("the log of pod %s begins with %q (%v), want %q", pod, got, err, first)
	}
	return func() (string, error) {
		more, err := io.ReadAll(lines)
		return string(more), errors.Join(err, follow.Wait())
	}
}

// WaitReady waits until a pod is Ready, and returns it.
func (s *Space) WaitReady(name string) *corev1.Pod {
	s.Helper()
	return s.WaitPod(name, "is Ready", IsReady)
}

// ExecTrue checks that a command can be run in a pod.
func (s *Space) ExecTrue(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, code, errs := s.Attempt(ctx, "exec", name, "--", "true"); code != 0 {
			return fmt.Errorf("kubectl exec ended with %d: %s", code, errs)
		}
		return nil
	}
}

// Cells returns the cells of the namespace's pods, as the Cell resource shows them.
func (s *Space) Cells(ctx context.Context) ([]apiv1.Cell, error) {
	list, err := s.World.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var cells []apiv1.Cell
	for _, item := range list.Items {
		cell, err := AsCell(&item)
		if err != nil {
			return nil, err
		}
		if cell.Status.Pod.Namespace == s.NS {
			cells = append(cells, *cell)
		}
	}
	return cells, nil
}

// AsCell reads a Cell as the API has it.
func AsCell(u *unstructured.Unstructured) (*apiv1.Cell, error) {
	var cell apiv1.Cell
	return &cell, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &cell)
}

// Never proves that something is not so: check finds no such thing, several times.
// Before each and after the last works succeeds, by the way on which the thing would
// be seen.
func (s *Space) Never(what string, check, works func(context.Context) error) {
	s.Helper()
	for range Looks {
		s.Eventually("what shows that it would be seen, "+what, works)
		if err := check(s.Context()); err != nil {
			s.Fatalf("%s: %v", what, err)
		}
	}
	s.Eventually("what shows that it would have been seen, "+what, works)
}

// NoCells is an error as long as a pod of the namespace has a cell.
func (s *Space) NoCells(ctx context.Context) error {
	cells, err := s.Cells(ctx)
	if err != nil {
		return err
	}
	if len(cells) > 0 {
		return fmt.Errorf("%d cells are still there, one is %s: %s", len(cells), cells[0].Name, cells[0].Status.Phase)
	}
	return nil
}
