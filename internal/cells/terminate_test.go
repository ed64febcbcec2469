package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

func TestACellIsGoneOnlyWhenTheCloudNoLongerShowsIt(t *testing.T) {
	w := newWorld(t)
	w.cloud.linger = true
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	w.cells.Release(ref("a").UID, "done", false)
	w.until("the termination is accepted", func() bool {
		w.cloud.mu.Lock()
		defer w.cloud.mu.Unlock()
		return w.cloud.terminated["i-0"] == 1
	})
	began := w.cells.core.inventory.last().began
	w.until("two more looks", func() bool { return w.cells.core.inventory.last().began.After(began.Add(2 * soonPoll)) })
	if cell, ok := w.cells.ForPod(ref("a").UID); !ok || cell.Phase != apiv1.Terminating {
		t.Fatalf("the cell is %s while its instance is still shown", cell.Phase)
	}
	w.cloud.mu.Lock()
	clear(w.cloud.instances)
	w.cloud.mu.Unlock()
	w.until("gone", w.reached("a", apiv1.Gone))
}

// refusing is a model cloud whose terminations are answered by one rule, and counted.
type refusing struct {
	*modelCloud
	counting sync.Mutex
	calls    [][]string
	refuse   func(ids []string) error
}

func (r *refusing) Terminate(ctx context.Context, ids ...string) cloud.Results {
	r.counting.Lock()
	r.calls = append(r.calls, slices.Clone(ids))
	refuse := r.refuse
	r.counting.Unlock()
	if err := refuse(ids); err != nil {
		return cloud.Each(err, ids...)
	}
	return r.modelCloud.Terminate(ctx, ids...)
}

// made returns the calls since the last time.
func (r *refusing) made() [][]string {
	r.counting.Lock()
	defer r.counting.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// refusedBy runs f with a cloud whose terminations are refused as a rule says.
func refusedBy(t *testing.T, refuse func(ids []string) error, f func(b *bubble, r *refusing)) {
	t.Helper()
	r := &refusing{refuse: refuse}
	inBubble(t, nil, nil, func(_ *testing.T, b *bubble) {
		b.stop()
		r.modelCloud = b.cloud
		b.cfg.Cloud = r
		b.run()
		f(b, r)
	})
}

func TestATerminationThatFailsIsRepeatedWithABackOffAndToldOnce(t *testing.T) {
	refusedBy(t, func([]string) error { return errors.New("internal error") }, func(b *bubble, r *refusing) {
		pod := b.bound(1)[0]
		b.cells.Release(ref(pod).UID, "done", false)
		b.later(time.Hour)
		if n := len(r.made()); n < 50 || n > 100 {
			t.Errorf("%d calls in an hour, want about one a minute", n)
		}
		if n := len(b.said("CellNotTerminated")); n < 2 || n > 13 {
			t.Errorf("%d Events in an hour, want the first, and one each 5 minutes or so", n)
		}
		r.counting.Lock()
		r.refuse = func([]string) error { return nil }
		r.counting.Unlock()
		b.later(2 * time.Minute)
		if b.phase(pod) != "" {
			t.Errorf("it is %q when the cloud takes it", b.phase(pod))
		}
	})
}

func TestAnotherReasonIsToldAtOnce(t *testing.T) {
	cause := errors.New("internal error")
	refusedBy(t, func([]string) error { return cause }, func(b *bubble, r *refusing) {
		pod := b.bound(1)[0]
		b.cells.Release(ref(pod).UID, "done", false)
		b.later(2 * time.Minute)
		r.counting.Lock()
		cause = cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("termination protection"))
		r.counting.Unlock()
		b.later(90 * time.Second)
		if n, all := len(b.said("CellNotTerminated", "protection")), len(b.said("CellNotTerminated")); n != 1 || all != 2 {
			t.Errorf("the new reason was told %d times, of %d", n, all)
		}
	})
}

