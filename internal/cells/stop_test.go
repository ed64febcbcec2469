package cells

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

func TestACellIsStoppedOnceAndNoLongerPaidForThen(t *testing.T) {
	b := newBench(t)
	machines := &counted{stopper: stopper{modelCloud: b.cloud}}
	s := &stopping{loop: b.loop, records: b.records, inventory: b.inventory}
	e := b.standing("c")
	if err := s.begin(t.Context(), e); err != nil || !e.cell().Stopped || e.cell().BilledSeconds != 3600 {
		t.Fatalf("stopped %t, paid for %v s (%v)", e.cell().Stopped, e.cell().BilledSeconds, err)
	}
	lost := errors.New("no answer")
	for _, tc := range []struct {
		name  string
		after time.Duration
		fails error
		shown cloud.State
		calls int
		want  progress
		asks  bool // for a snapshot
	}{
		{"at first", 0, lost, cloud.Running, 1, waitFor("", time.Second), true},
		{"the call has failed", firstRetry - 1, nil, cloud.Running, 1, waitFor("", time.Second), true},
		{"a little later", 1, lost, cloud.Running, 2, waitFor("", time.Second), true},
		{"it has failed again", firstRetry, nil, cloud.Running, 2, waitFor("", time.Second), true},
		{"later", firstRetry, nil, cloud.Running, 3, waitFor("", time.Second), true},
		{"the cloud has accepted it", stopAgain - 1, nil, cloud.Running, 3, waitFor("", time.Second), true},
		{"and has not done it", 1, nil, cloud.Running, 4, waitFor("", time.Second), true},
		{"and has done it", stopAgain, nil, cloud.Stopped, 4, done, false},
		{"and that is stored", stopAgain, nil, cloud.Stopped, 4, await(""), false},
		{"somebody has started it", stopAgain, nil, cloud.Running, 5, waitFor("", time.Second), true},
	} {
		machines.fails = tc.fails
		b.clock.Step(tc.after)
		b.listed(snapshot{byID: map[string]cloud.Instance{"i-c": {ID: "i-c", State: tc.shown}}})
		got, err := bare(b.through(func() (progress, error) { return s.stop(t.Context(), e, machines) }))
		if err != nil || got != tc.want || machines.stops != tc.calls || b.asked() != tc.asks {
			t.Errorf("%s: %d calls, %+v (%v)", tc.name, machines.stops, got, err)
		}
	}
	if got := e.cell().Instance.State; got != cloud.Stopped {
		t.Errorf("stored is that it is %s", got)
	}
}

func TestACellThatAPodHasTakenIsNotStopped(t *testing.T) {
	b := newBench(t)
	s := &stopping{loop: b.loop, records: b.records, inventory: b.inventory}
	e := b.standing("c")
	b.edit(e, func(cell *Cell) { cell.Pod = ref("a") })
	if err := s.begin(t.Context(), e); err == nil || e.cell().Stopped || e.cell().BilledSeconds != 0 {
		t.Errorf("stopped %t, paid for %v s (%v)", e.cell().Stopped, e.cell().BilledSeconds, err)
	}
}

func TestAKipThatNoLongerLeadsTriesNoStopAgain(t *testing.T) {
	b := newBench(t)
	machines := &counted{stopper: stopper{modelCloud: b.cloud}, fails: store.ErrNotLeader}
	s := &stopping{loop: b.loop, records: b.records, inventory: b.inventory}
	e := b.standing("c")
	_, err := b.through(func() (progress, error) { return s.stop(t.Context(), e, machines) })
	if !errors.Is(err, store.ErrNotLeader) || s.tries.of(e).failed != 0 {
		t.Errorf("%v, %d tries have failed", err, s.tries.of(e).failed)
	}
}

// counted counts its calls.
type counted struct {
	stopper
	stops int
	fails error
}

func (c *counted) Stop(ctx context.Context, ids ...string) cloud.Results {
	c.stops++
	if c.fails != nil {
		return cloud.Each(c.fails, ids...)
	}
	return c.stopper.Stop(ctx, ids...)
}
