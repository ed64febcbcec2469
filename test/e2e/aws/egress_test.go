//go:build e2e

package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// The internet of this test: a network namespace behind this machine, of TEST-NET-3 (RFC 5737).
const (
	internetHost, internetGateway = "203.0.113.78", "203.0.113.77"
	internetDevice                = "kip-internet"

	onInternet = internetHost + ":8080"
)

// tellsSources answers a request with the address that it comes from.
var tellsSources = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, host)
})

// serve serves at a listener until the test ends.
func serve(t *testing.T, l net.Listener) {
	t.Helper()
	server := &http.Server{Handler: tellsSources, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// connectInternet has this machine route between the cells and a host that answers at onInternet.
func connectInternet(t *testing.T) {
	t.Helper()
	made := make(chan error, 1)
	var internet netns.NsHandle
	var listener net.Listener
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		here, err := netns.Get()
		if err == nil {
			defer here.Close()
			internet, err = netns.New()
		}
		if err == nil {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "eth0"
			err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: internetDevice, PeerNamespace: netlink.NsFd(int(here))})
		}
		if err == nil {
			err = bringUp("eth0", internetHost+"/30", net.ParseIP(internetGateway))
		}
		if err == nil {
			listener, err = net.Listen("tcp4", onInternet)
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { internet.Close() }) // and with it the devices, once nobody listens there
	serve(t, listener)
	if err := bringUp(internetDevice, internetGateway+"/30", nil); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{bridge, internetDevice} {
		file := "/proc/sys/net/ipv4/conf/" + device + "/forwarding"
		was, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte("1"), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(file, was, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		})
	}
}

// bringUp gives a device an address, and its namespace a default route if there is a gateway.
func bringUp(device, address string, gateway net.IP) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil || gateway == nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway})
}

// fetches returns the source that somebody sees whom a pod asks, "" where nothing comes through.
func (s *space) fetches(ctx context.Context, pod, from string) string {
	s.Helper()
	out, _, _ := s.Attempt(ctx, "exec", pod, "--", "timeout", "3", "wget", "-qO-", "http://"+from+"/")
	return strings.TrimSpace(out)
}

// reaches waits until a pod is seen as somebody, or as nobody.
func (s *space) reaches(pod, to, want string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%s sees pod %s as %q", to, pod, want), func(ctx context.Context) error {
		if got := s.fetches(ctx, pod, to); got != want {
			return fmt.Errorf("it sees %q", got)
		}
		return nil
	})
}

func TestAPodInAPublicSubnetReachesTheInternetAsItsCell(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	connectInternet(t)
	l, err := net.Listen("tcp4", ownNetwork.CIDR.Masked().Addr().Next().String()+":0") // this machine, on the bridge
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l)
	vpc := l.Addr().String()
	before := s.state(t.Context())

	s.Apply(pod("private", "{}"))
	private := s.WaitReady("private")
	s.reaches("private", vpc, private.Status.PodIP)
	if got := s.fetches(t.Context(), "private", onInternet); got != "" {
		t.Errorf("a private subnet without a NAT gateway: the internet sees %q", got)
	}

	restore := namespace.Reconfigure(t, world, func(provider map[string]any) {
		provider["cloud"].(map[string]any)["aws"].(map[string]any)["subnetID"] = machines.Subnets[1].ID // a public one
	})
	s.Apply(pod("public", "{}"))
	public := s.WaitReady("public")
	is := s.described(public)
	if is.Public == "" {
		t.Fatal("the cell has no public address")
	}
	if got := s.fetches(t.Context(), "public", onInternet); got != is.Public {
		t.Errorf("from its first moment the internet sees %q, want %s", got, is.Public)
	}
	s.reaches("public", vpc, public.Status.PodIP)

	off := namespace.Reconfigure(t, world, func(provider map[string]any) {
		provider["cells"].(map[string]any)["masquerade"] = false
	})
	s.reaches("public", onInternet, "")
	s.reaches("public", vpc, public.Status.PodIP)
	off()
	s.reaches("public", onInternet, is.Public)

	for _, name := range []string{"private", "public"} {
		s.Kubectl("delete", "pod", name, "--wait=false")
	}
	s.waitOver("private", before)
	s.waitOver("public", before)
	restore()
}
