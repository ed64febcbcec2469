package network

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// locksVariable has this binary claim a network in that folder, say which, and wait for its end.
const locksVariable = "KIP_NETWORK_TEST_LOCKS"

var testKind = Kind{"test", 64, 3}

func nothingLeft(Network) error { return nil }

func noRoute(netip.Prefix) (bool, error) { return false, nil }

func TestMain(m *testing.M) {
	locks := os.Getenv(locksVariable)
	if locks == "" {
		os.Exit(m.Run())
	}
	n, err := testKind.claim(locks, "/killed", nothingLeft, noRoute)
	fmt.Println(n.Bridge, err)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// claimant is a process that has claimed a network.
func claimant(t *testing.T, locks string) (said string, kill func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), locksVariable+"="+locks)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if said, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(said), func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // says that it was killed
	}
}

func TestClaimsNeverMeet(t *testing.T) {
	locks := filepath.Join(t.TempDir(), "locks")
	other, kill := claimant(t, locks)
	defer kill()
	if other != "kiptest0 <nil>" {
		t.Fatalf("the first has %s", other)
	}
	for _, want := range []string{"kiptest1", "kiptest2"} {
		n, err := testKind.claim(locks, "/state", func(n Network) error { return fmt.Errorf("%s is cleaned", n.Bridge) }, noRoute)
		if err != nil || n.Bridge != want || n.State != "/state"+strings.TrimPrefix(want, "kiptest") {
			t.Errorf("%+v, %v; want %s", n, err, want)
		}
	}
	if n, err := testKind.claim(locks, "/state", nothingLeft, noRoute); err == nil || !strings.Contains(err.Error(), "use all 3") {
		t.Errorf("a fourth of three: %+v, %v", n, err)
	}
}

func TestTheNextClaimCleansWhatKilledOnesLeft(t *testing.T) {
	locks := t.TempDir()
	first, killFirst := claimant(t, locks)
	second, killSecond := claimant(t, locks)
	if first != "kiptest0 <nil>" || second != "kiptest1 <nil>" {
		t.Fatalf("they have %s and %s", first, second)
	}
	killFirst()
	killSecond()

	broken := errors.New("broken")
	if _, err := testKind.claim(locks, "/next", func(Network) error { return broken }, noRoute); !errors.Is(err, broken) {
		t.Errorf("what cannot be cleaned: %v", err)
	}
	var cleaned []string
	clean := func(n Network) error {
		cleaned = append(cleaned, n.Bridge+" "+n.State)
		if n.Bridge == "kiptest0" {
			return fmt.Errorf("%w by a child", ErrInUse)
		}
		return nil
	}
	n, err := testKind.claim(locks, "/next", clean, noRoute)
	if err != nil || n.Bridge != "kiptest1" {
		t.Errorf("beside one that still ends: %+v, %v", n, err)
	}
	if want := []string{"kiptest0 /killed0", "kiptest1 /killed1"}; !slices.Equal(cleaned, want) {
		t.Errorf("cleaned %q, want %q", cleaned, want)
	}
	// It is claimed, but the first is free again.
	if n, err = testKind.claim(locks, "/next", nothingLeft, noRoute); err != nil || n.Bridge != "kiptest0" || n.State != "/next0" {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestAClaimCleansAlsoWhatItDoesNotTake(t *testing.T) {
	locks := t.TempDir()
	_, killFirst := claimant(t, locks)
	_, killSecond := claimant(t, locks)
	killSecond()
	killFirst()
	var cleaned []string
	clean := func(n Network) error { cleaned = append(cleaned, n.Bridge); return nil }
	if n, err := testKind.claim(locks, "/next", clean, noRoute); err != nil || n.Bridge != "kiptest0" {
		t.Errorf("%+v, %v", n, err)
	}
	if want := []string{"kiptest0", "kiptest1"}; !slices.Equal(cleaned, want) {
		t.Errorf("cleaned %q, want %q", cleaned, want)
	}
}

func TestNetworksThatTheHostReachesAreLeftAlone(t *testing.T) {
	first := func(p netip.Prefix) (bool, error) { return p == testKind.At(0, "").CIDR, nil }
	if n, err := testKind.claim(t.TempDir(), "", nothingLeft, first); err != nil || n.Slot != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	if got, err := routed(netip.MustParsePrefix("255.255.255.255/32")); got || err != nil {
		t.Errorf("an address that no route leads to: %v, %v", got, err)
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Flags&net.FlagUp == 0 || l.Flags&net.FlagLoopback != 0 {
			continue
		}
		gone := func() bool { // one of another run's
			_, err := net.InterfaceByName(l.Name)
			return err != nil
		}
		addresses, err := l.Addrs()
		if err != nil {
			if gone() {
				continue
			}
			t.Fatal(err)
		}
		for _, a := range addresses {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() || p.IsSingleIP() {
				continue
			}
			if got, err := routed(p); (!got || err != nil) && !gone() {
				t.Errorf("%s of this host: %v, %v", p, got, err)
			}
		}
	}
}

func TestNoNetworkOverlapsAnother(t *testing.T) {
	all := map[string]netip.Prefix{
		"Services":              netip.MustParsePrefix("10.96.0.0/12"),
		"bench and conformance": netip.MustParsePrefix("10.112.0.0/12"),
	}
	for _, k := range []Kind{Worlds, Host, Local, QEMU} {
		for slot := range k.count {
			n := k.At(slot, "")
			if len(n.Bridge) > 11 || n.IPv6CIDR.Bits() != 64 || n.Host() != n.CIDR.Addr().Next() {
				t.Errorf("%+v", n)
			}
			for who, has := range all {
				if has.Overlaps(n.CIDR) || has.Overlaps(n.IPv6CIDR) {
					t.Errorf("%s overlaps %s of %s", n.Bridge, has, who)
				}
			}
			all[n.Bridge], all[n.Bridge+" by IPv6"] = n.CIDR, n.IPv6CIDR
		}
	}
}
