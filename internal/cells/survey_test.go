package cells

import (
	"testing"
	"time"

	"github.com/elotl/kip/internal/tunnel"
)

func (b *bench) surveys() *surveys {
	return &surveys{
		table: b.table, inventory: b.inventory, listening: &listening{}, rules: Health{HealthyTimeout: time.Minute},
	}
}

// heardAgo is a cell that runs a pod, and was last heard so long ago.
func (b *bench) heardAgo(id string, ago time.Duration) *modelLink {
	link := b.linked(b.running(id))
	link.connected, link.heard = false, b.clock.Now().Add(-ago)
	return link
}

func TestASurveyFindsWhoIsSilentAndWhoRefusesKip(t *testing.T) {
	b := newBench(t)
	s := b.surveys()
	b.heardAgo("heard", silentAfter-time.Second)
	b.heardAgo("silent", silentAfter)
	b.heardAgo("refuses", time.Hour).err = &tunnel.FollowedError{Term: 7}
	b.heardAgo("ends", time.Hour)
	b.table.find("ends").ending = "why"
	b.booting("boots")
	now := b.clock.Now()
	found := s.check(now, nil)
	if len(found.silent) != 1 || found.silent[0].e.id != "silent" || !found.silent[0].since.Equal(now.Add(-silentAfter)) {
		t.Errorf("silent are %+v", found.silent)
	}
	if found.refused != (refusals{of: 3, cells: 1, term: 7}) || len(found.refusing) != 0 {
		t.Errorf("refused: %+v, for long by %d", found.refused, len(found.refusing))
	}
	if all := found.counts[location{}]; all != (silentCount{bounded: 3, silent: 1}) || len(found.disrupted) != 0 {
		t.Errorf("of %+v, disrupted %v", all, found.disrupted)
	}
	b.clock.Step(refusalReportAfter)
	if found = s.check(b.clock.Now(), nil); len(found.refusing) != 1 || found.refusing[0].e.id != "refuses" {
		t.Errorf("for long it is refused by %d", len(found.refusing))
	}
}

func TestWhenADisruptionIsOverCellsGetTimeAnew(t *testing.T) {
	b := newBench(t)
	s := b.surveys()
	links := []*modelLink{b.heardAgo("a", time.Hour), b.heardAgo("b", time.Hour), b.heardAgo("c", time.Hour)}
	found := s.check(b.clock.Now(), nil)
	if !found.disrupted[location{}] || len(found.silent) != 3 || found.disrupted.why(location{}) == "" {
		t.Fatalf("disrupted is %v, silent are %d", found.disrupted, len(found.silent))
	}
	links[0].heard, links[1].heard = b.clock.Now(), b.clock.Now()
	if found = s.check(b.clock.Now(), found.disrupted); len(found.disrupted) != 0 || len(found.silent) != 0 {
		t.Errorf("when two are heard, disrupted is %v, silent are %d", found.disrupted, len(found.silent))
	}
	b.clock.Step(silentAfter)
	if found = s.check(b.clock.Now(), nil); len(found.silent) != 3 {
		t.Errorf("after the time anew %d are silent", len(found.silent))
	}
}

// silences are the cells that observers are told are silent.
type silences struct {
	Unobserved
	all []string
}

func (s *silences) CellSilent(cell Cell, _ time.Time) { s.all = append(s.all, cell.ID) }

func TestASilentCellIsReportedAndThenLost(t *testing.T) {
	for name, tc := range map[string]struct {
		ago      time.Duration
		own      time.Duration // its pod's time limit; 0 for none
		cloudAPI bool
		reported bool
		lost     bool
	}{
		"it is heard":                   {silentAfter - time.Second, 0, false, false, false},
		"it is silent":                  {silentAfter, 0, false, true, false},
		"it is silent for long":         {time.Minute, 0, false, true, true},
		"only the cloud's word counts":  {time.Minute, 0, true, true, false},
		"its pod gives it more time":    {time.Minute, time.Hour, false, true, false},
		"its pod gives it all the time": {time.Minute, -1, false, true, false},
	} {
		b := newBench(t)
		told := &silences{}
		*b.observers = append(*b.observers, told)
		s := &health{
			loop: b.loop, observers: b.observers, surveys: b.surveys(), holds: b.holds, lostCells: b.endingLost(),
			refusals: &refusalReports{loop: b.loop, events: b.events, listening: &listening{}},
			rules:    Health{CloudAPI: tc.cloudAPI},
		}
		b.heardAgo("c", tc.ago)
		e := b.table.find("c")
		if tc.own != 0 {
			cell := e.cell().clone()
			cell.HealthyTimeout = &tc.own
			e.current.Store(&cell)
		}
		s.checkLeases(t.Context(), b.clock.Now(), nil)
		if why, _ := b.table.ending(e); (why != "") != tc.lost || (len(told.all) == 1) != tc.reported {
			t.Errorf("%s: it ends for %q, reported %v", name, why, told.all)
		}
	}
}

func TestMostCellsHaveToRefuseKipBeforeThatIsBelieved(t *testing.T) {
	b := newBench(t)
	b.clock.Step(time.Hour)
	s := &refusalReports{loop: b.loop, events: b.events, listening: &listening{termBegan: b.clock.Now()}}
	e := b.running("c")
	b.linked(e).err = &tunnel.RotatedError{}
	for range 2 {
		s.act(refusals{of: 3, cells: 1}, []silence{{e: e}}, b.clock.Now())
	}
	if s.refused() != "" || len(b.said) != 1 {
		t.Errorf("when one refuses, it is %q, said %v", s.refused(), b.said)
	}
	s.act(refusals{of: 3, cells: 2, term: 1}, []silence{{e: e}}, b.clock.Now())
	if s.refused() == "" || len(b.said) != 1 || len(b.loop.failed) != 0 {
		t.Errorf("when most refuse, it is %q, said %v; Kip ends %d", s.refused(), b.said, len(b.loop.failed))
	}
}
