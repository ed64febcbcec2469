package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestAPoolIsFilledOnceAndItsSurplusEnds(t *testing.T) {
	b := newBench(t)
	s := &refilling{
		table: b.table, loop: b.loop, additions: b.additions, pools: b.pools, ends: b.ends, generation: b.generation,
	}
	wanted := &pool{Pool: Pool{Name: "pool", Count: 2, Offerings: func() ([]Offering, error) {
		return []Offering{{InstanceType: "nano"}}, nil
	}}}
	b.pools.recipe = &recipe{settings: "t", standby: Options{Image: map[string]string{"id": "i"}}}
	b.pools.byName["pool"] = wanted
	fill := func(why string, cells, end int) {
		t.Helper()
		s.fill(t.Context())
		ending := 0
		for _, e := range b.table.all() {
			if _, cause := b.table.ending(e); cause == CauseStandbyRetired {
				ending++
			}
		}
		if n := len(b.table.all()); n != cells || ending != end {
			t.Errorf("%s: %d cells, of which %d end; want %d and %d", why, n, ending, cells, end)
		}
	}
	b.generation.now.UnknownLines = map[string]uint64{"other": 1}
	fill("the store is behind", 0, 0)
	b.generation.now.UnknownLines = nil
	fill("none is there", 2, 0)
	fill("all are there", 2, 0)
	for _, e := range b.table.all() {
		cell := e.cell()
		if cell.Phase != apiv1.Requested || cell.Standby != "pool" || cell.Template != "t" || cell.Options.Image == nil ||
			!cell.StepTime(apiv1.StepPlaced).Equal(b.clock.Now()) {
			t.Errorf("made is %+v", cell)
		}
	}
	wanted.Count = 1
	fill("one is wanted", 2, 1)
	wanted.Count = 3
	wanted.Pool.Offerings = func() ([]Offering, error) { return nil, errors.New("none is offered") }
	fill("nothing is offered", 2, 1)
	if state := b.pools.states(nil)[0]; state.Why != "none is offered" {
		t.Errorf("the pool is not full since %q", state.Why)
	}
	wanted.until = b.clock.Now().Add(time.Minute)
	wanted.Pool.Offerings = func() ([]Offering, error) { t.Error("a pool that waits is filled"); return nil, nil }
	fill("the pool waits", 2, 1)
}
