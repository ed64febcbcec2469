package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells/ledger"
	"k8s.io/utils/clock"
)

// Budget is what the cells of a namespace may cost together. It keeps new cells from being
// requested, and ends none.
type Budget struct {
	// Namespace is its name, or "*": each one without a budget of its own.
	Namespace string
	// PerHour and PerMonth are in dollars; 0 for no bound.
	PerHour, PerMonth float64
}

// limits are the budgets of namespaces.
type limits []Budget

// of is that of a namespace; without bounds where it has none.
func (all limits) of(namespace string) (b Budget) {
	for _, one := range all {
		switch one.Namespace {
		case namespace:
			return one
		case "*":
			b = one
		}
	}
	return b
}

func (b Budget) none() bool { return b.PerHour == 0 && b.PerMonth == 0 }

// BudgetError reports that a cell would cost more than is left of a budget.
type BudgetError struct {
	Budget
	// Cell is what the cell would cost an hour, and Cells what the Running ones of the
	// namespace do, in dollars.
	Cell, Cells float64
	Running     int
	// Spent is what the namespace has cost this month.
	Spent float64
	// Monthly reports whether it is the budget of a month, else that of an hour.
	Monthly bool
	// Unpriced reports whether the cell's price is not known: the other figures are 0.
	Unpriced bool
	Offering Offering
	For      string // the namespace
}

func (e *BudgetError) Error() string {
	const where = "cells.budgets of provider.yaml"
	if e.Unpriced {
		return fmt.Sprintf("the price of %s is not known, and namespace %s has a budget (%s)", e.Offering, e.For, where)
	}
	add := fmt.Sprintf("%s would add $%s an hour", e.Offering, apiv1.Price(e.Cell))
	if e.Monthly {
		return fmt.Sprintf("namespace %s may cost $%s a month (%s): it has cost $%s this month, its %d cells cost $%s an hour, and %s",
			e.For, apiv1.Price(e.PerMonth), where, apiv1.Price(e.Spent), e.Running, apiv1.Price(e.Cells), add)
	}
	return fmt.Sprintf("namespace %s may cost $%s an hour (%s): its %d cells cost $%s, and %s",
		e.For, apiv1.Price(e.PerHour), where, e.Running, apiv1.Price(e.Cells), add)
}

// rounding is how far sums of prices may be off.
const rounding = 1e-9

// budgets bound what namespaces may cost.
type budgets struct {
	table  *table
	ledger *ledger.Ledger
	limits limits
	clock  clock.PassiveClock
	cells  perCell[reservation] // under table.mu
}

// reservation is what counts of a cell against the budget of its namespace.
type reservation struct {
	known    bool
	perHour  float64   // dollars
	paidFrom time.Time // of its record
}

// reservationLocked returns that of a cell. The caller holds table.mu.
func (s *budgets) reservationLocked(e *entry) *reservation {
	r := s.cells.of(e)
	if !r.known {
		s.noteStoredLocked(e, e.cell())
	}
	return r
}

// noteStoredLocked notes what counts of a cell by its record. The caller holds table.mu.
func (s *budgets) noteStoredLocked(e *entry, cell *Cell) {
	*s.cells.of(e) = reservation{known: true, perHour: cell.Offering().CostPerHour(), paidFrom: cell.paidFrom()}
}

// outlay is what the cells of a namespace cost.
type outlay struct {
	running int
	perHour float64 // dollars, of those that run
	spent   float64 // dollars, of this month
}

// outlayOfLocked sums what the cells of a namespace cost, as if one of them ended now; what they have cost
// this month where its budget bounds that. spent is what those have that are gone. The caller
// holds table.mu.
func (s *budgets) outlayOfLocked(namespace string, b Budget, spent float64, without *entry) outlay {
	o := outlay{spent: spent}
	now := s.clock.Now()
	month := ledger.MonthOf(now)
	for e := range s.table.byNamespace[namespace] {
		counted := s.reservationLocked(e)
		if b.PerMonth > 0 {
			o.spent += hours(counted.paidFrom, month, now) * counted.perHour
		}
		if e == without {
			continue
		}
		o.running++
		o.perHour += counted.perHour
	}
	return o
}

