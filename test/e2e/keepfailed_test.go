//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// Not parallel: it kills the Kip that all tests share.
func TestTheCellOfAFailedPodIsKeptForALook(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	// What is in there meanwhile: the pod's deletion, which its kubelet must not act upon, and another Kip.
	const keep = 60 * time.Second
	s.Apply(strings.Replace(namespace.Bare("a", `  restartPolicy: Never
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'echo trace > /evidence; echo it failed; exit 3']}
`), "{name: a}", fmt.Sprintf("{name: a, annotations: {pod.elotl.co/keep-failed: %s}}", keep), 1))
	s.WaitPod("a", "has failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	failed := time.Now()
	s.WaitEvent("a", "CellKept", "kipctl exec")
	var cell apiv1.Cell
	s.Eventually("its cell says that it is kept", func(context.Context) error {
		if cell = s.CellOf("a"); cell.Status.Phase != apiv1.Draining || !strings.Contains(cell.Status.Waiting, "for a look inside") {
			return fmt.Errorf("it is %s and waits: %s", cell.Status.Phase, cell.Status.Waiting)
		}
		return nil
	})
	if log := s.Kubectl("logs", "a"); log != "it failed\n" {
		t.Errorf("the log is %q", log)
	}
	if err := world.Admin.CoreV1().Pods(s.NS).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	killKip(t)
	startKip(t)
	s.Within(keep/2, "half of the time is over", func(context.Context) error {
		if left := keep/2 - time.Since(failed); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	out, errs, err := s.kipctl(world.Socket, "exec", cell.Name, "--", "sh", "-c",
		"cat $(find /var/lib/containerd -name evidence) $(find /var/log/pods -name 0.log)")
	if err != nil || !strings.HasPrefix(out, "trace\n") || !strings.Contains(out, "it failed") {
		t.Errorf("a look inside: %q %s (%v): want what the container wrote, and its log", out, errs, err)
	}
	s.Eventually("its cell is gone", s.NoCellOf("a"))
	if took := time.Since(failed); took < keep-5*time.Second { // Kip saw it before this test did
		t.Errorf("the cell was gone after %s, and was to stay for %s", took, keep)
	}
}
