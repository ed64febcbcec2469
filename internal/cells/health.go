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
	// Check is how often leases are looked at.
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
	ends      *ends
	rules     Health
	refusing  refusals // the cells that refuse this process; under the table's lock
}

// healthState is what speaks for and against the health of a cell; under the table's lock.
type healthState struct {
	// anew is since when it has its time anew: once, not heard since heard.
	anew     struct{ heard, since time.Time }
	refusing time.Time // since when it refuses this process, and was not heard
	told     news      // of that
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
		now, was := s.loop.clock.Now(), disrupted
		s.loop.pulse.Turn(ctx, "health", func(ctx context.Context) {
			if disrupted = s.checkLeases(ctx, now, was); was.over(disrupted) {
				s.wakeUp(now) // those that are not heard yet may be on their way
			}
			s.ends.showReleased()
		})
	}
}

// wakeUp gives each cell its time anew: until now this process could not hear them. A cell has
// that once until it is heard again, or cells that fall silent in turns would keep others for ever.
func (s *health) wakeUp(now time.Time) {
	s.listening.anew(now)
}

// silence is that of a cell, since when nothing was heard of its kubelet.
type silence struct {
	e     *entry
	since time.Time
}

// checkLeases looks at every cell with a kubelet once. It returns where so many are silent
// that the end of each waits for a person.
func (s *health) checkLeases(ctx context.Context, now time.Time, was disruptions) disruptions {
	var silent []silence
	var refused refusals
	var refusing []*entry
	ready, onTime := 0, s.loop.late.OnTime()
	counts := hushes{} // of those that may end for their silence: that of others says nothing of Kip's network
	s.table.mu.Lock()
	for _, e := range s.table.byID {
		phase := e.cell().Phase
		if e.ending != "" || e.session == nil {
			continue
		}
		if refusal := e.refusal(); refusal != nil && (phase == apiv1.Booting || phase == apiv1.Ready || phase == apiv1.Bound) {
			ready++
			counts.add(e.location(), false)
			refused.add(refusal)
			if e.health.refusing.IsZero() {
				e.health.refusing = now
			}
			if phase == apiv1.Bound && now.Sub(e.health.refusing) >= refusalTellAfter {
				refusing = append(refusing, e)
			}
			continue // it is heard
		}
		if phase != apiv1.Bound && phase != apiv1.Ready || e.api == nil {
			continue
		}
		if e.api.LastHeartbeat().After(e.health.refusing) {
			e.health.refusing = time.Time{}
		}
		ready++
		timeout := s.timeout(e.cell())
		since := e.silentSince(s.listening.began, s.listening.since(), onTime)
		quiet := now.Sub(since) >= min(silentAfter, timeout)
		if timeout < forever {
			counts.add(e.location(), quiet)
		}
		if quiet {
			silent = append(silent, silence{e, since})
		}
	}
	refused.of = ready
	wasRefused := s.refusing
	s.refusing = refused
	s.table.mu.Unlock()
	s.heardRefusals(refused, wasRefused, refusing, now)
	disrupted := counts.disruptions()
	s.tellDisruption(disrupted, was, counts[location{}])
	if len(silent) == 0 {
		return disrupted
	}
	population := s.ends.population()
	for _, one := range silent {
		if cell := one.e.cell(); cell.Phase == apiv1.Bound {
			s.observers.CellSilent(*cell, one.since)
		}
		doubt := disrupted.doubt(one.e.location())
		if was.doubt(one.e.location()) != "" && doubt == "" {
			continue // it has its time anew
		}
		if quiet := now.Sub(one.since); !s.rules.CloudAPI && quiet >= s.timeout(one.e.cell()) {
			why := fmt.Sprintf("nothing was heard of its kubelet for %s: %s", quiet.Round(time.Second), s.whySilent(one.e))
			s.ends.lose(ctx, one.e, population, sign{cause: CauseLost, why: why, heard: one.since, doubt: doubt})
		}
	}
	return disrupted
}

// tellDisruption reports that most cells are silent, or are heard again.
func (s *health) tellDisruption(disrupted, was disruptions, all hush) {
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

// silentSince is when a cell was last heard, or could not have been. The caller holds table.mu.
func (e *entry) silentSince(began, awake, onTime time.Time) time.Time {
	since := began
	for _, t := range []time.Time{onTime, e.api.LastHeartbeat(), e.connecting, e.session.HeldBack(), e.cell().StepTime(apiv1.StepBound)} {
		if t.After(since) {
			since = t
		}
	}
	if !awake.After(since) {
		return since
	}
	if !e.health.anew.heard.Equal(since) {
		e.health.anew.heard, e.health.anew.since = since, awake
	}
	return e.health.anew.since
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
