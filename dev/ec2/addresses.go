package ec2

import (
	"cmp"

	"github.com/elotl/kip/internal/cloud"
)

const (
	// reservedAddresses are those of a subnet that no interface gets: the first four and the last.
	reservedAddresses = 5
	// blockAddresses are those of a /28, which is how an interface gets a prefix of IPv4.
	blockAddresses = 16
)

// addresses says whether a subnet has those that so many instances of a launch need: one each, and a
// second one or a /28, in one piece. The model refuses the whole of a call for which there are too few.
// As if EC2 gave single addresses closely: of a subnet in which instances come and go it has fewer
// blocks. It is called under supply.reserving. Source: Amazon VPC User Guide, "Subnet CIDR blocks"; EC2 User
// Guide, "Prefix delegation for Amazon EC2 network interfaces".
func (m *networks) addresses(l *launch, most int) error {
	if l.subnet.Bits == 0 {
		return nil
	}
	taken, all := m.takenIn(l.subnet.ID), 1<<(32-l.subnet.Bits)
	taken.add(l, most)
	switch {
	case l.prefix && taken.blocks+(taken.singles+blockAddresses-1)/blockAddresses > all/blockAddresses:
		return bad("InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.")
	case taken.all() > all:
		return bad("InsufficientFreeAddressesInSubnet", "There are not enough free addresses in subnet '%s' to satisfy the requested number of instances.",
			l.subnet.ID)
	}
	return nil
}

// taken are addresses of a subnet: those of blocks, and single ones.
type taken struct{ blocks, singles int }

func (t *taken) all() int { return t.blocks*blockAddresses + t.singles }

// add adds those of so many instances of a launch.
func (t *taken) add(l *launch, n int) {
	t.singles += n
	if l.secondary {
		t.singles += n
	}
	if l.prefix {
		t.blocks += n
	}
}

// takenIn are the addresses of a subnet that nobody else can have.
func (m *networks) takenIn(subnet string) taken {
	t := taken{singles: reservedAddresses}
	for _, i := range m.sim.Truth() {
		if of := m.launched.launchOf(i); of.subnet.ID == subnet && i.State != cloud.Terminating {
			t.add(of, 1)
		}
	}
	return t
}

// usualBits are those of a default subnet (Amazon VPC User Guide, "Default VPC components").
const usualBits = 20

// freeIn is how many addresses of a subnet are free. One of which the model bounds none tells of a /20.
func (m *networks) freeIn(s Subnet) int {
	t := m.takenIn(s.ID)
	return max(0, 1<<(32-cmp.Or(s.Bits, usualBits))-t.all())
}
