package main

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

// bound is the least that any machines can cost that have, all together, as much CPU and
// memory as all pods ask for, in dollars an hour. Nobody reaches it: a pod may be cut in
// two there, a machine bought in part, and nothing is ever idle or reserved.
func bound(m market, pods []shape) float64 {
	var cpu, memory float64
	for _, p := range pods {
		cpu += float64(p.milliCPU)
		memory += float64(p.memory)
	}
	type kind struct{ cpu, memory, price float64 }
	var kinds []kind
	for _, t := range m.types {
		if p, ok := priceOf(t); ok && t.Arch == m.arch && t.BaselineMilliCPU == 0 {
			kinds = append(kinds, kind{float64(t.MilliCPU), float64(t.UsableBytes), p})
		}
	}
	// Of two constraints, the best mix has two types at most.
	best := math.Inf(1)
	for i, a := range kinds {
		best = min(best, max(cpu/a.cpu, memory/a.memory)*a.price)
		for _, b := range kinds[:i] {
			det := a.cpu*b.memory - b.cpu*a.memory
			x, y := (cpu*b.memory-b.cpu*memory)/det, (a.cpu*memory-cpu*a.memory)/det
			if x >= 0 && y >= 0 { // neither of NaN
				best = min(best, x*a.price+y*b.price)
			}
		}
	}
	return best
}

// priceOf is that of a type on demand.
func priceOf(t catalog.InstanceType) (float64, bool) {
	for _, o := range t.Offerings {
		if !o.Spot && !o.Unpriced {
			return o.PricePerHour, true
		}
	}
	return 0, false
}

// node is a type of machine that pods share.
type node struct {
	catalog.InstanceType
	price float64 // with its disk, of 20 GiB
	// milliCPU and memory are what pods may have: less what the kubelet keeps for itself and the
	// system, as EKS reckons, with 58 pods a node.
	milliCPU, memory int64
}

const (
	nodeDisk       = 20 * gib
	reservedCPU    = 80 // of 4 CPUs; more CPUs keep 2.5 each
	reservedMemory = (255 + 11*58 + 100) << 20
)

// nodes are the kinds that packing is tried with: of three sizes the cheapest type that is
// not burstable, with 4 GiB or more for each CPU.
func nodes(m market) []node {
	var all []node
	for _, milliCPU := range []int64{4000, 8000, 16000} {
		best := node{price: math.Inf(1)}
		for _, t := range m.types {
			p, ok := priceOf(t)
			of := t.Arch == m.arch && t.BaselineMilliCPU == 0 && t.MilliCPU == milliCPU && t.MemoryBytes >= milliCPU/1000*4*gib
			if ok && of && p < best.price {
				best = node{InstanceType: t, price: p}
			}
		}
		disk, _ := m.rates.DiskPerHour(nodeDisk)
		best.price += disk
		best.milliCPU = milliCPU - reservedCPU - (milliCPU-4000)/400
		best.memory = best.UsableBytes - reservedMemory
		all = append(all, best)
	}
	return all
}

// machine is a node that runs, and what is left of it.
type machine struct {
	kind                   int
	since, idle            time.Duration // idle since when, where no pod is on it
	pods, milliCPU, memory int64
}

// fits is the smallest kind that a pod fits on, from the kind that is preferred; -1 for none.
func fits(kinds []node, prefer int, p shape) int {
	for i := prefer; i < len(kinds); i++ {
		if p.milliCPU <= kinds[i].milliCPU && p.memory <= kinds[i].memory {
			return i
		}
	}
	return -1
}

// Of nodes that an autoscaler adds and removes.
const (
	unneeded = 10 * time.Minute // a node without pods stays so long: the default of Cluster Autoscaler
	nodeBoot = time.Minute      // from the launch until pods run
)

// fleet are the nodes that an autoscaler runs, and what they have cost.
type fleet struct {
	kinds   []node
	up      []*machine
	ends    []end
	dollars float64
	paid    float64 // milli-CPU hours
}

// end is that of a pod's run on a machine.
type end struct {
	at time.Duration
	on *machine
	run
}

// stop ends a node.
func (f *fleet) stop(m *machine, at time.Duration) {
	hours := (at - m.since).Hours()
	f.dollars += hours * f.kinds[m.kind].price
	f.paid += hours * float64(f.kinds[m.kind].MilliCPU)
}

// advance lets pods end, and nodes that have had none for long enough.
func (f *fleet) advance(now time.Duration) {
	slices.SortStableFunc(f.ends, func(a, b end) int { return cmp.Compare(a.at, b.at) })
	for len(f.ends) > 0 && f.ends[0].at <= now {
		e := f.ends[0]
		f.ends = f.ends[1:]
		e.on.pods--
		e.on.milliCPU += e.milliCPU
		e.on.memory += e.memory
		e.on.idle = e.at
	}
	f.up = slices.DeleteFunc(f.up, func(m *machine) bool {
		gone := m.pods == 0 && m.idle+unneeded <= now
		if gone {
			f.stop(m, m.idle+unneeded)
		}
		return gone
	})
}

// place puts a pod on the fullest node that has room for it, or else on a new one of a kind.
func (f *fleet) place(r run, kind int, now time.Duration) {
	var on *machine
	for _, m := range f.up {
		if m.milliCPU >= r.milliCPU && m.memory >= r.memory && m.pods < 58 && (on == nil || m.milliCPU < on.milliCPU) {
			on = m
		}
	}
	start := now
	if on == nil {
		on = &machine{
			kind:     kind,
			since:    now,
			milliCPU: f.kinds[kind].milliCPU,
			memory:   f.kinds[kind].memory,
		}
		f.up = append(f.up, on)
	}
	if on.since == now && now > 0 {
		start += nodeBoot
	}
	on.pods++
	on.milliCPU -= r.milliCPU
	on.memory -= r.memory
	f.ends = append(f.ends, end{start + r.takes, on, r})
}

// packed is what nodes cost that pods are packed on as they come, largest first, each on
// the fullest node that has room; where none has, on a new one of the preferred kind, or a
// larger one. It returns dollars, and how much of the CPU that was paid for was asked for.
// Pods that fit on no kind are left out, and returned.
func packed(kinds []node, prefer int, runs []run, until time.Duration) (dollars, used float64, left []run) {
	f := &fleet{kinds: kinds}
	for i := 0; i < len(runs); {
		now := runs[i].at
		j := i
		for j < len(runs) && runs[j].at == now {
			j++
		}
		f.advance(now)
		batch := slices.Clone(runs[i:j])
		slices.SortStableFunc(batch, func(a, b run) int {
			return cmp.Or(cmp.Compare(b.milliCPU, a.milliCPU), cmp.Compare(b.memory, a.memory))
		})
		for _, r := range batch {
			kind := fits(kinds, prefer, r.shape)
			if kind < 0 {
				left = append(left, r)
				continue
			}
			f.place(r, kind, now)
			used += r.takes.Hours() * float64(r.milliCPU)
		}
		i = j
	}
	f.advance(until)
	for _, m := range f.up {
		f.stop(m, until)
	}
	return f.dollars, used / f.paid, left
}
