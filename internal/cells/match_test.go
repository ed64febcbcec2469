package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
)

func (b *bench) matching() *matching {
	b.pools.byName["pool"] = &pool{Pool: Pool{Name: "pool", Count: 9}}
	b.generation.compared = true
	b.recipe.reserved = 100
	return &matching{
		table: b.table, pools: b.pools, recipe: b.recipe, nodeNames: &nodeNames{one: "kip-0"},
		first: &firstConnections{clock: b.clock, generation: b.generation, listening: &listening{}}, upgrades: &upgrades{},
	}
}

func TestAPodGetsTheStandbyCellThatIsReadySoonest(t *testing.T) {
	b := newBench(t)
	s := b.matching()
	best := func() string {
		b.table.mu.Lock()
		defer b.table.mu.Unlock()
		e, _ := s.findLocked(Request{Node: "kip-0", Offerings: []Offering{{InstanceType: "nano"}}})
		if e == nil {
			return ""
		}
		return e.id
	}
	if got := best(); got != "" {
		t.Errorf("without cells it is %q", got)
	}
	b.stopped("stopped", "")
	if got := best(); got != "stopped" {
		t.Errorf("of a stopped one it is %q", got)
	}
	of := b.standing("of-other-node")
	if err := b.records.save(t.Context(), of, func(cell *Cell) error { cell.Node = "kip-1"; return nil }); err != nil {
		t.Fatal(err)
	}
	b.linked(of)
	if got := best(); got != "of-other-node" {
		t.Errorf("of one of another node it is %q", got)
	}
	own := b.linked(b.standing("own"))
	if got := best(); got != "own" {
		t.Errorf("of one of its node it is %q", got)
	}
	own.connected = false
	if got := best(); got != "of-other-node" {
		t.Errorf("when its own is away it is %q", got)
	}
	ends := b.linked(b.standing("ends"))
	ends.connected = true
	b.table.find("ends").ending = "why"
	if got := best(); got != "of-other-node" {
		t.Errorf("with one that ends it is %q", got)
	}
}

func TestAStandbyCellFitsOnlyWhatALaunchWouldGive(t *testing.T) {
	s := newBench(t).matching()
	nano, micro := Offering{InstanceType: "nano"}, Offering{InstanceType: "micro"}
	asks := Request{Offerings: []Offering{nano}}
	sized := Cell{Offerings: []Offering{nano}, Measured: catalog.Resources{MilliCPU: 1000, MemoryBytes: 1000}}
	needs := func(memory int64) Request {
		return Request{Offerings: []Offering{nano}, Needs: catalog.Resources{MilliCPU: 1, MemoryBytes: memory}}
	}
	for name, tc := range map[string]struct {
		r    Request
		cell Cell
		fits bool
	}{
		"the same":               {asks, Cell{Offerings: []Offering{nano}}, true},
		"a dearer one":           {Request{Offerings: []Offering{nano, micro}}, Cell{Offerings: []Offering{micro}}, false},
		"another disk":           {asks, Cell{Offerings: []Offering{{InstanceType: "nano", DiskBytes: 1}}}, false},
		"spot":                   {asks, Cell{Offerings: []Offering{{InstanceType: "nano", Spot: true}}}, false},
		"another zone":           {asks, Cell{Offerings: []Offering{{InstanceType: "nano", Zone: "b"}}}, false},
		"the pod asks for more":  {Request{Offerings: []Offering{nano}, Special: true}, Cell{Offerings: []Offering{nano}}, false},
		"it has room enough":     {needs(900), sized, true},
		"the machine is smaller": {needs(901), sized, false},
	} {
		if got := s.fits(tc.r, &tc.cell); got != tc.fits {
			t.Errorf("%s: fits %t", name, got)
		}
	}
}

func TestAKipThatBeginsWaitsAMomentForItsStandbyCells(t *testing.T) {
	for name, tc := range map[string]struct {
		since  time.Duration // Kip has run
		err    error         // of the connection
		behind bool
		waits  bool
	}{
		"it has just begun":                  {time.Second, nil, false, true},
		"it runs for a while":                {firstConnect, nil, false, false},
		"the cell could not be connected to": {time.Second, errors.New("refused"), false, false},
		"its store is behind":                {time.Second, nil, true, false},
	} {
		b := newBench(t)
		s := b.matching()
		s.first.listening.restart(b.clock.Now())
		b.clock.Step(tc.since)
		link := b.linked(b.standing("c"))
		link.connected, link.err = false, tc.err
		if tc.behind {
			b.generation.now.UnknownLines = map[string]uint64{"other": 1}
		}
		standbys := &standbys{table: b.table, matching: s}
		b.table.mu.Lock()
		e, err := standbys.takeLocked(Request{Pod: ref("a"), Offerings: []Offering{{InstanceType: "nano"}}})
		b.table.mu.Unlock()
		if e != nil || errors.Is(err, ErrConnecting) != tc.waits {
			t.Errorf("%s: taken %v (%v)", name, e, err)
		}
	}
}

func TestACellIsGivenToOnePodAndEndsIfThatIsNotStored(t *testing.T) {
	for _, ready := range []bool{true, false} {
		b := newBench(t)
		s := &standbys{
			table: b.table, loop: b.loop, records: b.records, matching: b.matching(), ends: b.ends,
			tagging: &tagging{table: b.table, loop: b.loop, calls: b.calls, inventory: b.inventory, due: newGather[*entry]()},
		}
		b.linked(b.standing("c"))
		r := Request{Pod: ref("a"), Attempt: 2, Offerings: []Offering{{InstanceType: "nano", Reason: "cheapest"}}}
		take := func() *entry {
			b.table.mu.Lock()
			defer b.table.mu.Unlock()
			e, err := s.takeLocked(r)
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		e := take()
		if e == nil || b.table.ofPod(r.Pod.UID) != e || take() != nil {
			t.Fatal("it is not taken once")
		}
		if !ready { // by another write
			booting := e.cell().clone()
			booting.Phase = apiv1.Booting
			e.current.Store(&booting)
		}
		got, err := s.give(t.Context(), e, r)
		why, _ := b.table.ending(e)
		switch {
		case !ready:
			if err == nil || why == "" || b.table.ofPod(r.Pod.UID) != nil {
				t.Errorf("it is not ready: given (%v), ends for %q", err, why)
			}
		case err != nil || got.Pod != r.Pod || got.Attempt != 2 || why != "" || !got.StepTime(apiv1.StepGiven).Equal(b.clock.Now()):
			t.Errorf("given is %+v (%v), ends for %q", got, err, why)
		}
		if len(b.woken()) != 1 {
			t.Error("the cell is not woken")
		}
	}
}
