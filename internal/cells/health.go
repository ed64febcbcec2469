package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// Health says when a cell that runs a pod counts as lost. One of two signs is
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

// pollInterval is how often the cloud is asked for its list at least.
func (h Health) pollInterval() time.Duration {
	if h.CloudAPI {
		return min(h.Interval, idlePoll)
	}
	return idlePoll
}

// missingTimeout is how long the cloud's list may lack the instance of a cell.
func (h Health) missingTimeout(silent bool) time.Duration {
	switch {
	case h.CloudAPI && h.HealthyTimeout > 0:
		return h.HealthyTimeout
	case silent:
		return silentAge
	}
	return missingAge
}

const (
	// silentAfter is when a pod whose cell is silent counts as not ready: a
	// kubelet renews its lease each 10 s, and the node controller waits for 40
	// to 50 (node-monitor-grace-period) before it does the same to the pods of
	// a node.
	silentAfter = 40 * time.Second
)

// health ends cells that are lost by the lease of their kubelets.
type health struct {
	table     *table
	loop      *loop
	events    *reporter
	observers *observers
	inventory *inventory
	listening *listening
	holds     *holds
	losses    *losses
	rules     Health
	refusing  refusals // the cells that refuse this process; under the table's lock
}

// healthState is what speaks for and against the health of a cell; under the table's lock.
type healthState struct {
	restarted restarted
	refusing  time.Time // since when it refuses this process, and was not heard
	told      dedup     // of that
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
	s.table.mu.Lock()
	found := s.survey(now)
	disrupted := found.counts.disruptions()
	if was.over(disrupted) {
		s.listening.restart(now) // cells that are not heard yet may be about to connect
		found.silent = s.survey(now).silent
	}
	wasRefused := s.refusing
	s.refusing = found.refused
	s.table.mu.Unlock()
	s.actOnRefusals(found.refused, wasRefused, found.refusing, now)
	s.tellDisruption(disrupted, was, found.counts[location{}])
	if len(found.silent) == 0 {
		return disrupted
	}
	population := s.holds.population()
	for _, one := range found.silent {
		cell, since := one.e.cell(), s.lastLease(one)
		if since.After(one.since) { // it was heard while others were judged
			continue
		}
		if cell.Phase == apiv1.Bound {
			s.observers.CellSilent(*cell, since)
		}
		// As of the survey: only that one compared it with all others.
		quiet := now.Sub(since)
		if s.rules.CloudAPI || quiet < s.timeout(cell) {
			continue
		}
		s.losses.lose(ctx, one.e, population, sign{
			cause: CauseLost,
			// A tunnel that is heard shows that the link works. It does not speak against a kubelet that hangs.
			why:        fmt.Sprintf("nothing was heard of its kubelet for %s: %s", quiet.Round(time.Second), s.whySilent(one.e)),
			heard:      func() time.Time { return s.lastLease(one) },
			disruption: disrupted.why(one.e.location()),
		})
	}
	return disrupted
}

// lastLease returns when the kubelet of a silent cell last renewed its lease, as of now, or could not have.
func (s *health) lastLease(one silence) time.Time {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if one.e.api == nil || one.e.session == nil { // the cell has ended meanwhile
		return one.since
	}
	return s.listening.lastLease(one.e)
}

// survey is what one check finds of all cells with a kubelet.
type survey struct {
	silent   []silence
	counts   silentCounts // of the cells that may end for their silence: that of others says nothing of Kip's network
	refused  refusals
	refusing []*entry // cells with a pod that have refused this process for long
}

// silence is that of a cell whose kubelet was last heard at a time.
type silence struct {
	e     *entry
	since time.Time
}

// survey checks which cells are silent, and which refuse this process, and notes since when these do. The caller holds table.mu.
func (s *health) survey(now time.Time) survey {
	found := survey{counts: silentCounts{}}
	for _, e := range s.table.byID {
		phase := e.cell().Phase
		if e.ending != "" || e.session == nil {
			continue
		}
		if refusal := e.refusal(); refusal != nil && (phase == apiv1.Booting || phase == apiv1.Ready || phase == apiv1.Bound) {
			found.refused.of++
			found.counts.add(e.location(), false)
			found.refused.add(refusal)
			if e.health.refusing.IsZero() {
				e.health.refusing = now
			}
			if phase == apiv1.Bound && now.Sub(e.health.refusing) >= refusalTellAfter {
				found.refusing = append(found.refusing, e)
			}
			continue // it is heard
		}
		if phase != apiv1.Bound && phase != apiv1.Ready || e.api == nil {
			continue
		}
		if e.api.LastHeartbeat().After(e.health.refusing) {
			e.health.refusing = time.Time{}
		}
		found.refused.of++
		timeout, since := s.timeout(e.cell()), s.listening.lastLease(e)
		quiet := now.Sub(since) >= min(silentAfter, timeout)
		if timeout < forever {
			found.counts.add(e.location(), quiet)
		}
		if quiet {
			found.silent = append(found.silent, silence{e, since})
		}
	}
	return found
}

// tellDisruption reports that most cells are silent, or are heard again.
func (s *health) tellDisruption(disrupted, was disruptions, all silentCount) {
	log := s.loop.log
	if now, before := disrupted.String(), was.String(); now != before {
		if now != "" {
			log.Error("most cells are silent: Kip's own network may be down, and none ends for its silence until that is over, or kipctl allow",
				"of", now, "silent", all.silent, "ready", all.bounded)
		} else {
			log.Info("most cells are heard again", "silent", all.silent, "ready", all.bounded)
		}
	}
}

// forever is longer than anybody waits.
const forever = time.Duration(1<<63 - 1)

// timeout is how long the cell may be silent.
func (s *health) timeout(cell *Cell) time.Duration {
	timeout := s.rules.HealthyTimeout
	if cell.HealthyTimeout != nil {
		timeout = *cell.HealthyTimeout
	}
	if timeout <= 0 {
		return forever
	}
	return timeout
}

// whySilent tells a cell that is cut off from one that has died.
func (s *health) whySilent(e *entry) string {
	i, there := s.inventory.last().byID[e.cell().Instance.ID]
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	switch {
	case e.session != nil && e.session.Connected():
		return "its agent answers, its kubelet does not"
	case !there:
		return "the cloud no longer shows its instance"
	case i.State != cloud.Running:
		return fmt.Sprintf("its instance is %s", i.State)
	}
	const why = "it is cut off, while its instance runs"
	if e.session != nil {
		if err := e.session.LastError(); err != nil {
			return why + ": " + err.Error()
		}
	}
	return why
}
