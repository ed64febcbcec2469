package ec2

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// listXML is the answer of most lists.
type listXML[T any] struct {
	RequestID string `xml:"requestId"`
	Set       setXML[T]
	NextToken string `xml:"nextToken,omitempty"`
}

// setXML is the element with the things, which has another name in each list.
type setXML[T any] struct {
	XMLName xml.Name
	Items   []T `xml:"item"`
}

// list answers with all things.
func list[T any](name string, all []T) listXML[T] {
	return listXML[T]{RequestID: requestID, Set: setXML[T]{xml.Name{Local: name}, all}}
}

// paged answers with the page of them that a call asks for, of at most so many.
func paged[T any](r *request, name string, most int, all []T, id func(T) string) listXML[T] {
	some, next := page(r.form, most, all, id)
	answer := list(name, some)
	answer.NextToken = next
	return answer
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

// one reads the rest of a describing call, and lets it arrive.
func (m *Model) one(r *request) error { return m.listing(r, sim.KindCatalogue) }

// listing does so with a call of that kind.
func (m *Model) listing(r *request, kind sim.Kind) error {
	r.number("MaxResults")
	r.text("NextToken")
	if err := r.done(); err != nil {
		return err
	}
	return m.describe(r, kind)
}

// unpaged refuses a call that names the things of a list, and wants pages of them.
func (r *request) unpaged(ids []string, set string) {
	if len(ids) > 0 && r.has("MaxResults") {
		r.bad("InvalidParameterCombination", "The parameter %s cannot be used with the parameter maxResults", set)
	}
}

func (m *Model) describeSubnets(r *request) (any, error) {
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

func (m *Model) describeAvailabilityZones(r *request) (any, error) {
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

type typeXML struct {
	Name          string   `xml:"instanceType"`
	Architectures []string `xml:"processorInfo>supportedArchitectures>item"`
	VCPUs         int64    `xml:"vCpuInfo>defaultVCpus"`
	MiB           int64    `xml:"memoryInfo>sizeInMiB"`
	Hypervisor    string   `xml:"hypervisor"`
	BootModes     []string `xml:"supportedBootModes>item"`
	Addresses     int      `xml:"networkInfo>ipv4AddressesPerInterface"`
	GPUs          []gpuXML `xml:"gpuInfo>gpus>item,omitempty"`
	Volumes       ebsXML   `xml:"ebsInfo"`
	Free          bool     `xml:"freeTierEligible"`
	Classes       []string `xml:"supportedUsageClasses>item"`
}

// ebsXML says how many volumes a type takes.
type ebsXML struct {
	Limit string `xml:"attachmentLimitType"`
	Most  int64  `xml:"maximumEbsAttachments"`
}

type gpuXML struct {
	Name  string `xml:"name"`
	Count int64  `xml:"count"`
}

// bootModes are what a type boots by, in EC2's words: all know UEFI whose catalogue does
// not say otherwise.
func bootModes(t catalog.InstanceType) (all []string) {
	words := map[string]string{"uefi": "uefi", "bios": "legacy-bios"}
	for _, mode := range t.BootModes {
		all = append(all, words[mode])
	}
	if all == nil {
		return []string{"legacy-bios", "uefi"}
	}
	return all
}

var architectures = map[string]string{"amd64": "x86_64", "arm64": "arm64"}

// Architecture is EC2's word for one of Go's.
func Architecture(goarch string) string { return architectures[goarch] }

func (m *Model) describeInstanceTypes(r *request) (any, error) {
	wanted, named := r.filters("processor-info.supported-architecture"), r.texts("InstanceType")
	r.unpaged(named, "instanceTypesSet")
	if err := m.one(r); err != nil {
		return nil, err
	}
	for _, name := range named {
		if !slices.ContainsFunc(m.cfg.Sim.Catalogue, func(t catalog.InstanceType) bool { return t.Name == name }) {
			return nil, bad("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", name)
		}
	}
	var all []typeXML
	plan := m.currentPlan()
	for _, t := range m.cfg.Sim.Catalogue {
		x := typeXML{
			Name:          t.Name,
			Architectures: []string{architectures[t.Arch]},
			VCPUs:         t.MilliCPU / 1000,
			MiB:           t.MemoryBytes >> 20,
			Hypervisor:    "nitro",
			BootModes:     bootModes(t),
			Addresses:     4,
			Free:          slices.Contains(plan.Eligible, t.Name),
			Classes:       plan.soldAs(t.Name),
		}
		for _, g := range t.GPUs {
			x.GPUs = append(x.GPUs, gpuXML{g.Model, g.Count})
		}
		x.Volumes.Most, x.Volumes.Limit = attachments(t)
		if wanted.match(func(string) []string { return x.Architectures }) && (len(named) == 0 || slices.Contains(named, t.Name)) {
			all = append(all, x)
		}
	}
	return paged(r, "instanceTypeSet", min(100, m.cfg.PageSize), all, func(t typeXML) string { return t.Name }), nil
}

type offeringXML struct {
	Type     string `xml:"instanceType"`
	Kind     string `xml:"locationType"`
	Location string `xml:"location"`
}

// offered calls do for each offering of the catalogue, once for each zone.
func (m *Model) offered(spot bool, do func(catalog.InstanceType, catalog.Offering)) {
	for _, t := range m.cfg.Sim.Catalogue {
		zones := map[string]bool{}
		for _, o := range t.Offerings {
			if o.Spot == spot && !zones[o.Zone] {
				zones[o.Zone] = true
				do(t, o)
			}
		}
	}
}

func (m *Model) describeInstanceTypeOfferings(r *request) (any, error) {
	if kind := r.text("LocationType"); kind != "availability-zone" {
		r.bad("InvalidParameterValue", "The model knows offerings by availability-zone, not '%s'", kind)
	}
	if err := m.one(r); err != nil {
		return nil, err
	}
	var all []offeringXML
	m.offered(false, func(t catalog.InstanceType, o catalog.Offering) {
		all = append(all, offeringXML{t.Name, "availability-zone", o.Zone})
	})
	return paged(r, "instanceTypeOfferingSet", m.cfg.PageSize, all, func(o offeringXML) string { return o.Type + " " + o.Location }), nil
}

type spotPriceXML struct {
	Type    string `xml:"instanceType"`
	Product string `xml:"productDescription"`
	Price   string `xml:"spotPrice"`
	Zone    string `xml:"availabilityZone"`
	At      string `xml:"timestamp"`
}

func (m *Model) describeSpotPriceHistory(r *request) (any, error) {
	r.text("StartTime")
	products := r.texts("ProductDescription")
	if err := m.one(r); err != nil {
		return nil, err
	}
	const product = "Linux/UNIX"
	var all []spotPriceXML
	if len(products) == 0 || slices.Contains(products, product) {
		m.offered(true, func(t catalog.InstanceType, o catalog.Offering) {
			all = append(all, spotPriceXML{t.Name, product, fmt.Sprintf("%.6f", o.PricePerHour), o.Zone, wireTime(m.Now())})
		})
	}
	return paged(r, "spotPriceHistorySet", m.cfg.PageSize, all, func(p spotPriceXML) string { return p.Type + " " + p.Zone }), nil
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
func (m *Model) describeSpotInstanceRequests(r *request) (any, error) {
	wanted := r.filters("tag:", "tag-key", "status-code", "state")
	if err := m.listing(r, sim.KindInterruptions); err != nil {
		return nil, err
	}
	ends := map[string]cloud.Interruption{}
	for _, i := range m.Announced(WayRequest) {
		ends[i.InstanceID] = i
	}
	var all []spotRequestXML
	for _, i := range m.sim.Truth() {
		if !i.Spot {
			continue
		}
		x := spotRequestXML{spotRequest(i.ID), i.ID, "active", "fulfilled", "Your spot request is fulfilled.", wireTime(i.Launched),
			tagSet(m.launchOf(i).spotTags)}
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
			return tagValues(m.launchOf(i).spotTags, name)
		}) {
			all = append(all, x)
		}
	}
	return paged(r, "spotInstanceRequestSet", m.cfg.PageSize, all, func(s spotRequestXML) string { return s.Instance }), nil
}

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
// shows the interfaces of that zone, which it does not with sim.Knobs.HidesBlindParts.
func (m *Model) describeNetworkInterfaces(r *request) (any, error) {
	wanted := r.filters("tag:", "tag-key", byAddress, "attachment.instance-id")
	if err := m.listing(r, sim.KindListParts); err != nil {
		return nil, err
	}
	var all []networkInterfaceXML
	instances := m.sim.Truth()
	tags := m.PartTags()
	blind, hidden := m.blindZones()
	for _, p := range m.sim.PartsNow() {
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

func (m *Model) deleteNetworkInterface(r *request) (any, error) {
	id := r.text("NetworkInterfaceId")
	if err := r.done(); err != nil {
		return nil, err
	}
	parts := m.sim.PartsNow()
	n := slices.IndexFunc(parts, func(p cloud.Part) bool { return p.ID == id })
	switch {
	case n < 0:
		return nil, m.Arrive(r.ctx, sim.KindDeleteParts, bad("InvalidNetworkInterfaceID.NotFound",
			"The networkInterface ID '%s' does not exist", id))
	case parts[n].Instance != "":
		return nil, m.Arrive(r.ctx, sim.KindDeleteParts, bad("InvalidNetworkInterface.InUse", "Network interface '%s' is currently in use", id))
	}
	if err := m.may(r, "ec2:"+r.action, m.arn("network-interface/"+id), tagged("ResourceTag", m.PartTags()[id])); err != nil {
		return nil, err
	}
	if err := m.sim.DeleteParts(r.ctx, id).Err(); err != nil {
		return nil, err
	}
	return doneXML{requestID, true}, nil
}
