package ec2

import (
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
