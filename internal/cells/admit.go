package cells

import (
	"context"
	"time"
)

const (
	// admitEvery is how often the cloud is asked to let Kip reach its cells from where it is now.
	// Meanwhile a Kip that has moved does not hear of them.
	admitEvery = time.Minute
	// admitRetry is the wait after an error, within the time after which a silent cell is lost.
	admitRetry = 10 * time.Second
)

// keepAdmitted has the cloud let this Kip reach its cells, until ctx ends: at the start, since
// the Kip before may have been elsewhere, and from then on.
func (c *Controller) keepAdmitted(ctx context.Context) {
	door := c.cfg.Calls.Features().Admitter
	if door == nil {
		return
	}
	for pause := time.Duration(0); c.sleep(ctx, pause); {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := door.Admit(call, c.cfg.ControllerID)
		cancel()
		pause = admitEvery
		if err != nil && ctx.Err() == nil {
			c.cfg.Log.Warn("let Kip reach its cells, retrying", "cloud", c.cfg.Calls.Name(), "err", err)
			pause = admitRetry
		}
	}
}
