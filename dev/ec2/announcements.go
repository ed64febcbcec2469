package ec2

import (
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Rebalance recommends to leave a spot instance. Only the instance is told (EC2 User Guide, "EC2
// instance rebalance recommendations": besides by EventBridge, which the model lacks).
type Rebalance struct {
	Instance string
}

// announcements are what is announced of instances.
type announcements struct {
	*base
	launched *launched

	risks       map[string]time.Time   // when it was recommended to leave an instance
	maintenance map[string]Maintenance // by instance
}

// Rebalance gives one.
func (m *announcements) Rebalance(r Rebalance) error {
	n := slices.IndexFunc(m.sim.Truth(), func(i sim.Instance) bool { return i.ID == r.Instance && i.Spot })
	if n < 0 {
		return fmt.Errorf("the field Instance is %q: want the ID of a spot instance that has not ended", r.Instance)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.risks[r.Instance] = m.model.Now()
	return nil
}

// atRisk is when it was recommended to leave an instance.
func (m *announcements) atRisk(instance string) (at time.Time, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, is = m.risks[instance]
	return at, is
}

type spotRequestXML struct {
	ID       string   `xml:"spotInstanceRequestId"`
	Instance string   `xml:"instanceId"`
	State    string   `xml:"state"`
	Code     string   `xml:"status>code"`
	Message  string   `xml:"status>message"`
	Updated  string   `xml:"status>updateTime"`
	Tags     []tagXML `xml:"tagSet>item"`
}

// describeSpotInstanceRequests shows those of the spot instances that have not ended.
func (m *announcements) describeSpotInstanceRequests(r *request) (any, error) {
	wanted := r.filters("tag:", "tag-key", "status-code", "state")
	if err := m.listing(r, sim.KindInterruptions); err != nil {
		return nil, err
	}
	ends := map[string]cloud.Interruption{}
	for _, i := range m.model.Announced(WayRequest) {
		ends[i.InstanceID] = i
	}
	var all []spotRequestXML
	for _, i := range m.sim.Truth() {
		if !i.Spot {
			continue
		}
		x := spotRequestXML{spotRequest(i.ID), i.ID, "active", "fulfilled", "Your spot request is fulfilled.", wireTime(i.Launched),
			tagSet(m.launched.launchOf(i).spotTags)}
		if end, marked := ends[i.ID]; marked {
			x.Code, x.Message, x.Updated = "marked-for-termination", end.Reason, wireTime(end.At.Add(-2*time.Minute))
		}
		if wanted.match(func(name string) []string {
			switch name {
			case "status-code":
				return []string{x.Code}
			case "state":
				return []string{x.State}
			}
			return tagValues(m.launched.launchOf(i).spotTags, name)
		}) {
			all = append(all, x)
		}
	}
	return paged(r, "spotInstanceRequestSet", m.cfg.PageSize, all, func(s spotRequestXML) string { return s.Instance }), nil
}
