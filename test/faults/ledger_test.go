package faults

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/costs"
)

// stay is a time in which a cell's instance ran.
type stay struct {
	from, to time.Time
	cell     cells.Cell // as it was at its end
}

// spent is what a cell has cost: its machine and its disk, and how long its address, of which
// no price is known.
type spent struct{ seconds, dollars, disk, noAddress float64 }

func (a spent) plus(b spent) spent {
	return spent{
		seconds:   a.seconds + b.seconds,
		dollars:   a.dollars + b.dollars,
		disk:      a.disk + b.disk,
		noAddress: a.noAddress + b.noAddress,
	}
}

// eachDay calls f for the part of it on each day, at its price.
func (s stay) eachDay(f func(day string, of spent)) {
	for at := s.from; at.Before(s.to); {
		midnight := at.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		end := midnight
		if s.to.Before(end) {
			end = s.to
		}
		seconds := end.Sub(at).Seconds()
		o := s.cell.Offering()
		of := spent{seconds: seconds, dollars: seconds / 3600 * o.PricePerHour, disk: seconds / 3600 * o.DiskPerHour}
		if o.AddressUnpriced {
			of.noAddress = seconds
		}
		f(at.UTC().Format(time.DateOnly), of)
		at = end
	}
}

// namespaces are the seconds of each: a standby cell is nobody's until a pod is given it.
func (s stay) namespaces() map[string]float64 {
	seconds := s.to.Sub(s.from).Seconds()
	idle := seconds
	if s.cell.Pod.UID != "" {
		idle = 0
		if given := s.cell.StepTime(apiv1.StepGiven); given.After(s.from) {
			idle = min(seconds, given.Sub(s.from).Seconds())
		}
	}
	return map[string]float64{costs.NoPod: idle, s.cell.Pod.Namespace: seconds - idle}
}

// allStays are those that have ended, and those of the cells that run.
func (b *books) allStays(now time.Time) []stay {
	all := slices.Clone(b.stays)
	for _, a := range b.cells {
		if a.running() {
			all = append(all, stay{a.from, now, a.cell})
		}
	}
	return all
}

// compareNamespaces checks what Kip's counter says of namespaces; under mu.
func (w *world) compareNamespaces(got map[string]costs.Amount, now time.Time) {
	want := map[string]float64{}
	for _, s := range w.books.allStays(now) {
		for namespace, seconds := range s.namespaces() {
			want[namespace] += seconds
		}
	}
	for namespace := range got {
		want[namespace] += 0
	}
	for namespace, seconds := range want {
		if d := math.Abs(got[namespace].Seconds - seconds); d > slack {
			w.violateLocked("invariant 5: namespace %q has had %.3f s by Kip's counter, %.3f s by its cells",
				namespace, got[namespace].Seconds, seconds)
		}
	}
}

// compareDays checks what the ledger has of each day against the records that reached the
// store, and its sum against the counter: to the last cell, whenever Kip was killed.
func (w *world) compareDays() {
	var k *kip
	if !w.await(reachBound, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		k = w.kip
		return k != nil && k.up
	}) {
		w.violate("no Kip runs that could tell what was spent")
		return
	}
	got, want := map[string]spent{}, map[string]spent{}
	var total spent
	err := k.cells.Spent(context.Background(), 0, math.MaxInt32, func(s costs.Key, d costs.Day, a costs.Amount) {
		key := fmt.Sprint(d, " ", s.InstanceType, " ", s.LaunchType)
		of := spent{
			seconds:   a.Seconds,
			dollars:   a.Dollars,
			disk:      a.DiskDollars,
			noAddress: a.AddressUnpriced,
		}
		got[key], total = got[key].plus(of), total.plus(of)
	})
	if err != nil {
		w.violate("what was spent is not known: %v", err)
		return
	}
	for _, c := range k.cells.Costs() {
		total = total.plus(spent{seconds: -c.Seconds, dollars: -c.Dollars})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if math.Abs(total.seconds) > slack || math.Abs(total.dollars) > slack {
		w.violateLocked("the ledger has %.3f s and %.6f $ more than the counter", total.seconds, total.dollars)
	}
	for _, s := range w.books.allStays(time.Now()) {
		s.eachDay(func(day string, of spent) {
			key := fmt.Sprint(day, " ", s.cell.Offering().InstanceType, " ", s.cell.Offering().CapacityType())
			want[key] = want[key].plus(of)
		})
	}
	for key := range got {
		want[key] = want[key].plus(spent{})
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		w.live["days"]++
		if d := math.Abs(got[key].seconds - want[key].seconds); d > slack {
			w.violateLocked("%s has %.3f s in the ledger, %.3f s by its cells", key, got[key].seconds, want[key].seconds)
		}
		for part, d := range map[string][2]float64{
			"$": {got[key].dollars, want[key].dollars}, "$ for disks": {got[key].disk, want[key].disk},
			"s of addresses without a price": {got[key].noAddress, want[key].noAddress},
		} {
			if math.Abs(d[0]-d[1]) > slack {
				w.violateLocked("%s has %.6f %s in the ledger, %.6f by its cells", key, d[0], part, d[1])
			}
		}
	}
}
