package cells

import (
	"errors"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

const (
	// firstPause and longestPause are how long no launch is sent after one that Kip
	// had no right to. Rights come back by a person's hand.
	firstPause, longestPause = 5 * time.Second, time.Minute
)

// pause is a time without launches, since the cloud says that Kip has no right to
// them. Cells that run are left alone.
type pause struct {
	since time.Time // zero while there is none
	until time.Time // the next launch is sent then, to see whether it is over
	tries int       // launches that were refused
	asked bool      // a launch was let through to see
	again *entry    // the cell of that launch, where it is let through once more without labels
	why   string
	all   bool // it is of the account, and not of launches alone
}

// denied says that Kip has no right to the one offering, perhaps to others.
func denied(err error) bool {
	s := cloud.ScopeOf(err)
	return errors.Is(err, cloud.ErrUnauthorised) && s.Says() && !s.Account
}

// deniedTypes are so many that Kip is taken to have no right to any: as many in one
// subnet, and two where the subnets differ as well.
const deniedTypes = 3

// toAll notes an offering that Kip has no right to. It returns whether that is to be said
// of all: of what was launched since the last that Kip might, types and subnets differ. The
// caller holds mu.
func (c *Controller) toAll(o offering) bool {
	types, subnets := map[string]bool{}, map[[2]string]bool{}
	c.denied[o] = true
	for o := range c.denied {
		types[o.instanceType], subnets[[2]string{o.zone, o.subnet}] = true, true
	}
	return len(types) >= deniedTypes || len(types) > 1 && len(subnets) > 1
}

// heardOfRights learns from the answer to a launch of an offering whether Kip may launch.
func (c *Controller) heardOfRights(o offering, results cloud.LaunchResults) {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	allowed := false
	for _, r := range results {
		switch {
		case errors.Is(r.Err, cloud.ErrUnauthorised):
			first := c.pause.since.IsZero()
			// Reservations are resources of their own, and come before all else.
			if first && denied(r.Err) && (o.reservation != "" || !c.toAll(o)) {
				return
			}
			if first {
				c.pause = pause{since: now}
			}
			c.pause.why, c.pause.all = r.Err.Error(), cloud.ScopeOf(r.Err).Account
			if first || c.pause.asked {
				c.pause.asked, c.pause.again = false, nil
				c.pause.tries++
				c.pause.until = now.Add(c.cfg.Random.After(c.pause.tries, firstPause, longestPause))
			}
			if first {
				c.cfg.Log.Error("Kip has no right to launch instances: no cell is launched until it has; cells that run go on",
					"cloud", c.cfg.Calls.Name(), "err", r.Err)
			}
			return
		case errors.Is(r.Err, cloud.ErrStale): // what is not there is looked for before the rights are
		case r.Err == nil, cloud.Refused(r.Err):
			allowed = true
			clear(c.denied)
		}
	}
	if !allowed || c.pause.since.IsZero() {
		return
	}
	c.cfg.Log.Info("Kip may launch instances again", "cloud", c.cfg.Calls.Name(), "paused", now.Sub(c.pause.since))
	c.pause = pause{}
	c.wakeRequested()
}

// startsPaused is how long a stopped cell has to wait for Kip's rights; 0 if it may be started,
// perhaps to see whether Kip has them.
func (c *Controller) startsPaused(e *entry) time.Duration {
	c.mu.Lock()
	all := c.pause.all
	c.mu.Unlock()
	if !all {
		return 0
	}
	return c.looksForRights(e)
}

// launchesPaused is how long a cell has to wait for Kip's rights; 0 where there is no pause, or where it is
// time that some cell looks whether it is over.
func (c *Controller) launchesPaused(e *entry) time.Duration { return c.paused(e, false) }

// looksForRights is launchesPaused for a cell that nothing else holds up: it is the one that is
// let through, to see, and the others wait for its answer.
func (c *Controller) looksForRights(e *entry) time.Duration { return c.paused(e, true) }

func (c *Controller) paused(e *entry, looks bool) time.Duration {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	if looks {
		e.looks = false
	}
	if c.pause.since.IsZero() {
		c.mu.Unlock()
		return 0
	}
	left := c.pause.until.Sub(now)
	if left <= 0 || c.pause.again == e {
		if looks {
			c.pause.until, c.pause.asked, c.pause.again, e.looks = now.Add(callTimeout), true, nil, true
		}
		c.mu.Unlock()
		return 0
	}
	told, why := e.toldPaused, c.pause.why
	e.toldPaused = true
	c.mu.Unlock()
	if !told {
		c.report(e.cell(), events.NewLaunchesPaused(why))
	}
	return left
}

// giveTurnBack has another cell look for Kip's rights, where this one was to and nothing of it was sent.
func (c *Controller) giveTurnBack(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !e.looks {
		return
	}
	e.looks = false
	if c.pause.since.IsZero() || !c.pause.asked {
		return
	}
	c.pause.until, c.pause.asked = c.cfg.Clock.Now(), false
	c.wakeRequested()
}

// looksAgain lets a cell through once more that was to look for Kip's rights. Its launch had labels, so the answer says
// nothing of the rights, and the next cell's may have labels, too.
func (c *Controller) looksAgain(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.looks && c.pause.asked {
		c.pause.again = e
	}
}

// wakeRequested has all cells that are to be launched looked at. The caller holds mu.
func (c *Controller) wakeRequested() {
	for id, e := range c.cells {
		if e.cell().Phase == apiv1.Requested {
			c.queue.Add(id)
		}
	}
}