func TestABatchIsHalvedUntilTheOneThatTheCloudRefusesIsFound(t *testing.T) {
	const bad = "i-13"
	refusedBy(t, func(ids []string) error {
		if slices.Contains(ids, bad) {
			return cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("invalid id"))
		}
		return nil
	}, func(b *bubble, r *refusing) {
		pods := b.bound(32)
		r.made()
		for _, pod := range pods {
			b.cells.Release(ref(pod).UID, "done", false)
		}
		b.later(10 * time.Second)
		if left := b.cloud.running(); !slices.Equal(left, []string{bad}) {
			t.Fatalf("%v are left, want %s", left, bad)
		}
		if n := len(r.made()); n > 40 {
			t.Errorf("%d calls for 32 machines", n)
		}
		// From now on it is sent by itself, and spoils no other call.
		b.request("late", "nano")
		b.later(time.Minute)
		b.cells.Release(ref("late").UID, "done", false)
		b.later(2 * time.Minute)
		for _, call := range r.made() {
			if len(call) > 1 && slices.Contains(call, bad) {
				t.Errorf("%s is in a call with others: %v", bad, call)
			}
		}
		if left := b.cloud.running(); !slices.Equal(left, []string{bad}) {
			t.Errorf("%v are left", left)
		}
	})
}

func TestThrottledTerminationsWaitAltogetherForAsLongAsTheCloudSays(t *testing.T) {
	refusedBy(t, func([]string) error {
		return &cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: 40 * time.Second, NothingDone: true}
	}, func(b *bubble, r *refusing) {
		pods := b.bound(20)
		r.made()
		for n, pod := range pods { // they do not come together
			b.cells.Release(ref(pod).UID, "done", false)
			b.later(time.Duration(n) * 100 * time.Millisecond)
		}
		b.later(4 * time.Minute)
		if n := len(r.made()); n < 6 || n > 8 {
			t.Errorf("%d calls in some 4 minutes, of which each is answered that none is of use for 40 s", n)
		}
	})
}

func TestAKipThatNoLongerLeadsEndsNothing(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pod := b.bound(1)[0]
		b.cloud.set(func() { b.leads = func(context.Context) error { return errors.New("etcd does not answer") } })
		b.cells.Release(ref(pod).UID, "done", false)
		b.later(5 * time.Minute)
		if len(b.cloud.running()) != 1 || len(b.said("CellNotTerminated", "not certain")) == 0 {
			t.Fatalf("instances %v, said %v", b.cloud.running(), b.events)
		}
		b.cloud.set(func() { b.leads = func(context.Context) error { return fmt.Errorf("asked: %w", store.ErrNotLeader) } })
		b.later(2 * time.Minute)
		if err := <-b.ended; !errors.Is(err, store.ErrNotLeader) || len(b.cloud.running()) != 1 {
			t.Errorf("the controller ended with %v, instances %v", err, b.cloud.running())
		}
		b.stop = func() {}
	})
}

func TestACellIsGoneWhenItsInstanceHasSurelyEnded(t *testing.T) {
	b := newBench(t)
	outcomes, _ := b.ending()
	connections := &connections{table: b.table}
	removals := &removals{table: b.table, loop: b.loop, records: b.records, connections: connections}
	s := &terminating{
		inventory: b.inventory, terminations: b.terminations, connections: connections, routes: outcomes.routes, removals: removals,
	}
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Terminating, Reason: "why", Instance: &cloud.Instance{ID: "i"}})
	ended := map[string]bool{"i": true}
	for _, tc := range []struct {
		name     string
		accepted bool
		seen     snapshot
		phase    apiv1.Phase
	}{
		{"nobody has answered", false, snapshot{ended: ended}, apiv1.Terminating},
		{"the snapshot began before", true, snapshot{began: b.clock.Now(), ended: ended}, apiv1.Terminating},
		{"the snapshot is not sure", true, snapshot{began: b.clock.Now().Add(time.Second)}, apiv1.Terminating},
		{"the snapshot is sure", true, snapshot{began: b.clock.Now().Add(time.Second), ended: ended}, apiv1.Gone},
	} {
		if tc.accepted && b.terminations.accepted("i").IsZero() {
			outcomes.note(t.Context(), b.terminations.byInstance["i"], nil)
		}
		b.listed(tc.seen)
		again, err := after(s.Step(t.Context(), e))
		if got := e.cell(); err != nil || got.Phase != tc.phase || (again == 0) != (tc.phase == apiv1.Gone) {
			t.Errorf("%s: the cell is %s, again after %s (%v)", tc.name, got.Phase, again, err)
		}
	}
	if e.cell().Reason != "why" || b.table.find("c") != nil || len(b.terminations.byInstance) != 0 {
		t.Errorf("it is gone for %q; found %t", e.cell().Reason, b.table.find("c") != nil)
	}
}
