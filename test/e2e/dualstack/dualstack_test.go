//go:build e2e

package dualstack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// server is a pod that serves its name on 8080, on all addresses.
func server(name, labels string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: " + labels + `}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'mkdir /tmp/www; echo $POD_IPS > /tmp/ips; echo $HOST_IPS > /tmp/host-ips; echo ` + name + ` > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
    env:
    - {name: POD_IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
    - {name: HOST_IPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
`
}

// families are those of addresses, in their order.
func families(ips ...string) (all string) {
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip)
		switch {
		case err != nil:
			all += "?"
		case a.Is4():
			all += "4"
		default:
			all += "6"
		}
	}
	return all
}

func podIPs(p *corev1.Pod) (ips []string) {
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return ips
}

func hostIPs(p *corev1.Pod) (ips []string) {
	for _, ip := range p.Status.HostIPs {
		ips = append(ips, ip.IP)
	}
	return ips
}

// at is the URL of a port of an address.
func at(ip string, port int) string {
	return "http://" + net.JoinHostPort(ip, strconv.Itoa(port)) + "/"
}

// gets returns the URLs that a pod gets an answer from.
func (s *space) gets(ctx context.Context, pod string, urls ...string) ([]string, error) {
	const script = `for u; do if timeout 2 wget -qO /dev/null "$u" 2>/dev/null; then echo "$u"; fi; done`
	out, err := s.exec(ctx, pod, append([]string{"sh", "-c", script, "sh"}, urls...)...)
	return strings.Fields(out), err
}

// reaches waits until a pod gets an answer from those of the URLs that are wanted, and from
// no other, for some looks in a row.
func (s *space) reaches(what, pod string, urls []string, want ...string) {
	s.Helper()
	s.Eventually(what+": what "+pod+" reaches", func(ctx context.Context) error {
		for range namespace.Looks {
			got, err := s.gets(ctx, pod, urls...)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("it reaches %q, want %q, %d times in a row", got, want, namespace.Looks)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func TestAPodHasAnAddressOfEachFamily(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(server("a", "{}") + server("b", "{}"))
	a, b := s.WaitReady("a"), s.WaitReady("b")
	if got := families(podIPs(a)...) + "/" + families(hostIPs(a)...); got != "46/46" {
		t.Fatalf("families of the pod's and its host's addresses are %s: %v, %v", got, a.Status.PodIPs, a.Status.HostIPs)
	}
	for file, want := range map[string][]string{"/tmp/ips": podIPs(a), "/tmp/host-ips": hostIPs(a)} {
		if got, err := s.exec(t.Context(), "a", "cat", file); err != nil || strings.TrimSpace(got) != strings.Join(want, ",") {
			t.Errorf("%s is %q, want %v (%v)", file, got, want, err)
		}
	}
	urls := []string{at(podIPs(b)[0], 8080), at(podIPs(b)[1], 8080)}
	s.reaches("another cell's pod", "a", urls, urls...)
	// The cell is as close as its pod lets it: no new connection, by any address. The other
	// pod shows what the same words say where nothing is in the way.
	const agent = `nc -w 5 "$1" "$2" </dev/null 2>&1 && echo open`
	port := strconv.Itoa(agentapi.Port)
	for n, want := range []string{"No route to host", "Permission denied"} { // how each family says that it is prohibited
		own, other := hostIPs(a)[n], podIPs(b)[n]
		if c, err := net.DialTimeout("tcp", net.JoinHostPort(own, port), namespace.Patience); err != nil {
			t.Errorf("the agent at %s, from this host: %v", own, err)
		} else {
			c.Close()
		}
		s.Never("the pod reaches its cell's agent at "+own, func(ctx context.Context) error {
			if got, err := s.exec(ctx, "a", "sh", "-c", agent, "sh", own, port); err == nil || !strings.Contains(got, want) {
				return fmt.Errorf("it hears %q, %v; want %s", got, err, want)
			}
			return nil
		}, func(ctx context.Context) error {
			got, err := s.exec(ctx, "a", "sh", "-c", agent, "sh", other, "8080")
			if err == nil && !strings.HasSuffix(strings.TrimSpace(got), "open") {
				err = fmt.Errorf("of the other pod it hears %q", got)
			}
			return err
		})
	}
	cells, err := world.Dynamic.Resource(apiv1.Resource).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown := slices.ContainsFunc(cells.Items, func(c unstructured.Unstructured) bool {
		status, _ := c.Object["status"].(map[string]any)
		return status["ip"] == podIPs(a)[0] && status["ipv6"] == podIPs(a)[1]
	})
	if !shown {
		t.Error("no Cell shows both addresses")
	}
	node, err := world.Admin.CoreV1().Nodes().Get(t.Context(), a.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var internal []string
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			internal = append(internal, address.Address)
		}
	}
	if families(internal...) != "46" {
		t.Errorf("the virtual node has %v", internal)
	}
}

func TestAServiceAnswersOnItsAddressesOfBothFamilies(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(server("web", "{app: web}") + server("client", "{}") + `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec: {ipFamilies: [IPv6], selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`)
	s.WaitReady("web")
	client := s.WaitReady("client")
	service := func(name string) *corev1.Service {
		svc, err := world.Admin.CoreV1().Services(s.NS).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return svc
	}
	web, six := service("web"), service("six")
	if got := families(web.Spec.ClusterIPs...) + "/" + families(six.Spec.ClusterIPs...); got != "46/6" {
		t.Fatalf("families of the cluster IPs are %s", got)
	}
	urls := []string{at(web.Spec.ClusterIPs[0], 80), at(web.Spec.ClusterIPs[1], 80), at(six.Spec.ClusterIP, 80), "http://six/"}
	// Node ports, of a cell on which there is no endpoint.
	for _, ip := range hostIPs(client) {
		urls = append(urls, at(ip, int(web.Spec.Ports[0].NodePort)))
	}
	s.reaches("Services", "client", urls[:4], urls[:4]...)
	s.reaches("its own Service", "web", urls[:3], urls[:3]...)
	s.reaches("node ports", "web", urls[4:], urls[4:]...)
	name := fmt.Sprintf("web.%s.svc.cluster.local", s.NS)
	s.Eventually("DNS has both addresses", func(ctx context.Context) error {
		out, err := s.exec(ctx, "client", "nslookup", name)
		for _, ip := range web.Spec.ClusterIPs {
			if err == nil && !strings.Contains(out, ip) {
				err = fmt.Errorf("no %s in %q", ip, out)
			}
		}
		return err
	})
}
