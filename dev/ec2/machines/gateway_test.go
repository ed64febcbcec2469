package machines

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/elotl/kip/dev/ec2"
)

// What must come through has until a hang is certain; what is dropped is never answered.
const (
	untilHang = 2 * time.Minute
	shortly   = 200 * time.Millisecond
)

// lab is a host with a bridge, an instance on it and a host of the internet, each a network namespace. The
// test's thread is in the host's.
type lab struct {
	*testing.T
	host, instance, internet netns.NsHandle
}

// The instance's primary and secondary address, another one's, and the internet's.
const primary, secondary, stranger, far = "10.5.0.2", "10.5.128.16", "10.5.0.3", "203.0.113.80"

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed")
	}
	runtime.LockOSThread() // and never unlocked, so that the thread ends with the test
	l := &lab{T: t}
	for _, ns := range []*netns.NsHandle{&l.instance, &l.internet, &l.host} { // the thread stays in the last
		var err error
		if *ns, err = netns.New(); err != nil {
			t.Skipf("no network namespaces here: %v", err)
		}
		t.Cleanup(func() { ns.Close() })
	}
	l.run("ip link set lo up", "ip link add kip0 type bridge", "ip address add 10.5.0.1/16 dev kip0", "ip link set kip0 up")
	l.wire("cable", l.instance)
	l.wire("uplink", l.internet)
	l.run("ip link set cable master kip0", "ip address add 203.0.113.1/24 dev uplink")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	l.within(l.instance, func() {
		for _, a := range []string{primary, secondary, stranger} {
			l.run("ip address add " + a + "/16 dev eth0")
		}
		l.run("ip route add default via 10.5.0.1")
	})
	l.within(l.internet, func() {
		l.run("ip address add "+far+"/24 dev eth0", "ip route add default via 203.0.113.1")
	})
	return l
}

func (l *lab) run(commands ...string) {
	l.Helper()
	for _, command := range commands {
		args := strings.Fields(command)
		if out, err := exec.CommandContext(l.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			l.Fatalf("%s: %v: %s", command, err, out)
		}
	}
}

func (l *lab) within(ns netns.NsHandle, f func()) {
	l.Helper()
	if err := netns.Set(ns); err != nil {
		l.Fatal(err)
	}
	defer func() {
		if err := netns.Set(l.host); err != nil {
			l.Fatal(err)
		}
	}()
	f()
}

// wire connects the host with a namespace, where the device is eth0.
func (l *lab) wire(device string, there netns.NsHandle) {
	l.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = device
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(there))}); err != nil {
		l.Fatal(err)
	}
	l.run("ip link set " + device + " up")
	l.within(there, func() { l.run("ip link set lo up", "ip link set eth0 up") })
}

// sees returns whom the internet sees when the instance connects from one of its addresses; "" for nobody.
func (l *lab) sees(source string, within time.Duration) (seen string) {
	l.Helper()
	var server net.Listener
	l.within(l.internet, func() {
		var err error
		if server, err = net.Listen("tcp4", far+":0"); err != nil {
			l.Fatal(err)
		}
	})
	defer server.Close()
	l.within(l.instance, func() {
		d := net.Dialer{Timeout: within, LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		c, err := d.DialContext(l.Context(), "tcp4", server.Addr().String())
		if err != nil {
			return
		}
		defer c.Close()
		there, err := server.Accept()
		if err != nil {
			l.Fatal(err)
		}
		defer there.Close()
		seen = there.RemoteAddr().(*net.TCPAddr).IP.String()
	})
	return seen
}

func (l *lab) expect(state string, want map[string]string) {
	l.Helper()
	for _, source := range []string{primary, secondary, stranger} {
		within := untilHang
		if want[source] == "" {
			within = shortly
		}
		if got := l.sees(source, within); got != want[source] {
			l.Errorf("%s: from %s the internet sees %q, want %q", state, source, got, want[source])
		}
	}
}

func TestTheInternetGatewayKnowsPrimaryAddressesAlone(t *testing.T) {
	l := newLab(t)
	all := map[string]string{primary: primary, secondary: secondary, stranger: stranger}
	l.expect("no gateway, so that what is dropped below is dropped by it", all)
	ctx := t.Context()
	g := openGateway(ctx, "kip0", []netip.Prefix{managementNetwork(netip.MustParsePrefix("10.5.0.0/16")),
		podNetwork(netip.MustParsePrefix("10.5.0.0/16"))}, slog.New(slog.NewTextHandler(l.Output(), nil)))
	l.expect("no instance", nil)
	out := ec2.Outbound{Primary: netip.MustParseAddr(primary), Pods: netip.MustParsePrefix(secondary + "/28")}
	g.plug(ctx, out)
	l.expect("a private subnet", nil)

	public := out
	public.Public = netip.MustParseAddr("198.5.0.2")
	for range 2 { // an instance that is started again
		g.plug(ctx, public)
	}
	l.expect("a public address", map[string]string{primary: "198.5.0.2"})
	g.unplug(ctx, public)
	l.expect("it has ended", nil)

	behind := out
	behind.NAT = true
	g.plug(ctx, behind)
	l.expect("a private subnet with a NAT gateway", map[string]string{primary: primary, secondary: secondary})
	g.unplug(ctx, behind)
	for range 2 {
		if err := closeGateway(ctx, "kip0"); err != nil {
			t.Fatal(err)
		}
	}
	l.expect("no gateway any more", all)
}
