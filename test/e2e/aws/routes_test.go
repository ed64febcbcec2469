//go:build e2e

package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/test/tier"
)

// TEST-NET-2, of RFC 5737, with somebody behind the pod.
const behindPod, addressBehind = "198.51.100.0/24", "198.51.100.7"

// gate is the way to that network.
const gate = `apiVersion: v1
kind: Pod
metadata: {name: gate, annotations: {pod.elotl.co/cloud-route: ` + behindPod + `}}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'ip addr add ` + addressBehind + `/32 dev lo && mkdir /www && echo behind >/www/index.html && exec httpd -f -p 8080 -h /www']
    securityContext: {capabilities: {add: [NET_ADMIN]}}
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
    resources: {requests: {cpu: 100m, memory: 64Mi}}
`

// mayRoute lets pods have the network behind them.
func (s *space) mayRoute() {
	s.Helper()
	file := filepath.Join(s.TempDir(), "gate.yaml")
	if err := os.WriteFile(file, []byte(gate), 0o600); err != nil {
		s.Fatal(err)
	}
	s.Kubectl("annotate", "namespace", s.NS, "allow.kip.elotl.co/cloud-route="+behindPod)
	s.Eventually("its pods may have the network", func(ctx context.Context) error { // the API server learns of it a little later
		_, code, stderr := s.Attempt(ctx, "create", "--dry-run=server", "-f", file)
		if code != 0 {
			return errors.New(stderr)
		}
		return nil
	})
}

func TestAPodIsTheWayToANetwork(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	before := s.state(t.Context())
	s.mayRoute()
	s.killAt(true, func() { s.Apply(gate) }, "ModifyInstanceAttribute", "CreateRoute")
	p := s.WaitReady("gate")
	id := s.only(before).ID
	routes := s.state(t.Context()).Routes
	if len(routes) == 0 || slices.ContainsFunc(routes, func(r ec2.Route) bool { return r.Instance != id || r.To.String() != behindPod }) {
		t.Fatalf("the routes are %v, want those to %s", routes, id)
	}
	// What EC2's network does, this machine does for the link of the cells.
	leadTo(t, p.Status.HostIP)
	s.Eventually("what is behind the pod answers", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addressBehind+":8080/", nil)
		if err != nil {
			return err
		}
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "behind\n" {
			return fmt.Errorf("it says %q (%v)", text, err)
		}
		return nil
	})
	s.killAt(true, func() { s.Kubectl("delete", "pod", "gate", "--wait=false") }, "DeleteRoute")
	s.waitOver("gate", before)
	s.Eventually("the routes are gone", func(ctx context.Context) error {
		if left := s.state(ctx).Routes; len(left) > 0 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
}

// leadTo leads the network to a cell until the test ends.
func leadTo(t *testing.T, cell string) {
	t.Helper()
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		t.Fatal(err)
	}
	_, network, err := net.ParseCIDR(behindPod)
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: network, Gw: net.ParseIP(cell)}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.RouteDel(route); err != nil {
			t.Error(err)
		}
	})
}
