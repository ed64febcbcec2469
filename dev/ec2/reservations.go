package ec2

import (
	"cmp"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// Reservation is capacity that the account has reserved.
type Reservation struct {
	ID, Type, Zone string
	// Total is for how many instances there is room.
	Total     int
	Dedicated bool
	// Block says that it is a Capacity Block, and End when that ends.
	Block bool
	End   time.Time
	// State is active when empty, Platform Linux/UNIX.
	State, Platform string
	Tags            map[string]string
}

type reservedXML struct {
	ID        string   `xml:"capacityReservationId"`
	Owner     string   `xml:"ownerId"`
	Type      string   `xml:"instanceType"`
	Platform  string   `xml:"instancePlatform"`
	Zone      string   `xml:"availabilityZone"`
	Tenancy   string   `xml:"tenancy"`
	Total     int      `xml:"totalInstanceCount"`
	Available int      `xml:"availableInstanceCount"`
	State     string   `xml:"state"`
	EndType   string   `xml:"endDateType"`
	End       string   `xml:"endDate,omitempty"`
	Criteria  string   `xml:"instanceMatchCriteria"`
	Kind      string   `xml:"reservationType"`
	Tags      []tagXML `xml:"tagSet>item"`
}

// reservations are those of capacity.
type reservations struct {
	*base
	launched *launched

	all []Reservation
}

func (m *reservations) describeCapacityReservations(r *request) (any, error) {
	wanted := r.filters("state")
	if err := m.one(r); err != nil {
		return nil, err
	}
	var all []reservedXML
	for _, one := range m.All() {
		x := reservedXML{
			ID:        one.ID,
			Owner:     m.cfg.Account,
			Type:      one.Type,
			Platform:  cmp.Or(one.Platform, "Linux/UNIX"),
			Zone:      one.Zone,
			Tenancy:   one.tenancy(),
			Total:     one.Total,
			Available: m.vacant(one),
			State:     one.stateAt(m.model.Now()),
			EndType:   "unlimited",
			Criteria:  "targeted",
			Kind:      "default",
			Tags:      tagSet(one.Tags),
		}
		if one.Block {
			x.Kind = "capacity-block"
		}
		if !one.End.IsZero() {
			x.EndType, x.End = "limited", wireTime(one.End)
		}
		if wanted.match(func(string) []string { return []string{x.State} }) {
			all = append(all, x)
		}
	}
	return paged(r, "capacityReservationSet", m.cfg.PageSize, all, func(x reservedXML) string { return x.ID }), nil
}

// All are those that there are.
func (m *reservations) All() []Reservation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

func (r Reservation) tenancy() string {
	if r.Dedicated {
		return "dedicated"
	}
	return "default"
}

// stateAt is what EC2 says of it then: one whose time is over has expired.
func (r Reservation) stateAt(now time.Time) string {
	if !r.End.IsZero() && !now.Before(r.End) {
		return "expired"
	}
	return cmp.Or(r.State, "active")
}

// vacant is for how many instances more a reservation has room.
func (m *reservations) vacant(r Reservation) int {
	free := r.Total
	for _, i := range m.sim.Truth() {
		if i.State != cloud.Stopped && m.launched.launchOf(i).reservation == r.ID {
			free--
		}
	}
	return max(0, free)
}

// capacity is what a launch says of reservations: that into which it is, and whether as into a
// Capacity Block. Of EC2's preferences, and of groups of reservations, the model knows none.
func capacity(f *form, capacityType string) (reservation string, block bool) {
	target := f.at("CapacityReservationSpecification").at("CapacityReservationTarget")
	id := target.text("CapacityReservationId")
	switch block = capacityType == "capacity-block"; {
	case id != "" && capacityType == "spot":
		f.bad("InvalidParameterCombination", "A Capacity Reservation cannot be targeted by a Spot request")
	case id == "" && block:
		f.bad("InvalidParameterCombination", "The market type capacity-block needs the ID of a Capacity Block")
	}
	return id, block
}

// reserve says whether so many instances can be launched into the reservation of a launch. EC2
// refuses the whole of a call for which there is too little room. It is called under supply.reserving.
func (m *reservations) reserve(l *launch, kind string, most int) error {
	if l.reservation == "" {
		return nil
	}
	all := m.All()
	n := slices.IndexFunc(all, func(r Reservation) bool { return r.ID == l.reservation })
	if n < 0 {
		return bad("InvalidCapacityReservationId.NotFound", "The capacity reservation ID '%s' does not exist", l.reservation)
	}
	r := all[n]
	switch {
	case r.Type != kind || r.Zone != l.subnet.Zone || r.tenancy() != l.tenancy:
		return bad("InvalidParameterValue", "The instance's attributes do not match those of Capacity Reservation %s: %s in %s, tenancy %s",
			r.ID, r.Type, r.Zone, r.tenancy())
	case r.Block != l.block:
		return bad("InvalidParameterCombination", "The market type capacity-block is that of Capacity Blocks, and theirs alone")
	case r.stateAt(m.model.Now()) != "active" || m.vacant(r) < most || r.Block && !m.model.Now().Before(r.End.Add(-blockNotice)):
		return bad("ReservationCapacityExceeded", "The targeted Capacity Reservation does not have enough available instance capacity "+
			"to fulfill your request")
	}
	return nil
}

// blockNotice is how long before the end of a Capacity Block EC2 begins to terminate its instances.
const blockNotice = 30 * time.Minute

// endBlocks ends the instances of Capacity Blocks whose time has come. It is called before each call is
// answered: whoever looks sees it.
func (m *reservations) endBlocks() {
	var over []string
	for _, r := range m.All() {
		if !r.Block || m.model.Now().Before(r.End.Add(-blockNotice)) {
			continue
		}
		for _, i := range m.sim.Truth() {
			if i.Ended.IsZero() && m.launched.launchOf(i).reservation == r.ID {
				over = append(over, i.ID)
			}
		}
	}
	// One that has ended meanwhile is no fault.
	_ = m.sim.Interrupter.Vanish(over...)
}

// poolOf is the sim's of a launch: reserved capacity, and that of a host, does not run out with that of others.
func poolOf(l *launch, capacityType cloud.CapacityType) (cloud.CapacityType, string) {
	if l.tenancy != "default" && capacityType == cloud.OnDemand {
		capacityType = cloud.Dedicated
	}
	return capacityType, cmp.Or(l.reservation, l.host)
}
