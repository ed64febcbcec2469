package cells

import (
	"fmt"
	"slices"

	apiv1 "github.com/elotl/kip/api/v1"
)

// next lists, for each phase, the phases that may follow it. Two go back: a launch that the cloud has
// refused is requested again, with the next offering, and a standby cell that was stopped boots again.
var next = map[apiv1.Phase][]apiv1.Phase{
	apiv1.Requested:   {apiv1.Launching, apiv1.Gone},
	apiv1.Launching:   {apiv1.Booting, apiv1.Requested, apiv1.Terminating, apiv1.Gone},
	apiv1.Booting:     {apiv1.Ready, apiv1.Terminating},
	apiv1.Ready:       {apiv1.Bound, apiv1.Booting, apiv1.Terminating},
	apiv1.Bound:       {apiv1.Draining, apiv1.Terminating},
	apiv1.Draining:    {apiv1.Terminating},
	apiv1.Terminating: {apiv1.Gone},
}

// order returns how far a phase is in a cell's life.
func order(p apiv1.Phase) int {
	return slices.Index([]apiv1.Phase{
		apiv1.Requested, apiv1.Launching, apiv1.Booting, apiv1.Ready, apiv1.Bound, apiv1.Draining, apiv1.Terminating, apiv1.Gone,
	}, p)
}

// enter moves the cell to a phase; an impossible move is a bug, and is refused
// rather than stored.
func (c *Cell) enter(p apiv1.Phase) error {
	if c.Phase != p && !slices.Contains(next[c.Phase], p) {
		return fmt.Errorf("cell %s cannot go from %s to %s", c.ID, c.Phase, p)
	}
	c.Phase = p
	return nil
}
