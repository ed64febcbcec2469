//go:build e2e

package neighbours

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// server is a pod behind the Services of near: it answers with its name.
func server(name, node string) string {
	pod := strings.Replace(namespace.WebServer(name, "", name), "{name: "+name+"}", "{name: "+name+", labels: {app: web}}", 1)
	return strings.Replace(pod, "{type: virtual-kubelet}", "{kubernetes.io/hostname: "+node+"}", 1)
}

// near makes a Service with this distribution of its traffic, waits until it has three endpoints as hinted, and returns its address.
func (s *space) near(name, distribution string, hinted func(discoveryv1.Endpoint) error) string {
	s.Helper()
	svc, err := world.Admin.CoreV1().Services(s.NS).Create(s.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector:            map[string]string{"app": "web"},
			Ports:               []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
			TrafficDistribution: &distribution,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.Eventually("the endpoints of "+name+" are hinted", func(ctx context.Context) error {
		of := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name}
		list, err := world.Admin.DiscoveryV1().EndpointSlices(s.NS).List(ctx, of)
		if err != nil {
			return err
		}
		n := 0
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				n++
				if err := hinted(e); err != nil {
					return fmt.Errorf("endpoint %v on %s: %w", e.Addresses, *e.NodeName, err)
				}
			}
		}
		if n != 3 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	return svc.Spec.ClusterIP
}

// hints wants an endpoint hinted for a zone by its node ("": for none), and for its node or for none.
func hints(zones map[string]string, nodes bool) func(discoveryv1.Endpoint) error {
	return func(e discoveryv1.Endpoint) error {
		var got discoveryv1.EndpointHints
		if e.Hints != nil {
			got = *e.Hints
		}
		var want discoveryv1.EndpointHints
		if zone := zones[*e.NodeName]; zone != "" {
			want.ForZones = []discoveryv1.ForZone{{Name: zone}}
		}
		if nodes {
			want.ForNodes = []discoveryv1.ForNode{{Name: *e.NodeName}}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("its hints are %v, want %v", got, want)
		}
		return nil
	}
}

// answers waits until a client has had answers of each of these servers, and of no other, many times in a row.
func (s *space) answers(client, address string, want ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%s has answers of %v alone", client, want), func(ctx context.Context) error {
		var got []string
		for range 8 * len(want) {
			// busybox' wget has no working timeout.
			out, _, _ := s.Attempt(ctx, "exec", client, "--", "timeout", "10", "wget", "-qO-", "http://"+address+"/")
			out = strings.TrimSpace(out)
			if got = append(got, out); !slices.Contains(want, out) {
				return fmt.Errorf("the answers are %q", got)
			}
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				return fmt.Errorf("the answers are %q", got)
			}
		}
		return nil
	})
}

// A virtual node is a node to kube-proxy, however many machines it has.
func TestServicesKeepTheirTrafficOnTheVirtualNodeAndInItsZone(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	virtual, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	zone := virtual.Labels[corev1.LabelTopologyZone]
	if zone == "" {
		t.Fatalf("node %s has no zone: %v", harness.Node, virtual.Labels)
	}
	for _, pod := range []string{server("a", harness.Node), server("b", harness.Node), server("c", ordinary), namespace.Sleeper("client"),
		strings.Replace(namespace.Sleeper("neighbour"), "{type: virtual-kubelet}", "{kubernetes.io/hostname: "+ordinary+"}", 1)} {
		s.Apply(pod)
	}
	for _, name := range []string{"a", "b", "c", "client", "neighbour"} {
		s.WaitReady(name)
	}

	sameNode := s.near("same-node", corev1.ServiceTrafficDistributionPreferSameNode, hints(map[string]string{harness.Node: zone}, true))
	s.answers("client", sameNode, "a", "b")
	s.answers("neighbour", sameNode, "c")

	// One endpoint without a zone, and kube-proxy ignores the zones of all.
	unzoned := s.near("unzoned", corev1.ServiceTrafficDistributionPreferClose, hints(map[string]string{harness.Node: zone}, false))
	s.answers("client", unzoned, "a", "b", "c")

	s.Cleanup(func() {
		unlabel := world.Kubectl(context.Background(), "label", "node", ordinary, corev1.LabelTopologyZone+"-")
		if _, errs, err := namespace.Run(unlabel); err != nil {
			s.Errorf("take the label off: %v: %s", err, errs)
		}
	})
	s.Kubectl("label", "node", ordinary, corev1.LabelTopologyZone+"=elsewhere")
	sameZone := s.near("same-zone", corev1.ServiceTrafficDistributionPreferSameZone,
		hints(map[string]string{harness.Node: zone, ordinary: "elsewhere"}, false))
	s.answers("client", sameZone, "a", "b")
	s.answers("neighbour", sameZone, "c")
}
