package placement

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
	corev1 "k8s.io/api/core/v1"
)

// check is one of the things that a type must pass. Its words begin with a verb
// in the plural; of says how far the rejected types are from
// passing, "" where there is nothing to say.
type check struct {
	fails func(s *size, rows []*row) bool // the type's rows in the capacity types of the choice
	words string
	of    func(rejected []int) string
}

// unplaceable is the error when no type fits. It looks at every type once more,
// and counts each at the first check that it fails.
func (c *choice) unplaceable() *UnplaceableError {
	e := &UnplaceableError{Need: c.need.text(c.config.ReservedMemoryBytes)}
	offered := c.rowsOf()
	e.Rejections, _ = c.rejections(offered)
	for _, r := range e.Rejections {
		e.Considered += r.Types
	}
	return e
}

// Chosen is what a pod can be launched on, and why on no other type.
type Chosen struct {
	// Offerings are as Offerings returns them.
	Offerings []offering.Offering
	// RuledOut says why types are not among them, by count.
	RuledOut []Rejection
	// Types is how many types are not ruled out. Of those that come last Offerings may have none.
	Types int
}

// Choose returns the offerings that a pod can be launched on, and why other types are none, for people. It looks at all types:
// whoever does not show them asks for Offerings, which are sooner. The errors are those of Offerings.
func (p *Placer) Choose(pod *corev1.Pod, unavailable func(offering.Key) bool) (chosen Chosen, err error) {
	all, err := p.choicesFor(pod)
	if err != nil {
		return Chosen{}, err
	}
	if chosen.Offerings, err = all.offerings(unavailable); err != nil {
		return Chosen{}, err
	}
	for n, c := range all {
		ruledOut, types := c.ruledOut(unavailable)
		for i := range ruledOut {
			ruledOut[i].Why += all.of(n)
		}
		chosen.RuledOut, chosen.Types = append(chosen.RuledOut, ruledOut...), max(chosen.Types, types)
	}
	return chosen, nil
}

// ruledOut returns why types are not among the offerings, by count, and how many types are left.
func (c *choice) ruledOut(unavailable func(offering.Key) bool) (ruledOut []Rejection, left int) {
	offered := c.rowsOf()
	ruledOut, fitting := c.rejections(offered)
	for _, typ := range fitting {
		s := c.sizeOf(typ)
		if slices.ContainsFunc(offered[typ], func(r *row) bool {
			return slices.ContainsFunc(r.offerings, func(o pricedOffering) bool {
				return c.allows(r, &s, o) && (unavailable == nil || !unavailable(c.key(r, o)))
			})
		}) {
			left++
		}
	}
	if short := len(fitting) - left; short > 0 {
		ruledOut = append(ruledOut, rejection(short, "have no capacity now"))
	}
	return ruledOut, left
}

// rejection counts types by words that begin with a verb in the plural.
func rejection(n int, words string) Rejection {
	if n == 1 {
		words = singular(words)
	}
	return Rejection{Types: n, Why: words}
}

// rowsOf are the rows of each type in the capacity types of the choice.
func (c *choice) rowsOf() [][]*row {
	n := len(c.capacityTypes)
	offered, all := make([][]*row, len(c.types)), make([]*row, len(c.types)*n)
	for typ := range offered {
		offered[typ] = all[typ*n : typ*n : typ*n+n]
	}
	for _, m := range c.capacityTypes {
		for i := range m.rows {
			typ := m.rows[i].typ
			offered[typ] = append(offered[typ], &m.rows[i])
		}
	}
	return offered
}

// rejections counts each type that does not fit at the first check that it fails, and
// returns those that do.
func (c *choice) rejections(offered [][]*row) (list []Rejection, fitting []int) {
	checks := c.checks(offered)
	rejected := make([][]int, len(checks))
	for typ := range c.types {
		if c.only >= 0 && c.only != typ || !c.names.match(c.types[typ].Name) {
			continue
		}
		size := c.sizeOf(typ)
		i := slices.IndexFunc(checks, func(ch check) bool { return ch.fails(&size, offered[typ]) })
		if i < 0 {
			fitting = append(fitting, typ)
			continue
		}
		rejected[i] = append(rejected[i], typ)
	}
	for i, ch := range checks {
		if n := len(rejected[i]); n > 0 {
			r := rejection(n, ch.words)
			if ch.of != nil {
				if of := ch.of(rejected[i]); of != "" {
					r.Why += " (" + of + ")"
				}
			}
			list = append(list, r)
		}
	}
	return list, fitting
}

