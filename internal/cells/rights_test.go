package cells

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/offering"
	"k8s.io/utils/clock"
)

// rights returns what knows whether Kip may launch.
func (b *bench) rights() *rights {
	return &rights{table: b.table, loop: b.loop, events: b.events, calls: b.calls, denied: map[offering.Key]bool{}}
}

// send returns how long a cell has to wait for Kip's rights, and reports why; 0 if its launch is sent.
func (s *rights) send(e *entry) time.Duration {
	s.table.mu.Lock()
	got, report := s.delayLocked(e)
	if got.isDone() {
		s.markProbeLocked(e)
		e.giveToLaunchLocked()
	}
	s.table.mu.Unlock()
	if !got.isDone() {
		report()
	}
	return got.again
}

func TestThatSomethingIsNotThereSaysNothingOfRights(t *testing.T) {
	s := &rights{
		table:  newTable(),
		loop:   &loop{clock: clock.RealClock{}, log: slog.New(slog.DiscardHandler)},
		calls:  pipe.New(pipe.Config{Cloud: newModelCloud(), Clock: clock.RealClock{}}),
		denied: map[offering.Key]bool{},
	}
	no := func(cause cloud.Cause) cloud.LaunchResults {
		return cloud.NotLaunched(1, cloud.No(cause, cloud.Scope{Account: true}, errors.New("no")))
	}
	paused := func() bool { return !s.breaker.since.IsZero() }
	s.noteAnswer(offering.Key{}, no(cloud.ErrUnauthorised))
	for _, cause := range []cloud.Cause{cloud.ErrStale, cloud.ErrNotYet, cloud.ErrThrottled} {
		if s.noteAnswer(offering.Key{}, no(cause)); !paused() {
			t.Fatalf("%q is taken for a right to launch", cause)
		}
	}
	if s.noteAnswer(offering.Key{}, no(cloud.ErrCapacity)); paused() {
		t.Error("that there is no capacity, which only those are told who may launch, does not end the pause")
	}
}

func TestOneCellAtATimeShowsWhetherKipHasItsRights(t *testing.T) {
	for name, tc := range map[string]struct {
		becomes func(*bench, *entry, *Cell) // what becomes of the probe
		waits   time.Duration               // how long another then waits
	}{
		"it is in a group":   {func(*bench, *entry, *Cell) {}, probePoll},
		"its group is given": {func(_ *bench, e *entry, _ *Cell) { e.giveBackLocked() }, 0},
		"it is launched":     {func(_ *bench, e *entry, cell *Cell) { e.giveBackLocked(); cell.Phase = apiv1.Launching }, probePoll},
		"it was launched":    {func(_ *bench, e *entry, cell *Cell) { e.giveBackLocked(); cell.Phase = apiv1.Booting }, 0},
		"it is launched again without labels": {func(_ *bench, e *entry, cell *Cell) {
			e.giveBackLocked()
			cell.NoLabels = true
		}, probePoll},
		"it ends before it is launched again without labels": {func(b *bench, e *entry, cell *Cell) {
			e.giveBackLocked()
			cell.NoLabels = true
			b.end(e, CausePodDeleted)
		}, 0},
		"it is started": {func(_ *bench, e *entry, cell *Cell) {
			e.giveBackLocked()
			cell.Phase, cell.Stopped = apiv1.Ready, true
		}, probePoll},
		"it is gone":       {func(b *bench, e *entry, _ *Cell) { delete(b.table.byID, e.id) }, 0},
		"the time is over": {func(b *bench, _ *entry, _ *Cell) { b.clock.Step(callTimeout) }, 0},
	} {
		b := newBench(t)
		s := b.rights()
		s.breaker = rightsBreaker{breaker: breaker{until: b.clock.Now(), why: "no"}, since: b.clock.Now().Add(-time.Hour)}
		group := b.requested("c", "d")
		if wait := s.send(group[0]); wait != 0 || !group[0].launching {
			t.Fatalf("%s: the probe waits %s, its group's %t", name, wait, group[0].launching)
		}
		after := group[0].cell().clone()
		tc.becomes(b, group[0], &after)
		group[0].current.Store(&after)
		if wait := s.send(group[1]); wait != tc.waits || (len(b.said) == 1) != (wait > 0) || group[1].launching != (wait == 0) {
			t.Errorf("%s: another waits %s, want %s; said %v", name, wait, tc.waits, b.said)
		}
	}
}

func TestTheAnswerToAProbeSaysWhenTheNextIsSent(t *testing.T) {
	b := newBench(t)
	s := b.rights()
	no := cloud.NotLaunched(1, cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("no")))
	s.noteAnswer(offering.Key{}, no)
	e := b.requested("c")[0]
	for _, want := range []time.Duration{firstPause, 2 * firstPause} {
		s.noteAnswer(offering.Key{}, no) // of a launch that was under way
		if wait := s.send(e); wait != want || e.launching {
			t.Fatalf("it waits %s, want %s", wait, want)
		}
		b.clock.Step(want)
		if wait := s.send(e); wait != 0 || !e.launching {
			t.Fatalf("the probe waits %s", wait)
		}
		s.noteAnswer(offering.Key{}, no)
		e.giveBackLocked()
	}
}

func TestTheOthersAreCheckedWhenTheProbeIsNotLaunched(t *testing.T) {
	b := newBench(t)
	s := b.rights()
	s.breaker = rightsBreaker{breaker: breaker{until: b.clock.Now(), why: "no"}, since: b.clock.Now().Add(-time.Hour)}
	group := b.requested("c", "d")
	s.send(group[0])
	if s.passProbeLocked(group[0]); len(b.woken()) > 0 {
		t.Error("others are checked while it is launched")
	}
	group[0].giveBackLocked()
	if s.passProbeLocked(group[1]); len(b.woken()) > 0 {
		t.Error("others are checked for a cell that was not the probe")
	}
	s.passProbeLocked(group[0])
	if woken := b.woken(); len(woken) != 2 || s.send(group[1]) != 0 {
		t.Errorf("checked are %v", woken)
	}
}
