package ec2

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Credits are the CPU credits of a burstable instance.
type Credits struct {
	// Option is standard or unlimited.
	Option string
	// Start is how many credits it has when it starts, each a minute of a vCPU. With standard ones T2 has thirty a vCPU, and
	// T3, T3a and T4g have none: they start at their baseline. Source: EC2 User Guide, "Standard mode concepts for
	// burstable performance instances", "Launch credits".
	Start int64
	// Charged is for how long it was unlimited, of whose surplus EC2 charges. It does so when an instance is changed from
	// unlimited to standard, and when it ends. Source: EC2 User Guide, "Unlimited mode concepts for burstable performance
	// instances", "When unlimited mode can incur charges".
	Charged time.Duration
}

// creditsNow is what has become of an instance's credits since its launch.
type creditsNow struct {
	option  string
	since   time.Time
	charged time.Duration
}

// optionOf returns the credits that a launch of a type asks for, or has by itself. Source: EC2 API reference,
// "RunInstances", CreditSpecification.
func optionOf(instanceType, asked string) string {
	switch {
	case !burstable(instanceType):
		return ""
	case strings.HasPrefix(instanceType, "t2."):
		return cmp.Or(asked, "standard")
	}
	return cmp.Or(asked, "unlimited")
}

// burstable reports whether a type has CPU credits.
func burstable(instanceType string) bool {
	family, _, _ := strings.Cut(instanceType, ".")
	return slices.Contains([]string{"t2", "t3", "t3a", "t4g"}, family)
}

// credits are the CPU credits of instances.
type credits struct {
	*base
	launched *launched

	changed map[string]creditsNow // by instance
}

// Of returns the credits of an instance; zero for one without.
func (m *credits) Of(i sim.Instance) Credits {
	l := m.launched.launchOf(i)
	if l.credits == "" {
		return Credits{}
	}
	m.mu.Lock()
	is, changed := m.changed[i.ID]
	m.mu.Unlock()
	if !changed {
		is = creditsNow{option: l.credits, since: i.Launched}
	}
	c := Credits{Option: is.option, Charged: is.charged}
	if is.option == "unlimited" {
		end := i.Ended
		if end.IsZero() {
			end = m.model.Now()
		}
		c.Charged += end.Sub(is.since)
	}
	if strings.HasPrefix(i.InstanceType, "t2.") && l.credits == "standard" {
		c.Start = 30 * m.vCPUs(i.InstanceType)
	}
	return c
}

type creditItemXML struct {
	ID    string          `xml:"instanceId"`
	Error *creditErrorXML `xml:"error"`
}

type creditErrorXML struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

type modifyCreditsXML struct {
	RequestID string          `xml:"requestId"`
	Done      []creditItemXML `xml:"successfulInstanceCreditSpecificationSet>item"`
	Failed    []creditItemXML `xml:"unsuccessfulInstanceCreditSpecificationSet>item"`
}

// modifyInstanceCreditSpecification changes the credits of instances, one by one: it says of each whether it did. Codes:
// EC2 API reference, "UnsuccessfulInstanceCreditSpecificationItemError". That it takes running and stopped instances
// alone is said of the action itself.
func (m *credits) modifyInstanceCreditSpecification(r *request) (any, error) {
	r.text("ClientToken")
	var ids, options []string
	for _, one := range r.each("InstanceCreditSpecification") {
		ids, options = append(ids, one.text("InstanceId")), append(options, oneOf(one, "CpuCredits", "standard", "unlimited"))
	}
	if len(ids) == 0 {
		r.bad("MissingParameter", "The request must contain the parameter InstanceCreditSpecification")
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := m.may(r, "ec2:"+r.action, m.arn("instance/"+id), tagged("ResourceTag", m.model.TagsOf(id))); err != nil {
			return nil, err
		}
	}
	answer := modifyCreditsXML{RequestID: requestID}
	unknown, all := m.model.Unknown(ids...), m.sim.Truth()
	err := m.sim.Take(r.ctx, sim.Call{Kind: cloud.CallEndBoost, IDs: ids}, func() error {
		for n, id := range ids {
			at := slices.IndexFunc(all, func(i sim.Instance) bool { return i.ID == id })
			if at < 0 || slices.Contains(unknown, id) {
				answer.Failed = append(answer.Failed, creditItemXML{id, &creditErrorXML{"InvalidInstanceID.NotFound",
					"The instance ID '" + id + "' does not exist"}})
				continue
			}
			if no := m.changeCredits(all[at], options[n]); no != nil {
				answer.Failed = append(answer.Failed, creditItemXML{id, no})
				continue
			}
			answer.Done = append(answer.Done, creditItemXML{ID: id})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// changeCredits changes those of one instance, or returns why not.
func (m *credits) changeCredits(i sim.Instance, option string) *creditErrorXML {
	was, l := m.Of(i), m.launched.launchOf(i)
	switch {
	case was.Option == "":
		return &creditErrorXML{"InstanceCreditSpecification.NotSupported", "The instance type " + i.InstanceType + " has no CPU credits"}
	case option == "unlimited" && l.host != "":
		return &creditErrorXML{"InstanceCreditSpecification.NotSupported", "T3 instances with host tenancy do not support unlimited"}
	case i.State != cloud.Running && i.State != cloud.Stopped:
		return &creditErrorXML{"IncorrectInstanceState", "The instance " + i.ID + " is neither running nor stopped"}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed[i.ID] = creditsNow{cmp.Or(option, was.Option), m.model.Now(), was.Charged}
	return nil
}
