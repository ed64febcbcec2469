//go:build e2e

package install

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// asker is a pod of the ordinary node that Kip's pod is not on.
const asker = `apiVersion: v1
kind: Pod
metadata: {name: asker}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']}
`

const exposed = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

// enforced is the label with the Pod Security of a namespace.
const enforced = "pod-security.kubernetes.io/enforce"

// hasAddress waits until the virtual node's address is that of Kip's pod.
func hasAddress(s *namespace.Space, pod *corev1.Pod) {
	s.Helper()
	s.Eventually("the virtual node has the address of Kip's pod", func(ctx context.Context) error {
		virtual, err := world.Admin.CoreV1().Nodes().Get(ctx, harness.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.Contains(virtual.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: pod.Status.PodIP}) {
			return fmt.Errorf("it has %v, and the pod %s", virtual.Status.Addresses, pod.Status.PodIP)
		}
		return nil
	})
}

func TestNodePortsAnswerAtTheVirtualNodesAddressInTheHostsNetwork(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	first := kip(s, nil)
	stays := newKept(s)
	s.Apply(namespace.WebServer("web", "", "a cell"))
	s.Kubectl("label", "pod", "web", "app=web")
	s.Apply(exposed)
	s.Apply(asker)
	s.WaitReady("web")
	s.WaitReady("asker")
	port := s.Kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	answersAt := func(address string) func(context.Context) error {
		url := "http://" + net.JoinHostPort(address, port) + "/"
		return func(ctx context.Context) error {
			out, code, errs := s.Attempt(ctx, "exec", "asker", "--", "timeout", "5", "wget", "-qO-", url) // wget has no working timeout
			if code != 0 || out != "a cell\n" {
				return fmt.Errorf("%s answers %q: exit %d: %s", url, out, code, errs)
			}
			return nil
		}
	}
	hasAddress(s, first)
	s.Never("node ports answer at the address of a pod", func(ctx context.Context) error {
		if answersAt(first.Status.PodIP)(ctx) == nil {
			return errors.New("one answers")
		}
		return nil
	}, answersAt(first.Status.HostIP))

	s.Kubectl("label", "namespace", kipNamespace, enforced+"=privileged", "--overwrite")
	defer s.Kubectl("label", "namespace", kipNamespace, enforced+"=restricted", "--overwrite")
	folder, values := chart(t)
	back := sync.OnceFunc(func() {
		if out, err := helm(t, "upgrade", release, folder, "--values", values, "--wait", "--timeout", "5m"); err != nil {
			t.Errorf("upgrade to a network of its own: %v\n%s", err, out)
		}
	})
	defer back()
	shared := withValues(t, func(v map[string]any) { v["hostNetwork"] = true })
	if out, err := helm(t, "upgrade", release, folder, "--values", shared, "--wait", "--timeout", "5m"); err != nil {
		t.Fatalf("upgrade: %v\n%s", err, out)
	}
	second := kip(s, first)
	if !second.Spec.HostNetwork || second.Status.PodIP != first.Status.HostIP {
		t.Errorf("Kip's pod has address %s, host network %t: want that of its node, %s", second.Status.PodIP, second.Spec.HostNetwork,
			first.Status.HostIP)
	}
	hasAddress(s, second)
	s.Eventually("the node port answers at the virtual node's address", answersAt(second.Status.PodIP))
	stays.unmoved("a move into the host's network")
	log(s)

	back()
	hasAddress(s, kip(s, second))
	stays.unmoved("a move into a network of its own")
	log(s)
}
