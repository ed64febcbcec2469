package cells

import (
	"errors"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

const (
	// firstUnfit and longestUnfit are how long nothing is launched that an agent has refused to
	// set up. To see whether it is mended costs an instance.
	firstUnfit, longestUnfit = time.Minute, 30 * time.Minute
	// unfitLook is how often it is looked whether another cloud-init file counts.
	unfitLook = 5 * time.Second
)

// ingredients are what decides whether a cloud-init file fits: its digest, and the image, of
// which one name may stand for one of each architecture.
type ingredients struct{ cloudInit, image, arch string }

func ingredientsOf(cloudInit string, cell *Cell) ingredients {
	return ingredients{cloudInit, fmt.Sprint(cell.Options.Image), cell.Offer().Arch}
}

// unfit is what agents have refused: the operator is to mend it, and no pod is at fault.
type unfit struct {
	why   string
	until time.Time     // then one is launched, to see whether it is mended
	wait  time.Duration // for the one after
	asked bool          // one was launched, to see
}

// heardUnfit notes that an agent has refused what its cell was to be set up with.
func (c *Controller) heardUnfit(cell *Cell, refusal error) {
	now, counts := c.cfg.Clock.Now(), c.cloudInit()
	c.mu.Lock()
	defer c.mu.Unlock()
	for of := range c.unfits {
		if of.cloudInit != counts {
			delete(c.unfits, of)
		}
	}
	if cell.CloudInit() != counts {
		return // nothing is launched with it any more
	}
	of := ingredientsOf(counts, cell)
	u := c.unfits[of]
	if u == nil {
		u = &unfit{wait: firstUnfit}
		c.unfits[of] = u
	} else if !u.asked && now.Before(u.until) {
		return // it was launched with the one before
	}
	u.why, u.until, u.asked = refusal.Error(), now.Add(u.wait), false
	u.wait = min(2*u.wait, longestUnfit)
}

// heardFit notes that an agent has set its cell up.
func (c *Controller) heardFit(cell *Cell) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unfits, ingredientsOf(cell.CloudInit(), cell))
}

// keptBack is how long a cell has to wait, since agents of cells like it have refused the
// cloud-init file; 0 if it may be launched.
func (c *Controller) keptBack(e *entry) time.Duration {
	now, of := c.cfg.Clock.Now(), ingredientsOf(c.cloudInit(), e.cell())
	c.mu.Lock()
	u := c.unfits[of]
	if u == nil || !now.Before(u.until) {
		if u != nil {
			// The others wait for what its agent says.
			u.until, u.asked = now.Add(max(firstUnfit, e.cell().Offer().BootTimeout)), true
		}
		if e.resolving.failed == 0 {
			e.unfit = ""
		}
		c.mu.Unlock()
		return 0
	}
	why, left := u.why, u.until.Sub(now)
	c.mu.Unlock()
	c.tellUnfit(e, why)
	return min(left, unfitLook)
}

// tellUnfit tells the pod's owner and the operator why a cell is not launched.
func (c *Controller) tellUnfit(e *entry, why string) {
	c.mu.Lock()
	changed := e.unfit != why
	e.unfit = why
	tell := e.unfitTold.is(why, c.cfg.Clock.Now())
	c.mu.Unlock()
	if tell && c.cfg.CloudInit != nil {
		c.cfg.CloudInit.Unfit(why)
	}
	if tell {
		c.warn(e.cell(), events.CloudInitUnfit, "%s; the pod waits until whoever runs Kip has mended it", why)
	}
	if changed {
		c.showAgain(e)
	}
}

// whyUnfit is what a cloud found to be the operator's fault, without the call that it said so of;
// "" for any other error.
func whyUnfit(err error) string {
	if !errors.Is(err, cloud.ErrUnfit) {
		return ""
	}
	if said, ok := errors.AsType[*cloud.Error](err); ok {
		return said.Error()
	}
	return err.Error()
}
