package cells

import (
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
