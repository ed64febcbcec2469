//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// ordinaryNode is the world's node beside the virtual one.
const ordinaryNode = "node-1"

// elsewhere is a pod as any other: it says nothing of where it runs.
func elsewhere(manifest string) string {
	return strings.Replace(manifest, "nodeSelector: {type: virtual-kubelet}\n  ", "", 1)
}

// names asks the cluster's DNS as a pod's resolver does, at its own address.
func names(network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		slices, err := world.Admin.DiscoveryV1().EndpointSlices("kube-system").List(ctx,
			metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kube-dns"})
		if err != nil {
			return nil, err
		}
		if len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 {
			return nil, fmt.Errorf("Service kube-dns has the endpoints %v, want one", slices.Items)
		}
		var d net.Dialer
		return d.DialContext(ctx, network, net.JoinHostPort(slices.Items[0].Endpoints[0].Addresses[0], "53"))
	}}
}

func TestTheClusterDNSKnowsServicesAndNothingElse(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	dns, err := world.Admin.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil || dns.Spec.ClusterIP != "10.96.0.10" {
		t.Fatalf("Service kube-dns has %v, %v; want the tenth address", dns, err)
	}
	for _, network := range []string{"udp", "tcp"} {
		if got, err := names(network).LookupHost(t.Context(), "kubernetes.default.svc.cluster.local."); err != nil || len(got) != 1 ||
			got[0] != "10.96.0.1" {
			t.Errorf("%s: Service kubernetes is at %v, %v; want 10.96.0.1", network, got, err)
		}
	}
	if got, err := names("udp").LookupAddr(t.Context(), "10.96.0.10"); err != nil || len(got) != 1 ||
		got[0] != "kube-dns.kube-system.svc.cluster.local." {
		t.Errorf("10.96.0.10 is %v, %v; want kube-dns", got, err)
	}
	var missing *net.DNSError
	if got, err := names("udp").LookupHost(t.Context(), "nobody."+s.NS+".svc.cluster.local."); !errors.As(err, &missing) ||
		!missing.IsNotFound {
		t.Errorf("a Service that is not there is at %v, %v", got, err)
	}
	// A headless one has its pods' addresses, when they are Ready.
	s.Apply("apiVersion: v1\nkind: Service\nmetadata: {name: h}\nspec: {clusterIP: None, selector: {app: h}, ports: [{port: 8080}]}\n")
	s.Apply(strings.Replace(namespace.WebServer("server", "", "found"), "name: server", "name: server, labels: {app: h}", 1))
	pod := s.WaitReady("server")
	s.Eventually("the headless Service has its pod's address", func(ctx context.Context) error {
		got, err := names("udp").LookupHost(ctx, "h."+s.NS+".svc.cluster.local.")
		if err != nil {
			return err
		}
		if len(got) != 1 || got[0] != pod.Status.PodIP {
			return fmt.Errorf("it has %v, want %s", got, pod.Status.PodIP)
		}
		return nil
	})
}

