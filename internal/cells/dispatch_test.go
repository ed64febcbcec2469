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

func (b *bench) dispatching() *dispatching {
	b.Helper()
	sending := b.sending()
	return &dispatching{table: b.table, loop: b.loop, calls: b.calls, intents: b.intents(), sending: sending}
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

// launching are cells that are their group's.
func (b *bench) launching(ids ...string) []*entry {
	group := b.requested(ids...)
	for _, e := range group {
		e.giveToGroup()
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
		s := b.dispatching()
		group := b.launching("c", "d")
		b.hook = func(op, key string) error {
			if op == "applied" {
				return nil
			}
			return tc.fails(key)
		}
		s.launch(t.Context(), slices.Clone(group), nil, b.turn())
		b.loop.running.Wait()
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
	s := b.dispatching()
	group := b.launching("c")
	now := b.loop.clock.Now()
	r := s.sending.answers.rights
	r.pause = pause{since: now.Add(-time.Hour), until: now}
	if wait := r.probeOrDelay(group[0]); wait != 0 {
		t.Fatalf("the probe waits %v", wait)
	}
	b.hook = func(op, key string) error {
		if op != "applied" && strings.Contains(key, launchesPrefix) {
			return store.ErrNoSpace
		}
		return nil
	}
	s.launch(t.Context(), group, nil, b.turn())
	b.loop.running.Wait()
	if wait := r.probeOrDelay(b.requested("d")[0]); wait != 0 {
		t.Errorf("nothing was sent, and the next cell waits %v", wait)
	}
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
type resolver func() (cloud.Resolved, error)

func (r resolver) Resolve(context.Context, cloud.LaunchSpec) (cloud.Resolved, error) { return r() }

func TestAGroupIsLaunchedAsTheCloudResolvesIt(t *testing.T) {
	for name, tc := range map[string]struct {
		resolves func([]*entry) (cloud.Resolved, error) // nil: the cloud resolves nothing
		phase    apiv1.Phase
		public   bool
		failed   int
		left     int // of those launched
	}{
		"the cloud resolves nothing": {nil, apiv1.Booting, false, 2, 2},
		"it is resolved": {func([]*entry) (cloud.Resolved, error) {
			return cloud.Resolved{PublicAddress: true}, nil
		}, apiv1.Booting, true, 0, 2},
		"the cloud gives no answer": {func([]*entry) (cloud.Resolved, error) {
			return cloud.Resolved{}, errors.New("no answer")
		}, apiv1.Requested, false, 3, 0},
		"a pod goes meanwhile": {func(group []*entry) (cloud.Resolved, error) {
			group[1].beginEnd(CausePodDeleted, "why")
			return cloud.Resolved{}, nil
		}, apiv1.Booting, false, 0, 1},
		"all pods go meanwhile": {func(group []*entry) (cloud.Resolved, error) {
			group[0].beginEnd(CausePodDeleted, "why")
			group[1].beginEnd(CausePodDeleted, "why")
			return cloud.Resolved{}, nil
		}, apiv1.Requested, false, 2, 0},
	} {
		b := newBench(t)
		dispatching := b.dispatching()
		rights := dispatching.sending.answers.rights
		s := &resolving{
			loop: b.loop, calls: b.calls, launchCalls: dispatching.intents.launchCalls, dispatching: dispatching,
			wanted:     &wanted{table: b.table, loop: b.loop},
			unresolved: &unresolved{loop: b.loop, rights: rights, events: b.events, outcomes: dispatching.sending.outcomes, blockers: b.blocking()},
		}
		group := b.launching("c", "d")
		first := group[0]
		first.resolving.failed = 2
		if tc.resolves != nil {
			all := slices.Clone(group)
			b.cloud.set(func() {
				b.cloud.features.Resolver = resolver(func() (cloud.Resolved, error) { return tc.resolves(all) })
			})
		}
		s.launch(t.Context(), group, b.turn())
		b.loop.running.Wait()
		if got := first.cell(); got.Phase != tc.phase || first.resolving.failed != tc.failed || len(b.cloud.running()) != tc.left {
			t.Errorf("%s: it is %s, %d tries failed, %d instances", name, got.Phase, first.resolving.failed, len(b.cloud.running()))
		}
		if first.launching || tc.public != (first.cell().Launch != nil && first.cell().Launch.PublicAddress) {
			t.Errorf("%s: it is its group's %t, launched with %+v", name, first.launching, first.cell().Launch)
		}
	}
}
