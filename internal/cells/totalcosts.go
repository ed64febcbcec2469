package cells

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/cells/ledger"
	"github.com/elotl/kip/internal/costs"
	"k8s.io/utils/clock"
)

// totalCosts is what cells have cost, those that run included.
type totalCosts struct {
	table  *table
	ledger *ledger.Ledger
	meter  Meter
	clock  clock.PassiveClock
}

// total is Controller.Costs.
func (s *totalCosts) total() []Cost {
	now := s.clock.Now()
	return s.ledger.Total(func() []Cost {
		var running []Cost
		for _, cell := range s.table.list() {
			running = append(running, cell.cost(now))
		}
		return running
	})
}

// runningEntries returns those of the cells that run, in order of the cells, with what of them
// stands idle.
func (s *totalCosts) runningEntries() []costs.Entry {
	return s.entriesNow(func(cell *Cell) costs.Use { return useOf(s.meter, cell) })
}

func (s *totalCosts) entriesNow(use func(*Cell) costs.Use) (all []costs.Entry) {
	now, list := s.clock.Now(), s.table.list()
	slices.SortFunc(list, func(a, b Cell) int { return cmp.Compare(a.ID, b.ID) })
	for i := range list {
		all = append(all, list[i].running(now, use(&list[i]))...)
	}
	return all
}

// byNamespace is Controller.CostsByNamespace.
func (s *totalCosts) byNamespace() map[string]Amount {
	return s.ledger.ByNamespace(func() []costs.Entry { return s.entriesNow(func(*Cell) costs.Use { return costs.Use{} }) })
}

// spent is Controller.Spent.
func (s *totalCosts) spent(ctx context.Context, first, last costs.Day, each func(costs.Key, costs.Day, costs.Amount)) error {
	pass := func(entries []costs.Entry) {
		for _, e := range entries {
			e.Each(first, last, func(d costs.Day, a costs.Amount) { each(e.Key, d, a) })
		}
	}
	today := costs.DayOf(s.clock.Now())
	first = max(first, today-costs.Kept)
	begun, written, now, err := s.ledger.Snapshot(ctx, s.runningEntries)
	if err != nil {
		return fmt.Errorf("read what was spent: %w", err)
	}
	pass(now)
	// What has ended before a day has cost nothing on it. The last day that was written is one of
	// the future where a clock was ahead once.
	for day := max(first, begun); day < min(written, today+2); day++ {
		entries, err := s.ledger.Day(ctx, day)
		if err != nil {
			return fmt.Errorf("read what was spent: %w", err)
		}
		pass(entries)
	}
	return nil
}
