package ec2

import (
	"slices"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

type networkInterfaceXML struct {
	ID         string   `xml:"networkInterfaceId"`
	Zone       string   `xml:"availabilityZone"`
	Attachment *eniXML  `xml:"attachment"`
	Tags       []tagXML `xml:"tagSet>item"`
}

type eniXML struct {
	Instance string `xml:"instanceId"`
}

// byAddress is the filter by which AWS Load Balancer Controller finds the interface of a pod (pkg/networking,
// pod_eni_info_resolver.go).
const byAddress = "addresses.private-ip-address"

// describeNetworkInterfaces works while a zone has a service disruption: the reference says nothing else. Nor does it say that it
// shows the interfaces of that zone, which it does not with sim.Knobs.HidesBlindOwned.
func (m *parts) describeNetworkInterfaces(r *request) (any, error) {
	wanted := r.filters("tag:", "tag-key", byAddress, "attachment.instance-id")
	if err := m.listing(r, sim.KindListOwned); err != nil {
		return nil, err
	}
	var all []networkInterfaceXML
	instances := m.sim.Truth()
	tags := m.Tags()
	blind, hidden := m.blindZones()
	for _, p := range m.sim.OwnedResources.OwnedNow() {
		if hidden && slices.Contains(blind, p.Zone) {
			continue
		}
		own := tags[p.ID]
		x := networkInterfaceXML{ID: p.ID, Zone: p.Zone, Tags: tagSet(own)}
		if p.Instance != "" {
			x.Attachment = &eniXML{p.Instance}
		}
		if wanted.match(func(name string) []string {
			switch name {
			case byAddress:
				return m.addressesOf(instances, p.Instance)
			case "attachment.instance-id":
				return []string{p.Instance}
			}
			return tagValues(own, name)
		}) {
			all = append(all, x)
		}
	}
	return paged(r, "networkInterfaceSet", m.cfg.PageSize, all, func(n networkInterfaceXML) string { return n.ID }), nil
}

func (m *parts) deleteNetworkInterface(r *request) (any, error) {
	id := r.text("NetworkInterfaceId")
	if err := r.done(); err != nil {
		return nil, err
	}
	parts := m.sim.OwnedResources.OwnedNow()
	n := slices.IndexFunc(parts, func(p cloud.OwnedResource) bool { return p.ID == id })
	switch {
	case n < 0:
		return nil, m.model.Arrive(r.ctx, sim.KindDeleteOwned, bad("InvalidNetworkInterfaceID.NotFound",
			"The networkInterface ID '%s' does not exist", id))
	case parts[n].Instance != "":
		return nil, m.model.Arrive(r.ctx, sim.KindDeleteOwned, bad("InvalidNetworkInterface.InUse",
			"Network interface '%s' is currently in use", id))
	}
	if err := m.may(r, "ec2:"+r.action, m.arn("network-interface/"+id), tagged("ResourceTag", m.Tags()[id])); err != nil {
		return nil, err
	}
	if err := m.sim.OwnedResources.DeleteOwned(r.ctx, id).Err(); err != nil {
		return nil, err
	}
	return doneXML{requestID, true}, nil
}

// addressesOf returns the addresses by which the interface of an instance is found: its own and secondary ones. Those of
// a prefix are not among them. Sources: EC2 API reference, "DescribeNetworkInterfaces", addresses.private-ip-address;
// kubernetes-sigs/aws-load-balancer-controller commit f3e6695e, which looks for prefixes by themselves.
func (m *parts) addressesOf(all []sim.Instance, instance string) (addresses []string) {
	for _, i := range all {
		if i.ID != instance {
			continue
		}
		for _, n := range m.instances.instance(i).Interfaces {
			for _, a := range n.Addresses {
				addresses = append(addresses, a.IP)
			}
		}
	}
	return addresses
}
