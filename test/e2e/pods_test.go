//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAJobRunsOnACellOfItsOwnAndItsLogOutlivesTheCell(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {type: virtual-kubelet}
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'echo hello from $(hostname)']
        resources: {requests: {cpu: 100m, memory: 32Mi}}
`)
	s.kubectl("wait", "--for=condition=complete", "job/j", "--timeout=120s")
	s.eventually("the cell is gone", s.noCells)
	if log := s.kubectl("logs", "job/j"); !strings.HasPrefix(log, "hello from j-") {
		t.Fatalf("the log is %q", log)
	}
}

func TestABarePodRunsOnTheCheapestTypeThatFits(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    resources: {requests: {cpu: 400m, memory: 300Mi}}
`))
	pod := s.waitReady("a")
	cell := s.cellOf("a")
	if cell.Status.InstanceType != "micro" || cell.Status.Phase != "Bound" || cell.Status.Pod.UID != pod.UID || cell.Status.IP != pod.Status.PodIP {
		t.Fatalf("the cell is %+v; the pod's address is %s", cell.Status, pod.Status.PodIP)
	}
	if !strings.Contains(cell.Status.Reason, "cheapest") {
		t.Fatalf("the cell does not say why it is a micro: %q", cell.Status.Reason)
	}
	s.kubectl("delete", "pod", "a", "--wait=false")
	s.waitGone("a")
}

func TestADeploymentIsScaledUpAndDown(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 0
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: 'busybox:1.36', command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']}
`)
	for _, n := range []int{3, 1} {
		s.kubectl("scale", "deployment/d", fmt.Sprintf("--replicas=%d", n))
		s.eventually(fmt.Sprintf("%d ready pods, each on its own cell", n), func(ctx context.Context) error {
			pods, err := world.Admin.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			ready := map[string]bool{}
			for i := range pods.Items {
				if isReady(&pods.Items[i]) {
					ready[pods.Items[i].Name] = true
				}
			}
			cells, err := s.cells(ctx)
			if err != nil {
				return err
			}
			instances := map[string]bool{}
			for _, c := range cells {
				instances[c.Status.InstanceID] = true
			}
			if len(pods.Items) != n || len(ready) != n || len(cells) != n || len(instances) != n {
				return fmt.Errorf("%d pods, %d ready, %d cells, %d instances", len(pods.Items), len(ready), len(cells), len(instances))
			}
			return nil
		})
	}
}

func TestAPodThatFailsOnceIsNotRunAgain(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(bare("a", `  restartPolicy: Never
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'echo so long; exit 3']}
`))
	pod := s.waitPod("a", "has Failed", hasPhase(corev1.PodFailed))
	if code := pod.Status.ContainerStatuses[0].State.Terminated.ExitCode; code != 3 {
		t.Fatalf("exit code %d, want 3", code)
	}
	s.eventually("the cell is gone", s.noCells)
	if log := s.kubectl("logs", "a"); log != "so long\n" {
		t.Fatalf("the log is %q", log)
	}
}