// checks are in the order in which people think of them: what kind of machine,
// where, and only then how large. Together they are what search asks, so each type
// that does not fit fails one of them. offered are the rows of each type.
func (c *choice) checks(offered [][]*row) []check {
	checks := append(c.kindChecks(offered), c.acceleratorChecks()...)
	if !c.anySize {
		checks = append(checks, c.sizeChecks()...)
	}
	return append(checks, c.diskCheck(), c.disksCheck(), c.priceCheck(offered))
}

// kindChecks ask what kind of machine a type is, and where it is offered.
func (c *choice) kindChecks(offered [][]*row) []check {
	archs := c.constraint.archOnly()
	return []check{
		{
			words: "are not sold to this account",
			fails: func(s *size, _ []*row) bool { return c.types[s.typ].Withheld != "" },
			of: func(rejected []int) string {
				return list(rejected, func(typ int) []string { return []string{c.types[typ].Withheld} })
			},
		},
		{
			words: "are not offered " + either(launchTypes(c.capacityTypes), words),
			fails: func(_ *size, rows []*row) bool { return len(rows) == 0 },
		},
		{
			words: "have an architecture that the pod cannot run on",
			fails: func(s *size, _ []*row) bool {
				arch := c.archs[s.arch]
				return c.arch != "" && c.arch != arch || !archs.allows(arch, "")
			},
			of: func(rejected []int) string {
				return list(rejected, func(typ int) []string { return []string{c.types[typ].Arch} })
			},
		},
		{
			words: "have no offering in a zone where the pod may run",
			fails: func(s *size, rows []*row) bool {
				return !slices.ContainsFunc(rows, func(r *row) bool {
					return slices.ContainsFunc(r.offerings, func(o pricedOffering) bool { return c.inZone(s, o.zone) })
				})
			},
			of: func(rejected []int) string {
				return "offered in " + list(rejected, func(typ int) []string {
					var zones []string
					for _, r := range offered[typ] {
						for _, o := range r.offerings {
							zones = append(zones, c.zones[o.zone])
						}
					}
					return zones
				})
			},
		},
		{
			words: "are ruled out by " + AnnotationRequirements,
			fails: func(s *size, rows []*row) bool {
				return !slices.ContainsFunc(rows, func(r *row) bool {
					return slices.ContainsFunc(r.offerings, func(o pricedOffering) bool { return c.asked(r, s, o.zone) })
				})
			},
			of: func(rejected []int) string { return c.labelValues(rejected, offered) },
		},
	}
}

// acceleratorChecks ask whether a type has the accelerators that the pod asks for, also if it was
// named: one with too few never runs the pod.
func (c *choice) acceleratorChecks() []check {
	gpus := func(typ int) int64 { return gpusOf(&c.types[typ], "nvidia") }
	return []check{
		{
			words: "have too few GPUs",
			fails: func(s *size, _ []*row) bool { return s.gpus < c.need.gpus },
			of: func(rejected []int) string {
				if c.only >= 0 {
					return fmt.Sprintf("%s has %d", c.types[c.only].Name, gpus(c.only))
				}
				return c.largest(gpus, func(n int64) string { return fmt.Sprint(n) })(rejected)
			},
		},
		{
			words: "have too few of the accelerators",
			fails: func(s *size, _ []*row) bool { return !c.need.devices.within(devicesOf(&c.types[s.typ])) },
			of: func([]int) string {
				if c.only < 0 {
					return ""
				}
				var counts []string
				for i, has := range devicesOf(&c.types[c.only]) {
					if c.need.devices[i] > has {
						counts = append(counts, fmt.Sprintf("%d %s", has, otherDevices[i].resource))
					}
				}
				return c.types[c.only].Name + " has " + strings.Join(counts, ", ")
			},
		},
	}
}

