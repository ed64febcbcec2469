package placement

import (
	"cmp"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

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
	// allowed[arch*len(zones)+zone] reports where the pod may run, and onArch[arch] on what; nil means anywhere.
	allowed, onArch []bool
	// most is what the machine may cost an hour, with all that is paid for it; 0 for no bound.
	most float64
	// deviceless keeps reserved machines with GPUs for others: the pod asks for no device, and for no type by name.
	deviceless bool
	// private reports whether the machine has no public address.
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
	// constraint is what the pod says of where it may run, and arch the architecture of one that says nothing of that.
	constraint constraint
	arch       string

	// fit is what a walk has found.
	fit fit
}

// choicesFor returns the choices of a pod, the preferred first: one, unless its requirements are an ordered list.
func (p *Placer) choicesFor(pod *corev1.Pod) (choices, error) {
	annotations, err := ParseAnnotations(pod.Annotations)
	if err != nil {
		return nil, err
	}
	if annotations.Choices == nil {
		c, err := p.choiceOf(pod, annotations)
		return choices{c}, err
	}
	var all choices
	for _, one := range annotations.Choices {
		asked := annotations
		asked.Requirements = one.Requirements
		if one.LaunchType != "" {
			asked.LaunchTypes = []LaunchType{one.LaunchType}
		}
		c, err := p.choiceOf(pod, asked)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func (p *Placer) choiceOf(pod *corev1.Pod, annotations Annotations) (*choice, error) {
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
	c.need.volume, c.need.swap, c.most = annotations.VolumeSizeBytes, annotations.SwapBytes, annotations.MaxPricePerHour
	if c.private = p.config.PrivateIPOnly; annotations.PrivateIPOnly != nil {
		c.private = *annotations.PrivateIPOnly
	}
	if p.config.DefaultDiskBytes > 0 {
		c.launchDisk = c.need.launchDisk(p.config.DefaultDiskBytes)
	}
	c.besides = [2]extras{c.beside(0), c.beside(1)}
	c.paid = [2]float64{c.besides[0].known(), c.besides[1].known()}
	c.anyDisk = c.need.rootDisk(c.need.disk) <= maxVolumeBytes
	// The disk and the swap that annotations ask for are no resources: they count for named types too. So do
	// GPUs and huge pages: on a machine with too few no pod that asks for them ever runs.
	c.least = size{memory: -1, disk: c.need.rootDisk(0), gpus: c.need.gpus}
	if c.need.asksForPages() {
		c.least.memory = c.need.pages.bytes()
	}
	if !c.anySize {
		c.least = size{
			milliCPU: c.need.milliCPU,
			gpus:     c.need.gpus,
			memory:   c.need.allMemory(),
			disk:     c.need.rootDisk(c.need.disk),
		}
	}
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
	if c.constraint.arch {
		only := c.constraint.archOnly()
		for _, arch := range c.archs {
			c.onArch = append(c.onArch, only.allows(arch, ""))
		}
	}
	c.allowed = make([]bool, 0, len(c.archs)*len(c.zones))
	for _, arch := range c.archs {
		for _, zone := range c.zones {
			c.allowed = append(c.allowed, c.constraint.allows(arch, zone))
		}
	}
}

// takesDisks reports whether the pod's disks can be attached to the type, also if it was named.
func (c *choice) takesDisks(s *size) bool {
	most := c.types[s.typ].MaxDisks
	return most == 0 || c.need.disks <= most
}

// allows reports whether an offering is one that the pod may have.
func (c *choice) allows(r *row, s *size, o pricedOffering) bool {
	return c.asked(r, s, o.zone) && (c.most == 0 || c.price(r, o) <= c.most) && !(c.deviceless && o.forDevices)
}

// asked reports whether an offering in that zone is one that the pod asks for.
func (c *choice) asked(r *row, s *size, zone int) bool {
	return c.inZone(s, zone) && (c.requirements == nil || c.held(r, zone))
}

func (c *choice) inZone(s *size, zone int) bool {
	return c.allowed == nil || c.allowed[s.arch*len(c.zones)+zone]
}

func (c *choice) key(m *capacityType, of candidate) offering.Key {
	r := &m.rows[of.row]
	t := &c.types[r.typ]
	return offering.KeyOf(t, &t.Offerings[r.offerings[of.offering].index])
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

// credits is what a burstable type is charged for the pod's CPU above its
// baseline, in dollars an hour.
func (c *choice) credits(r *row) float64 {
	if above := min(c.need.milliCPU, c.types[r.typ].MilliCPU) - r.baseline; above > 0 {
		return float64(above) / 1000 * c.types[r.typ].CreditPerCPUHour
	}
	return 0
}
