package ec2

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
)

// networks are the subnets and the networks of VPCs.
type networks struct {
	*base
	launched *launched

	subnets []Subnet
	cidrs   map[string][]netip.Prefix // by VPC
}

// Subnets are those that there are.
func (m *networks) Subnets() []Subnet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.subnets)
}

type subnetXML struct {
	ID      string `xml:"subnetId"`
	State   string `xml:"state"`
	VPC     string `xml:"vpcId"`
	Zone    string `xml:"availabilityZone"`
	Default bool   `xml:"defaultForAz"`
	Outpost string `xml:"outpostArn,omitempty"`
	Maps    bool   `xml:"mapPublicIpOnLaunch"`
	Free    int    `xml:"availableIpAddressCount"`

	Tags []tagXML `xml:"tagSet>item"`
}

func (m *networks) describeSubnets(r *request) (any, error) {
	wanted := r.filters("tag:", "tag-key", "state", "subnet-id", "vpc-id", "default-for-az")
	if err := m.one(r); err != nil {
		return nil, err
	}
	var all []subnetXML
	for _, s := range m.Subnets() {
		x := subnetXML{
			ID:      s.ID,
			State:   "available",
			VPC:     s.VPC,
			Zone:    s.Zone,
			Default: s.Default,
			Outpost: s.Outpost,
			Maps:    s.MapPublic,
			Free:    m.freeIn(s),
			Tags:    tagSet(s.Tags),
		}
		if wanted.match(func(name string) []string {
			if own := map[string][]string{"state": {x.State}, "subnet-id": {x.ID}, "vpc-id": {x.VPC},
				"default-for-az": {strconv.FormatBool(x.Default)}}[name]; own != nil {
				return own
			}
			return tagValues(s.Tags, name)
		}) {
			all = append(all, x)
		}
	}
	return paged(r, "subnetSet", m.cfg.PageSize, all, func(s subnetXML) string { return s.ID }), nil
}

type zoneXML struct {
	Name   string `xml:"zoneName"`
	State  string `xml:"zoneState"`
	Region string `xml:"regionName"`
	Type   string `xml:"zoneType"`
}

func (m *networks) describeAvailabilityZones(r *request) (any, error) {
	if err := m.one(r); err != nil {
		return nil, err
	}
	zones := map[string]string{}
	for _, zone := range m.cfg.Zones {
		zones[zone] = "availability-zone"
	}
	for _, s := range m.Subnets() {
		zones[s.Zone] = cmp.Or(s.ZoneType, "availability-zone")
	}
	var all []zoneXML
	for _, z := range sortedKeys(zones) {
		all = append(all, zoneXML{z, "available", m.cfg.Region, zones[z]})
	}
	return list("availabilityZoneInfo", all), nil
}

// vpcNetwork is that of a VPC for which the account has no others.
const vpcNetwork = "10.0.0.0/8"

type vpcXML struct {
	ID       string       `xml:"vpcId"`
	Networks []networkXML `xml:"cidrBlockAssociationSet>item"`
}

type networkXML struct {
	CIDR  string `xml:"cidrBlock"`
	State string `xml:"cidrBlockState>state"`
}

// networksOf are those of a VPC.
func (m *networks) networksOf(vpc string) (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.cidrs[vpc] {
		all = append(all, p.String())
	}
	if all == nil {
		return []string{vpcNetwork}
	}
	return all
}

// describeVpcs shows each VPC with the networks that it has, and one that it had.
func (m *networks) describeVpcs(r *request) (any, error) {
	wanted := r.filters("vpc-id")
	if err := m.one(r); err != nil {
		return nil, err
	}
	vpcs := map[string]bool{}
	for _, s := range m.Subnets() {
		vpcs[s.VPC] = wanted.match(func(string) []string { return []string{s.VPC} })
	}
	var all []vpcXML
	for _, id := range sortedKeys(vpcs) {
		if vpcs[id] {
			networks := []networkXML{}
			for _, p := range m.networksOf(id) {
				networks = append(networks, networkXML{p, "associated"})
			}
			all = append(all, vpcXML{id, append(networks, networkXML{"192.168.0.0/16", "disassociated"})})
		}
	}
	return list("vpcSet", all), nil
}
