package ec2

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// instances are the machines in EC2's words.
type instances struct {
	*base
	launched *launched
	volumes  *volumes

	reasons map[string]StateReason // of ends that the model was told, by instance
}

// Fail ends instances by itself for a reason, as EC2 does with those that it cannot start
// after all.
func (m *instances) Fail(why StateReason, ids ...string) error {
	m.mu.Lock()
	for _, id := range ids {
		m.reasons[id] = why
	}
	m.mu.Unlock()
	return m.sim.Interrupter.Vanish(ids...)
}

// reasonOf is why one has ended.
func (m *instances) reasonOf(i sim.Instance) *StateReason {
	m.mu.Lock()
	defer m.mu.Unlock()
	if why, ok := m.reasons[i.ID]; ok {
		return &why
	}
	code := map[sim.Cause]string{
		sim.Interrupted: "Server.SpotInstanceTermination",
		sim.Vanished:    "Server.InternalError",
	}[i.Cause]
	if code == "" {
		code = "Client.UserInitiatedShutdown"
	}
	return &StateReason{code, code + ": of the model"}
}

type describeInstancesXML struct {
	RequestID    string           `xml:"requestId"`
	Reservations []reservationXML `xml:"reservationSet>item"`
	NextToken    string           `xml:"nextToken,omitempty"`
}

// shownFor is how long EC2 shows an instance that has ended: about an hour.
const shownFor = time.Hour

func (m *instances) describeInstances(r *request) (any, error) {
	ids := r.texts("InstanceId")
	wanted := r.filters("tag:", "tag-key", "instance-id", "instance-state-name", "client-token", "availability-zone", "subnet-id",
		"vpc-id", "instance-type", "image-id", "capacity-reservation-id")
	r.unpaged(ids, "instancesSet")
	r.number("MaxResults")
	r.text("NextToken")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.may(r, "ec2:DescribeInstances", "*", nil); err != nil {
		return nil, err
	}
	// A description of some instances has a kind of its own, for faults and for bounds.
	kind := sim.KindList
	if len(ids) > 0 || wanted["instance-id"] != nil {
		kind = sim.KindDescribe
	}
	shown, err := m.sim.Shown(r.ctx, sim.Call{Kind: kind, IDs: ids})
	if err != nil {
		return nil, err
	}
	if err := m.disrupted(ids, shown); err != nil {
		return nil, err
	}
	if unknown := m.model.Unknown(ids...); len(unknown) > 0 {
		return nil, notFound(unknown)
	}
	now := m.model.Now()
	shown = slices.DeleteFunc(shown, func(i sim.Instance) bool {
		if len(ids) > 0 && !slices.Contains(ids, i.ID) || !i.Ended.IsZero() && now.Sub(i.Ended) > shownFor {
			return true
		}
		x := m.instance(i)
		shown := wanted.match(func(name string) []string {
			switch name {
			case "instance-id":
				return []string{x.ID}
			case "instance-state-name":
				return []string{x.State.Name}
			case "client-token":
				return []string{x.Token}
			case "availability-zone":
				return []string{x.Zone}
			case "subnet-id":
				return []string{x.Subnet}
			case "vpc-id":
				return []string{x.VPC}
			case "instance-type":
				return []string{x.Type}
			case "image-id":
				return []string{x.ImageID}
			case "capacity-reservation-id":
				return []string{x.Reserved}
			}
			return tagValues(i.Tags, name)
		})
		return !shown || len(ids) == 0 && m.model.Denies(i.ID)
	})
	some, next := page(r.form, m.cfg.PageSize, shown, func(i sim.Instance) string { return i.ID })
	answer := describeInstancesXML{RequestID: requestID, NextToken: next}
	byToken := map[string]int{}
	for _, i := range some {
		n, ok := byToken[i.Token]
		if !ok {
			n = len(answer.Reservations)
			byToken[i.Token] = n
			answer.Reservations = append(answer.Reservations, reservationXML{ReservationID: reservation(i.Token), OwnerID: m.cfg.Account})
		}
		answer.Reservations[n].Instances = append(answer.Reservations[n].Instances, m.instance(i))
	}
	return answer, nil
}

