package placement

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

// ranked is an offering with what it is ordered by.
type ranked struct {
	offering.Offering
	sold   *catalog.PurchaseOption // in the catalogue
	prefer float64                 // the type's
	// cost is in dollars an hour: the machine's price and, as far as they are known, those of the pod's CPU above a
	// burstable type's baseline, of the root disk and of the address. Where the machine's price is not known it is with
	// that by which the offering is ordered, or infinite: such offerings come last, by size. The price of a preferred
	// type counts as less than it is, that of a spot offering at risk as more.
	cost float64
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

// reserved reports whether a candidate, of a row's type, is in a reservation.
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
		if s := c.sizeOf(r.typ); s.milliCPU < c.need.milliCPU || s.memory < c.need.allMemory() || s.disk < c.need.rootDisk(c.need.disk) ||
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
