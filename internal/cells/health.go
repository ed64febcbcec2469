package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Health defines when a cell that runs a pod counts as lost. One of two signs is
// believed: the lease that its kubelet renews over the tunnel (healthcheck.status),
// or the cloud's list (healthcheck.cloudAPI).
type Health struct {
	// CloudAPI believes the cloud's list alone, for links that break often.
	CloudAPI bool
	// HealthyTimeout is how long the sign may be missing; 0 for ever.
	HealthyTimeout time.Duration
	// Interval is how often the cloud is asked at least, with CloudAPI.
	Interval time.Duration
	// Check is how often leases are checked.
	Check time.Duration
}

// pollInterval returns how often the cloud is asked for its list at least.
func (h Health) pollInterval() time.Duration {
	if h.CloudAPI {
		return min(h.Interval, idlePoll)
	}
	return idlePoll
}

// missingTimeout returns how long the cloud's list may lack the instance of a cell.
func (h Health) missingTimeout(silent bool) time.Duration {
	switch {
	case h.CloudAPI && h.HealthyTimeout > 0:
		return h.HealthyTimeout
	case silent:
		return silentAge
	}
	return missingAge
}

// health ends cells that are lost by the lease of their kubelets.
type health struct {
	loop      *loop
	observers *observers
	surveys   *surveys
	refusals  *refusalReports
	holds     *holds
	lostCells *lostCells
	rules     Health
}

// run ends cells that are lost by the lease, until ctx ends.
func (s *health) run(ctx context.Context) {
	if s.rules.Check <= 0 {
		return
	}
	ticker := s.loop.clock.NewTicker(s.rules.Check)
	defer ticker.Stop()
	var disrupted disruptions
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		now := s.loop.clock.Now()
		s.loop.watchdog.Track(ctx, "health", func(ctx context.Context) {
			disrupted = s.checkLeases(ctx, now, disrupted)
			s.holds.showReleased()
		})
	}
}

// checkLeases checks every cell with a kubelet once. It takes the places that were disrupted at the last check, and returns those that
// are now.
func (s *health) checkLeases(ctx context.Context, now time.Time, was disruptions) disruptions {
	found := s.surveys.check(now, was)
	disrupted := found.disrupted
	s.refusals.act(found.refused, found.refusing, now)
	s.reportDisruption(disrupted, was, found.counts[location{}])
	if len(found.silent) == 0 {
		return disrupted
	}
	population := s.holds.population()
	for _, one := range found.silent {
		cell, since := one.e.cell(), s.surveys.lastLease(one)
		if since.After(one.since) { // it was heard while others were judged
			continue
		}
		if cell.Phase == apiv1.Bound {
			s.observers.CellSilent(*cell, since)
		}
		// As of the survey: only that one compared it with all others.
		quiet := now.Sub(since)
		if s.rules.CloudAPI || quiet < s.surveys.timeout(cell) {
			continue
		}
		s.lostCells.end(ctx, one.e, population, sign{
			cause: CauseLost,
			// A tunnel that is heard shows that the link works. It does not speak against a kubelet that hangs.
			why:        fmt.Sprintf("nothing was heard of its kubelet for %s: %s", quiet.Round(time.Second), s.surveys.whySilent(one.e)),
			heard:      func() time.Time { return s.surveys.lastLease(one) },
			disruption: disrupted.why(one.e.location()),
		})
	}
	return disrupted
}

// reportDisruption reports that most cells are silent, or are heard again.
func (s *health) reportDisruption(disrupted, was disruptions, all silentCount) {
	log := s.loop.log
	if now, before := disrupted.String(), was.String(); now != before {
		if now != "" {
			log.Error("most cells are silent, so Kip's own network may be down; "+
				"Kip ends no silent cell until they are heard, or until you run kipctl allow",
				"of", now, "silent", all.silent, "ready", all.bounded)
		} else {
			log.Info("most cells are heard again", "silent", all.silent, "ready", all.bounded)
		}
	}
}
