package cells

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/store"
)

// launching returns what launches cells.
func (b *bench) launching() *launching {
	b.Helper()
	intents, answers := b.intents(), b.answers()
	return &launching{
		table:    b.table,
		loop:     b.loop,
		batching: b.batching(),
		resolving: &resolving{
			calls: b.calls, builder: intents.builder, retries: b.retries,
			unresolved: &unresolved{
				loop: b.loop, rights: answers.rights, answers: answers, blockers: b.blocking(), events: b.events, retries: b.retries,
			},
		},
		intents:    intents,
		sending:    &sending{clock: b.clock, calls: b.calls},
		evaluating: &evaluating{loop: b.loop, answers: answers, events: b.events},
		recording:  b.recording(),
	}
}

// turn is one of a launch.
func (b *bench) turn() *pipe.Turn {
	b.Helper()
	turn, err := b.calls.Turn(b.Context(), cloud.CallLaunch, 1)
	if err != nil {
		b.Fatal(err)
	}
	return turn
}

// grouped are cells that are their group's.
func (b *bench) grouped(ids ...string) []*entry {
	group := b.requested(ids...)
	for _, e := range group {
		e.giveToLaunchLocked()
	}
	return group
}

func TestALaunchIsSentWhenItIsStored(t *testing.T) {
	for name, tc := range map[string]struct {
		fails func(key string) error
		calls int
		phase apiv1.Phase
	}{
		"it is stored": {func(string) error { return nil }, 1, apiv1.Booting},
		"it is too big for one write": {func(key string) error {
			if strings.Contains(key, keyPrefix+"c") && strings.Contains(key, keyPrefix+"d") && strings.Contains(key, launchesPrefix) {
				return store.ErrTooBig
			}
			return nil
		}, 2, apiv1.Booting},
		"the store fails": {func(key string) error {
			if strings.Contains(key, launchesPrefix) {
				return store.ErrNoSpace
			}
			return nil
		}, 0, apiv1.Requested},
	} {
		b := newBench(t)
		s := b.launching()
		group := b.grouped("c", "d")
		b.hook = func(op, key string) error {
			if op == "applied" {
				return nil
			}
			return tc.fails(key)
		}
		aside := false
		for left := group; len(left) > 0; left = b.regrouped(left) {
			s.launch(t.Context(), &launch{group: slices.Clone(left), turn: b.turn()}, func() { aside = true })
		}
		if aside != (tc.calls > 0) {
			t.Errorf("%s: it goes on aside %t", name, aside)
		}
		if len(b.cloud.launches) != tc.calls {
			t.Errorf("%s: %d calls, want %d", name, len(b.cloud.launches), tc.calls)
		}
		for _, e := range group {
			if got := e.cell(); got.Phase != tc.phase || e.launching {
				t.Errorf("%s: cell %s is %s, its group's %t", name, e.id, got.Phase, e.launching)
			}
		}
		if left := b.launchRecords(); left != 0 {
			t.Errorf("%s: %d calls are stored yet", name, left)
		}
	}
}

func TestAnotherCellIsTheProbeWhereTheLaunchOfOneIsNotStored(t *testing.T) {
	b := newBench(t)
	s := b.launching()
	group := b.grouped("c")
	now := b.loop.clock.Now()
	r := s.evaluating.answers.rights
	r.breaker = rightsBreaker{breaker: breaker{until: now}, since: now.Add(-time.Hour)}
	if wait := r.send(group[0]); wait != 0 {
		t.Fatalf("the probe waits %v", wait)
	}
	b.hook = func(op, key string) error {
		if op != "applied" && strings.Contains(key, launchesPrefix) {
			return store.ErrNoSpace
		}
		return nil
	}
	s.launch(t.Context(), &launch{group: group, turn: b.turn()}, func() {})
	if wait := r.send(b.requested("d")[0]); wait != 0 {
		t.Errorf("nothing was sent, and the next cell waits %v", wait)
	}
}

// regrouped returns the cells of a group that were given back with another launch ahead of them, as another group.
func (b *bench) regrouped(group []*entry) (again []*entry) {
	b.Helper()
	for _, id := range b.woken() {
		if e := b.table.find(id); e.cell().Phase == apiv1.Requested && e.launchID == "" {
			e.giveToLaunchLocked()
			again = append(again, e)
		}
	}
	return again
}

