// Package network owns the networks in which tests make machines. A process claims one and has it until it
// ends, so that packages and runs beside each other never meet. It makes no device and no machine.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/netdump"
)

// Kind is what makes the machines of a network. Each kind has networks of its own, since it alone knows how to
// remove what a killed run left in one.
type Kind struct {
	name string
	// first is the second byte of the IPv4 addresses of the first network, count how many networks there are.
	first, count int
}

// The networks of all kinds are within 10.64.0.0/11. Neither `make run`, `make bench` and `make conformance`
// (10.110 to 10.116) nor Services (10.96.0.0/12) have addresses there.
var (
	Worlds = Kind{"world", 64, 20} // of kip-dev, with a control plane
	Host   = Kind{"host", 84, 4}   // of the tests of internal/cloud/host
	Local  = Kind{"local", 88, 4}  // of the tests of internal/cloud/local
	QEMU   = Kind{"qemu", 92, 4}   // of the tests of internal/cloud/qemu
)

// ErrInUse says that a process which outlived its test still uses a network, and will end by itself.
var ErrInUse = errors.New("the network is in use")

// Network is what one user of the machine has for itself. Names that begin with Bridge are its own as well.
type Network struct {
	Slot           int    // its number among those of its kind
	Bridge         string // at most 11 characters, of the 15 that a network device can have
	CIDR, IPv6CIDR netip.Prefix
	State          string // folder of everything that is written
}

// Host is the address of this host on the bridge.
func (n Network) Host() netip.Addr { return n.CIDR.Addr().Next() }

// Clear removes what an earlier test left in the network, by destroy, and its state folder. At the end of the test it does so again, and
// leftovers must return nothing then.
func (n Network) Clear(t testing.TB, destroy func(context.Context) error, leftovers func(context.Context) ([]string, error)) {
	t.Helper()
	ctx := context.Background()
	if err := errors.Join(destroy(ctx), os.RemoveAll(n.State)); err != nil {
		t.Fatalf("clean up after an earlier test: %v", err)
	}
	t.Cleanup(func() {
		if err := destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
		left, err := leftovers(ctx)
		if err != nil || len(left) > 0 {
			t.Errorf("left over: %q, %v", left, err)
		}
		if err := os.RemoveAll(n.State); err != nil {
			t.Error(err)
		}
	})
}

// At returns the network with a number. Its state folder is named state and the number. It is for a process
// that the one which claimed the network starts.
func (k Kind) At(slot int, state string) Network {
	number := k.first + slot
	return Network{
		Slot:     slot,
		Bridge:   "kip" + k.name + strconv.Itoa(slot),
		CIDR:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(number)}), 16),
		IPv6CIDR: netip.MustParsePrefix(fmt.Sprintf("fd10:%d::/64", number)),
		State:    state + strconv.Itoa(slot),
	}
}

// Claim takes the first free network of the kind until this process ends. Its state folder is named state and
// the number of the network.
//
// Claim calls clean for each free network in which a run was: clean removes what that run left if it was
// killed, or returns ErrInUse. Its State is the folder of that run.
func (k Kind) Claim(state string, clean func(Network) error) (Network, error) {
	// A fixed folder, since two runs may have different folders for temporary files.
	return k.claim("/run/kip-networks", state, clean, routed)
}

func (k Kind) claim(locks, state string, clean func(Network) error, routed func(netip.Prefix) (bool, error)) (Network, error) {
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return Network{}, fmt.Errorf("claim a network of kind %s: %w", k.name, err)
	}
	var claimed *Network
	for slot := range k.count {
		n := k.At(slot, state)
		free, err := n.take(filepath.Join(locks, k.name+strconv.Itoa(slot)), claimed == nil, clean, routed)
		if err != nil {
			return Network{}, fmt.Errorf("claim network %s: %w", n.Bridge, err)
		}
		if free && claimed == nil {
			claimed = &n
		}
	}
	if claimed == nil {
		return Network{}, fmt.Errorf("claim a network of kind %s: other processes or routes of this host use all %d: %s and so on",
			k.name, k.count, k.At(0, state).CIDR)
	}
	return *claimed, nil
}

// take reports whether a network is free, after clean. It keeps the network if it is free and wanted.
func (n Network) take(lock string, wanted bool, clean func(Network) error, routed func(netip.Prefix) (bool, error)) (free bool, err error) {
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	kept := false
	defer func() {
		if !kept {
			f.Close()
		}
	}()
	// The kernel frees it when the process ends, however it ends.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("lock %s: %w", lock, err)
	}
	record, err := os.ReadFile(lock)
	if err != nil {
		return false, err
	}
	if state := strings.TrimSpace(string(record)); state != "" {
		earlier := n
		earlier.State = state
		if err := clean(earlier); errors.Is(err, ErrInUse) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("remove what an earlier run left in %s: %w", state, err)
		}
	}
	// Somebody else may have these addresses, such as a VPN.
	if taken, err := routed(n.CIDR); err != nil || taken || !wanted {
		return err == nil && !taken, err
	}
	// Before anything is made there, so that the next one finds it.
	if err := errors.Join(f.Truncate(0), writeAt(f, n.State+"\n")); err != nil {
		return false, fmt.Errorf("record who has %s: %w", lock, err)
	}
	held.Lock()
	held.locks, kept = append(held.locks, f), true
	held.Unlock()
	return true, nil
}

// held are the locks of this process. The garbage collector would close, and so free, what nobody refers to.
var held struct {
	sync.Mutex
	locks []*os.File
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// routed reports whether this host has a route, but for default ones, to a part of a network.
func routed(p netip.Prefix) (bool, error) {
	routes, err := netdump.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, unix.AF_INET) })
	if err != nil {
		return false, fmt.Errorf("list routes, to see whether %s is free: %w", p, err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if ok && bits > 0 && netip.PrefixFrom(addr.Unmap(), bits).Overlaps(p) {
			return true, nil
		}
	}
	return false, nil
}
