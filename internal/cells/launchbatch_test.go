package cells

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/elotl/kip/internal/cloud"
)

// queued adds cells to the queue of launches.
func (b *bench) queued(ids ...string) []*entry {
	b.Helper()
	group := b.grouped(ids...)
	for _, e := range group {
		next, err := queuedCellOf(e)
		if err != nil {
			b.Fatal(err)
		}
		b.launchQueue.add(next)
	}
	return group
}

func TestAGroupIsTakenInTheTurnOfItsCall(t *testing.T) {
	for name, tc := range map[string]struct {
		budget cloud.Budget
		ended  bool // ctx has
		takes  []string
		left   int
	}{
		"all that are alike":        {cloud.Budget{}, false, []string{"c", "d"}, 1},
		"as many as the turn pays":  {cloud.Budget{Resources: cloud.Bucket{Capacity: 1, Refill: 1}}, false, []string{"c"}, 2},
		"none once the run is over": {cloud.Budget{}, true, nil, 3},
	} {
		b := newBench(t)
		b.cloud.capabilities.Budgets = map[cloud.Call]cloud.Budget{cloud.CallLaunch: tc.budget}
		b.calls = b.pipe()
		s, all := b.batching(), b.queued("c", "d", "other")
		other := all[2].cell().clone()
		other.Offerings = []Offering{{InstanceType: "large"}}
		all[2].current.Store(&other)
		b.launchQueue.remove(all[2])
		next, _ := queuedCellOf(all[2])
		b.launchQueue.add(next)
		ctx, cancel := context.WithCancel(t.Context())
		if tc.ended {
			cancel()
		}
		l, err := s.next(ctx)
		cancel()
		var ids []string
		if err == nil {
			for _, e := range l.group {
				ids = append(ids, e.id)
			}
		}
		if !slices.Equal(ids, tc.takes) || errors.Is(err, context.Canceled) != tc.ended || len(b.launchQueue.items) != tc.left {
			t.Errorf("%s: it takes %v, and leaves %d", name, ids, len(b.launchQueue.items))
		}
	}
}

func TestWhatIsToEndIsNotLaunched(t *testing.T) {
	b := newBench(t)
	group := b.grouped("c", "d")
	b.end(group[0], CausePodDeleted)
	s, l := b.launching(), &launch{group: slices.Clone(group), turn: b.turn()}
	ending := s.batching.unwanted(l)
	if len(ending) != 1 || ending[0].e != group[0] {
		t.Errorf("%d end", len(ending))
	}
	goesOn := s.settle(t.Context(), l, ending)
	if left := l.open(); !goesOn || len(left) != 1 || left[0] != group[1] || group[0].launching || !group[1].launching {
		t.Errorf("left are %d; launching %t and %t", len(left), group[0].launching, group[1].launching)
	}
	if l.turn == nil {
		t.Error("the turn of the other is over")
	}
	if woken := b.woken(); len(woken) != 1 || woken[0] != "c" {
		t.Errorf("woken are %v", woken)
	}
}
