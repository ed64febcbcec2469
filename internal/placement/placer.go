package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

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
	// PrivateIPOnly says that machines have no public address, where a pod does not say.
	PrivateIPOnly bool
}

// ranked is an offering with what it is ordered by.
type ranked struct {
	offering.Offering
	sold   *catalog.Offering // in the catalogue
	prefer float64           // the type's
	// cost is in dollars an hour: the machine's price and, as far as they are known, those of the pod's CPU above a
	// burstable type's baseline, of the root disk and of the address. Where the machine's price is not known it is with
	// that by which the offering is ordered, or infinite: such offerings come last, by size. The price of a preferred
	// type counts as less than it is, that of a spot offering at risk as more.
	cost float64
}

// extras are what is paid beside a machine, in dollars an hour.
type extras struct {
	diskBytes int64 // of the root disk
	// diskPerHour and addressPerHour are of the root disk and of a public IPv4 address;
	// nil is a price that is not known, and 0 of what is the machine's, or is not had.
	diskPerHour, addressPerHour *float64
}

// known is the sum of what is known.
func (e extras) known() float64 {
	disk, _ := priceOf(e.diskPerHour)
	address, _ := priceOf(e.addressPerHour)
	return disk + address
}

// priceOf returns a price, 0 where it is not known, and whether that is so.
func priceOf(price *float64) (dollars float64, unpriced bool) {
	if price == nil {
		return 0, true
	}
	return *price, false
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
	// reservesDevices says that there is an offering that is forDevices.
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
	// forDevices says that it is in a reservation, and of a type with GPUs or other accelerators.
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
	m.rowOf = slices.Repeat([]int{-1}, len(p.types))
	for i, r := range m.rows {
		s := p.sizeOf(r.typ)
		s.price = r.offerings[0].price
		m.sizes = append(m.sizes, s)
		m.rowOf[r.typ] = i
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

// Offerings returns the offerings that a pod can be launched on, cheapest first
// (of equal cost: the smaller type, then by name, zone and subnet), at most
// MaxOfferings. Of spot the first are spread, as Config.SpotSpread says. Where a pod
// names several launch types, all offerings of the first come before those of the next.
// What unavailable reports to have no capacity is left out; nil leaves nothing out.
//
// The errors are *InvalidAnnotationError (several may be joined),
// *UnplaceableError and *NoCapacityError.
func (p *Placer) Offerings(pod *corev1.Pod, unavailable func(offering.Key) bool) ([]offering.Offering, error) {
	c, err := p.choiceFor(pod)
	if err != nil {
		return nil, err
	}
	return c.offerings(unavailable)
}

// offerings is Offerings.
func (c *choice) offerings(unavailable func(offering.Key) bool) ([]offering.Offering, error) {
	all, err := c.rank(unavailable)
	if err != nil {
		return nil, err
	}
	list := make([]offering.Offering, len(all))
	for i := range all {
		list[i] = all[i].Offering
	}
	return list, nil
}

// rank is offerings with what they are ordered by.
func (c *choice) rank(unavailable func(offering.Key) bool) ([]ranked, error) {
	fitting, available := 0, 0
	searched := make([]found, 0, len(c.capacityTypes))
	for _, m := range c.capacityTypes {
		f := c.search(m, unavailable)
		fitting += f.fitting
		available += len(f.best)
		searched = append(searched, f)
	}
	switch {
	case available > 0:
		return c.best(searched, min(available, MaxOfferings)), nil
	case fitting > 0:
		return nil, c.noCapacity()
	default:
		return nil, c.unplaceable()
	}
}

// choice is all that a pod says about its machine, ready to be compared.
type choice struct {
	*Placer
	// uid is the pod's; "" for one that there is not yet.
	uid string
	// capacity types are where the types are offered as the pod wants to be launched, in
	// its order of preference.
	capacityTypes []*capacityType
	need          need
	// only is the index of the one type that may be chosen, or -1.
	only int
	// names is what a type's name must match, and named are the types of which it does.
	names pattern
	named matches
	// byDefault reports whether only is the operator's choice, not the pod's.
	byDefault bool
	// anySize leaves the pod's resources out: the type was named.
	anySize bool
	// anyDisk reports whether a disk whose size is chosen at launch can be large enough, and
	// launchDisk is that size; 0 where it is the cloud's choice.
	anyDisk    bool
	launchDisk int64

	// least is what the type must have: the need, as far as it counts.
	least size
	// picky reports whether picks has anything to say.
	picky bool
	// allowed[arch*len(zones)+zone] reports where the pod may run; nil means anywhere.
	allowed []bool
	// most is what the machine may cost an hour, with all that is paid for it; 0 for no bound.
	most float64
	// deviceless keeps reserved machines with GPUs for others: the pod asks for no device, and for no type by name.
	deviceless bool
	// private says that the machine has no public address.
	private bool
	// besides are paid beside a machine: whose disk is chosen at launch, and whose is its own;
	// paid is what of it is known.
	besides [2]extras
	paid    [2]float64
	// requirements is what the labels of the instance must be; nil means anything.
	requirements Requirements
	// holds is whether they do, of each type in each zone by each launch type: 0 where that
	// is not known yet, 1 for yes and -1 for no.
	holds []int8
	// constraint and arch say the same for people.
	constraint constraint
	arch       string
}

func (p *Placer) choiceFor(pod *corev1.Pod) (*choice, error) {
	annotations, err := ParseAnnotations(pod.Annotations)
	if err != nil {
		return nil, err
	}
	c := &choice{
		Placer:        p,
		uid:           string(pod.UID),
		capacityTypes: p.byDefault,
		need:          needOf(pod),
		only:          -1,
		requirements:  annotations.Requirements.and(selectedGPU(pod.Spec.NodeSelector)),
		constraint:    constraintOf(&pod.Spec),
	}
	if annotations.LaunchTypes != nil {
		c.capacityTypes = p.capacityTypesOf(annotations.LaunchTypes)
	}
	switch name := annotations.InstanceType; {
	case strings.Contains(name, "*"):
		c.names = strings.Split(name, "*")
		if c.named = p.patterns.of(name, func() matches { return p.matching(c.names) }); c.named == nil {
			return nil, &InvalidAnnotationError{Annotation: AnnotationInstanceType, Value: name,
				Allowed: "a pattern that the name of a type of " + p.config.Seller + " matches"}
		}
	case name != "":
		i, known := slices.BinarySearchFunc(p.types, name, func(t catalog.InstanceType, name string) int { return strings.Compare(t.Name, name) })
		if !known {
			return nil, &InvalidAnnotationError{
				Annotation: AnnotationInstanceType,
				Value:      name,
				Allowed:    "a type of " + p.config.Seller,
				Nearest:    p.nearest(name),
			}
		}
		c.only, c.anySize = i, true
	case c.need.none() && c.requirements == nil:
		c.only, c.byDefault, c.anySize = p.defaultType, true, p.defaultType >= 0
	}
	if !c.constraint.arch && c.only < 0 {
		c.arch = p.config.DefaultArch
	}
	c.need.volume, c.most = annotations.VolumeSizeBytes, annotations.MaxPricePerHour
	if c.private = p.config.PrivateIPOnly; annotations.PrivateIPOnly != nil {
		c.private = *annotations.PrivateIPOnly
	}
	if p.config.DefaultDiskBytes > 0 {
		c.launchDisk = max(p.config.DefaultDiskBytes, c.need.volume, inGiB(diskFor(c.need.disk)))
	}
	c.besides = [2]extras{c.beside(0), c.beside(1)}
	c.paid = [2]float64{c.besides[0].known(), c.besides[1].known()}
	c.anyDisk = diskFor(c.need.disk) <= maxVolumeBytes
	// The disk that an annotation asks for is no resource: it counts for named types too. So do
	// GPUs: on a machine with too few no pod that asks for them ever runs.
	c.least = size{memory: -1, disk: c.need.volume, gpus: c.need.gpus}
	if !c.anySize {
		c.least = size{
			milliCPU: c.need.milliCPU,
			gpus:     c.need.gpus,
			memory:   c.need.memory,
			disk:     max(c.need.volume, diskFor(c.need.disk)),
		}
	}
	c.picky = c.need.hugePages != "" || !c.need.devices.none() || !c.anyDisk || c.need.disks > 0
	// What has GPUs and is paid for comes first by its price, for those alone that have a use for it.
	c.deviceless = p.reservesDevices && c.need.gpus == 0 && c.need.devices.none() && c.only < 0 && c.names == nil
	c.locate()
	return c, nil
}

// locate finds out where the pod may run.
func (c *choice) locate() {
	if c.constraint.none() {
		return
	}
	c.allowed = make([]bool, 0, len(c.archs)*len(c.zones))
	for _, arch := range c.archs {
		for _, zone := range c.zones {
			c.allowed = append(c.allowed, c.constraint.allows(arch, zone))
		}
	}
}

// candidate is an offering before it is written out: the indices of its row in
// the capacity type and of its offering in the row. It has no pointers, since it is moved
// about.
type candidate struct {
	cost          float64
	row, offering int32
}

// before is the order of candidates of one capacity type. Subnets of a zone are looked at in
// their order, and so stay in it.
func (c *choice) before(m *capacityType, a, b candidate) bool {
	if a.cost != b.cost { // nearly always
		return a.cost < b.cost
	}
	r, q := &m.rows[a.row], &m.rows[b.row]
	s, t := &c.types[r.typ], &c.types[q.typ]
	return cmp.Or(
		cmp.Compare(s.MilliCPU, t.MilliCPU),
		cmp.Compare(s.MemoryBytes, t.MemoryBytes),
		cmp.Compare(r.typ, q.typ), // types are sorted by name
		strings.Compare(c.zones[r.offerings[a.offering].zone], c.zones[q.offerings[b.offering].zone]),
	) < 0
}

// found is the outcome of a search.
type found struct {
	capacityType *capacityType
	best         []candidate // in order
	fitting      int         // types that fit, available or not
	skipped      candidate   // the cheapest of what fits but is unavailable
	skips        bool        // whether there is such a one
}

// search looks at the types of a capacity type that fit. Only offerings of the cheapest are
// looked at, since rows are in order of price, and a price is never above the cost.
func (c *choice) search(m *capacityType, unavailable func(offering.Key) bool) found {
	fitting := c.fitting(m)
	f := found{capacityType: m, best: make([]candidate, 0, MaxOfferings), fitting: fitting.count()}
	dearest := math.Inf(1) // the cost of the last of the best, once they are MaxOfferings
	// unpriced reports whether that is of a row without a price: these are in the order of
	// candidates already, and all that follow come after it.
	unpriced := false
	for i := fitting.next(0); i >= 0; i = fitting.next(i + 1) {
		s, r := &m.sizes[i], &m.rows[i]
		if s.price > dearest || unpriced && math.IsInf(s.price, 1) { // as all that follow
			break
		}
		extra := c.paid[min(r.disk, 1)] + c.credits(r)
		for j, o := range r.offerings {
			if !c.allows(r, s, o) {
				continue
			}
			next := candidate{cost: o.price + extra, row: int32(i), offering: int32(j)}
			if next.cost > dearest || len(f.best) == MaxOfferings && !c.before(m, next, f.best[MaxOfferings-1]) {
				continue
			}
			if unavailable != nil && unavailable(c.key(r, o)) {
				if !f.skips || c.before(m, next, f.skipped) {
					f.skipped, f.skips = next, true
				}
				continue
			}
			f.best = c.insert(m, f.best, next)
			if len(f.best) == MaxOfferings {
				last := f.best[MaxOfferings-1]
				dearest = last.cost
				unpriced = math.IsInf(m.sizes[last.row].price, 1)
			}
		}
	}
	return f
}

// fitting are the types of a capacity type that fit, and are offered where the pod may run.
func (c *choice) fitting(m *capacityType) set {
	fit := c.where(m)
	m.milliCPU.keep(fit, c.least.milliCPU)
	m.memory.keep(fit, c.least.memory)
	m.disk.keep(fit, c.least.disk)
	m.gpus.keep(fit, c.least.gpus)
	switch {
	case c.only >= 0:
		one := newSet(len(m.rows))
		if i := m.rowOf[c.only]; i >= 0 {
			one.add(i)
		}
		fit.keep(one)
	case c.named != nil:
		fit.keep(c.named[m.launchType])
	}
	// Each offering of a type is looked at only to know whether one is what the pod asks for
	// beside a place, or costs no more than it may.
	byOffering := c.requirements != nil || c.most > 0 || c.deviceless
	if !c.picky && !byOffering {
		return fit
	}
	for i := fit.next(0); i >= 0; i = fit.next(i + 1) {
		if s := &m.sizes[i]; c.picky && !c.picks(s) || byOffering && !c.offered(&m.rows[i], s) {
			fit.remove(i)
		}
	}
	return fit
}

// where are the types of a capacity type that are offered where the pod may run.
func (c *choice) where(m *capacityType) set {
	where := newSet(len(m.rows))
	for i, arch := range c.archs {
		switch {
		case c.arch != "" && c.arch != arch:
		case c.allowed == nil:
			where.unite(m.archs[i])
		default:
			for j := i * len(c.zones); j < (i+1)*len(c.zones); j++ {
				if c.allowed[j] {
					where.unite(m.offered[j])
				}
			}
		}
	}
	return where
}

// matching are the types whose names match a pattern; nil if there is none.
func (p *Placer) matching(names pattern) matches {
	var all matches
	for typ := range p.types {
		if !names.match(p.types[typ].Name) {
			continue
		}
		for _, m := range p.capacityTypesOf([]LaunchType{OnDemand, Spot, Dedicated}) {
			if all == nil {
				all = matches{}
			}
			if all[m.launchType] == nil {
				all[m.launchType] = newSet(len(m.rows))
			}
			if i := m.rowOf[typ]; i >= 0 {
				all[m.launchType].add(i)
			}
		}
	}
	return all
}

func (c *choice) key(r *row, o pricedOffering) offering.Key {
	t := &c.types[r.typ]
	return offering.KeyOf(t, &t.Offerings[o.index])
}

// insert puts a candidate in its place among the best, of which it drops the
// last when they are too many.
func (c *choice) insert(m *capacityType, best []candidate, next candidate) []candidate {
	if len(best) < MaxOfferings {
		best = append(best, next)
	}
	at := len(best) - 1
	for ; at > 0 && c.before(m, next, best[at-1]); at-- {
		best[at] = best[at-1]
	}
	best[at] = next
	return best
}

// picks reports whether the type may be chosen, for what few pods ask.
func (c *choice) picks(s *size) bool {
	return c.takesDisks(s) && (c.need.devices.none() || c.need.devices.within(devicesOf(&c.types[s.typ]))) &&
		(c.anySize || c.need.hugePages == "" && (c.anyDisk || s.disk < math.MaxInt64))
}

// takesDisks reports whether the pod's disks can be attached to the type, also if it was named.
func (c *choice) takesDisks(s *size) bool {
	most := c.types[s.typ].MaxDisks
	return most == 0 || c.need.disks <= most
}

// offered reports whether the type is offered where the pod may run, for what it may cost.
func (c *choice) offered(r *row, s *size) bool {
	return slices.ContainsFunc(r.offerings, func(o pricedOffering) bool { return c.allows(r, s, o) })
}

// allows reports whether an offering is one that the pod may have.
func (c *choice) allows(r *row, s *size, o pricedOffering) bool {
	return c.asked(r, s, o.zone) && (c.most == 0 || c.price(r, o) <= c.most) && !(c.deviceless && o.forDevices)
}

// asked reports whether an offering in that zone is one that the pod asks for.
func (c *choice) asked(r *row, s *size, zone int) bool {
	return c.inZone(s, zone) && (c.requirements == nil || c.held(r, zone))
}

// price is what an offering costs with all that is known to be paid for it, to a
// billionth, since sums are not exact; infinite where that of the machine is not known.
func (c *choice) price(r *row, o pricedOffering) float64 {
	sold := &c.types[r.typ].Offerings[o.index]
	if sold.Unpriced {
		return math.Inf(1)
	}
	return math.Round((sold.PricePerHour+c.credits(r)+c.paid[min(r.disk, 1)])*1e9) / 1e9
}

// beside is what is paid beside a machine whose type has a root disk of a size; 0 where it
// is chosen at launch.
func (c *choice) beside(size int64) extras {
	nothing, rates := new(float64), c.config.Rates
	e := extras{
		diskBytes:      cmp.Or(size, c.launchDisk, c.need.volume),
		diskPerHour:    nothing,
		addressPerHour: nothing,
	}
	if rates == nil {
		return e
	}
	if size == 0 {
		e.diskPerHour = nil
		if disk, known := rates.DiskPerHour(e.diskBytes); known {
			e.diskPerHour = &disk
		}
	}
	if !c.private {
		e.addressPerHour = nil
		if rates.AddressPerHour > 0 {
			e.addressPerHour = &rates.AddressPerHour
		}
	}
	return e
}

func (c *choice) inZone(s *size, zone int) bool {
	return c.allowed == nil || c.allowed[s.arch*len(c.zones)+zone]
}

// credits is what a burstable type is charged for the pod's CPU above its
// baseline, in dollars an hour.
func (c *choice) credits(r *row) float64 {
	if above := min(c.need.milliCPU, c.types[r.typ].MilliCPU) - r.baseline; above > 0 {
		return float64(above) / 1000 * c.types[r.typ].CreditPerCPUHour
	}
	return 0
}

// best writes out n of what was found, one capacity type after the other.
func (c *choice) best(searched []found, n int) []ranked {
	out := make([]ranked, 0, n)
	for i, f := range searched {
		room := n - len(out)
		for _, later := range searched[i+1:] {
			room -= min(fallbackCandidates, len(later.best))
		}
		f.best = f.best[:min(room, len(f.best))]
		fallback := ""
		if i > 0 {
			fallback = words(f.capacityType.launchType) + ", the fall-back from " + either(launchTypes(c.capacityTypes[:i]),
				func(t LaunchType) string { return string(t) }) + ": "
		}
		first := len(out)
		if out = c.write(out, f, fallback); f.capacityType.launchType == Spot {
			spread(out[first:], c.config.SpotSpread, c.uid)
		}
	}
	return out
}

// write appends what was found in one capacity type. Each reason begins with the given words. All
// reasons are parts of one string, since each choice has many of them.
func (c *choice) write(out []ranked, f found, begin string) []ranked {
	why, first := c.why(f), len(out)
	type part struct{ from, to int }
	var ranked [MaxOfferings]part // the reasons by rank
	var reasons [MaxOfferings]int // which of them each candidate has
	text, rank := make([]byte, 0, 2048), 0
	for i, b := range f.best {
		r := &f.capacityType.rows[b.row]
		t := &c.types[r.typ]
		// Offerings of one type have one reason, apart from those in reservations, and the same is
		// paid beside them.
		same := func(b2 candidate) bool { return b2.row == b.row && reserved(t, r, b2) == reserved(t, r, b) }
		if j := slices.IndexFunc(f.best[:i], same); j >= 0 {
			reasons[i] = reasons[j]
		} else {
			reasons[i] = rank
			from := len(text)
			text = append(text, begin...)
			text = c.appendReason(text, rank+1, f.skips && c.before(f.capacityType, f.skipped, b), r, math.IsInf(b.cost, 1), why)
			ranked[rank] = part{from, len(text)}
			rank++
		}
		out = append(out, c.ranked(r, b))
	}
	all := string(text)
	for i := range f.best {
		next, of := &out[first+i], ranked[reasons[i]]
		next.Reason = all[of.from:of.to]
		switch o := next.sold; {
		case o.Reservation != "":
			next.Reason += "; in reservation " + o.Reservation + ", which is paid for whether it is used or not"
		case o.Unpriced && o.OrderedAt > 0:
			next.Reason += fmt.Sprintf("; its price is not known, and it is ordered by that of $%g an hour on demand", o.OrderedAt)
		}
		if risk := next.sold.Risk; risk > 0 {
			next.Reason += fmt.Sprintf("; counts as %.0f %% dearer, since such instances were taken back there", risk*100)
		}
	}
	return out
}

// ranked writes out a candidate of a row, all but the reason.
func (c *choice) ranked(r *row, of candidate) ranked {
	t, e := &c.types[r.typ], c.besides[min(r.disk, 1)]
	sold := &t.Offerings[r.offerings[of.offering].index]
	o := offering.Of(t, sold, e.diskBytes)
	o.BurstPerHour = c.credits(r)
	o.DiskPerHour, o.DiskUnpriced = priceOf(e.diskPerHour)
	o.AddressPerHour, o.AddressUnpriced = priceOf(e.addressPerHour)
	return ranked{
		Offering: o,
		sold:     sold,
		prefer:   t.Prefer,
		cost:     of.cost,
	}
}

// reserved says that a candidate, of a row's type, is in a reservation.
func reserved(t *catalog.InstanceType, r *row, c candidate) bool {
	return t.Offerings[r.offerings[c.offering].index].Reservation != ""
}

// why is the part of the reason that all candidates of a capacity type share.
func (c *choice) why(f found) string {
	if c.only >= 0 {
		return ""
	}
	s := " of " + types(f.fitting)
	if c.names != nil {
		s += " named " + strings.Join(c.names, "*")
	}
	if f.capacityType.launchType == Spot {
		s += " offered as spot"
	}
	if c.requirements != nil {
		s += " and allowed by " + AnnotationRequirements
	}
	if f.fitting == 1 {
		return s + " that fits " + c.need.text(c.config.ReservedMemoryBytes)
	}
	return s + " that fit " + c.need.text(c.config.ReservedMemoryBytes)
}

func launchTypes(capacityTypes []*capacityType) []LaunchType {
	all := make([]LaunchType, len(capacityTypes))
	for i, m := range capacityTypes {
		all[i] = m.launchType
	}
	return all
}

// ranks of candidates, by type.
var ranks = func() (ranks [MaxOfferings + 1]string) {
	for n := range ranks {
		ranks[n] = fmt.Sprintf("%dth cheapest", n) // right up to 20
	}
	ranks[1], ranks[2], ranks[3] = "cheapest", "2nd cheapest", "3rd cheapest"
	return ranks
}()

func (c *choice) appendReason(text []byte, rank int, skipped bool, r *row, unpriced bool, why string) []byte {
	switch {
	case c.only >= 0 && c.byDefault:
		text = append(text, "the default instance type, since the pod asks for no resources"...)
	case c.only >= 0:
		text = append(text, "named by "+AnnotationInstanceType...)
		if s := c.sizeOf(r.typ); s.milliCPU < c.need.milliCPU || s.memory < c.need.memory || s.disk < diskFor(c.need.disk) ||
			s.gpus < c.need.gpus || !c.need.devices.within(devicesOf(&c.types[r.typ])) {
			text = fmt.Appendf(text, ", though too small for %s", c.need.text(c.config.ReservedMemoryBytes))
		}
	case unpriced:
		text = append(append(text, "taken by its size, since its price is not known,"...), why...)
	case skipped:
		text = append(append(append(text, ranks[rank]...), " with capacity now"...), why...)
	default:
		text = append(append(text, ranks[rank]...), why...)
	}
	if credits := c.credits(r); credits > 0 {
		text = append(text, "; with $"...)
		text = append(strconv.AppendFloat(text, credits, 'f', 4, 64), " an hour for CPU above its baseline"...)
	}
	return text
}

// noCapacity is the error when types fit and none is available.
func (c *choice) noCapacity() *NoCapacityError {
	e := &NoCapacityError{Need: c.need.text(c.config.ReservedMemoryBytes), LaunchTypes: launchTypes(c.capacityTypes)}
	for _, m := range c.capacityTypes {
		var fitting []candidate
		fits := c.fitting(m)
		for i := fits.next(0); i >= 0; i = fits.next(i + 1) {
			s, r := &m.sizes[i], &m.rows[i]
			// Offerings are in order of price: the first is the type's cheapest.
			if j := slices.IndexFunc(r.offerings, func(o pricedOffering) bool { return c.allows(r, s, o) }); j >= 0 {
				cost := r.offerings[j].price + (c.paid[min(r.disk, 1)] + c.credits(r))
				fitting = append(fitting, candidate{cost: cost, row: int32(i), offering: int32(j)})
			}
		}
		slices.SortFunc(fitting, func(a, b candidate) int {
			if c.before(m, a, b) {
				return -1
			}
			return 1
		})
		for _, f := range fitting {
			if name := c.types[m.rows[f.row].typ].Name; !slices.Contains(e.Types, name) {
				e.Types = append(e.Types, name)
			}
		}
	}
	return e
}

// pattern is what stands between the stars of a pattern of names; nil matches any
// name. Each star stands for any run of characters.
type pattern []string

func (p pattern) match(name string) bool {
	if p == nil {
		return true
	}
	first, last := p[0], p[len(p)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range p[1 : len(p)-1] {
		_, after, found := strings.Cut(name, part)
		if !found {
			return false
		}
		name = after
	}
	return true
}
