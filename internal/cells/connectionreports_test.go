package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

func TestThatACellHasJoinedIsStoredOnce(t *testing.T) {
	b := newBench(t)
	s := &connectionReports{
		table: b.table, loop: b.loop, records: b.records, observers: b.observers,
		cloudInits: &cloudInits{events: b.events}, versions: &versions{},
	}
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Booting, Credentials: Credentials{Token: "t"}})
	e.open(&modelLink{connected: true}, nil, b.clock.Now())
	step := func(want time.Time, token string) {
		t.Helper()
		if err := s.reportConfigured(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if got := e.cell(); !got.StepTime(apiv1.StepJoined).Equal(want) || got.Token != token {
			t.Errorf("it joined at %s and has token %q", got.StepTime(apiv1.StepJoined), got.Token)
		}
	}
	step(time.Time{}, "t")
	e.noteConfigured(0)
	s.noteConfiguredLocked(e, agentapi.Configured{Agent: agentapi.RunningAgent{Version: "v1"}})
	joined := b.clock.Now()
	step(joined, "")
	b.clock.Step(time.Minute)
	step(joined, "")
	if e.cell().AgentRuns.Version != "v1" || s.agents.of(e).unreported {
		t.Errorf("the agent is %+v, unreported %t", e.cell().AgentRuns, s.agents.of(e).unreported)
	}
}

func TestOnlyABootingCellThatIsAwayForAWhileIsReported(t *testing.T) {
	b := newBench(t)
	s := &connectionReports{loop: b.loop, records: b.records}
	e := newEntry(Cell{ID: "c", Phase: apiv1.Booting}, 0)
	link := &modelLink{err: errors.New("refused")}
	e.open(link, nil, b.clock.Now())
	if s.reportUnanswered(t.Context(), e); s.away.of(e).why != "" {
		t.Error("it is reported at once")
	}
	b.clock.Step(awayReportAfter)
	if s.reportUnanswered(t.Context(), e); s.away.of(e).why != "refused" {
		t.Errorf("after a while %q is reported", s.away.of(e).why)
	}
	link.err = errors.New("another")
	if s.reportUnanswered(t.Context(), e); s.away.of(e).why != "refused" {
		t.Error("another reason is reported at once")
	}
	b.clock.Step(awayReportAfter)
	if s.reportUnanswered(t.Context(), e); s.away.of(e).why != "another" {
		t.Errorf("after a while %q is reported", s.away.of(e).why)
	}
}
