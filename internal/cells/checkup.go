package cells

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud/pipe"
)

const (
	// checkupEvery is how often the cloud is asked what its checks say, while a cell is silent. EC2
	// makes them each minute (EC2 User Guide, "Status checks for Amazon EC2 instances").
	checkupEvery = time.Minute
	// checkupAfter is for how long each look has to find the machine of a silent cell impaired
	// before the cell is lost.
	checkupAfter = 2 * time.Minute
)

// checkup is a second opinion on silent cells: what the cloud finds of their machines. The time
// is Kip's own, and that of looks that follow each other: one answer alone counts for nothing.
type checkup struct {
	wanted bool // a cell is silent
	// since has the instances that all looks from then on have found impaired.
	since map[string]time.Time
	last  time.Time // when the latest look that was answered began
}

// heard notes what a look that began at a time has found.
func (u *checkup) heard(began time.Time, impaired []string) {
	follows := began.Sub(u.last) < 2*checkupEvery
	since := make(map[string]time.Time, len(impaired))
	for _, id := range impaired {
		if since[id] = began; !follows {
			continue
		}
		if before, was := u.since[id]; was {
			since[id] = before
		}
	}
	u.since, u.last = since, began
}

// finds returns for how long an instance has been impaired, as of the latest look; 0 where that
// was too long ago.
func (u *checkup) finds(instance string, now time.Time) time.Duration {
	since, is := u.since[instance]
	if !is || now.Sub(u.last) >= 2*checkupEvery {
		return 0
	}
	return u.last.Sub(since)
}

// checkups asks the cloud for its checks of the machines of silent cells.
type checkups struct {
	loop   *loop
	calls  *pipe.Pipe
	health Health

	mu      sync.Mutex
	checkup checkup
}

// want notes whether a cell is silent.
func (s *checkups) want(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkup.wanted = silent
}

// finds returns for how long an instance has been impaired, as checkup.finds.
func (s *checkups) finds(instance string, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkup.finds(instance, now)
}

// run asks the cloud which machines fail its checks as long as a cell is silent, until ctx
// ends.
func (s *checkups) run(ctx context.Context) {
	asks := s.calls.Features().Checkup
	if asks == nil || s.health.Check <= 0 {
		return
	}
	ticker := s.loop.clock.NewTicker(checkupEvery)
	defer ticker.Stop()
	var told news
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		s.mu.Lock()
		wanted := s.checkup.wanted
		s.mu.Unlock()
		if !wanted {
			continue
		}
		s.loop.pulse.Turn(ctx, "checkup", func(ctx context.Context) {
			began := s.loop.clock.Now()
			impaired, err := asks.Impaired(ctx)
			switch {
			case errors.Is(ctx.Err(), context.Canceled):
			case err != nil:
				if told.is(err.Error(), began) {
					s.loop.log.Warn("ask the cloud which machines of silent cells are impaired; Kip asks again", "after", checkupEvery, "err", err)
				}
			default:
				s.mu.Lock()
				s.checkup.heard(began, impaired)
				s.mu.Unlock()
			}
		})
	}
}
