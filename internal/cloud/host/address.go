package host

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
)

var errNoAddress = errors.New("every address of the network is in use")

// network is the plan of addresses in one CIDR. Slot n owns the n-th address
// of the lower half for management and the n-th of the upper half for its pod.
// Slots 0 (network) and 1 (the host) are never given out, and neither is the
// last one, whose pod address is the broadcast address. The last sixteenth of
// the slots is a guest's, and so are its pods' addresses.
type network struct{ cidr netip.Prefix }

func (n network) half() uint32    { return 1 << (31 - n.cidr.Bits()) }
func (n network) reserve() uint32 { return n.half() / 16 }

// slots are those that are given out, to a guest or else to the bridge's owner.
func (n network) slots(guest bool) (first, count uint32) {
	if guest {
		return n.half() - n.reserve(), max(n.reserve(), 1) - 1
	}
	return 2, n.half() - 2 - max(n.reserve(), 1)
}

func (n network) at(offset uint32) netip.Addr {
	base := n.cidr.Addr().As4()
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+offset)
	return netip.AddrFrom4(b)
}

func (n network) gateway() netip.Addr               { return n.at(1) }
func (n network) management(slot uint32) netip.Addr { return n.at(slot) }
func (n network) pod(slot uint32) netip.Addr        { return n.at(n.half() + slot) }

// slot is that of a management address, of a guest or else of the bridge's owner; false
// for an address that is not given out.
func (n network) slot(guest bool, management netip.Addr) (uint32, bool) {
	if !management.Is4() {
		return 0, false
	}
	own, base := management.As4(), n.cidr.Addr().As4()
	slot := binary.BigEndian.Uint32(own[:]) - binary.BigEndian.Uint32(base[:])
	first, count := n.slots(guest)
	return slot, slot >= first && slot-first < count
}

// free returns the first slot after last, going round, that is not used. An
// address is thus not given to a new machine right after an old one let it go.
func (n network) free(guest bool, used func(uint32) bool, last uint32) (uint32, error) {
	first, count := n.slots(guest)
	start := uint32(0)
	if last >= first && count > 0 {
		start = (last - first + 1) % count
	}
	for i := range count {
		if slot := first + (start+i)%count; !used(slot) {
			return slot, nil
		}
	}
	return 0, errNoAddress
}

// HardwareAddr derives a device's MAC from its IPv4 address (locally
// administered), so that neighbours' caches stay true when an address passes
// on to another machine.
func HardwareAddr(ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

// AddressOf is the address from which HardwareAddr has derived a MAC; false for another's.
func AddressOf(mac net.HardwareAddr) (netip.Addr, bool) {
	if len(mac) != 6 || mac[0] != 0x0a || mac[1] != 0x58 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(mac[2:])), true
}