// launchRecords is how many calls are stored.
func (b *bench) launchRecords() (n int) {
	b.Helper()
	if err := b.records.store.List(b.Context(), launchesPrefix, func(string, []byte, int64) error { n++; return nil }); err != nil {
		b.Fatal(err)
	}
	return n
}

// resolver resolves launches by a function.
type resolver func(cloud.LaunchSpec) (cloud.Resolved, error)

func (r resolver) Resolve(_ context.Context, spec cloud.LaunchSpec) (cloud.Resolved, error) {
	return r(spec)
}

func TestAGroupIsLaunchedAsTheCloudResolvesIt(t *testing.T) {
	for name, tc := range map[string]struct {
		resolves func(*bench, []*entry) (cloud.Resolved, error) // nil: the cloud resolves nothing
		phase    apiv1.Phase
		public   bool
		failed   int
		left     int // of those launched
	}{
		"the cloud resolves nothing": {nil, apiv1.Booting, false, 2, 2},
		"it is resolved": {func(*bench, []*entry) (cloud.Resolved, error) {
			return cloud.Resolved{PublicAddress: true}, nil
		}, apiv1.Booting, true, 0, 2},
		"the cloud gives no answer": {func(*bench, []*entry) (cloud.Resolved, error) {
			return cloud.Resolved{}, errors.New("no answer")
		}, apiv1.Requested, false, 3, 0},
		"a pod goes meanwhile": {func(b *bench, group []*entry) (cloud.Resolved, error) {
			b.end(group[1], CausePodDeleted)
			return cloud.Resolved{}, nil
		}, apiv1.Booting, false, 0, 1},
		"all pods go meanwhile": {func(b *bench, group []*entry) (cloud.Resolved, error) {
			b.end(group[0], CausePodDeleted)
			b.end(group[1], CausePodDeleted)
			return cloud.Resolved{}, nil
		}, apiv1.Requested, false, 0, 0},
	} {
		b := newBench(t)
		s, group := b.launching(), b.grouped("c", "d")
		first := group[0]
		b.retries.tries.of(first).failed = 2
		if tc.resolves != nil {
			all := slices.Clone(group)
			b.cloud.set(func() {
				b.cloud.optional.Resolver = resolver(func(cloud.LaunchSpec) (cloud.Resolved, error) { return tc.resolves(b, all) })
			})
		}
		s.launch(t.Context(), &launch{group: group, turn: b.turn()}, func() {})
		if got := first.cell(); got.Phase != tc.phase || b.retries.tries.of(first).failed != tc.failed || len(b.cloud.running()) != tc.left {
			t.Errorf("%s: it is %s, %d tries failed, %d instances", name, got.Phase, b.retries.tries.of(first).failed, len(b.cloud.running()))
		}
		if first.launching || tc.public != (first.cell().Launch != nil && first.cell().Launch.PublicAddress) {
			t.Errorf("%s: it is its group's %t, launched with %+v", name, first.launching, first.cell().Launch)
		}
	}
}

