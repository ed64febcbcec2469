package sim

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// addressPlan gives each machine an offset in two networks.
type addressPlan struct {
	management, pod netip.Addr // the networks' own
	first, size     int        // offsets are from first to size
	reuse           bool
	taken           map[int]bool
	last            int
	freed           []int // where reuse is wanted
}

func newAddressPlan(management, pod netip.Prefix, reuse bool) (*addressPlan, error) {
	p := &addressPlan{
		management: management.Masked().Addr(),
		pod:        pod.Masked().Addr(),
		first:      1,
		reuse:      reuse,
		taken:      map[int]bool{},
	}
	bits := 24 // more offsets than any simulation needs
	for field, cidr := range map[string]netip.Prefix{"ManagementCIDR": management, "PodCIDR": pod} {
		if !cidr.Addr().Is4() || cidr.Bits() > 30 {
			return nil, fmt.Errorf("%s is %s: want an IPv4 network of /30 or larger", field, cidr)
		}
		bits = min(bits, 32-cidr.Bits())
	}
	p.size = 1<<bits - 2 // neither the network's own address nor the broadcast address
	return p, nil
}

func (p *addressPlan) free() int { return p.size - p.first + 1 - len(p.taken) }

// take returns an offset; there must be a free one.
func (p *addressPlan) take() int {
	if n := len(p.freed); n > 0 {
		slot := p.freed[n-1]
		p.freed = p.freed[:n-1]
		p.taken[slot] = true
		return slot
	}
	for {
		if p.last++; p.last > p.size {
			p.last = p.first
		}
		if !p.taken[p.last] {
			p.taken[p.last] = true
			return p.last
		}
	}
}

func (p *addressPlan) giveBack(slot int) {
	delete(p.taken, slot)
	if p.reuse {
		p.freed = append(p.freed, slot)
	}
}

func (p *addressPlan) at(slot int) (management, pod netip.Addr) {
	return plus(p.management, slot), plus(p.pod, slot)
}

func plus(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}
