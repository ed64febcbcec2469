package cells

import (
	"context"
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// standing is a standby cell that is ready; it has been there for an hour.
func (b *bench) standing(id string) *entry {
	cell := Cell{
		ID: id, Phase: apiv1.Ready, OfPool: OfPool{Standby: "pool"}, Offerings: []Offering{{InstanceType: "nano"}},
		Instance: &cloud.Instance{ID: "i-" + id, State: cloud.Running, Launched: b.clock.Now().Add(-time.Hour)},
	}
	cell.step(apiv1.StepReady, b.clock.Now())
	b.cloud.set(func() { b.cloud.instances["i-"+id] = *cell.Instance })
	return b.stored(cell)
}

// stopped is one whose instance is.
func (b *bench) stopped(id, pod string) *entry {
	e := b.standing(id)
	if err := b.records.save(b.Context(), e, func(cell *Cell) error {
		cell.Stopped, cell.Instance.State = true, cloud.Stopped
		if pod != "" {
			cell.Pod = ref(pod)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	return e
}

func TestOnlyTheCellsOfAPoolThatKeepsThemStoppedAreStopped(t *testing.T) {
	b := newBench(t)
	s := &idling{calls: b.calls, pools: b.pools, inventory: b.inventory, stopping: &stopping{loop: b.loop, records: b.records}}
	e := b.standing("c")
	link := &modelLink{connected: true}
	e.open(link, nil, time.Time{})
	b.pools.byName["pool"] = &pool{Pool: Pool{Name: "pool", Count: 1, Stopped: true}}
	for _, tc := range []struct {
		name      string
		connected bool
		again     time.Duration
	}{{"it is connected", true, 0}, {"it is away", false, silentPoll}} {
		link.connected = tc.connected
		again, err := after(s.idle(t.Context(), e))
		if err != nil || again != tc.again || b.asked() == tc.connected || e.cell().Stopped {
			t.Errorf("%s: again after %s, stopped %t (%v)", tc.name, again, e.cell().Stopped, err)
		}
	}
	if s.stops(e.cell()) {
		t.Error("a cloud that stops nothing is to stop it")
	}
	b.cloud.set(func() { b.cloud.optional.Stopper = stopper{modelCloud: b.cloud} })
	taken, other := &Cell{OfPool: OfPool{Standby: "pool"}, Pod: ref("a")}, &Cell{OfPool: OfPool{Standby: "other"}}
	if !s.stops(e.cell()) || s.stops(taken) || s.stops(other) {
		t.Error("others are to be stopped than the idle cells of the pool")
	}
}

func TestACellIsStoppedOnceAndNoLongerPaidForThen(t *testing.T) {
	b := newBench(t)
	machines := &counted{stopper: stopper{modelCloud: b.cloud}, fails: errors.New("no answer")}
	s := &stopping{loop: b.loop, records: b.records, inventory: b.inventory}
	e := b.standing("c")
	if err := s.begin(t.Context(), e); err != nil || !e.cell().Stopped || e.cell().BilledSeconds != 3600 {
		t.Fatalf("stopped %t, paid for %v s (%v)", e.cell().Stopped, e.cell().BilledSeconds, err)
	}
	for _, tc := range []struct {
		name  string
		after time.Duration
		shown cloud.State
		calls int
		again time.Duration
	}{
		{"at first", 0, cloud.Running, 1, time.Second},
		{"the call has failed", 0, cloud.Running, 1, time.Second},
		{"a little later", firstRetry, cloud.Running, 2, time.Second},
		{"the cloud has accepted it", time.Second, cloud.Running, 2, time.Second},
		{"and has not done it", stopAgain, cloud.Running, 3, time.Second},
		{"and has done it", stopAgain, cloud.Stopped, 3, 0},
	} {
		b.clock.Step(tc.after)
		b.listed(snapshot{byID: map[string]cloud.Instance{"i-c": {ID: "i-c", State: tc.shown}}})
		again, err := after(b.through(func() (progress, error) { return s.stop(t.Context(), e, machines) }))
		if err != nil || again != tc.again || machines.stops != tc.calls {
			t.Errorf("%s: %d calls, again after %s (%v)", tc.name, machines.stops, again, err)
		}
		machines.fails = nil
	}
	if got := e.cell().Instance.State; got != cloud.Stopped {
		t.Errorf("stored is that it is %s", got)
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

func (b *bench) starting() *starting {
	r := b.rights()
	return &starting{
		loop: b.loop, records: b.records, calls: b.calls, rights: r,
		failures: &startFailures{loop: b.loop, rights: r, ends: b.ends, events: b.events, shortages: b},
	}
}

func TestAStoppedCellThatAPodHasTakenBoots(t *testing.T) {
	b := newBench(t)
	s := b.starting()
	e := b.stopped("c", "a")
	b.clock.Step(time.Minute)
	if _, err := b.through(func() (progress, error) {
		return s.start(t.Context(), e, stopper{modelCloud: b.cloud})
	}); err != nil {
		t.Fatal(err)
	}
	got := e.cell()
	if got.Phase != apiv1.Booting || got.Stopped || !got.Instance.Launched.Equal(b.clock.Now()) || got.Instance.PodIP.IsValid() {
		t.Errorf("it is %s, stopped %t, with %+v", got.Phase, got.Stopped, got.Instance)
	}
}

func TestACellIsGivenUpThatCannotBeStarted(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		marked int
		ends   bool
	}{
		"the cloud is short":      {cloud.No(cloud.ErrCapacity, cloud.Scope{}, errors.New("no")), giveUpTries, true},
		"it gives no answer":      {errors.New("no answer"), 0, false},
		"Kip calls it too often":  {cloud.No(cloud.ErrThrottled, cloud.Scope{}, errors.New("no")), 0, false},
		"Kip has no right to it":  {cloud.No(cloud.ErrUnauthorised, cloud.Scope{InstanceType: "nano"}, errors.New("no")), 0, false},
		"Kip has no right to any": {cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("no")), 0, false},
	} {
		b := newBench(t)
		s := b.starting().failures
		e := b.stopped("c", "a")
		for n := range giveUpTries {
			if again := s.noteStartRefusal(e, tc.err).again; (again == 0) != (tc.ends && n == giveUpTries-1) {
				t.Errorf("%s: after %d tries again after %s", name, n+1, again)
			}
		}
		if why, _ := b.table.ending(e); (why != "") != tc.ends || len(b.marked) != tc.marked {
			t.Errorf("%s: it ends for %q, marked %d times", name, why, len(b.marked))
		}
		if paused := !s.rights.breaker.since.IsZero(); paused != (name == "Kip has no right to any") {
			t.Errorf("%s: launches are paused %t", name, paused)
		}
	}
}
