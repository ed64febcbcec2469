package cells

import (
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells/ledger"
)

// bills say what the changes of cells add to the sums of the ledger.
type bills struct {
	limits limits // of what counts against a month's budget
	meter  Meter
}

// open begins the bill of a change.
func (b bills) open(now time.Time) ledger.Outgoings {
	return ledger.Outgoings{At: now, Spent: ledger.Spending{Month: ledger.MonthOf(now), Dollars: map[string]float64{}}}
}

// add adds what the change of one cell costs.
func (b bills) add(to *ledger.Outgoings, before, after *Cell) {
	to.Entries = append(to.Entries, ended(before, after, to.At, useOf(b.meter, after))...)
	if after.Phase != apiv1.Gone {
		return
	}
	to.Costs = append(to.Costs, after.cost(to.At))
	if namespace := after.Pod.Namespace; b.limits.of(namespace).PerMonth > 0 {
		to.Spent.Dollars[namespace] += after.spentSince(ledger.MonthOf(to.At), to.At)
	}
}
