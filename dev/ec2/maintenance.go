package ec2

import (
	"time"

	"github.com/elotl/kip/internal/cloud/sim"
)

// Maintenance is what EC2 has scheduled for an instance.
type Maintenance struct {
	Instance string
	// Code is EC2's, such as instance-retirement.
	Code string
	// NotBefore is when it begins.
	NotBefore time.Time
	// Over says that it was carried out, or called off.
	Over bool
}

// Maintain schedules some for an instance, in place of what was.
func (m *announcements) Maintain(of Maintenance) error {
	if err := m.model.MustLive(of.Instance); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.maintenance[of.Instance] = of
	return nil
}

type statusXML struct {
	Instance string     `xml:"instanceId"`
	Zone     string     `xml:"availabilityZone"`
	Events   []eventXML `xml:"eventsSet>item"`
}

type eventXML struct {
	Code        string `xml:"code"`
	Description string `xml:"description"`
	NotBefore   string `xml:"notBefore"`
}

// describeInstanceStatus shows what is scheduled for instances.
func (m *announcements) describeInstanceStatus(r *request) (any, error) {
	wanted := r.filters("event.code")
	if err := m.listing(r, sim.KindInterruptions); err != nil {
		return nil, err
	}
	instances := m.sim.Truth() // not under mu, which effects of calls take while the machines are locked
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []statusXML
	for _, i := range instances {
		of, scheduled := m.maintenance[i.ID]
		x := statusXML{Instance: i.ID, Zone: i.Zone}
		if scheduled {
			e := eventXML{Code: of.Code, Description: "The instance is running on degraded hardware", NotBefore: wireTime(of.NotBefore)}
			if of.Over {
				e.Description = "[Completed] " + e.Description
			}
			x.Events = []eventXML{e}
		}
		if wanted.match(func(name string) []string {
			if scheduled {
				return []string{of.Code}
			}
			return nil
		}) {
			all = append(all, x)
		}
	}
	return paged(r, "instanceStatusSet", m.cfg.PageSize, all, func(s statusXML) string { return s.Instance }), nil
}