// disrupted fails a call while a zone has a service disruption: one that names no IDs, whatever its filters, and one that
// names an instance of that zone. Source: EC2 API reference, "DescribeInstances". It does not say with which code.
func (m *instances) disrupted(ids []string, shown []sim.Instance) error {
	zones, _ := m.blindZones()
	for _, zone := range zones {
		if len(ids) == 0 || slices.ContainsFunc(shown, func(i sim.Instance) bool { return i.Zone == zone && slices.Contains(ids, i.ID) }) {
			return &apiError{http.StatusServiceUnavailable, "Unavailable", "The zone " + zone + " is experiencing a service disruption"}
		}
	}
	return nil
}

func notFound(ids []string) error {
	return bad("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist", strings.Join(ids, ", "))
}

type stateChangeXML struct {
	RequestID string      `xml:"requestId"`
	Instances []changeXML `xml:"instancesSet>item"`
}

type changeXML struct {
	ID       string   `xml:"instanceId"`
	Current  stateXML `xml:"currentState"`
	Previous stateXML `xml:"previousState"`
}

// change is a call that moves instances into another state. EC2 does it for all or none.
func (m *instances) change(r *request, kind sim.Kind, to cloud.State, do func(ids []string) cloud.Results) (any, error) {
	ids := r.texts("InstanceId")
	if len(ids) == 0 {
		r.bad("MissingParameter", "The request must contain the parameter InstanceId")
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if unknown := m.model.Unknown(ids...); len(unknown) > 0 {
		return nil, m.model.Arrive(r.ctx, kind, notFound(unknown), ids...)
	}
	for _, id := range ids {
		if err := m.may(r, "ec2:"+r.action, m.arn("instance/"+id), tagged("ResourceTag", m.model.TagsOf(id))); err != nil {
			return nil, err
		}
	}
	if err := do(ids).Err(); err != nil {
		return nil, err
	}
	answer := stateChangeXML{RequestID: requestID}
	for _, id := range ids {
		answer.Instances = append(answer.Instances, changeXML{ID: id, Current: states[to], Previous: states[cloud.Running]})
	}
	return answer, nil
}

func (m *instances) terminateInstances(r *request) (any, error) {
	return m.change(r, sim.KindTerminate, cloud.Terminating, func(ids []string) cloud.Results { return m.sim.Terminate(r.ctx, ids...) })
}

func (m *instances) stopInstances(r *request) (any, error) {
	return m.change(r, sim.KindStop, cloud.Stopping, func(ids []string) cloud.Results { return m.sim.Stopper.Stop(r.ctx, ids...) })
}

func (m *instances) startInstances(r *request) (any, error) {
	return m.change(r, sim.KindStart, cloud.Pending, func(ids []string) cloud.Results { return m.sim.Stopper.Start(r.ctx, ids...) })
}

type doneXML struct {
	RequestID string `xml:"requestId"`
	Return    bool   `xml:"return"`
}

type consoleXML struct {
	RequestID string `xml:"requestId"`
	ID        string `xml:"instanceId"`
	Timestamp string `xml:"timestamp"`
	Output    string `xml:"output"`
}

func (m *instances) getConsoleOutput(r *request) (any, error) {
	id := r.text("InstanceId")
	r.flag("Latest")
	if err := r.done(); err != nil {
		return nil, err
	}
	if unknown := m.model.Unknown(id); len(unknown) > 0 {
		return nil, m.model.Arrive(r.ctx, sim.KindDescribe, notFound(unknown), id)
	}
	if err := m.may(r, "ec2:GetConsoleOutput", m.arn("instance/"+id), tagged("ResourceTag", m.model.TagsOf(id))); err != nil {
		return nil, err
	}
	if err := m.model.Arrive(r.ctx, sim.KindDescribe, nil, id); err != nil {
		return nil, err
	}
	text := fmt.Appendf(nil, "[    0.000000] %s is simulated\n", id)
	if m.cfg.Console != nil {
		var err error
		if text, err = m.cfg.Console(id); err != nil {
			return nil, err
		}
	}
	return consoleXML{requestID, id, wireTime(m.model.Now()), base64.StdEncoding.EncodeToString(text)}, nil
}