// afford returns why a namespace may not have one more cell, by an offering; nil if it may.
func (b Budget) afford(namespace string, o outlay, offering Offering) *BudgetError {
	e := BudgetError{
		Budget:   b,
		Cell:     offering.CostPerHour(),
		Offering: offering,
		For:      namespace,
	}
	if offering.Unpriced {
		e.Unpriced = true
		return &e
	}
	e.Running, e.Cells, e.Spent = o.running, o.perHour, o.spent
	switch perHour := e.Cells + e.Cell; {
	case b.PerHour > 0 && perHour > b.PerHour+rounding:
		return &e
	case b.PerMonth > 0 && e.Spent+perHour > b.PerMonth+rounding:
		e.Monthly = true
		return &e
	}
	return nil
}

// withinLocked returns those of the offerings that a namespace may have now, or could have without one of its cells, and where there is
// none a *BudgetError that says why not the first. The caller holds table.mu.
func (s *budgets) withinLocked(namespace string, offerings []Offering, spent float64, without *entry) (left []Offering, err error) {
	b := s.limits.of(namespace)
	if b.none() {
		return offerings, nil
	}
	cost := s.outlayOfLocked(namespace, b, spent, without)
	for _, o := range offerings {
		over := b.afford(namespace, cost, o)
		switch {
		case over == nil:
			left = append(left, o)
		case err == nil:
			err = over
		}
	}
	if len(left) > 0 {
		err = nil
	}
	return left, err
}

// within runs do with table.mu held, and returns its error. What the namespace may still cost does not change meanwhile, and no cell of it
// becomes one that is gone: spent is what those have cost this month, where its budget bounds that.
func (s *budgets) within(ctx context.Context, namespace string, do func(spent float64) error) error {
	locked := func(spent float64) error {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		return do(spent)
	}
	if s.limits.of(namespace).PerMonth == 0 {
		return locked(0)
	}
	return s.ledger.Spent(ctx, namespace, func() time.Time { return ledger.MonthOf(s.clock.Now()) }, locked)
}

// reserveNext returns the offerings from the first that the namespace of a cell may have, and
// counts that one as the cell's: another that is requested meanwhile finds it taken. Bounds
// of a month were kept when the cell was requested.
func (s *budgets) reserveNext(cell *Cell, offerings []Offering) ([]Offering, error) {
	namespace := cell.Pod.Namespace
	b := s.limits.of(namespace)
	if cell.Pod.UID == "" || b.PerHour == 0 {
		return offerings, nil
	}
	b.PerMonth = 0
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e := s.table.byID[cell.ID]
	cost := s.outlayOfLocked(namespace, b, 0, e)
	var first error
	for i, o := range offerings {
		err := b.afford(namespace, cost, o)
		if err == nil {
			if e != nil {
				counted := s.reservationLocked(e)
				counted.perHour = max(counted.perHour, o.CostPerHour()) // both, until it is stored which
			}
			return offerings[i:], nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// paidFrom returns since when a cell that runs costs its namespace what it does; zero where it
// costs it nothing. What it cost as a standby cell was no namespace's.
func (c *Cell) paidFrom() time.Time {
	from := c.launched()
	if from.IsZero() || c.Stopped || c.Pod.UID == "" {
		return time.Time{}
	}
	for _, step := range []string{apiv1.StepSeen, apiv1.StepGiven} {
		if at := c.StepTime(step); at.After(from) {
			from = at
		}
	}
	return from
}

// spentSince returns what the cell has cost its namespace since then, in dollars.
func (c *Cell) spentSince(since, now time.Time) float64 {
	return hours(c.paidFrom(), since, now) * c.Offering().CostPerHour()
}

// hours returns how many hours between since and now were paid. Payment began at from; a zero from means never.
func hours(from, since, now time.Time) float64 {
	switch {
	case from.IsZero():
		return 0
	case since.After(from):
		from = since
	}
	return max(0, now.Sub(from).Hours())
}
