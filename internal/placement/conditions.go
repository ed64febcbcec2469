package placement

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/catalog"
)

// condition is one of the things that a machine must pass to fit a pod.
type condition struct {
	// keep removes, of some rows of a capacity type, those that do not pass. It is nil where no row can fail: see unsold.
	keep func(c *choice, m *capacityType, rows set)
	// slow reports whether keep looks at one row after the other: with fewer rows it is sooner done.
	slow bool
	// split reports whether the next condition would remove what this one does, too, in other words.
	split bool
	// unsold reports, of a type without any row in the capacity types of a choice, whether it is so because of this. Optional.
	unsold func(c *choice, typ int) bool
	// words say of types that do not pass. They begin with a verb in the plural.
	words func(c *choice) string
	// of returns how far these are from passing, "" where there is nothing to say. Optional.
	of func(c *choice, ruledOut []int) string
}

// conditions are in the order in which people think of them: what kind of machine, where, and only then how large.
// Together they are all that is asked of a type.
var conditions = slices.Concat(kindConditions, acceleratorConditions, sizeConditions, diskConditions, priceConditions)

// quickFirst are the same conditions in the order in which they take the least time, without those that change only the words.
var quickFirst = func() (order []int) {
	for _, slow := range []bool{false, true} {
		for n, one := range conditions {
			if one.slow == slow && !one.split && one.keep != nil {
				order = append(order, n)
			}
		}
	}
	return order
}()

// are returns words that are always the same.
func are(words string) func(*choice) string { return func(*choice) string { return words } }

// kindConditions ask what kind of machine a type is, and where it is offered.
var kindConditions = []condition{
	{
		unsold: func(c *choice, typ int) bool { return c.types[typ].Withheld != "" },
		words:  are("are not sold to this account"),
		of: func(c *choice, ruledOut []int) string {
			return list(ruledOut, func(typ int) []string { return []string{c.types[typ].Withheld} })
		},
	},
	{
		unsold: func(*choice, int) bool { return true },
		words:  func(c *choice) string { return "are not offered " + either(launchTypes(c.capacityTypes), words) },
	},
	{
		keep:  (*choice).keepArchs,
		words: are("have an architecture that the pod cannot run on"),
		of: func(c *choice, ruledOut []int) string {
			return list(ruledOut, func(typ int) []string { return []string{c.types[typ].Arch} })
		},
	},
	{
		keep:  (*choice).keepZones,
		words: are("have no offering in a zone where the pod may run"),
		of: func(c *choice, ruledOut []int) string {
			return "offered in " + list(ruledOut, func(typ int) (zones []string) {
				for _, r := range c.rowsOf(typ) {
					for _, o := range r.offerings {
						zones = append(zones, c.zones[o.zone])
					}
				}
				return zones
			})
		},
	},
	{
		keep:  (*choice).keepRequired,
		slow:  true,
		words: are("are ruled out by " + AnnotationRequirements),
		of:    (*choice).labelValues,
	},
}

func (c *choice) keepArchs(m *capacityType, rows set) {
	for i, arch := range c.archs {
		if c.arch != "" && c.arch != arch || c.onArch != nil && !c.onArch[i] {
			rows.drop(m.archs[i])
		}
	}
}

func (c *choice) keepZones(m *capacityType, rows set) {
	if c.allowed == nil {
		return
	}
	there := newSet(len(m.rows))
	for i, is := range c.allowed {
		if is {
			there.unite(m.offered[i])
		}
	}
	rows.keep(there)
}

func (c *choice) keepRequired(m *capacityType, rows set) {
	if c.requirements == nil {
		return
	}
	m.keepEach(rows, func(r *row, s *size) bool {
		return slices.ContainsFunc(r.offerings, func(o pricedOffering) bool { return c.asked(r, s, o.zone) })
	})
}

