package ec2

import (
	"fmt"
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
func (m *Model) Maintain(of Maintenance) error {
	if err := m.MustLive(of.Instance); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.maintenance[of.Instance] = of
	return nil
}

// Check is one of EC2's checks of an instance that is running.
type Check string

// The checks, as filters name them (EC2 API reference, "DescribeInstanceStatus").
const (
	CheckInstance Check = "instance-status.status"
	CheckSystem   Check = "system-status.status"
)

// Impairment has an instance fail one of them.
type Impairment struct {
	Instance string
	Check    Check // it passes both with ""
}

// impair does what an order says.
func (m *Model) impair(i Impairment) error {
	if i.Check != "" && i.Check != CheckInstance && i.Check != CheckSystem {
		return fmt.Errorf("the field Check is %q: want %s, %s, or none", i.Check, CheckInstance, CheckSystem)
	}
	if err := m.MustLive(i.Instance); err != nil {
		return err
	}
	m.Impair(i.Instance, i.Check)
	return nil
}

// Impair has an instance fail a check; it passes both with "".
func (m *Model) Impair(instance string, fails Check) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.impaired[instance] = fails
}

type statusXML struct {
	Instance       string     `xml:"instanceId"`
	Zone           string     `xml:"availabilityZone"`
	Events         []eventXML `xml:"eventsSet>item"`
	InstanceStatus string     `xml:"instanceStatus>status"`
	SystemStatus   string     `xml:"systemStatus>status"`
}

// checked is what a check says.
func (m *Model) checked(instance string, by Check) string {
	if m.impaired[instance] == by {
		return "impaired"
	}
	return "ok"
}

type eventXML struct {
	Code        string `xml:"code"`
	Description string `xml:"description"`
	NotBefore   string `xml:"notBefore"`
}

// describeInstanceStatus shows what is scheduled for instances, and which checks they pass.
func (m *Model) describeInstanceStatus(r *request) (any, error) {
	wanted := r.filters("event.code", string(CheckInstance), string(CheckSystem))
	if err := m.listing(r, sim.KindInterruptions); err != nil {
		return nil, err
	}
	instances := m.sim.Truth() // not under mu, which effects of calls take while the machines are locked
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []statusXML
	for _, i := range instances {
		of, scheduled := m.maintenance[i.ID]
		x := statusXML{
			Instance:       i.ID,
			Zone:           i.Zone,
			InstanceStatus: m.checked(i.ID, CheckInstance),
			SystemStatus:   m.checked(i.ID, CheckSystem),
		}
		if scheduled {
			e := eventXML{Code: of.Code, Description: "The instance is running on degraded hardware", NotBefore: wireTime(of.NotBefore)}
			if of.Over {
				e.Description = "[Completed] " + e.Description
			}
			x.Events = []eventXML{e}
		}
		if wanted.match(func(name string) []string {
			if check := Check(name); check == CheckInstance || check == CheckSystem {
				return []string{m.checked(i.ID, check)}
			}
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
