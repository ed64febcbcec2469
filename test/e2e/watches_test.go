//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/tier"
)

// watches reads how many watches the API server has open, by resource.
func watches(t *testing.T) map[string]int {
	t.Helper()
	text, err := world.Admin.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]int{}
	line := regexp.MustCompile(`^apiserver_longrunning_requests\{.*,resource="([^"]*)".*verb="WATCH".*\} (\d+)`)
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := line.FindStringSubmatch(lines.Text()); m != nil {
			n, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			open[m[1]] += n
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if open["pods"] == 0 {
		t.Fatal("no watch on pods is counted: the metric is not what this test takes it for")
	}
	return open
}

// mostWatches reads them some times, and returns the most of each resource: a watch that
// expires is opened again, and not counted in between.
func (s *space) mostWatches() map[string]int {
	s.Helper()
	most := watches(s.T)
	for range looks {
		if err := harness.Sleep(s.Context(), time.Second); err != nil {
			s.Fatal(err)
		}
		for resource, n := range watches(s.T) {
			most[resource] = max(most[resource], n)
		}
	}
	return most
}

// noMoreWatches waits until no more are open, of any resource.
func (s *space) noMoreWatches(what string, most map[string]int) {
	s.Helper()
	s.Eventually(what+" cost no more watches", func(context.Context) error {
		open := watches(s.T)
		for resource, n := range open {
			if n > most[resource] {
				return fmt.Errorf("open are %v, want %v at most", open, most)
			}
		}
		return nil
	})
}

// Not parallel: it counts what all cells together cost the API server.
func TestTwentyCellsCostTheAPIServerNoMoreWatchesThanTwo(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.Apply(`apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 2
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: 'busybox:1.36', command: [sleep, infinity]}]
`)
	ready := func(n int) {
		s.Eventually(fmt.Sprintf("%d pods are ready", n), func(ctx context.Context) error {
			d, err := world.Admin.AppsV1().Deployments(s.NS).Get(ctx, "d", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if int(d.Status.ReadyReplicas) != n {
				return fmt.Errorf("%d are", d.Status.ReadyReplicas)
			}
			return nil
		})
	}
	ready(2)
	few := s.mostWatches()
	s.Kubectl("scale", "deployment/d", "--replicas=20")
	ready(20)
	// The pods name one ConfigMap, kube-root-ca.crt, which two cells name too:
	// it is watched once. So nothing may grow, by a name or at all.
	s.noMoreWatches("20 cells", few)
}

// Not parallel: it counts what all nodes together cost the API server.
func TestTwentyVirtualNodesCostTheAPIServerAPodWatchAndALeaseEach(t *testing.T) {
	tier.All(t)
	const more = 20
	s := newSpace(t)
	numbered := func(n int) []any {
		nodes := []any{map[string]any{"suffix": 0}}
		for i := range n {
			nodes = append(nodes, map[string]any{"suffix": i + 1, "labels": map[string]any{"number": strconv.Itoa(i + 1)}})
		}
		return nodes
	}
	there := func(n int) {
		s.Eventually(fmt.Sprintf("%d more nodes are Ready", n), func(ctx context.Context) error {
			list, err := world.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "number"})
			if err != nil {
				return err
			}
			ready := 0
			for _, node := range list.Items {
				for _, c := range node.Status.Conditions {
					if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
						ready++
					}
				}
			}
			if len(list.Items) != n || ready != n {
				return fmt.Errorf("there are %d, and %d are Ready", len(list.Items), ready)
			}
			return nil
		})
	}
	leases := func() (numbered int) {
		list, err := world.Admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list.Items {
			if strings.HasPrefix(l.Name, harness.Node+"-") {
				numbered++
			}
		}
		return numbered
	}
	few, before := s.mostWatches(), leases()
	defer func() {
		configureNodes(t, nil)
		there(0)
	}()
	configureNodes(t, numbered(more))
	there(more)
	want := maps.Clone(few)
	want["pods"] += more
	s.noMoreWatches(fmt.Sprintf("%d more nodes", more), want)
	if after := leases(); after != before+more {
		t.Errorf("numbered nodes have %d leases with one node, and %d with %d more", before, after, more)
	}
}
