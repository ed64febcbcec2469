package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// connectionReports store and report what comes of connecting to cells.
type connectionReports struct {
	table      *table
	loop       *loop
	records    *records
	observers  *observers
	cloudInits *cloudInits
	versions   *versions
	away       perCell[reportedAway]     // of the cells' workers
	agents     perCell[configuredReport] // under table.mu
}

// configuredReport is what an agent has said when it had its configuration.
type configuredReport struct {
	answer     agentapi.Configured
	unreported bool // observers do not know of it
}

// noteConfiguredLocked notes what an agent has said that has its configuration now. The caller holds table.mu.
func (s *connectionReports) noteConfiguredLocked(e *entry, answer agentapi.Configured) {
	*s.agents.of(e) = configuredReport{answer: answer, unreported: true}
}

// answerLocked returns what the agent of a cell has said last when it had its configuration. The caller holds table.mu.
func (s *connectionReports) answerLocked(e *entry) agentapi.Configured { return s.agents.of(e).answer }

// reportedAway is what observers know of an agent that does not answer.
type reportedAway struct {
	why string
	at  time.Time // when they were told so
}

// reportConfigured reports, and stores, that the agent has its configuration, if it has.
func (s *connectionReports) reportConfigured(ctx context.Context, e *entry) error {
	s.table.mu.Lock()
	now, last := e.connection(), s.agents.of(e)
	isNews, answer := now.configured && last.unreported, last.answer
	last.unreported = false
	s.table.mu.Unlock()
	if isNews {
		s.observers.CellConnected(*e.cell(), now.session.conn())
	}
	if !now.configured || !e.cell().StepTime(apiv1.StepJoined).IsZero() && !e.cell().bootIsNews(answer.Boot) &&
		!e.cell().agentIsNews(answer.Agent) {
		return nil
	}
	defer s.cloudInits.report(e)
	defer s.versions.report(e)
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.Token = ""
		now := s.loop.clock.Now()
		cell.step(apiv1.StepJoined, now)
		if cell.bootIsNews(answer.Boot) {
			cell.Boot = Boot{Boot: answer.Boot, Told: now}
		}
		if cell.agentIsNews(answer.Agent) {
			cell.AgentRuns = answer.Agent
		}
		return nil
	})
}

// awayReportAfter is how long a machine may not answer before observers are told why, and again of another reason: most machines
// answer sooner.
const awayReportAfter = time.Minute

// reportUnanswered tells observers that a booting cell waits for what WaitsFor says now: its agent does not answer, for another reason
// than they know of.
func (s *connectionReports) reportUnanswered(ctx context.Context, e *entry) {
	link, now := e.connection(), s.loop.clock.Now()
	err, since, away := link.session.lastError(), link.connecting, s.away.of(e)
	if away.at.After(since) {
		since = away.at
	}
	if err == nil || link.session.connected() || e.cell().Phase != apiv1.Booting || err.Error() == away.why ||
		now.Sub(since) < awayReportAfter {
		return
	}
	*away = reportedAway{err.Error(), now}
	s.records.notify(ctx, e)
}
