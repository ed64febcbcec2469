//go:build e2e

package install

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// Ports of the chart, by default.
const (
	kubeletPort = 10250
	metricsPort = 10255
	// numberedPort is that of the node kip-0-1, on which nobody listens here.
	numberedPort = 10351
	// otherPort is none of Kip's.
	otherPort = 8080
)

// What becomes of a connection to a port of Kip's pod.
const (
	answered = "answered"       // by a server, which wants TLS
	noServer = "nobody listens" // as the kernel says
	dropped  = "dropped on its way"
)

func TestKipWorksBehindItsNetworkPolicyThatKeepsOthersOut(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	first := kip(s, nil)
	enforce(s, first.Spec.NodeName)
	stays := newKept(s)
	dialers := map[string]string{"stranger": "node-2", "neighbour": first.Spec.NodeName, "prometheus": "node-2"}
	for name, node := range dialers {
		s.Apply(fmt.Sprintf(dialer, name, node))
	}
	for name := range dialers {
		s.WaitReady(name)
	}
	become := func(when, dialer string, want map[int]string) {
		t.Helper()
		for port, outcome := range want {
			s.Eventually(fmt.Sprintf("%s, what %s sends to port %d is %s", when, dialer, port, outcome), func(ctx context.Context) error {
				address := kip(s, nil).Status.PodIP
				got, err := dials(ctx, s, dialer, address, port)
				if err == nil && got != outcome {
					err = fmt.Errorf("it is %s", got)
				}
				return err
			})
		}
	}
	for name := range dialers {
		become("without a policy", name, map[int]string{kubeletPort: answered, metricsPort: answered, webhookPort: answered, otherPort: noServer})
	}

	_, was := chart(t)
	back := sync.OnceFunc(func() { upgrade(t, was) })
	defer back()
	policy := ownPolicy(t, s.NS)
	upgrade(t, withValues(t, func(v map[string]any) { v["networkPolicy"] = policy }))
	kept := map[int]string{kubeletPort: dropped, metricsPort: dropped, webhookPort: dropped, otherPort: dropped}
	for _, name := range []string{"stranger", "neighbour"} {
		become("with the page's policy", name, kept)
	}
	let := map[int]string{kubeletPort: answered, metricsPort: answered, webhookPort: answered, numberedPort: noServer, otherPort: dropped}
	become("with the page's policy", "prometheus", let)
	stays.unmoved("a policy")
	if text, err := world.Scrape(t.Context(), net.JoinHostPort(first.Status.PodIP, strconv.Itoa(metricsPort))); err != nil || text == "" {
		t.Errorf("metrics %q, %v", text, err)
	}

	// It starts, and finds API server, cloud and cells. The kubelet sees that it is Ready, and the API server asks it about pods.
	s.Kubectl("delete", "pod", kipPod, "-n", kipNamespace)
	kip(s, first)
	stays.unmoved("a start behind a policy")
	s.Apply(job)
	s.Kubectl("wait", "--for=condition=Complete", "job/hello", "--timeout=5m")
	if text := s.Kubectl("logs", "job/hello"); text != "hello\n" {
		t.Errorf("the Job logged %q", text)
	}
	become("with another pod of Kip", "stranger", map[int]string{kubeletPort: dropped})
	log(s)

	upgrade(t, withValues(t, func(v map[string]any) { v["networkPolicy"] = map[string]any{"enabled": true} }))
	become("with a policy that names nobody", "stranger", let)
	back()
	become("without a policy again", "stranger", map[int]string{otherPort: noServer})
	log(s)
}

// dialer is a pod of an ordinary node.
const dialer = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app.kubernetes.io/name: %[1]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']}
`

// dials has a pod send a request to a port, and says what becomes of it.
func dials(ctx context.Context, s *namespace.Space, pod, address string, port int) (outcome string, err error) {
	url := "http://" + net.JoinHostPort(address, strconv.Itoa(port)) + "/"
	out, code, errs := s.Attempt(ctx, "exec", pod, "--", "timeout", "3", "wget", "-qO-", url) // wget has no working timeout
	switch {
	case strings.Contains(errs, "400 Bad Request"):
		return answered, nil
	case strings.Contains(errs, "Connection refused"):
		return noServer, nil
	case code == 143: // timeout ended it
		return dropped, nil
	}
	return "", fmt.Errorf("exit %d: %s%s", code, out, errs)
}

// upgrade gives the release other values.
func upgrade(t *testing.T, values string) {
	t.Helper()
	folder, _ := chart(t)
	if out, err := helm(t, "upgrade", release, folder, "--values", values, "--wait", "--timeout", "5m"); err != nil {
		t.Errorf("upgrade: %v\n%s", err, out)
	}
}

// ownPolicy is the value networkPolicy of docs/install.md, with this host in place of its API servers, and a test's namespace.
func ownPolicy(t *testing.T, namespace string) any {
	t.Helper()
	const servers, monitoring = "10.0.0.0/24", "kubernetes.io/metadata.name: monitoring"
	text := printed(t, "## Network policy", "yaml")
	if !strings.Contains(text, servers) || !strings.Contains(text, monitoring) {
		t.Fatalf("docs/install.md has the policy %q: want one with %s and %s", text, servers, monitoring)
	}
	text = strings.NewReplacer(servers, ownNetwork.Host().String()+"/32", monitoring, "kubernetes.io/metadata.name: "+namespace).Replace(text)
	var values struct{ NetworkPolicy map[string]any }
	if err := yaml.Unmarshal([]byte(text), &values); err != nil || len(values.NetworkPolicy) == 0 {
		t.Fatalf("docs/install.md has the policy %q: %v", text, err)
	}
	return values.NetworkPolicy
}

// enforce has NetworkPolicies hold on an ordinary node until the test ends.
func enforce(s *namespace.Space, node string) {
	s.Helper()
	log := filepath.Join(s.TempDir(), "networkpolicies.log")
	machine := ordinary(s, node)
	kubelet, err := machine.Kubelet()
	if err != nil {
		s.Fatal(err)
	}
	enforcer, err := child.Start(child.Spec{
		Path: "/usr/bin/nsenter",
		Args: []string{"--net=" + machine.Netns(), world.Tool("networkpolicies"), "--server", kubelet.Host, "--kubeconfig", world.Kubeconfig,
			"--node", node, "-v=2"},
		LogFile: log,
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := enforcer.Stop(context.Background()); err != nil {
			s.Error(err)
		}
		if err := enforcer.Err(); err != nil {
			s.Errorf("the enforcer of NetworkPolicies ended with %v", err)
		}
		if text, err := os.ReadFile(log); s.Failed() {
			s.Logf("it logged (%v)\n%s", err, text[max(0, len(text)-8000):])
		}
	})
}
