//go:build e2e

// Package dualstack proves on the real parts, as package e2e does, that cells and
// Services have both families where the cluster is dual-stack. Its world is its own:
// that of e2e has IPv4 only, as most clusters.
package dualstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/elotl/kip/test/harness"
)

// The network of the cells; other ones let two runs go side by side.
var (
	bridge   = cmp.Or(os.Getenv("KIP_E2E_DUALSTACK_BRIDGE"), "kipe2e6")
	cidr     = cmp.Or(os.Getenv("KIP_E2E_DUALSTACK_CIDR"), "10.116.0.0/16")
	ipv6CIDR = cmp.Or(os.Getenv("KIP_E2E_DUALSTACK_IPV6_CIDR"), "fd10:116::/64")
)

// patience is how long anything may take on a busy machine.
const patience = 2 * time.Minute

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	o := harness.Options{Name: bridge, CIDR: cidr, Race: true, Stderr: os.Stderr, DevArgs: []string{"--ipv6-cidr", ipv6CIDR}}
	os.Exit(harness.Main(o, &world, m.Run))
}

// space is a namespace of a test's own.
type space struct {
	*testing.T
	ns string
}

// newSpace makes a namespace, which is removed with all that is in it when the test ends.
func newSpace(t *testing.T) *space {
	t.Helper()
	ns, err := world.Admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "dual-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &space{T: t, ns: ns.Name}
	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range [][]string{{"get", "pods,services,endpointslices,cells", "-o", "wide"}, {"get", "events"}} {
				out, _ := world.Kubectl(context.Background(), append([]string{"-n", s.ns}, args...)...).CombinedOutput()
				t.Logf("%s", out)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if out, err := world.Kubectl(ctx, "delete", "namespace", s.ns, "--wait").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	s.eventually("the default service account", func(ctx context.Context) error {
		_, err := world.Admin.CoreV1().ServiceAccounts(s.ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

// eventually waits until check returns nil.
func (s *space) eventually(what string, check func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	last := errors.New("never checked")
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := check(ctx)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		s.Fatalf("%s: %v", what, last)
	}
}

func (s *space) apply(manifest string) {
	s.Helper()
	cmd := world.Kubectl(s.Context(), "-n", s.ns, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("apply: %v\n%s", err, out)
	}
}

// exec runs a command in a pod, and returns what it prints.
func (s *space) exec(ctx context.Context, pod string, command ...string) (string, error) {
	out, err := world.Kubectl(ctx, append([]string{"-n", s.ns, "exec", pod, "--"}, command...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
	}
	return string(out), err
}

func (s *space) waitReady(name string) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	s.eventually("pod "+name+" is Ready", func(ctx context.Context) (err error) {
		if pod, err = world.Admin.CoreV1().Pods(s.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its phase is %s", pod.Status.Phase)
	})
	return pod
}
