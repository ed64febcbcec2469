package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// answers returns what reads the answers to launches.
func (b *bench) answers() *launchAnswers {
	return &launchAnswers{
		clock: b.clock, calls: b.calls, rights: b.rights(), blockers: b.blocking(), shortages: b,
		sizes: &batchSizes{clock: b.clock, apart: map[location]fewer{}},
	}
}

// recording returns what stores the outcomes of launches.
func (b *bench) recording() *recording {
	return &recording{
		loop: b.loop, records: b.records, events: b.events, shortages: b,
		budgets: b.budgets,
	}
}

// batching returns what takes groups from the queue of launches.
func (b *bench) batching() *batching {
	return &batching{table: b.table, calls: b.calls, queue: b.launchQueue, sizes: &batchSizes{clock: b.clock, apart: map[location]fewer{}}}
}

// intents returns what stores launches, in a store that has compared all instances.
func (b *bench) intents() *intents {
	b.Helper()
	if err := b.generation.open(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.generation.compared = true
	calls := &callBuilder{owner: "me", recipe: b.recipe, ca: "ca"}
	return &intents{table: b.table, clock: b.clock, records: b.records, generation: b.generation, calls: b.calls, builder: calls}
}

func TestAStoredLaunchIsSentAgainOrGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*bench, *launch, []*entry)
		tried   attempts
		again   time.Duration
		fails   bool
		phase   apiv1.Phase
		started int
	}{
		"nobody sends it": {func(*bench, *launch, []*entry) {}, attempts{}, 0, false, apiv1.Booting, 2},
		"this process sends it": {func(_ *bench, _ *launch, group []*entry) {
			group[1].launching = true
		}, attempts{}, 0, false, apiv1.Launching, 0},
		"the store may be behind": {func(b *bench, _ *launch, _ []*entry) {
			b.generation.compared = false
		}, attempts{}, time.Second, false, apiv1.Launching, 0},
		"its call is lost": {func(b *bench, l *launch, _ []*entry) {
			if err := b.records.store.Delete(b.Context(), launchesPrefix+l.id, l.revision); err != nil {
				b.Fatal(err)
			}
		}, attempts{}, 0, false, apiv1.Terminating, 0},
		"a later Kip has stored it": {func(b *bench, l *launch, _ []*entry) {
			b.storeCall(l, callVersion+1)
		}, attempts{}, 0, true, apiv1.Launching, 0},
		"it has done so long ago": {func(b *bench, l *launch, group []*entry) {
			b.storeCall(l, callVersion+1)
		}, attempts{failed: 1, began: time.Unix(1, 0)}, 0, false, apiv1.Terminating, 0},
		"the other cell does not know of it yet": {func(_ *bench, l *launch, group []*entry) {
			before := group[1].cell().clone()
			before.Phase, before.Launch, group[1].launchID = apiv1.Requested, nil, l.id
			group[1].current.Store(&before)
		}, attempts{}, time.Second, false, apiv1.Launching, 0},
	} {
		b := newBench(t)
		launching := b.launching()
		s := &resuming{
			table: b.table, generation: b.generation, launching: launching,
			calls: &storedCalls{loop: b.loop, records: b.records, store: b.records.store},
		}
		group := b.requested("c", "d")
		l := &launch{group: group}
		if others := launching.intents.store(t.Context(), l); len(others) > 0 {
			t.Fatal(others[0].answer.Err)
		}
		for _, e := range group {
			e.launchID = ""
		}
		tc.change(b, l, group)
		*s.calls.tries.of(group[0]) = tc.tried
		again, err := after(s.Step(t.Context(), group[0]))
		b.loop.running.Wait()
		got := group[0].cell()
		if again != tc.again || (err != nil) != tc.fails || got.Phase != tc.phase || len(b.cloud.running()) != tc.started {
			t.Errorf("%s: it is %s, %d instances, again after %s (%v)", name, got.Phase, len(b.cloud.running()), again, err)
		}
		if group[0].launching {
			t.Errorf("%s: the cell is not given back", name)
		}
	}
}

// storeCall stores the call of a launch as one of a version.
func (b *bench) storeCall(l *launch, version int) {
	b.Helper()
	var stored storedCall
	if _, err := b.records.store.Get(b.Context(), launchesPrefix+l.id, &stored); err != nil {
		b.Fatal(err)
	}
	stored.Version = version
	if _, err := b.records.store.Put(b.Context(), launchesPrefix+l.id, stored, l.revision); err != nil {
		b.Fatal(err)
	}
}
