package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// noticed changes a cell's notice.
func (b *bench) noticed(e *entry, at time.Time, spot bool) {
	b.Helper()
	if err := b.records.save(b.Context(), e, func(cell *Cell) error {
		cell.Interrupted = at
		cell.Offerings = []Offering{{InstanceType: "nano", Spot: spot}}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

func TestAPodMovesBeforeItsInstanceIsTaken(t *testing.T) {
	b := newBench(t)
	s := b.evacuating()
	e := b.running("c")
	link := &modelLink{}
	e.change(func(c *connection) { c.session, c.api = agentSession{link}, link })
	step := func(why string, want time.Duration, moved int, ends string) {
		t.Helper()
		again := s.moveBound(t.Context(), e)
		if evidence, _ := b.table.ending(e); again != want || len(b.moved) != moved || evidence != ends {
			t.Errorf("%s: again after %s, moved %d times, ends for %q", why, again, len(b.moved), evidence)
		}
	}
	step("no notice", 0, 0, "")
	at := b.clock.Now().Add(2 * time.Minute)
	b.noticed(e, at, true)
	for range 2 {
		step("a notice", 2*time.Minute, 1, "")
	}
	b.noticed(e, at.Add(time.Minute), true)
	step("it is put off", 3*time.Minute, 2, "")
	b.noticed(e, time.Time{}, true)
	for range 2 {
		step("it is called off", 0, 3, "")
	}
	b.noticed(e, b.clock.Now().Add(-time.Second), true)
	link.heard = b.clock.Now().Add(-time.Minute)
	step("its time has come", silentPoll, 3, tookBack)
}

func TestANoticeThatDoesNotComeTrueIsForgotten(t *testing.T) {
	for name, tc := range map[string]struct {
		certain bool
		ago     time.Duration
		forgets bool
	}{
		"a minute ago":               {false, time.Minute, false},
		"long ago":                   {false, noticeOver, true},
		"long ago, of what is sure":  {true, noticeOver, false},
		"hours ago, of what is sure": {true, certainOver, true},
	} {
		b := newBench(t)
		s := b.evacuating()
		e := b.running("c")
		link := &modelLink{heard: b.clock.Now()}
		e.change(func(c *connection) { c.session, c.api = agentSession{link}, link })
		b.noticed(e, b.clock.Now().Add(-tc.ago), true)
		certain := e.cell().clone()
		certain.Certain = tc.certain
		e.current.Store(&certain)
		again := s.moveBound(t.Context(), e)
		why, _ := b.table.ending(e)
		if forgot := e.cell().Interrupted.IsZero(); forgot != tc.forgets || (again == 0) != forgot || why != "" {
			t.Errorf("%s: forgotten %t, again after %s, ends for %q", name, forgot, again, why)
		}
	}
}

func TestACellThatRunsNoPodEndsWithItsNotice(t *testing.T) {
	b := newBench(t)
	s := b.evacuating()
	e := b.booting("c")
	if s.endUnbound(e) || e.ending != "" {
		t.Error("it ends without a notice")
	}
	b.noticed(e, b.clock.Now().Add(time.Minute), false)
	if ends := s.endUnbound(e); !ends || e.cause != CauseInterrupted || len(b.moved) != 0 {
		t.Errorf("it ends %t for %s, moved %d times", ends, e.cause, len(b.moved))
	}
}

func TestOnDemandInstancesThatAreTakenCountForTheGuard(t *testing.T) {
	b := newBench(t)
	s := b.evacuating()
	b.generation.compared = true
	moved := 0
	for n := range 12 {
		e := b.running(string(rune('a' + n)))
		b.noticed(e, b.clock.Now().Add(time.Minute), n == 11)
		again := s.moveBound(t.Context(), e)
		if e.ending != "" || again != time.Minute && again != idlePoll {
			t.Errorf("again after %s, ends for %q", again, e.ending)
		}
		if again == time.Minute {
			moved++
		}
	}
	// Ten may end in five minutes, and spot instances do not count.
	if moved != 11 || len(b.moved) != 11 {
		t.Errorf("%d pods move, observers know of %d", moved, len(b.moved))
	}
}

func TestANoticeIsStoredAndToldOnce(t *testing.T) {
	b := newBench(t)
	s := b.interrupting()
	e := b.running("c")
	b.noticed(e, time.Time{}, true)
	notice := cloud.Interruption{InstanceID: "i-c", At: b.clock.Now().Add(time.Minute), Reason: "words"}
	for _, tc := range []struct {
		name   string
		byCell bool
		taken  int
	}{{"the cell says so", true, 0}, {"and again", true, 0}, {"the cloud says so", false, 1}, {"and again", false, 1}} {
		if err := s.recordNotice(t.Context(), e, notice, tc.byCell); err != nil {
			t.Fatal(err)
		}
		got := e.cell()
		if !got.Interrupted.Equal(notice.At) || got.Unconfirmed != (tc.taken == 0) || len(b.taken) != tc.taken || len(b.said) != 1 {
			t.Errorf("%s: stored %s, unconfirmed %t; taken back %d, said %v", tc.name, got.Interrupted, got.Unconfirmed, len(b.taken), b.said)
		}
	}
	if !s.forget(t.Context(), e) || !e.cell().Interrupted.IsZero() || e.cell().Phase != apiv1.Bound {
		t.Errorf("it is %s, taken at %s", e.cell().Phase, e.cell().Interrupted)
	}
}
