//go:build e2e

package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/tier"
)

// ofTrial is the label of what trials make, and ofTrials selects all of it.
const ofTrial = "kip.elotl.co/trial"

var ofTrials = metav1.ListOptions{LabelSelector: ofTrial}

// kipctlTry returns kipctl try as a user runs it, with the images that this cluster has.
func kipctlTry(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, world.Tool("kipctl"), append([]string{"try", "--yes", "-o", "json", "--kubeconfig", world.Kubeconfig,
		"--image", "busybox:1.36", "--large-image", "busybox:1.36", "--endpoint", "kubernetes.default.svc:443"}, args...)...)
}

// balance is a controller of load balancers: it gives the Service of a trial an address, but for the trial before. Of such an address
// kube-proxy on the cells makes one of the Service's own.
func balance(ctx context.Context, before string) error {
	services, err := world.Admin.CoreV1().Services("").List(ctx, ofTrials)
	if err != nil {
		return err
	}
	for _, one := range services.Items {
		if one.Spec.Type != corev1.ServiceTypeLoadBalancer || one.Labels[ofTrial] == before {
			continue
		}
		one.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
		_, err := world.Admin.CoreV1().Services(one.Namespace).UpdateStatus(ctx, &one, metav1.UpdateOptions{})
		return err
	}
	return fmt.Errorf("%d Services are there, none with a load balancer", len(services.Items))
}

// killedAt kills a trial in a step, or while it cleans up, and then has kipctl try --clean remove what it has left.
func (s *space) killedAt(moment string, does func(context.Context) error, steps ...string) {
	s.Helper()
	args := []string{}
	for _, step := range []string{"batch", "logs", "load-balancer", "egress", "egress-public", "egress-private", "volume", "spot", "gpu",
		"gpu-dry-run",
		"large-image"} {
		if !slices.Contains(steps, step) {
			args = append(args, "--skip="+step)
		}
	}
	killed := kipctlTry(s.Context(), args...)
	if err := killed.Start(); err != nil {
		s.Fatal(err)
	}
	s.Eventually("a trial is at "+moment, does)
	if err := killed.Process.Kill(); err != nil {
		s.Fatal(err)
	}
	_ = killed.Wait() // it was killed
	out, err := kipctlTry(s.Context(), "--clean").Output()
	var left struct{ Names, Looked, NotKnown []string }
	if err := errors.Join(err, json.Unmarshal(out, &left)); err != nil || len(left.Names)+len(left.NotKnown) > 0 || len(left.Looked) != 2 {
		s.Errorf("killed at %s it has left %+v (%v)", moment, left, err)
	}
	if spaces, err := world.Admin.CoreV1().Namespaces().List(s.Context(), ofTrials); err != nil || len(spaces.Items) > 0 {
		s.Errorf("after one that was killed at %s there are namespaces %v (%v)", moment, spaces, err)
	}
}

// inStep returns a check that a pod of a trial's step has a node.
func inStep(step string) func(context.Context) error {
	return func(ctx context.Context) error {
		pods, err := world.Admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "kip.elotl.co/trial-step=" + step})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != "" }) {
			return fmt.Errorf("%d pods of step %s are there", len(pods.Items), step)
		}
		return nil
	}
}

// cleaning is an error unless the namespace of a trial ends.
func cleaning(ctx context.Context) error {
	spaces, err := world.Admin.CoreV1().Namespaces().List(ctx, ofTrials)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(spaces.Items, func(n corev1.Namespace) bool { return n.DeletionTimestamp != nil }) {
		return fmt.Errorf("%d namespaces of trials are there", len(spaces.Items))
	}
	return nil
}

// A trial is killed in each step that makes something, and while it cleans up. Then one is killed while its first pods run. The next one
// removes what it has left, tries all that the model of EC2 can show, and leaves nothing.
func TestTryProvesThatPodsRunAndLeavesNothing(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.killedAt("load-balancer", func(ctx context.Context) error {
		if err := balance(ctx, ""); err != nil {
			return err
		}
		return inStep("load-balancer")(ctx)
	}, "batch", "load-balancer")
	for _, step := range []string{"egress", "egress-private", "volume", "spot", "large-image"} {
		s.killedAt(step, inStep(step), step)
	}
	s.killedAt("its end", cleaning, "egress")
	first := kipctlTry(s.Context())
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	before := ""
	s.Eventually("the first pods of a trial have machines", func(ctx context.Context) error {
		pods, err := world.Admin.CoreV1().Pods("").List(ctx, ofTrials)
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				before = p.Labels[ofTrial]
				return nil
			}
		}
		return fmt.Errorf("%d pods are there", len(pods.Items))
	})
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // it was killed

	second := kipctlTry(s.Context())
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(said.Name()); t.Failed() {
			t.Logf("kipctl try said, %v:\n%s", err, text)
		}
		said.Close()
	})
	var out bytes.Buffer
	second.Stdout, second.Stderr = &out, said
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	s.Eventually("a load balancer has an address", func(ctx context.Context) error { return balance(ctx, before) })
	if err := second.Wait(); err != nil {
		t.Errorf("kipctl try: %v:\n%s", err, &out)
	}
	var report struct {
		Spent float64
		Steps []struct {
			Name, Result, Why string
			Pods              []struct {
				IP, Cell, Instance string
				Phases             []struct{ Name string }
			}
		}
		Left struct{ Names, Looked, NotKnown []string }
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v:\n%s", err, &out)
	}
	got := map[string]string{}
	for _, step := range report.Steps {
		got[step.Name] = step.Result
		t.Logf("%s: %s: %s", step.Name, step.Result, step.Why)
		for _, p := range step.Pods {
			if step.Result == "ok" && step.Name != "gpu" && (p.IP == "" || p.Cell == "" || p.Instance == "" || len(p.Phases) < 4) {
				t.Errorf("step %s has the pod %+v", step.Name, p)
			}
		}
	}
	for _, name := range []string{"batch", "logs", "load-balancer", "egress", "egress-private", "spot", "gpu-dry-run", "large-image"} {
		if got[name] != "ok" {
			t.Errorf("step %s is %q", name, got[name])
		}
	}
	if got["egress-public"] != "not tried" { // all subnets of this Kip are private
		t.Errorf("the steps are %v", got)
	}
	if len(report.Left.Names)+len(report.Left.NotKnown) > 0 || len(report.Left.Looked) != 2 || report.Spent <= 0 {
		t.Errorf("left %+v, spent %v", report.Left, report.Spent)
	}
	spaces, err := world.Admin.CoreV1().Namespaces().List(s.Context(), ofTrials)
	if err != nil || len(spaces.Items) > 0 {
		t.Errorf("%v: there are namespaces %v", err, spaces)
	}
	t.Logf("on %s: %s", harness.Node, &out)
}
