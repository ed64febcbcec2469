package ec2

import (
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/catalog"
)

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

// instanceTypes are the types, where they are offered and at what spot price.
type instanceTypes struct {
	*base
	plan *accountPlan
}

func (m *instanceTypes) describeInstanceTypes(r *request) (any, error) {
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
	plan := m.plan.currentPlan()
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
func (m *instanceTypes) offered(spot bool, do func(catalog.InstanceType, catalog.PurchaseOption)) {
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

func (m *instanceTypes) describeInstanceTypeOfferings(r *request) (any, error) {
	if kind := r.text("LocationType"); kind != "availability-zone" {
		r.bad("InvalidParameterValue", "The model knows offerings by availability-zone, not '%s'", kind)
	}
	if err := m.one(r); err != nil {
		return nil, err
	}
	var all []offeringXML
	m.offered(false, func(t catalog.InstanceType, o catalog.PurchaseOption) {
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

func (m *instanceTypes) describeSpotPriceHistory(r *request) (any, error) {
	r.text("StartTime")
	products := r.texts("ProductDescription")
	if err := m.one(r); err != nil {
		return nil, err
	}
	const product = "Linux/UNIX"
	var all []spotPriceXML
	if len(products) == 0 || slices.Contains(products, product) {
		m.offered(true, func(t catalog.InstanceType, o catalog.PurchaseOption) {
			all = append(all, spotPriceXML{t.Name, product, fmt.Sprintf("%.6f", o.PricePerHour), o.Zone, wireTime(m.model.Now())})
		})
	}
	return paged(r, "spotPriceHistorySet", m.cfg.PageSize, all, func(p spotPriceXML) string { return p.Type + " " + p.Zone }), nil
}