// acceleratorConditions ask whether a type has the accelerators and huge pages that the pod asks for, also if it was
// named: one with too few never runs the pod.
var acceleratorConditions = []condition{
	{
		keep:  func(c *choice, m *capacityType, rows set) { m.gpus.keep(rows, c.least.gpus) },
		words: are("have too few GPUs"),
		of: func(c *choice, ruledOut []int) string {
			gpus := func(typ int) int64 { return gpusOf(&c.types[typ], "nvidia") }
			if c.only >= 0 {
				return fmt.Sprintf("%s has %d", c.types[c.only].Name, gpus(c.only))
			}
			return c.largest(ruledOut, gpus, countText)
		},
	},
	{
		keep: func(c *choice, m *capacityType, rows set) {
			if !c.need.devices.none() {
				m.keepEach(rows, func(_ *row, s *size) bool { return c.need.devices.within(devicesOf(&c.types[s.typ])) })
			}
		},
		slow:  true,
		words: are("have too few of the accelerators"),
		of: func(c *choice, _ []int) string {
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
	{
		keep:  (*choice).keepPages,
		words: (*choice).pagesText,
		of:    (*choice).whyNoPages,
	},
}

// sizeConditions ask whether a type is large enough for the pod, its disk left out. Of a type that was named they ask only for
// room for the pod's huge pages.
var sizeConditions = []condition{
	{
		keep:  func(c *choice, m *capacityType, rows set) { m.milliCPU.keep(rows, c.least.milliCPU) },
		words: are("have too little cpu"),
		of: func(c *choice, ruledOut []int) string {
			return c.largest(ruledOut, func(typ int) int64 { return c.types[typ].SustainedMilliCPU() }, cpuText)
		},
	},
	{
		keep: func(c *choice, m *capacityType, rows set) {
			m.keepEach(rows, func(_ *row, s *size) bool {
				promised := c.types[s.typ]
				promised.Learnt = catalog.Resources{}
				return s.memory >= c.least.memory || promised.SeenBytes()-c.config.ReservedMemoryBytes < c.least.memory
			})
		},
		split: true,
		words: are("have too little memory, as their machines have told"),
		of: func(c *choice, ruledOut []int) string {
			return c.largest(ruledOut, func(typ int) int64 { return c.types[typ].SeenBytes() }, bytesText)
		},
	},
	{
		keep:  func(c *choice, m *capacityType, rows set) { m.memory.keep(rows, c.least.memory) },
		words: are("have too little memory"),
		of: func(c *choice, ruledOut []int) string {
			return c.largest(ruledOut, func(typ int) int64 { return c.types[typ].MemoryBytes }, bytesText)
		},
	},
}

var diskConditions = []condition{
	{
		keep: func(c *choice, m *capacityType, rows set) {
			m.disk.keep(rows, c.least.disk)
			if !c.anySize && !c.anyDisk {
				m.keepEach(rows, func(_ *row, s *size) bool { return s.disk < math.MaxInt64 })
			}
		},
		words: are("have too small a disk"),
		of: func(c *choice, ruledOut []int) string {
			return c.largest(ruledOut, func(typ int) int64 { return cmp.Or(c.types[typ].DiskBytes, maxVolumeBytes) }, bytesText)
		},
	},
	{
		// Also of a type that was named.
		keep: func(c *choice, m *capacityType, rows set) {
			if c.need.disks > 0 {
				m.keepEach(rows, func(_ *row, s *size) bool { return c.takesDisks(s) })
			}
		},
		slow: true,
		words: func(c *choice) string {
			return fmt.Sprintf("have room for fewer than the %d disks of the pod's volumes", c.need.disks)
		},
		of: func(c *choice, ruledOut []int) string {
			return c.largest(ruledOut, func(typ int) int64 { return c.types[typ].MaxDisks }, countText)
		},
	},
}

var priceConditions = []condition{
	{
		keep: func(c *choice, m *capacityType, rows set) {
			if c.most > 0 || c.deviceless {
				m.keepEach(rows, func(r *row, s *size) bool {
					return slices.ContainsFunc(r.offerings, func(o pricedOffering) bool { return c.allows(r, s, o) })
				})
			}
		},
		slow: true,
		words: func(c *choice) string {
			return fmt.Sprintf("are dearer than the $%v an hour of %s", c.most, AnnotationMaxPrice)
		},
		of: (*choice).cheapest,
	},
}

// largest returns which of the types that are ruled out has the most of something, and how much.
func (c *choice) largest(ruledOut []int, size func(typ int) int64, text func(int64) string) string {
	at := slices.MaxFunc(ruledOut, func(a, b int) int { return cmp.Compare(size(a), size(b)) })
	if size(at) == 0 {
		return ""
	}
	return "largest: " + c.types[at].Name + " with " + text(size(at))
}

func countText(n int64) string { return fmt.Sprint(n) }

// cheapest returns what the cheapest of the types that are ruled out costs where it may be had.
func (c *choice) cheapest(ruledOut []int) string {
	least, name := math.Inf(1), ""
	for _, typ := range ruledOut {
		s := c.sizeOf(typ)
		for _, r := range c.rowsOf(typ) {
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

// labelValues returns which values the types that are ruled out have of the labels that the pod
// asks for, the first three.
func (c *choice) labelValues(ruledOut []int) string {
	const most = 3
	var all []string
	for _, key := range c.requirements.keys() {
		if len(all) == most {
			break
		}
		values := list(ruledOut, func(typ int) (values []string) {
			for _, r := range c.rowsOf(typ) {
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
