//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
)

// How long anything may take, and how many times is looked for what must not be.
const (
	patience = namespace.Patience
	looks    = namespace.Looks
)

// space is a namespace of a test's own.
type space struct{ *namespace.Space }

// newSpace makes a namespace that is removed, with its pods and their cells, when
// the test ends.
func newSpace(t *testing.T) *space {
	t.Helper()
	return &space{namespace.New(t, world)}
}

// noOtherCells proves that only the named pods have cells, and that the others wait.
// A Cell is shown a moment late, so each look is when a pod that came later has its
// own and runs.
func (s *space) noOtherCells(pods ...string) {
	s.Helper()
	for range looks {
		s.Apply(sleeper("later"))
		s.WaitReady("later")
		cells, err := s.Cells(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		for _, c := range cells {
			if name := c.Status.Pod.Name; name != "later" && !slices.Contains(pods, name) {
				s.Errorf("pod %s has cell %s, which is %s", name, c.Name, c.Status.Phase)
			}
		}
		all, err := world.Admin.CoreV1().Pods(s.NS).List(s.Context(), metav1.ListOptions{})
		if err != nil {
			s.Fatal(err)
		}
		for _, p := range all.Items {
			if p.Name != "later" && !slices.Contains(pods, p.Name) && p.Status.Phase != corev1.PodPending {
				s.Errorf("pod %s, which is to wait, is %s", p.Name, p.Status.Phase)
			}
		}
		s.Kubectl("delete", "pod", "later", "--wait=false")
		s.waitGone("later")
	}
}

// waitGone waits until a pod and its cell are gone.
func (s *space) waitGone(name string) {
	s.Helper()
	s.Eventually("pod "+name+" and its cell are gone", func(ctx context.Context) error {
		if _, err := s.Pod(ctx, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod is still there (%v)", err)
		}
		cells, err := s.Cells(ctx)
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
	s.Eventually("pod "+name+" has its cell", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
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
	s.Eventually(fmt.Sprintf("event %s on pod %s with %q", reason, pod, text), func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Events(s.NS).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
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
