package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/suggest"
)

// MaxOfferings is how many offerings a choice returns at most: enough that one
// zone, or one type, that is out does not use them all up, and few enough
// to be stored with each cell. Whoever has tried them all has learnt what is
// unavailable, and asks again.
const MaxOfferings = 20

// fallbackCandidates is how many of them are kept for each launch type that a pod
// falls back to. Otherwise a pod that takes spot, and on-demand where there is none,
// would be given nothing but spot as long as any was left to try.
const fallbackCandidates = 5

// Config is what the operator says about placement.
type Config struct {
	// DefaultInstanceType is for pods that ask for nothing: no resources and no
	// instance-type annotation. "" gives them the cheapest type.
	DefaultInstanceType string
	// DefaultArch is the architecture of pods that name neither one nor an
	// instance type: their images are built for the virtual node's. "" leaves
	// the architecture open.
	DefaultArch string
	// ReservedMemoryBytes is what a cell's kernel and agent need of the type's
	// memory, besides the pod: cells.reservedMemory. 64 MiB is enough on the local
	// cloud, where the kernel is the host's, and 128 MiB elsewhere.
	ReservedMemoryBytes int64
	// DefaultDiskBytes is the root disk's size where the type does not fix it
	// and the pod does not say; 0 where it can be as large as a pod needs.
	DefaultDiskBytes int64
	// LaunchTypes are those of pods that name none, the preferred first; none for
	// on-demand.
	LaunchTypes []LaunchType
	// Seller is whose types are in the catalogue, for people; "" for this cloud.
	Seller string
	// SpotSpread is how much dearer than the cheapest, as a share, spot offerings may be over which pods are
	// spread; 0 for the cheapest alone.
	SpotSpread float64
	// Rates are what is paid beside a machine; nil for nothing.
	Rates *catalog.Rates
	// PrivateIPOnly reports whether machines have no public address, where a pod does not say.
	PrivateIPOnly bool
	// SharedKernel says that machines run on the kernel of their host, which reserves no huge pages for one of them.
	SharedKernel bool
}

// Placer chooses for pods out of one catalogue. What it chooses never changes, and it is
// safe for concurrent use.
type Placer struct {
	config Config
	// types is sorted by name.
	types                      []catalog.InstanceType
	labels                     []map[string]string // of the types
	archs, zones               []string            // what the indices in size and pricedOffering stand for
	onDemand, spots, dedicated capacityType
	patterns                   *patterns
	// reservesDevices reports whether there is an offering that is forDevices.
	reservesDevices bool
	// byDefault is where pods that do not say how they are launched look.
	byDefault []*capacityType
	// defaultType is the index of DefaultInstanceType in types, or -1.
	defaultType int
	// nodeLabels are those of the virtual node: what pods may ask for beside the
	// labels of an instance.
	nodeLabels map[string]string
}

// OnNode returns what chooses for the pods of a virtual node with these labels.
func (p *Placer) OnNode(labels map[string]string) *Placer {
	on := *p
	on.nodeLabels = labels
	return &on
}

// capacityType is the types that can be had by one launch type, in order of price.
type capacityType struct {
	launchType LaunchType

	rows  []row
	sizes []size // of the same types
	// What each choice asks of all types is looked up once, as sets of rows.
	milliCPU, memory, disk, gpus ladder
	all                          set
	archs                        []set // of each architecture
	offered                      []set // [arch*len(zones)+zone]: of that architecture, offered in that zone
	rowOf                        []int // of each type, or -1
}

// size is what a type has for a pod.
type size struct {
	milliCPU, gpus int64   // of NVIDIA's
	memory         int64   // without the cell's own; -1 where not even that fits
	disk           int64   // MaxInt64 where it is chosen at launch
	price          float64 // of the cheapest offering
	arch, typ      int
}

type row struct {
	typ        int
	launchType LaunchType
	baseline   int64            // all of the CPU where the type is not burstable
	disk       int64            // the root disk that the type has; 0 where it is chosen at launch
	offerings  []pricedOffering // in order of price, then zone, then subnet
}

type pricedOffering struct {
	price float64
	zone  int
	index int // in the type's Offerings
	// forDevices reports whether it is in a reservation, and of a type with GPUs or other accelerators.
	forDevices bool
}

// New prepares the choice. The catalogue must not be changed afterwards.
func New(catalogue []catalog.InstanceType, config Config) (*Placer, error) {
	p := &Placer{
		config:      config,
		types:       slices.Clone(catalogue),
		defaultType: -1,
		patterns:    &patterns{named: map[string]matches{}},
	}
	p.onDemand.launchType, p.spots.launchType, p.dedicated.launchType = OnDemand, Spot, Dedicated
	p.config.Seller = cmp.Or(config.Seller, "this cloud")
	p.byDefault = p.capacityTypesOf(config.LaunchTypes)
	if len(p.byDefault) == 0 {
		p.byDefault = []*capacityType{&p.onDemand}
	}
	slices.SortFunc(p.types, func(a, b catalog.InstanceType) int { return strings.Compare(a.Name, b.Name) })
	for i := range p.types {
		t := &p.types[i]
		if i > 0 && p.types[i-1].Name == t.Name {
			return nil, fmt.Errorf("catalogue: instance type %s is there twice", t.Name)
		}
		indexIn(&p.archs, t.Arch)
		p.labels = append(p.labels, labelsOf(t))
		if t.Name == config.DefaultInstanceType {
			p.defaultType = i
		}
		for _, m := range []*capacityType{&p.onDemand, &p.spots, &p.dedicated} {
			offerings, err := p.offeringsOf(t, m.launchType)
			if err != nil {
				return nil, err
			}
			if len(offerings) > 0 {
				m.rows = append(m.rows, row{
					typ:        i,
					launchType: m.launchType,
					baseline:   cmp.Or(t.BaselineMilliCPU, t.MilliCPU),
					disk:       t.DiskBytes,
					offerings:  offerings,
				})
			}
		}
	}
	for _, m := range []*capacityType{&p.onDemand, &p.spots, &p.dedicated} {
		slices.SortStableFunc(m.rows, func(a, b row) int {
			s, t := &p.types[a.typ], &p.types[b.typ]
			return cmp.Or(cmp.Compare(a.offerings[0].price, b.offerings[0].price), cmp.Compare(s.MilliCPU, t.MilliCPU),
				cmp.Compare(s.MemoryBytes, t.MemoryBytes))
		})
		p.index(m)
	}
	if config.DefaultInstanceType != "" && p.defaultType < 0 {
		return nil, fmt.Errorf("default instance type: %s has no type %q%s", p.config.Seller, config.DefaultInstanceType,
			p.meant(config.DefaultInstanceType))
	}
	return p, nil
}

