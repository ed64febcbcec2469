package hardware

import (
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/test/netlab"
)

// What must come through has until a hang is certain; what is dropped is never answered.
const (
	untilHang = 2 * time.Minute
	shortly   = 200 * time.Millisecond
)

// lab is a host with a bridge, an instance on it and a host of the internet, each a network namespace. The
// test's thread is in the host's.
type lab struct {
	*netlab.Lab
	instance, internet netns.NsHandle
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
	l := &lab{}
	l.Lab = netlab.New(t, &l.instance, &l.internet)
	l.Run("ip link add kip0 type bridge", "ip address add 10.5.0.1/16 dev kip0", "ip link set kip0 up")
	l.Wire("cable", l.instance)
	l.Wire("uplink", l.internet)
	l.Run("ip link set cable master kip0", "ip address add 203.0.113.1/24 dev uplink")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	l.Within(l.instance, func() {
		for _, a := range []string{primary, secondary, stranger} {
			l.Run("ip address add " + a + "/16 dev eth0")
		}
		l.Run("ip route add default via 10.5.0.1")
	})
	l.Within(l.internet, func() {
		l.Run("ip address add "+far+"/24 dev eth0", "ip route add default via 203.0.113.1")
	})
	return l
}

// sees returns whom the internet sees when the instance connects from one of its addresses; "" for nobody.
func (l *lab) sees(source string, within time.Duration) (seen string) {
	l.Helper()
	return l.Sees(l.instance, l.internet, source, far, within)
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
	g := openGateway(ctx, "kip0", []netip.Prefix{netip.MustParsePrefix("10.5.0.0/22"),
		netip.MustParsePrefix("10.5.128.0/18")}, slog.New(slog.NewTextHandler(l.Output(), nil)))
	l.expect("no instance", nil)
	out := cloudmodel.Outbound{Primary: netip.MustParseAddr(primary), Pods: netip.MustParsePrefix(secondary + "/28")}
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

// A table that is left would hold what passed of instances that are gone.
func TestATableThatMayBeLeftIsNoTableThatIsGone(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if err := closeGateway(t.Context(), "kip0"); err != nil {
		t.Errorf("a host without nft: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\necho no memory >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := closeGateway(t.Context(), "kip0"); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("nft fails: %v, want what it says", err)
	}
}
