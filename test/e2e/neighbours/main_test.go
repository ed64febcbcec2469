//go:build e2e

// Package neighbours proves how pods on Kip fare beside what a user's cluster has as well: quotas, priorities, drains, Services that
// keep their traffic near, and controllers that evict, resize and scale.
package neighbours

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// ordinary and other are the names of the ordinary nodes.
const ordinary, other = "node-1", "node-2"

var network = harness.MustClaim("neighbours")

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	os.Exit(harness.Main(harness.Options{
		Network:  network,
		Nodes:    2,
		Race:     true,
		Stderr:   os.Stderr,
		AuditLog: filepath.Join(os.TempDir(), network.Bridge+"-audit.log"),
	}, &world, m.Run))
}

// space is a namespace of a test's own.
type space struct {
	*namespace.Space
	hollow bool // its cells have no machines on this host
}

func newSpace(t *testing.T) *space {
	t.Helper()
	return &space{Space: namespace.New(t, world)}
}

// onKip is of a pod that only Kip's nodes take.
const onKip = "      nodeSelector: {type: virtual-kubelet}\n"

// deployment is a Deployment of pods that sleep; spec is more of theirs, container more of their container's.
func deployment(name string, replicas int, spec, container string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      enableServiceLinks: false
%[3]s      containers:
      - name: main
        image: busybox:1.36
        command: [sleep, infinity]
%[4]s`, name, replicas, spec, container)
}

// readyPods waits until an app has so many pods, all of them Ready, and returns them.
func (s *space) readyPods(app string, n int) []corev1.Pod {
	s.Helper()
	var found []corev1.Pod
	s.Eventually(fmt.Sprintf("%s has %d Ready pods", app, n), func(ctx context.Context) (err error) {
		if found, err = s.PodsOf(ctx, app); err != nil {
			return err
		}
		ready := 0
		for i := range found {
			if namespace.IsReady(&found[i]) {
				ready++
			}
		}
		if len(found) != n || ready != n {
			return fmt.Errorf("of %d pods %d are Ready", len(found), ready)
		}
		return nil
	})
	if !s.hollow && slices.ContainsFunc(found, func(p corev1.Pod) bool { return p.Spec.NodeName == harness.Node }) {
		world.SawMachine()
	}
	return found
}

func uidsOf(pods []corev1.Pod) []types.UID {
	var all []types.UID
	for _, p := range pods {
		all = append(all, p.UID)
	}
	slices.Sort(all)
	return all
}

// gone returns those pods that are not there any more, or are being deleted.
func (s *space) gone(ctx context.Context, before []corev1.Pod) (names []string, err error) {
	for _, p := range before {
		now, err := s.Pod(ctx, p.Name)
		if err != nil && !strings.Contains(err.Error(), "not found") {
			return nil, err
		}
		if err != nil || now.UID != p.UID || now.DeletionTimestamp != nil {
			names = append(names, p.Name)
		}
	}
	return names, nil
}

// waits waits until the scheduler says that no node takes a pod.
func (s *space) waits(name string) {
	s.Helper()
	s.Eventually("pod "+name+" waits for a node", func(ctx context.Context) error {
		pod, err := s.Pod(ctx, name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		})
		if i < 0 || pod.Spec.NodeName != "" {
			return fmt.Errorf("it is on node %q: %v", pod.Spec.NodeName, pod.Status.Conditions)
		}
		return nil
	})
}

// cluster applies a manifest of what has no namespace, or names its own, and deletes it when the test ends.
func (s *space) cluster(manifest string) {
	s.Helper()
	kubectl := func(ctx context.Context, args ...string) error {
		cmd := world.Kubectl(ctx, append(args, "-f", "-")...)
		cmd.Stdin = strings.NewReader(manifest)
		if out, errs, err := namespace.Run(cmd); err != nil {
			return fmt.Errorf("%v\n%s%s", err, out, errs)
		}
		return nil
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), namespace.Patience)
		defer cancel()
		if err := kubectl(ctx, "delete", "--ignore-not-found"); err != nil {
			s.Error(err)
		}
	})
	if err := kubectl(s.Context(), "apply"); err != nil {
		s.Fatal(err)
	}
}

// capacity starts Kip with a node of this capacity, until the test ends.
func (s *space) capacity(of map[string]any) {
	s.Helper()
	namespace.Reconfigure(s.T, world, func(provider map[string]any) { provider["kubelet"] = map[string]any{"capacity": of} })
	s.Eventually("the node has its capacity", func(ctx context.Context) error {
		node, err := world.Admin.CoreV1().Nodes().Get(ctx, harness.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for name, want := range of {
			if got := node.Status.Allocatable[corev1.ResourceName(name)]; got.String() != fmt.Sprint(want) {
				return fmt.Errorf("it has %s %s, want %v", got.String(), name, want)
			}
		}
		return nil
	})
}

// onNode is how many pods are on the virtual node.
func (s *space) onNode() int {
	s.Helper()
	list, err := world.Admin.CoreV1().Pods("").List(s.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + harness.Node})
	if err != nil {
		s.Fatal(err)
	}
	return len(list.Items)
}

// run runs a controller as a process of this host, as the cluster's administrator, until the test ends.
func (s *space) run(program string, args ...string) {
	s.Helper()
	if _, err := os.Stat(world.Tool(program)); err != nil {
		s.Fatalf("is %s built (`make neighbours`)? %v", program, err)
	}
	s.start(child.Spec{Path: world.Tool(program), Args: append([]string{"--kubeconfig=" + world.Kubeconfig}, args...)})
}

// start runs a program as a process of this host until the test ends.
func (s *space) start(spec child.Spec) {
	s.Helper()
	spec.LogFile = filepath.Join(s.TempDir(), "log")
	program := filepath.Base(spec.Path)
	process, err := child.Start(spec)
	if err != nil {
		s.Fatalf("start %s: %v", program, err)
	}
	s.Cleanup(func() {
		if err := errors.Join(process.Kill(), process.Unasked()); err != nil {
			s.Errorf("%s: %v", program, err)
		}
		if text, err := os.ReadFile(spec.LogFile); s.Failed() {
			s.Logf("the end of the log of %s (%v):\n%s", program, err, text[max(0, len(text)-8000):])
		}
	})
}

// took logs what something took: docs/cluster.md has such figures, and no test judges them.
func (s *space) took(what string, since time.Time) {
	s.Helper()
	s.Logf("%s after %s", what, time.Since(since).Round(100*time.Millisecond))
}
