package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cloud/pipe"
)

const (
	// admitEvery is how often the cloud is asked to let Kip reach its cells from where it is now.
	// Meanwhile a Kip that has moved does not hear of them.
	admitEvery = time.Minute
	// admitRetry is the wait after an error, within the time after which a silent cell is lost.
	admitRetry = 10 * time.Second
)

// ingress has the cloud let Kip reach its cells.
type ingress struct {
	loop  *loop
	calls *pipe.Pipe
	owner string
}

// run has the cloud let this Kip reach its cells, until ctx ends: at the start, since
// the Kip before may have been elsewhere, and from then on.
func (s *ingress) run(ctx context.Context) {
	door := s.calls.Optional().Admitter
	if door == nil {
		return
	}
	for pause := time.Duration(0); s.loop.sleep(ctx, pause); {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := door.Admit(call, s.owner)
		cancel()
		pause = admitEvery
		if err != nil && ctx.Err() == nil {
			s.loop.log.Warn("let Kip reach its cells, retrying", "cloud", s.calls.Name(), "err", err)
			pause = admitRetry
		}
	}
}
