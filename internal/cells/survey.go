package cells

import (
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

const (
	// silentAfter is when a pod whose cell is silent counts as not ready: a
	// kubelet renews its lease each 10 s, and the node controller waits for 40
	// to 50 (node-monitor-grace-period) before it does the same to the pods of
	// a node.
	silentAfter = 40 * time.Second
)

// surveys check which cells are silent, and which refuse this process.
type surveys struct {
	table     *table
	inventory *inventory
	listening *listening
	rules     Health
	refusing  perCell[time.Time] // since when cells refuse this process, and were not heard; under table.mu
}

// check surveys all cells. It is given the places that were disrupted at the last survey: when a disruption is over, cells that
// are not heard yet get time anew.
func (s *surveys) check(now time.Time, was disruptions) survey {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	found := s.surveyLocked(now)
	found.disrupted = found.counts.disruptions()
	if was.over(found.disrupted) {
		s.listening.restart(now) // cells that are not heard yet may be about to connect
		found.silent = s.surveyLocked(now).silent
	}
	return found
}

// survey is what one check finds of all cells with a kubelet.
type survey struct {
	silent    []silence
	counts    silentCounts // of the cells that may end for their silence: that of others says nothing of Kip's network
	disrupted disruptions
	refused   refusals
	refusing  []silence // cells with a pod that have refused this process for long, and since when
}

// silence is that of a cell whose kubelet was last heard at a time.
type silence struct {
	e     *entry
	since time.Time
}

// surveyLocked checks which cells are silent, and which refuse this process, and notes since when these do. The caller holds table.mu.
func (s *surveys) surveyLocked(now time.Time) survey {
	found := survey{counts: silentCounts{}}
	for _, e := range s.table.byID {
		phase, link := e.cell().Phase, e.connection()
		if e.ending != "" || !link.session.opened() {
			continue
		}
		if refusal := link.session.refusal(); refusal != nil && (phase == apiv1.Booting || phase == apiv1.Ready || phase == apiv1.Bound) {
			found.refused.of++
			found.counts.add(e.location(), false)
			found.refused.add(refusal)
			since := s.refusing.of(e)
			if since.IsZero() {
				*since = now
			}
			if phase == apiv1.Bound && now.Sub(*since) >= refusalReportAfter {
				found.refusing = append(found.refusing, silence{e, *since})
			}
			continue // it is heard
		}
		if phase != apiv1.Bound && phase != apiv1.Ready || link.api == nil {
			continue
		}
		if refusing := s.refusing.of(e); link.api.LastHeartbeat().After(*refusing) {
			*refusing = time.Time{}
		}
		found.refused.of++
		timeout, since := s.timeout(e.cell()), s.listening.lastLeaseLocked(e, link)
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

// lastLease returns when the kubelet of a silent cell last renewed its lease, as of now, or could not have.
func (s *surveys) lastLease(one silence) time.Time {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	link := one.e.connection()
	if link.api == nil || !link.session.opened() { // the cell has ended meanwhile
		return one.since
	}
	return s.listening.lastLeaseLocked(one.e, link)
}

// forever is longer than anybody waits.
const forever = time.Duration(1<<63 - 1)

// timeout returns how long the cell may be silent.
func (s *surveys) timeout(cell *Cell) time.Duration {
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
func (s *surveys) whySilent(e *entry) string {
	i, there := s.inventory.last().byID[e.cell().Instance.ID]
	session := e.session()
	switch {
	case session.connected():
		return "its agent answers, its kubelet does not"
	case !there:
		return "the cloud no longer shows its instance"
	case i.State != cloud.Running:
		return fmt.Sprintf("its instance is %s", i.State)
	}
	const why = "it is cut off, while its instance runs"
	if err := session.lastError(); err != nil {
		return why + ": " + err.Error()
	}
	return why
}
