package host

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
)

func TestAddressesFollowFromTheSlot(t *testing.T) {
	for _, tc := range []struct {
		cidr                     string
		slot                     uint32
		gateway, management, pod string
	}{
		{"10.110.0.0/16", 2, "10.110.0.1", "10.110.0.2", "10.110.128.2"},
		{"10.110.0.0/16", 300, "10.110.0.1", "10.110.1.44", "10.110.129.44"},
		{"192.168.7.16/28", 6, "192.168.7.17", "192.168.7.22", "192.168.7.30"},
		{"10.0.0.0/8", 1<<23 - 2, "10.0.0.1", "10.127.255.254", "10.255.255.254"},
	} {
		n := network{netip.MustParsePrefix(tc.cidr)}
		got := []string{n.gateway().String(), n.management(tc.slot).String(), n.pod(tc.slot).String()}
		if want := []string{tc.gateway, tc.management, tc.pod}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s slot %d: %v, want %v", tc.cidr, tc.slot, got, want)
		}
	}
}

func TestSlotsAreAllGivenOutOnceBeforeOneIsReused(t *testing.T) {
	n := network{netip.MustParsePrefix("10.0.0.0/28")}
	used := map[uint32]bool{}
	isUsed := func(s uint32) bool { return used[s] }
	last := uint32(4)
	var order []uint32
	for {
		slot, err := n.free(false, isUsed, last)
		if errors.Is(err, errNoAddress) {
			break
		}
		if err != nil || used[slot] {
			t.Fatalf("slot %d given twice, or %v", slot, err)
		}
		used[slot], last = true, slot
		order = append(order, slot)
	}
	// Not 0 (network), 1 (host), 7 (its pod would have the broadcast address).
	if want := []uint32{5, 6, 2, 3, 4}; !reflect.DeepEqual(order, want) {
		t.Errorf("slots in order: %v, want %v", order, want)
	}
	delete(used, 3)
	if slot, err := n.free(false, isUsed, last); slot != 3 || err != nil {
		t.Errorf("slot %d, %v; want 3, the only free one", slot, err)
	}
}

func TestAGuestsAddressesAreNobodyElses(t *testing.T) {
	for cidr, want := range map[string]struct{ pods, first string }{
		"10.110.0.0/16":  {"10.110.248.0/21", "10.110.120.0"},
		"192.168.7.0/24": {"192.168.7.248/29", "192.168.7.120"},
	} {
		cfg := Config{StateDir: "/var/lib/kip", CIDR: netip.MustParsePrefix(cidr)}
		pods, err := cfg.GuestPods()
		if err != nil || pods.String() != want.pods {
			t.Errorf("%s: pods of a guest in %s, %v; want %s", cidr, pods, err, want.pods)
		}
		first, err := cfg.GuestAddress(0)
		if err != nil || first.String() != want.first {
			t.Errorf("%s: a guest's first machine has %s, %v; want %s", cidr, first, err, want.first)
		}
		// Every slot of the owner and of the guest, once.
		n := network{cfg.CIDR}
		seen := map[netip.Addr]bool{n.gateway(): true}
		for _, guest := range []bool{false, true} {
			used := map[uint32]bool{}
			last := uint32(0)
			for {
				slot, err := n.free(guest, func(s uint32) bool { return used[s] }, last)
				if err != nil {
					break
				}
				used[slot], last = true, slot
				if seen[n.management(slot)] || pods.Contains(n.management(slot)) || !cfg.CIDR.Contains(n.management(slot)) {
					t.Fatalf("%s: guest %t: slot %d has %s", cidr, guest, slot, n.management(slot))
				}
				seen[n.management(slot)] = true
				if !guest && pods.Contains(n.pod(slot)) {
					t.Fatalf("%s: the pod of slot %d has %s, which is a guest's", cidr, slot, n.pod(slot))
				}
			}
			if len(used) == 0 {
				t.Errorf("%s: guest %t: no address", cidr, guest)
			}
		}
	}
	small := Config{StateDir: "/var/lib/kip", CIDR: netip.MustParsePrefix("10.110.0.0/28")}
	if _, err := small.GuestPods(); err == nil {
		t.Error("16 addresses are enough for a guest's pods")
	}
	if _, err := small.GuestAddress(0); err == nil {
		t.Error("16 addresses are enough for a guest")
	}
}

func TestIPv6AddressesHaveThePlaceOfTheirFellows(t *testing.T) {
	cfg := Config{StateDir: "/var/lib/kip", CIDR: netip.MustParsePrefix("10.110.0.0/16"), IPv6CIDR: netip.MustParsePrefix("fd10:119::/64")}
	n := cfg.networkIPv6()
	for what, got := range map[string]netip.Addr{"fd10:119::1": n.gateway(), "fd10:119::12c": n.management(300),
		"fd10:119::812c": n.pod(300)} {
		if got.String() != what {
			t.Errorf("%s, want %s", got, what)
		}
	}
	guest, err := cfg.GuestAddressIPv6(0) // 10.110.120.0
	if err != nil || guest.String() != "fd10:119::7800" {
		t.Errorf("a guest's first machine has %s, %v", guest, err)
	}
	cfg.IPv6CIDR = netip.Prefix{}
	if guest, err := cfg.GuestAddressIPv6(0); err != nil || guest.IsValid() {
		t.Errorf("without IPv6 a guest's first machine has %s, %v", guest, err)
	}
}

func TestTheSlotOfAnAddress(t *testing.T) {
	n := network{netip.MustParsePrefix("10.110.0.0/16")}
	for _, tc := range []struct {
		address    string
		guest, has bool
	}{
		{"10.110.0.2", false, true}, {"10.110.119.254", false, true}, {"10.110.120.0", true, true},
		{"10.110.0.1", false, false},     // the host's
		{"10.110.120.0", false, false},   // a guest's
		{"10.110.0.2", true, false},      //
		{"10.110.128.2", false, false},   // a pod's
		{"10.109.255.255", false, false}, // of another network
		{"fd00::1", false, false},
	} {
		a := netip.MustParseAddr(tc.address)
		slot, has := n.slot(tc.guest, a)
		if has != tc.has || has && n.management(slot) != a {
			t.Errorf("%s, guest %t: slot %d, %t; want %t", a, tc.guest, slot, has, tc.has)
		}
	}
}
