package ec2

import (
	"net/http"
	"slices"
	"testing"

	"github.com/elotl/kip/internal/cloud/sim"
)

func TestAnInterruptionIsSaidByEachWayButThoseThatItLeavesOut(t *testing.T) {
	for _, untold := range [][]Way{nil, {WayQueue}, {WayMetadata, WayRequest}, {WayQueue, WayMetadata, WayRequest}} {
		c := newClient(t, sim.Knobs{})
		c.model.cfg.Queue = "kip"
		if err := c.model.Interrupt(Interruption{}); err == nil {
			t.Error("an instance was interrupted where there is none")
		}
		if code, body := c.ask("RunInstances", run("InstanceMarketOptions.MarketType=spot")...); code != "" {
			t.Fatal(body)
		}
		if err := c.model.Interrupt(Interruption{Untold: []Way{"post"}}); err == nil {
			t.Error("a way that there is not was left out")
		}
		if err := c.model.Interrupt(Interruption{Untold: untold}); err != nil {
			t.Fatal(err)
		}
		for way, said := range map[Way]bool{
			WayQueue:    c.model.Queued() > 0,
			WayMetadata: len(c.model.announced(WayMetadata)) > 0,
			WayRequest:  len(c.model.announced(WayRequest)) > 0,
		} {
			if said == slices.Contains(untold, way) {
				t.Errorf("all but %v: said by %s: %v", untold, way, said)
			}
		}
	}
}

func TestARecommendationIsSaidByEachWayButThoseThatItLeavesOut(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	c.model.cfg.Queue = "kip"
	for _, untold := range [][]Way{nil, {WayQueue}, {WayMetadata}} {
		code, body := c.ask("RunInstances", run("InstanceMarketOptions.MarketType=spot")...)
		if code != "" {
			t.Fatal(body)
		}
		all := c.state().Instances
		r, queued := Rebalance{Instance: all[len(all)-1].ID, Untold: untold}, c.model.Queued()
		if err := c.model.Rebalance(r); err != nil {
			t.Fatal(err)
		}
		_, metadata := c.model.atRisk(r.Instance)
		if metadata == slices.Contains(untold, WayMetadata) || c.model.Queued() > queued == slices.Contains(untold, WayQueue) {
			t.Errorf("all but %v: said by metadata: %t, in the queue: %d after %d", untold, metadata, c.model.Queued(), queued)
		}
		if r.Untold = []Way{WayRequest}; c.model.Rebalance(r) == nil {
			t.Error("a way by which none is said was left out")
		}
	}
}

func TestAnInterfaceOutlivesItsInstanceWhereItIsToStay(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	for _, stay := range []bool{true, false} {
		if code := c.control("interfaces", Interfaces{Stay: stay}); code != http.StatusOK {
			t.Fatal(code)
		}
		if code, body := c.ask("RunInstances", run()...); code != "" {
			t.Fatal(body)
		}
		all := c.state()
		id := all.Instances[len(all.Instances)-1].ID
		if of := all.Interfaces[len(all.Interfaces)-1]; of.Instance != id {
			t.Errorf("instance %s has no interface: the last is %+v", id, of)
		}
		if err := c.model.Machines().Vanish(id); err != nil {
			t.Fatal(err)
		}
		if left := c.state().Interfaces; len(left) != 1 || left[0].Instance != "" || left[0].ID == interfaceID(id) != stay {
			t.Errorf("stay %t: the interfaces are %+v", stay, left)
		}
	}
}
