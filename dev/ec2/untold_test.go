package ec2

import (
	"net/http"
	"slices"
	"testing"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud/sim"
)

func TestAnInterruptionIsSaidByEachWayButThoseThatItLeavesOut(t *testing.T) {
	for _, untold := range [][]cloudmodel.Way{nil, {WayMetadata}, {WayRequest}, {WayMetadata, WayRequest}} {
		c := newClient(t, sim.Knobs{})
		if err := c.model.Interrupt(cloudmodel.Interruption{}); err == nil {
			t.Error("an instance was interrupted where there is none")
		}
		if code, body := c.ask("RunInstances", run("InstanceMarketOptions.MarketType=spot")...); code != "" {
			t.Fatal(body)
		}
		if err := c.model.Interrupt(cloudmodel.Interruption{Untold: []cloudmodel.Way{"post"}}); err == nil {
			t.Error("a way that there is not was left out")
		}
		if err := c.model.Interrupt(cloudmodel.Interruption{Untold: untold}); err != nil {
			t.Fatal(err)
		}
		for way, said := range map[cloudmodel.Way]bool{
			WayMetadata: len(c.model.Announced(WayMetadata)) > 0,
			WayRequest:  len(c.model.Announced(WayRequest)) > 0,
		} {
			if said == slices.Contains(untold, way) {
				t.Errorf("all but %v: said by %s: %v", untold, way, said)
			}
		}
	}
}

func TestAnInterfaceOutlivesItsInstanceWhereItIsToStay(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	for _, stay := range []bool{true, false} {
		if code := c.control("interfaces", cloudmodel.Interfaces{Stay: stay}); code != http.StatusOK {
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
		if err := c.model.Machines().Interrupter.Vanish(id); err != nil {
			t.Fatal(err)
		}
		if left := c.state().Interfaces; len(left) != 1 || left[0].Instance != "" || left[0].ID == interfaceID(id) != stay {
			t.Errorf("stay %t: the interfaces are %+v", stay, left)
		}
	}
}
