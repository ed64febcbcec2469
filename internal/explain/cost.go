package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/costs"
)

// Ledger is what Costs needs of package cells.
type Ledger interface {
	Spent(ctx context.Context, first, last costs.Day, each func(costs.Key, costs.Day, costs.Amount)) error
}

var _ Ledger = (*cells.Controller)(nil)

// mostCosts is how many names are told: of more, those that have cost least are summed.
const mostCosts = 10_000

// Costs sums what was spent. labels are the keys that costs are kept by.
func Costs(ctx context.Context, l Ledger, labels []string, q adminapi.CostQuery) (adminapi.Costs, error) {
	sums := costSums{by: map[adminapi.Cost]costs.Amount{}}
	known := false
	err := l.Spent(ctx, q.Since, q.Until, func(s costs.Key, d costs.Day, a costs.Amount) {
		if q.Namespace != "" && s.Namespace != q.Namespace {
			return
		}
		name, has := nameOf(q, s, d)
		known = known || has
		sums.add(name, a)
	})
	if err != nil {
		return adminapi.Costs{}, err
	}
	if key, is := q.Label(); is && !known && !slices.Contains(labels, key) {
		return adminapi.Costs{}, fmt.Errorf("%w: costs are not kept by label %q, but by those of costs.labels in provider.yaml: %s",
			adminapi.ErrBadQuery, key, cmp.Or(strings.Join(labels, ", "), "none"))
	}
	sums.shrink(mostCosts)
	all := adminapi.Costs{
		By:    q.By,
		Since: q.Since.String(),
		Until: q.Until.String(),
		Costs: []adminapi.Cost{},
	}
	var total costs.Amount
	for _, name := range sums.order(q.By == "day") {
		all.Costs = append(all.Costs, cost(name, sums.by[name]))
		total = total.Plus(sums.by[name])
	}
	all.Total = cost(adminapi.Cost{}, total)
	return all, nil
}

// nameOf is what of a key is summed under, and whether it says so itself.
func nameOf(q adminapi.CostQuery, s costs.Key, d costs.Day) (name adminapi.Cost, has bool) {
	switch q.By {
	case "pod":
		return adminapi.Cost{Namespace: s.Namespace, Owner: s.Owner, Pod: s.Pod}, true
	case "owner":
		return adminapi.Cost{Namespace: s.Namespace, Owner: s.Owner}, true
	case "namespace":
		return adminapi.Cost{Namespace: s.Namespace}, true
	case "day":
		return adminapi.Cost{Day: d.String()}, true
	case "type":
		return adminapi.Cost{InstanceType: s.InstanceType, LaunchType: s.LaunchType}, true
	}
	key, _ := q.Label()
	for label := range strings.SplitSeq(s.Labels, ",") {
		if value, is := strings.CutPrefix(label, key+"="); is {
			return adminapi.Cost{Label: value}, true
		}
	}
	switch {
	case s.Namespace == costs.NoPod:
		name.Label = costs.NoPod
	case s.Owner == costs.Others: // its labels were summed
		name.Label = costs.Others
	}
	return name, false
}

func cost(name adminapi.Cost, a costs.Amount) adminapi.Cost {
	name.Hours, name.UnknownPriceHours = a.Seconds/3600, a.Unpriced/3600
	if a.Unpriced == 0 || a.Dollars != 0 {
		name.Dollars = &a.Dollars
	}
	if a.Measured > 0 {
		name.MeasuredHours, name.IdleDollars = a.Measured/3600, &a.IdleDollars
	}
	name.Disk, name.Address = part(a.DiskDollars, a.DiskUnpriced), part(a.AddressDollars, a.AddressUnpriced)
	return name
}

func part(dollars, unpriced float64) *adminapi.Part {
	switch {
	case dollars == 0 && unpriced == 0:
		return nil
	case dollars == 0:
		return &adminapi.Part{UnknownPriceHours: unpriced / 3600}
	}
	return &adminapi.Part{Dollars: &dollars, UnknownPriceHours: unpriced / 3600}
}

// costSums are sums by names.
type costSums struct {
	by map[adminapi.Cost]costs.Amount
}

func (s *costSums) add(name adminapi.Cost, a costs.Amount) {
	s.by[name] = s.by[name].Plus(a)
	if len(s.by) > 2*mostCosts {
		s.shrink(mostCosts)
	}
}

// order is that of days, or of what has cost most.
func (s *costSums) order(days bool) []adminapi.Cost {
	return slices.SortedFunc(maps.Keys(s.by), func(a, b adminapi.Cost) int {
		names := cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Owner, b.Owner),
			cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.LaunchType, b.LaunchType), cmp.Compare(a.Label, b.Label))
		if days {
			return names
		}
		return cmp.Or(cmp.Compare(s.by[b].Known(), s.by[a].Known()), cmp.Compare(s.by[b].Seconds, s.by[a].Seconds), names)
	})
}

// shrink sums those that have cost least, so that there are at most so many and their sum.
func (s *costSums) shrink(most int) {
	if len(s.by) <= most {
		return
	}
	for _, name := range s.order(false)[most:] {
		rest := name
		for _, field := range []*string{&rest.Namespace, &rest.Owner, &rest.Pod, &rest.InstanceType, &rest.LaunchType, &rest.Label} {
			if *field != "" {
				*field = costs.Others
			}
		}
		if rest == name {
			continue
		}
		s.by[rest] = s.by[rest].Plus(s.by[name])
		delete(s.by, name)
	}
}
