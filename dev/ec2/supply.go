package ec2

import (
	"cmp"
	"sync"
)

// supply is the room that launches take beside the machines' own.
type supply struct {
	networks     *networks
	reservations *reservations
	hosts        *hosts

	reserving sync.Mutex // holds one who looks for room in a reservation, on a host or in a subnet, and takes it
}

// hasRoom refuses a launch for which there is too little room in its reservation, on its host or in its subnet.
func (m *supply) hasRoom(l *launch, instanceType string, most int) error {
	return cmp.Or(m.reservations.reserve(l, instanceType, most), m.hosts.onto(l, instanceType, most), m.networks.addresses(l, most))
}

// takesRoom reports whether a launch takes room that another may take at the same time.
func (l *launch) takesRoom() bool { return l.reservation+l.host != "" || l.subnet.Bits > 0 }
