//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// Three pods that may share no host: by anti-affinity, by a host port, and by one of hostNetwork.
func TestPodsThatWantDifferentHostsRunOnOneNode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.asked()
	apart := func(name, more string) string {
		return strings.Replace(namespace.Bare(name, more+`  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: apart}}}
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'mkdir /tmp/www; echo $HOSTNAME > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    ports: [{containerPort: 8080, hostPort: 8080}]
`), "{name: "+name+"}", "{name: "+name+", labels: {app: apart}}", 1)
	}
	s.Apply(apart("a", "") + "---\n" + apart("b", "") + "---\n" + apart("c", "  hostNetwork: true\n"))
	hosts := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		pod := s.WaitReady(name)
		if pod.Spec.NodeName != harness.Node || hosts[pod.Status.HostIP] != "" {
			t.Errorf("pod %s is on node %s at %s, of %v", name, pod.Spec.NodeName, pod.Status.HostIP, hosts)
		}
		hosts[pod.Status.HostIP] = name
	}
	for ip, name := range hosts {
		if name != "c" { // of that, the name is its machine's
			port := netip.AddrPortFrom(netip.MustParseAddr(ip), 8080).String()
			s.answersAll("the host port of pod "+name, func() string { return fromHost(port) }, name)
		}
	}
}

// What a pod asks of ephemeral storage, its cell has, and its kubelet holds it to the limit.
func TestEphemeralStorageIsGivenAndBounded(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  restartPolicy: Never
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'dd if=/dev/zero of=/big bs=1M count=64; while :; do sleep 1; done']
    resources: {requests: {cpu: 100m, ephemeral-storage: 4Gi}, limits: {ephemeral-storage: 4Gi}}
`) + "---\n" + namespace.Bare("b", `  restartPolicy: Never
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'dd if=/dev/zero of=/big bs=1M count=64; while :; do sleep 1; done']
    resources: {limits: {ephemeral-storage: 16Mi}}
`))
	s.WaitReady("a")
	if got := s.CellOf("a").Status.InstanceType; got != "micro" { // a nano has 4Gi, with what the kubelet keeps
		t.Errorf("pod a is on a %s, want a micro", got)
	}
	evicted := s.WaitPod("b", "has Failed", namespace.HasPhase(corev1.PodFailed))
	if evicted.Status.Reason != "Evicted" || !strings.Contains(evicted.Status.Message, "ephemeral local storage") {
		t.Errorf("pod b failed for %q: %s", evicted.Status.Reason, evicted.Status.Message)
	}
}

func TestAPodIsResizedWithinItsMachine(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.asked()
	s.Apply(namespace.Bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    resources: {requests: {cpu: 100m, memory: 64Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
`))
	s.WaitReady("a")
	if got := s.CellOf("a").Status.InstanceType; got != "nano" {
		t.Fatalf("pod a is on a %s, want a nano", got)
	}
	resize := func(cpu, memory string) string {
		_, _, text := s.Try("patch", "pod", "a", "--subresource=resize", "-p",
			fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":%q,"memory":%q}}}]}}`, cpu, memory))
		return text
	}
	if text := resize("200m", "64Mi"); text != "" {
		t.Errorf("a resize within the machine: %s", text)
	}
	for _, c := range []struct{ cpu, memory, says string }{
		{"2", "64Mi", "cpu, requested: 2, available: 250m"}, {"200m", "2Gi", "memory, requested: 2Gi, available: "},
	} {
		text := resize(c.cpu, c.memory)
		if !strings.Contains(text, c.says) || !strings.Contains(text, "Forbidden") && !strings.Contains(text, "denied") {
			t.Errorf("a resize to cpu %s, memory %s: %q, want %q", c.cpu, c.memory, text, c.says)
		}
	}
	s.WaitPod("a", "has its CPU", func(pod *corev1.Pod) bool {
		r := pod.Status.ContainerStatuses[0].Resources
		return r != nil && r.Requests.Cpu().String() == "200m"
	})
	// The kernel's choice of a victim is about the memory of the machine: a nano has 256Mi.
	if text := resize("200m", "96Mi"); text != "" {
		t.Errorf("a resize that restarts the container: %s", text)
	}
	s.WaitPod("a", "has restarted with its memory", func(pod *corev1.Pod) bool {
		c := pod.Status.ContainerStatuses[0]
		return c.RestartCount == 1 && c.Ready && c.Resources != nil && c.Resources.Requests.Memory().String() == "96Mi"
	})
	got := strings.TrimSpace(s.Kubectl("exec", "a", "--", "cat", "/proc/1/oom_score_adj"))
	if want := fmt.Sprint(1000 - 1000*96/256); got != want {
		t.Errorf("oom_score_adj is %s, want %s", got, want)
	}
}