// sizeChecks ask whether a type is large enough for the pod, its disk left out.
func (c *choice) sizeChecks() []check {
	return []check{
		{
			words: "have no " + string(c.need.hugePages),
			fails: func(*size, []*row) bool { return c.need.hugePages != "" },
		},
		{
			words: "have too little cpu",
			fails: func(s *size, _ []*row) bool { return s.milliCPU < c.need.milliCPU },
			of:    c.largest(func(typ int) int64 { return c.types[typ].SustainedMilliCPU() }, cpuText),
		},
		{
			words: "have too little memory, as their machines have told",
			fails: func(s *size, _ []*row) bool {
				t := c.types[s.typ]
				t.Learnt = catalog.Resources{}
				return s.memory < c.need.memory && t.SeenBytes()-c.config.ReservedMemoryBytes >= c.need.memory
			},
			of: c.largest(func(typ int) int64 { return c.types[typ].SeenBytes() }, bytesText),
		},
		{
			words: "have too little memory",
			fails: func(s *size, _ []*row) bool { return s.memory < c.need.memory },
			of:    c.largest(func(typ int) int64 { return c.types[typ].MemoryBytes }, bytesText),
		},
	}
}

func (c *choice) diskCheck() check {
	return check{
		words: "have too small a disk",
		fails: func(s *size, _ []*row) bool {
			return s.disk < c.least.disk || !c.anySize && !c.anyDisk && s.disk == math.MaxInt64
		},
		of: func(rejected []int) string {
			return c.largest(func(typ int) int64 { return cmp.Or(c.types[typ].DiskBytes, maxVolumeBytes) }, bytesText)(rejected)
		},
	}
}

func (c *choice) disksCheck() check {
	return check{
		words: fmt.Sprintf("have room for fewer than the %d disks of the pod's volumes", c.need.disks),
		fails: func(s *size, _ []*row) bool { return !c.takesDisks(s) },
		of:    c.largest(func(typ int) int64 { return c.types[typ].MaxDisks }, func(n int64) string { return fmt.Sprint(n) }),
	}
}

func (c *choice) priceCheck(offered [][]*row) check {
	return check{
		words: fmt.Sprintf("are dearer than the $%v an hour of %s", c.most, AnnotationMaxPrice),
		fails: func(s *size, rows []*row) bool {
			return !slices.ContainsFunc(rows, func(r *row) bool { return c.offered(r, s) })
		},
		of: func(rejected []int) string { return c.cheapest(rejected, offered) },
	}
}

// largest says which of the rejected types has the most of something, and how much.
func (c *choice) largest(size func(typ int) int64, text func(int64) string) func(rejected []int) string {
	return func(rejected []int) string {
		at := slices.MaxFunc(rejected, func(a, b int) int { return cmp.Compare(size(a), size(b)) })
		if size(at) == 0 {
			return ""
		}
		return "largest: " + c.types[at].Name + " with " + text(size(at))
	}
}

// cheapest says what the cheapest of the rejected types costs where it may be had.
func (c *choice) cheapest(rejected []int, offered [][]*row) string {
	least, name := math.Inf(1), ""
	for _, typ := range rejected {
		s := c.sizeOf(typ)
		for _, r := range offered[typ] {
			for _, o := range r.offerings {
				if p := c.price(r, o); p < least && c.asked(r, &s, o.zone) {
					least, name = p, c.types[typ].Name
				}
			}
		}
	}
	if name == "" {
		return "none has a price that is known"
	}
	return fmt.Sprintf("cheapest: %s for $%v", name, least)
}

// labelValues says which values the rejected types have of the labels that the pod
// asks for, the first three.
func (c *choice) labelValues(rejected []int, offered [][]*row) string {
	const most = 3
	var all []string
	for _, key := range c.requirements.keys() {
		if len(all) == most {
			break
		}
		values := list(rejected, func(typ int) (values []string) {
			for _, r := range offered[typ] {
				for _, o := range r.offerings {
					if v, ok := c.machine(r, o.zone).Lookup(key); ok {
						values = append(values, v)
					}
				}
			}
			return values
		})
		if values == "" {
			values = "none has it"
		}
		all = append(all, key+": "+values)
	}
	return strings.Join(all, "; ")
}

// singular makes the leading verb of words agree with one type.
func singular(words string) string {
	if rest, ok := strings.CutPrefix(words, "are "); ok {
		return "is " + rest
	}
	return "has " + strings.TrimPrefix(words, "have ")
}

// list joins the different words of all types, the first five of them.
func list(of []int, words func(typ int) []string) string {
	const most = 5
	different := map[string]bool{}
	for _, typ := range of {
		for _, word := range words(typ) {
			different[word] = true
		}
	}
	all := slices.Sorted(maps.Keys(different))
	if len(all) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
	}
	return strings.Join(all, ", ")
}
