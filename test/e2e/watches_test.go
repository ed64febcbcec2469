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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Not parallel: it counts what all cells together cost the API server.
func TestTwentyCellsCostTheAPIServerNoMoreWatchesThanTwo(t *testing.T) {
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
	few := watches(t)
	s.Kubectl("scale", "deployment/d", "--replicas=20")
	ready(20)
	many := watches(t)
	// The pods name one ConfigMap, kube-root-ca.crt, which two cells name too:
	// it is watched once. So nothing may grow, by a name or at all.
	if !maps.Equal(few, many) {
		t.Fatalf("watches open with 2 cells: %v\nwith 20: %v", few, many)
	}
}
