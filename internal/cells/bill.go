package cells

import (
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// bills say what the changes of cells add to the sums of the ledger.
type bills struct {
	limits limits // of what counts against a month's budget
	meter  Meter
}

// open begins the bill of a change.
func (b bills) open(now time.Time) outgoings {
	return outgoings{at: now, spent: spending{monthOf(now), map[string]float64{}}}
}

// add adds what the change of one cell costs.
func (b bills) add(to *outgoings, before, after *Cell) {
	to.entries = append(to.entries, ended(before, after, to.at, useOf(b.meter, after))...)
	if after.Phase != apiv1.Gone {
		return
	}
	to.costs = append(to.costs, after.cost(to.at))
	if namespace := after.Pod.Namespace; b.limits.of(namespace).PerMonth > 0 {
		to.spent.Dollars[namespace] += after.spentSince(monthOf(to.at), to.at)
	}
}
