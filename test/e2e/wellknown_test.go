//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// wellKnown are DaemonSets with the shape of published ones: testdata/daemonsets. What they tolerate, and their affinity, is as published.
var wellKnown = []string{"fluent-bit", "node-exporter", "datadog", "falco", "cloudwatch", "ama-logs"}

// manifest is a file of testdata/daemonsets. A nodeSelector keeps the sets of it off the ordinary node, to spare that.
func manifest(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "daemonsets", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	const selector, account = "      nodeSelector: {", "      serviceAccountName:"
	switch {
	case name == "unnamed":
		return text
	case strings.Contains(text, selector):
		return strings.Replace(text, selector, selector+"type: virtual-kubelet, ", 1)
	}
	return strings.Replace(text, account, selector+"type: virtual-kubelet}\n"+account, 1)
}

// besideAll waits until the Cell of a pod says that each of the DaemonSets runs beside it, and that it is ready or not.
func (s *space) besideAll(pod string, ready bool, sets ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("the Cell of %s shows that %q are ready: %t", pod, sets, ready), func(context.Context) error {
		for _, set := range sets {
			name := s.setPod(set, "").Name
			if got := s.beside(pod, name); strings.HasPrefix(got, "ready true, 0 restarts") != ready || got == "" {
				return fmt.Errorf("%s: %q", set, got)
			}
		}
		return nil
	})
}

// Not parallel: it starts Kip anew.
func TestWellKnownDaemonSetsRunBesidePods(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	reconfigure(t, map[string]any{"daemonSets": []any{map[string]any{"namespace": s.NS, "selector": "beside=pods", "maxDelay": 120}}})
	s.asked()
	for _, name := range wellKnown {
		s.Apply(manifest(t, name))
	}
	s.Apply(manifest(t, "unnamed"))
	s.Apply(speaks("a"))
	pod := s.WaitReady("a")
	for _, name := range wellKnown {
		s.Kubectl("rollout", "status", "daemonset/"+name, "--timeout=3m")
	}
	s.besideAll("a", true, wellKnown...)
	get := func(port, path string) string {
		out := ""
		s.Eventually("the pod reaches port "+port+" of its cell", func(ctx context.Context) error {
			var code int
			var stderr string
			out, code, stderr = s.Attempt(ctx, "exec", "a", "--", "sh", "-c", "timeout 5 wget -qO- http://$HOST:"+port+path)
			if code != 0 {
				return errors.New(stderr)
			}
			return nil
		})
		return out
	}
	// Of the cell's own: its agent, and containerd.
	if processes := strings.Fields(get("9100", "/")); !slices.Contains(processes, "itzo") || !slices.Contains(processes, "itzo-containerd") {
		t.Errorf("the node exporter sees the processes %q", processes)
	}
	if got := strings.TrimSpace(get("8126", "/")); got != "traces" {
		t.Errorf("the agent's host port says %q", got)
	}
	// Those that are not named stand, and do nothing.
	s.Kubectl("rollout", "status", "daemonset/csi-secrets-store", "--timeout=1m")
	on := s.setPod("csi-secrets-store", "")
	if got := s.beside("a", on.Name); got != "" || len(on.Status.ContainerStatuses) > 0 {
		t.Errorf("%s is not named, and beside the pod it is %q", on.Name, got)
	}
	for _, name := range []string{"azure-cns", "aws-node"} {
		pods, err := s.PodsOf(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods {
			if p.Spec.NodeName == harness.Node {
				t.Errorf("pod %s leaves out nodes such as Kip's, and is on one", p.Name)
			}
		}
	}
	if now := s.WaitReady("a"); now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("the pod noticed: %s", namespace.States(now))
	}
	s.Kubectl("delete", "daemonset", "--all")
	s.deleteAll("a")
}

// spoilt are DaemonSets that cannot run as they should.
const spoilt = `
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
      containers:
      - {name: main, image: 'IMAGE', command: [sleep, infinity]MORE}
`

func spoiltSet(name, image, more string) string {
	return "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: " + name + "}\nspec:\n  selector: {matchLabels: {app: " + name + "}}" +
		strings.NewReplacer("NAME", name, "IMAGE", image, "MORE", more).Replace(spoilt)
}

