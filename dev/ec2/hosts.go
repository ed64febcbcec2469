package ec2

import (
	"cmp"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/cloud"
)

// Host is a Dedicated Host of the account.
type Host struct {
	ID, Zone string
	// Family is of which it takes all types, such as c5; Type the one type that it takes.
	Family, Type string
	VCPUs        int64  // of all its instances together
	State        string // available when empty
	Group        bool   // it is in a host resource group
	Tags         map[string]string
}

type hostXML struct {
	ID       string        `xml:"hostId"`
	Owner    string        `xml:"ownerId"`
	Zone     string        `xml:"availabilityZone"`
	State    string        `xml:"state"`
	Family   string        `xml:"hostProperties>instanceFamily,omitempty"`
	Type     string        `xml:"hostProperties>instanceType,omitempty"`
	VCPUs    int64         `xml:"hostProperties>totalVCpus"`
	Multiple string        `xml:"allowsMultipleInstanceTypes"`
	Group    bool          `xml:"memberOfServiceLinkedResourceGroup"`
	Free     int64         `xml:"availableCapacity>availableVCpus"`
	Room     []hostRoomXML `xml:"availableCapacity>availableInstanceCapacity>item"`
	Tags     []tagXML      `xml:"tagSet>item"`
}

type hostRoomXML struct {
	Type  string `xml:"instanceType"`
	Free  int64  `xml:"availableCapacity"`
	Total int64  `xml:"totalCapacity"`
}

// hosts are the Dedicated Hosts.
type hosts struct {
	*base
	launched *launched

	all []Host
}

func (m *hosts) describeHosts(r *request) (any, error) {
	most := r.number("MaxResults")
	if r.has("MaxResults") && (most < 5 || most > 500) {
		r.bad("InvalidParameterValue", "Value (%d) for parameter maxResults is invalid. Expecting a value from 5 to 500.", most)
	}
	if err := m.one(r); err != nil {
		return nil, err
	}
	var all []hostXML
	for _, h := range m.All() {
		x := hostXML{
			ID:       h.ID,
			Owner:    m.cfg.Account,
			Zone:     h.Zone,
			State:    cmp.Or(h.State, "available"),
			Family:   h.Family,
			Type:     h.Type,
			VCPUs:    h.VCPUs,
			Multiple: "off",
			Group:    h.Group,
			Free:     m.freeOn(h),
			Tags:     tagSet(h.Tags),
		}
		if h.Family != "" {
			x.Multiple = "on"
		}
		for _, t := range m.cfg.Sim.Catalogue {
			if h.takes(t.Name) {
				x.Room = append(x.Room, hostRoomXML{t.Name, x.Free * 1000 / t.MilliCPU, h.VCPUs * 1000 / t.MilliCPU})
			}
		}
		all = append(all, x)
	}
	return paged(r, "hostSet", m.cfg.PageSize, all, func(x hostXML) string { return x.ID }), nil
}

// All are those that there are.
func (m *hosts) All() []Host {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

func (h Host) takes(instanceType string) bool {
	family, _, _ := strings.Cut(instanceType, ".")
	return instanceType == h.Type || family == h.Family
}

// freeOn is for how many vCPUs more a host has room.
func (m *hosts) freeOn(h Host) int64 {
	free := h.VCPUs
	for _, i := range m.sim.Truth() {
		if i.State != cloud.Stopped && m.launched.launchOf(i).host == h.ID {
			free -= m.vCPUs(i.InstanceType)
		}
	}
	return max(0, free)
}

// onto says whether so many instances can be launched onto the host of a launch. EC2 refuses the whole
// of a call for which it has too little room. It is called under supply.reserving.
func (m *hosts) onto(l *launch, kind string, most int) error {
	if l.host == "" {
		return nil
	}
	all := m.All()
	n := slices.IndexFunc(all, func(h Host) bool { return h.ID == l.host })
	if n < 0 {
		return bad("InvalidHostID.NotFound", "The host ID '%s' does not exist", l.host)
	}
	switch h := all[n]; {
	case cmp.Or(h.State, "available") != "available":
		return bad("InvalidHostState", "The Dedicated Host %s is %s: it must be in the available state", h.ID, h.State)
	case !h.takes(kind) || h.Zone != l.subnet.Zone:
		return bad("InvalidParameterValue", "The instance's type or zone do not match those of Dedicated Host %s: %s%s in %s", h.ID, h.Family,
			h.Type, h.Zone)
	case m.freeOn(h) < int64(most)*m.vCPUs(kind):
		return bad("InsufficientCapacityOnHost", "There is not enough capacity on the Dedicated Host to launch or start the instance.")
	}
	return nil
}