func TestPodsOnAnOrdinaryNodeAndOnACellReachEachOther(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(elsewhere(namespace.WebServer("plain", "", "plain")))
	s.Apply(namespace.WebServer("cell", "", "cell"))
	plain, cell := s.WaitReady("plain"), s.WaitReady("cell")
	if plain.Spec.NodeName != ordinaryNode || cell.Spec.NodeName == ordinaryNode {
		t.Fatalf("the pod that does not choose is on %s, the one that chooses Kip on %s", plain.Spec.NodeName, cell.Spec.NodeName)
	}
	for from, to := range map[string]*corev1.Pod{"plain": cell, "cell": plain} {
		if got := s.Kubectl("exec", from, "--", "wget", "-qO-", fmt.Sprintf("http://%s:8080/", to.Status.PodIP)); got != to.Name+"\n" {
			t.Errorf("from %s: %q, want %q", from, got, to.Name)
		}
	}
	// A second pod of the node, beside the first.
	s.Apply(elsewhere(namespace.Sleeper("neighbour")))
	s.WaitReady("neighbour")
	if got := s.Kubectl("exec", "neighbour", "--", "wget", "-qO-", fmt.Sprintf("http://%s:8080/", plain.Status.PodIP)); got != "plain\n" {
		t.Errorf("from the neighbour: %q", got)
	}
	s.Eventually("the neighbour's log", func(context.Context) error {
		if got := s.Kubectl("logs", "neighbour"); got != "started\n" {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// A stack of its own, without Kip, which is killed.
func TestNothingOfAKilledStackIsLeftAfterClean(t *testing.T) {
	tier.All(t)
	t.Parallel()
	n, err := harness.Claim("killed") // beside the world's
	if err != nil {
		t.Fatal(err)
	}
	ready := filepath.Join(t.TempDir(), "ready")
	place := []string{
		"--state", n.State, "--cell-root", filepath.Join(filepath.Dir(world.State), "cell-root"),
		"--bridge", n.Bridge, "--cidr", n.CIDR.String(), "--nodes", "1",
	}
	clean := func(ctx context.Context) string {
		out, err := exec.CommandContext(ctx, world.Tool("kip-dev"), append([]string{"clean"}, place...)...).CombinedOutput()
		if err != nil {
			t.Errorf("kip-dev clean: %v\n%s", err, out)
		}
		return string(out)
	}
	log := n.State + ".log"
	dev, err := child.Start(child.Spec{Path: world.Tool("kip-dev"),
		Args: append([]string{"cluster", "--no-fsync", "--ready-file", ready}, place...), LogFile: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Kill(); err != nil { // it is dead, but for a test that failed early
			t.Error(err)
		}
		clean(context.Background())
		if !t.Failed() {
			if err := errors.Join(os.RemoveAll(n.State), os.Remove(log)); err != nil {
				t.Error(err)
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := namespace.Poll(ctx, func(context.Context) error {
		select {
		case <-dev.Done():
			return fmt.Errorf("kip-dev ended: %v; its log is %s", dev.Err(), log)
		default:
		}
		_, err := os.Stat(ready)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dev.Kill(), dev.Unasked()); err != nil {
		t.Fatal(err)
	}
	// What cannot end by itself is a machine's: the node's, with its first process.
	nodes := local.Config{Config: host.Config{
		StateDir: filepath.Join(n.State, "nodes"),
		Bridge:   n.Bridge,
		Group:    n.Bridge + "-nodes",
		CIDR:     n.CIDR,
	}}
	left, err := local.Leftovers(t.Context(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	for what, is := range map[string]func(string) bool{
		"the node's process": func(s string) bool { return strings.HasPrefix(s, "process ") && strings.HasSuffix(s, " (kip-node)") },
		"its machine's folder": func(s string) bool {
			return strings.HasPrefix(s, "folder "+filepath.Join(nodes.StateDir, "machines")+"/")
		},
		"its network device": func(s string) bool { return strings.HasPrefix(s, "network device ") },
	} {
		if !slices.ContainsFunc(left, is) {
			t.Errorf("a killed stack leaves %q: where is %s?", left, what)
		}
	}
	if got := clean(t.Context()); !strings.HasPrefix(got, "removed ") {
		t.Errorf("the first clean says %q", got)
	}
	if left, err := local.Leftovers(t.Context(), nodes); err != nil || len(left) > 0 {
		t.Errorf("after the first clean the node has left %q, %v", left, err)
	}
	if got := clean(t.Context()); got != "" {
		t.Errorf("the second clean finds %q", got)
	}
	if _, err := net.InterfaceByName(n.Bridge); err == nil {
		t.Errorf("the bridge %s is still there", n.Bridge)
	}
}

func TestAServiceOfACellIsReachedByNameFromAnOrdinaryNodeAndOnItsPort(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n")
	s.Apply(strings.Replace(namespace.WebServer("server", "", "served"), "name: server", "name: server, labels: {app: web}", 1))
	s.Apply(elsewhere(namespace.Sleeper("plain")))
	s.WaitReady("server")
	s.WaitReady("plain")
	// The name goes to Service kube-dns and the answer to Service web: both are
	// kube-proxy's on the node.
	s.Eventually("the Service answers on the node", func(ctx context.Context) error {
		if got, _, errs := s.Attempt(ctx, "exec", "plain", "--", "wget", "-qO-", "http://web/"); got != "served\n" {
			return fmt.Errorf("%q %s", got, errs)
		}
		return nil
	})
	service, err := world.Admin.CoreV1().Services(s.NS).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := world.Admin.CoreV1().Nodes().Get(t.Context(), ordinaryNode, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://%s:%d/", node.Status.Addresses[0].Address, service.Spec.Ports[0].NodePort)
	s.Eventually("the node's port answers", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "served\n" {
			return fmt.Errorf("%q, %v", got, err)
		}
		return nil
	})
}