// index finds the sets of a capacity type, once all rows are there, in order.
func (p *Placer) index(m *capacityType) {
	m.archs, m.offered = make([]set, len(p.archs)), make([]set, len(p.archs)*len(p.zones))
	for _, sets := range [][]set{m.archs, m.offered} {
		for i := range sets {
			sets[i] = newSet(len(m.rows))
		}
	}
	m.all, m.rowOf = newSet(len(m.rows)), slices.Repeat([]int{-1}, len(p.types))
	for i, r := range m.rows {
		s := p.sizeOf(r.typ)
		s.price = r.offerings[0].price
		m.sizes = append(m.sizes, s)
		m.rowOf[r.typ] = i
		m.all.add(i)
		m.archs[s.arch].add(i)
		for _, o := range r.offerings {
			m.offered[s.arch*len(p.zones)+o.zone].add(i)
		}
	}
	m.milliCPU = ladderOf(m.sizes, func(s *size) int64 { return s.milliCPU })
	m.memory = ladderOf(m.sizes, func(s *size) int64 { return s.memory })
	m.disk = ladderOf(m.sizes, func(s *size) int64 { return s.disk })
	m.gpus = ladderOf(m.sizes, func(s *size) int64 { return s.gpus })
}

func (p *Placer) offeringsOf(t *catalog.InstanceType, as LaunchType) ([]pricedOffering, error) {
	var offerings []pricedOffering
	for i, o := range t.Offerings {
		if offering.CapacityTypeOf(o.Spot, o.Dedicated) != as {
			continue
		}
		if !(o.PricePerHour >= 0) || math.IsInf(o.PricePerHour, 1) {
			return nil, fmt.Errorf("catalogue: instance type %s costs %v an hour in zone %s: want a price of 0 or more", t.Name, o.PricePerHour,
				o.Zone)
		}
		price := o.PricePerHour
		if o.Unpriced {
			price = cmp.Or(o.OrderedAt, math.Inf(1))
		}
		if o.Reservation != "" {
			price = min(price, mostPricePerHour) * paidShare
		}
		price = price * (1 + o.Risk) / (1 + t.Prefer)
		forDevices := o.Reservation != "" && len(t.GPUs)+len(t.Accelerators) > 0
		p.reservesDevices = p.reservesDevices || forDevices
		offerings = append(offerings, pricedOffering{
			price:      price,
			zone:       indexIn(&p.zones, o.Zone),
			index:      i,
			forDevices: forDevices,
		})
	}
	slices.SortFunc(offerings, func(a, b pricedOffering) int {
		return cmp.Or(cmp.Compare(a.price, b.price), strings.Compare(p.zones[a.zone], p.zones[b.zone]),
			strings.Compare(t.Offerings[a.index].Subnet, t.Offerings[b.index].Subnet))
	})
	return offerings, nil
}

// paidShare is how much of its price an offering counts whose machine is paid for already, in
// a reservation: as in karpenter so little that it comes before all others, in the order of their
// prices. Of a price that is not known it is that of the highest of all.
const (
	paidShare        = 1e-7
	mostPricePerHour = 10_000
)

func (p *Placer) capacityType(t LaunchType) *capacityType {
	switch t {
	case Spot:
		return &p.spots
	case Dedicated:
		return &p.dedicated
	}
	return &p.onDemand
}

func (p *Placer) capacityTypesOf(types []LaunchType) []*capacityType {
	capacityTypes := make([]*capacityType, len(types))
	for i, t := range types {
		capacityTypes[i] = p.capacityType(t)
	}
	return capacityTypes
}

func (p *Placer) sizeOf(typ int) size {
	t := &p.types[typ]
	s := size{
		milliCPU: t.SustainedMilliCPU(),
		memory:   max(-1, t.SeenBytes()-p.config.ReservedMemoryBytes),
		disk:     cmp.Or(t.DiskBytes, math.MaxInt64),
		arch:     slices.Index(p.archs, t.Arch),
		typ:      typ,
	}
	s.gpus = gpusOf(t, "nvidia")
	return s
}

func indexIn(words *[]string, word string) int {
	i := slices.Index(*words, word)
	if i < 0 {
		i = len(*words)
		*words = append(*words, word)
	}
	return i
}

// meant is "; did you mean NAME?" or "".
func (p *Placer) meant(name string) string {
	if near := p.nearest(name); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

func (p *Placer) nearest(name string) string {
	names := make([]string, len(p.types))
	for i := range p.types {
		names[i] = p.types[i].Name
	}
	return suggest.Nearest(name, names)
}
