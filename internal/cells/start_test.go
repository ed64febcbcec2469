package cells

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func (b *bench) starting() *starting {
	r := b.rights()
	return &starting{
		loop: b.loop, records: b.records, calls: b.calls, rights: r,
		failures: &startFailures{loop: b.loop, rights: r, ends: b.ends, events: b.events, shortages: b},
	}
}

// addressed gives the instance of a cell all of its addresses.
func (b *bench) addressed(e *entry) {
	b.edit(e, func(cell *Cell) {
		v4, v6 := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
		i := cell.Instance
		i.ManagementIP, i.PodIP, i.PublicIP, i.ManagementIPv6, i.PodIPv6 = v4, v4, v4, v6, v6
	})
}

func TestAStoppedCellThatAPodHasTakenBoots(t *testing.T) {
	lost := errors.New("no answer")
	for name, tc := range map[string]struct {
		before func(*bench, *starting, *entry)
		during func(*bench, *entry)
		answer error
		want   progress
		err    error
		boots  bool
		calls  int
		failed int // tries
	}{
		"it is started": {want: done, boots: true, calls: 1},
		"it is not":     {answer: lost, want: waitFor("", firstRetry), calls: 1, failed: 1},
		"a try has failed a moment ago": {before: func(b *bench, s *starting, e *entry) {
			s.failures.tries.of(e).next = b.clock.Now().Add(3 * time.Second)
		}, want: waitFor("", 3*time.Second)},
		"Kip has no right to start any": {before: func(b *bench, s *starting, _ *entry) {
			s.rights.breaker.all, s.rights.breaker.until = true, b.clock.Now().Add(5*time.Second)
		}, want: waitFor("", 5*time.Second)},
		"Kip ends meanwhile": {answer: context.Canceled, err: context.Canceled, calls: 1},
		"an earlier write is found to have started it": {during: func(b *bench, e *entry) {
			b.edit(e, func(cell *Cell) { cell.Stopped = false })
		}, err: errMoved, calls: 1},
	} {
		b := newBench(t)
		ctx, cancel := context.WithCancel(t.Context())
		s := b.starting()
		s.rights.breaker.since = b.clock.Now()
		e, calls := b.stopped("c", "a"), 0
		b.addressed(e)
		b.clock.Step(time.Minute)
		if tc.before != nil {
			tc.before(b, s, e)
		}
		machines := stopper{modelCloud: b.cloud, fails: func(context.Context) error {
			if calls++; tc.during != nil {
				tc.during(b, e)
			}
			if errors.Is(tc.answer, context.Canceled) {
				cancel()
			}
			return tc.answer
		}}
		got, err := bare(b.through(func() (progress, error) { return s.start(ctx, e, machines) }))
		cancel()
		if !errors.Is(err, tc.err) || tc.err == nil && (err != nil || got != tc.want) || calls != tc.calls {
			t.Errorf("%s: %+v (%v), %d calls", name, got, err, calls)
		}
		cell := e.cell()
		started := cloud.Instance{ID: "i-c", State: cloud.Running, Launched: b.clock.Now()}
		if boots := cell.Phase == apiv1.Booting && !cell.Stopped && reflect.DeepEqual(*cell.Instance, started); boots != tc.boots {
			t.Errorf("%s: it is %s, stopped %t, with %+v", name, cell.Phase, cell.Stopped, cell.Instance)
		}
		rights := s.rights.breaker.since.IsZero() // an answer says that Kip has them
		if s.failures.tries.of(e).failed != tc.failed || rights != (tc.calls == 1 && tc.answer == nil) {
			t.Errorf("%s: %d tries have failed, Kip has its rights %t", name, s.failures.tries.of(e).failed, rights)
		}
	}
}

func TestACellWaitsAMomentForItsStopBeforeItIsStarted(t *testing.T) {
	b := newBench(t)
	s, e := b.starting(), b.stopped("c", "a")
	e.async.now = &asyncOp{what: stopsInstance}
	got, err := s.start(t.Context(), e, stopper{modelCloud: b.cloud})
	if err != nil || got.state != isUnderWay || got.again != cancelStopAgain || !e.async.has(stopsInstance) {
		t.Errorf("%+v (%v)", got, err)
	}
}

func TestACellIsGivenUpThatCannotBeStarted(t *testing.T) {
	no := func(cause cloud.Cause, scope cloud.Scope) error { return cloud.No(cause, scope, errors.New("no")) }
	for name, tc := range map[string]struct {
		err    error
		each   time.Duration // try
		marked int
		ends   bool
		paused bool
	}{
		"the cloud is short":           {no(cloud.ErrCapacity, cloud.Scope{}), 0, giveUpTries, true, false},
		"it gives no answer":           {errors.New("no answer"), giveUpAfter / giveUpTries, 0, false, false},
		"it gives none for long":       {errors.New("no answer"), giveUpAfter / (giveUpTries - 1), 0, true, false},
		"it has no quota":              {no(cloud.ErrQuota, cloud.Scope{}), giveUpAfter, giveUpTries, true, false},
		"Kip calls it too often":       {no(cloud.ErrThrottled, cloud.Scope{}), giveUpAfter, 0, false, false},
		"Kip has no right to it":       {no(cloud.ErrUnauthorised, cloud.Scope{InstanceType: "nano"}), 0, 0, false, false},
		"Kip has none to it, for long": {no(cloud.ErrUnauthorised, cloud.Scope{InstanceType: "nano"}), giveUpAfter, 0, true, false},
		"Kip has no right to any":      {no(cloud.ErrUnauthorised, cloud.Scope{Account: true}), giveUpAfter, 0, false, true},
	} {
		b := newBench(t)
		s := b.starting().failures
		e := b.stopped("c", "a")
		for n := range giveUpTries {
			if n > 0 {
				b.clock.Step(tc.each)
			}
			got, last := s.noteStartRefusal(e, tc.err), tc.ends && n == giveUpTries-1
			if (got == leave) != last || got.again < firstRetry && !last {
				t.Errorf("%s: after %d tries %+v", name, n+1, got)
			}
		}
		why, cause := b.table.ending(e)
		if (why != "") != tc.ends || tc.ends && cause != CauseLost || len(b.marked) != tc.marked {
			t.Errorf("%s: it ends for %q, %s, marked %d times", name, why, cause, len(b.marked))
		}
		said := 1 // of the first
		if tc.ends {
			said = 2
		}
		if paused := !s.rights.breaker.since.IsZero(); paused != tc.paused || len(b.said) != said {
			t.Errorf("%s: launches are paused %t, said %v", name, paused, b.said)
		}
	}
}