// The answer of the write that stored a launch is lost. Then the next launch of one of its cells is not resolved.
func TestALaunchWaitsForItsCellWhoseNextLaunchIsNotResolved(t *testing.T) {
	b := newBench(t)
	s, group := b.launching(), b.grouped("c", "d")
	resuming := &resuming{
		table: b.table, generation: b.generation, launching: s,
		calls: &storedCalls{loop: b.loop, records: b.records, store: b.records.store},
	}
	c, d := group[0], group[1]
	b.hook = func(op, key string) error {
		if op == "applied" && strings.Contains(key, launchesPrefix) {
			return errors.New("the answer is lost")
		}
		return nil
	}
	s.launch(t.Context(), &launch{group: slices.Clone(group), turn: b.turn()}, func() {})
	b.hook = nil
	b.cloud.set(func() {
		b.cloud.optional.Resolver = resolver(func(cloud.LaunchSpec) (cloud.Resolved, error) { return cloud.Resolved{}, errors.New("no answer") })
	})
	c.giveToLaunchLocked()
	s.launch(t.Context(), &launch{group: []*entry{c}, turn: b.turn()}, func() {})
	read := func(e *entry) {
		if err := b.records.save(t.Context(), e, func(*Cell) error { return nil }); !errors.Is(err, errMoved) {
			t.Fatalf("the record of cell %s is read: %v", e.id, err)
		}
	}
	read(d)
	early := waitFor("another cell of its launch does not know yet that it is stored", time.Second)
	if got, err := resuming.Step(t.Context(), d); err != nil || got != early {
		t.Errorf("before cell c knows its launch, that of d is %+v (%v)", got, err)
	}
	read(c)
	if got, err := resuming.Step(t.Context(), d); err != nil || got != await(notAnswered) {
		t.Errorf("then it is %+v (%v)", got, err)
	}
	b.loop.running.Wait()
	if c.cell().Phase != apiv1.Booting || d.cell().Phase != apiv1.Booting || len(b.cloud.running()) != 2 || b.launchRecords() != 0 {
		t.Errorf("c is %s, d is %s, with %d instances; %d calls are stored yet",
			c.cell().Phase, d.cell().Phase, len(b.cloud.running()), b.launchRecords())
	}
}

func TestWhatTheCloudResolvesForgetsTheTriesThatFailed(t *testing.T) {
	for name, fails := range map[string]error{"it answers": nil, "it does not": errors.New("no answer")} {
		b := newBench(t)
		s, group := b.launching().resolving, b.grouped("c", "d")
		if s.asks() {
			t.Errorf("%s: a cloud that resolves nothing is asked", name)
		}
		var asked []cloud.LaunchSpec
		b.cloud.optional.Resolver = resolver(func(spec cloud.LaunchSpec) (cloud.Resolved, error) {
			asked = append(asked, spec)
			return cloud.Resolved{Image: "image"}, fails
		})
		for _, e := range group {
			b.retries.tries.of(e).failed = 2
		}
		l := &launch{group: group}
		err := s.resolve(t.Context(), l)
		if !s.asks() || !errors.Is(err, fails) || (l.resolved == nil) != (fails != nil) || len(asked) != 1 || asked[0].InstanceType != "nano" {
			t.Errorf("%s: %+v (%v), asked %+v", name, l.resolved, err, asked)
		}
		for _, e := range group {
			if (b.retries.tries.of(e).failed == 0) != (fails == nil) {
				t.Errorf("%s: %d tries of cell %s have failed", name, b.retries.tries.of(e).failed, e.id)
			}
		}
	}
}

func TestALaunchIsStoredWithAsManyCellsAsOneWriteTakes(t *testing.T) {
	for name, tc := range map[string]struct {
		most   int // cells in one write
		stored int
		fails  bool
	}{"all": {4, 4, false}, "half": {2, 2, false}, "one": {1, 1, false}, "none": {0, 0, true}} {
		b := newBench(t)
		group := b.grouped("c", "d", "e", "f")
		b.hook = func(op, key string) error {
			if op != "applied" && strings.Contains(key, launchesPrefix) && strings.Count(key, keyPrefix) > tc.most {
				return store.ErrTooBig
			}
			return nil
		}
		l := &launch{group: group}
		others := b.intents().store(t.Context(), l)
		if l.isStored() == tc.fails || len(others) != 4-tc.stored || !tc.fails && !slices.Equal(l.group, group[:tc.stored]) {
			t.Errorf("%s: %+v is stored, of %d others", name, l, len(others))
		}
		for _, o := range others {
			if failed := o.verdict == isUnstored; failed != (tc.fails && o.e == group[0]) || failed != (o.answer.Err != nil) ||
				!failed && o.verdict != isLeftOver || slices.Index(group, o.e) < tc.stored {
				t.Errorf("%s: cell %s is %s (%v)", name, o.e.id, o.verdict, o.answer.Err)
			}
		}
		for n, e := range group {
			if launching := e.cell().Phase == apiv1.Launching; launching != (n < tc.stored) || !e.launching {
				t.Errorf("%s: cell %s is %s", name, e.id, e.cell().Phase)
			}
		}
	}
}