// Not parallel: it starts Kip anew.
func TestADaemonSetThatCannotRunKeepsNoPodFromRunning(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	reconfigure(t, map[string]any{"daemonSets": []any{map[string]any{"namespace": s.NS, "maxDelay": 10}}})
	const busybox = "busybox:1.36"
	s.Apply(spoiltSet("never", busybox, ", readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}"))
	s.Apply(spoiltSet("huge", busybox, ", resources: {requests: {cpu: 900}}"))
	s.Apply(spoiltSet("port", busybox, ", ports: [{containerPort: 8080, hostPort: 9982}]"))
	s.Apply(spoiltSet("missing", "busybox:no-such-tag", ""))
	s.Apply(spoiltSet("driver", busybox, ", volumeMounts: [{name: secrets, mountPath: /secrets}]") +
		"      volumes: [{name: secrets, csi: {driver: secrets-store.csi.k8s.io, readOnly: true}}]\n")
	for _, name := range []string{"huge", "port", "driver"} { // before there is a pod beside which they could run
		s.Kubectl("rollout", "status", "daemonset/"+name, "--timeout=2m")
	}
	s.WaitEvent(s.setPod("driver", "").Name, "DaemonSetLeftOut", "its volume secrets is of a CSI driver, which only the pod of a cell has")

	s.Apply(namespace.Bare("web", `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    ports: [{containerPort: 80, hostPort: 9982}]
`))
	pod := s.WaitReady("web")
	s.WaitEvent("web", "DaemonSetNotReady", "DaemonSet "+s.NS+"/never was not ready beside the pod after 10s")
	s.WaitEvent("web", "DaemonSetNotReady", "DaemonSet "+s.NS+"/missing was not ready beside the pod after 10s")
	s.WaitEvent("web", "DaemonSetLeftOut", "DaemonSet "+s.NS+"/huge does not run beside pod "+s.NS+"/web")
	s.WaitEvent("web", "DaemonSetLeftOut", "DaemonSet "+s.NS+"/port does not run beside pod "+s.NS+"/web")
	s.WaitEvent("web", "DaemonSetLeftOut", "host port TCP 9982 is that of pod "+s.NS+"/web there")
	s.Eventually("the Cell says why", func(context.Context) error {
		for set, want := range map[string]string{"never": "ready false", "missing": "ImagePull", "huge": "it asks for cpu 900",
			"port": "host port TCP 9982"} {
			pods, err := s.PodsOf(t.Context(), set)
			if err != nil || len(pods) != 1 {
				return fmt.Errorf("%s has %d pods: %w", set, len(pods), err)
			}
			if got := s.beside("web", pods[0].Name); !strings.Contains(got, want) {
				return fmt.Errorf("%s: %q, want %q", set, got, want)
			}
		}
		return nil
	})
	// The pod on the node says so too, of those that are not ready; those that are left out hold nobody up.
	s.Eventually("the sets' pods on the node are Ready as their copies are", func(ctx context.Context) error {
		for set, want := range map[string]corev1.ConditionStatus{
			"never": corev1.ConditionFalse, "missing": corev1.ConditionFalse, "huge": corev1.ConditionTrue, "port": corev1.ConditionTrue,
			"driver": corev1.ConditionTrue,
		} {
			list, err := world.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "app=" + set})
			if err != nil || len(list.Items) != 1 {
				return fmt.Errorf("%s has %d pods: %w", set, len(list.Items), err)
			}
			if got := namespace.IsReady(&list.Items[0]); got != (want == corev1.ConditionTrue) {
				return fmt.Errorf("%s is Ready: %t", set, got)
			}
		}
		return nil
	})
	if now := s.WaitReady("web"); now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("the pod noticed: %s", namespace.States(now))
	}
	// For a pod that requests something Kip looks for a machine that has room for the sets, and no type has it.
	s.Apply(namespace.Bare("asks", `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    resources: {requests: {cpu: 10m, memory: 16Mi}}
`))
	s.WaitReady("asks")
	for _, told := range []string{"asks", s.setPod("huge", "").Name} {
		s.WaitEvent(told, "DaemonSetLeftOut", "Pod "+s.NS+"/asks gets a machine without room for DaemonSet "+s.NS+"/huge")
	}
	s.Kubectl("delete", "daemonset", "--all")
	s.deleteAll("web", "asks")
	s.NoOtherCells()
}
