package cells

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	testclock "k8s.io/utils/clock/testing"
)

// standbyAt is a standby cell that was placed some seconds after the first.
func standbyAt(pool, template string, phase apiv1.Phase, seconds int) *Cell {
	cell := &Cell{
		ID:     fmt.Sprintf("%s-%s-%d", pool, template, seconds),
		OfPool: OfPool{Standby: pool, Template: template},
		Phase:  phase,
	}
	cell.step(apiv1.StepPlaced, time.Unix(int64(seconds), 0))
	return cell
}

func TestAPoolEndsTheYoungestAndTheOutdatedAndMakesWhatIsLacking(t *testing.T) {
	for name, tc := range map[string]struct {
		cells   []*Cell
		surplus []string
		lacking map[string]int
	}{
		"empty": {nil, nil, map[string]int{"nano": 2}},
		"full": {
			[]*Cell{standbyAt("nano", "t", apiv1.Ready, 1), standbyAt("nano", "t", apiv1.Booting, 2)},
			nil, map[string]int{},
		},
		"too many": {
			[]*Cell{
				standbyAt("nano", "t", apiv1.Ready, 1), standbyAt("nano", "t", apiv1.Booting, 3),
				standbyAt("nano", "t", apiv1.Ready, 2),
			},
			[]string{"nano-t-3"}, map[string]int{},
		},
		"of a pool that is not configured": {
			[]*Cell{standbyAt("large", "t", apiv1.Ready, 1)},
			[]string{"large-t-1"}, map[string]int{"nano": 2},
		},
		"outdated, and no new one is ready": {
			[]*Cell{
				standbyAt("nano", "old", apiv1.Ready, 1), standbyAt("nano", "old", apiv1.Ready, 2),
				standbyAt("nano", "t", apiv1.Booting, 3), standbyAt("nano", "t", apiv1.Booting, 4),
			},
			nil, map[string]int{},
		},
		"outdated, and one new one is ready": {
			[]*Cell{
				standbyAt("nano", "old", apiv1.Ready, 1), standbyAt("nano", "old", apiv1.Ready, 2),
				standbyAt("nano", "t", apiv1.Ready, 3), standbyAt("nano", "t", apiv1.Booting, 4),
			},
			[]string{"nano-old-1"}, map[string]int{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPools(Config{Pools: []Pool{{Name: "nano", Count: 2}}, Clock: testclock.NewFakeClock(time.Unix(0, 0))}, &recipe{settings: "t"})
			surplus, lacking := p.plan(tc.cells)
			if !slices.Equal(surplus, tc.surplus) || !maps.Equal(lacking, tc.lacking) {
				t.Errorf("it ends %v and lacks %v, want %v and %v", surplus, lacking, tc.surplus, tc.lacking)
			}
		})
	}
}

func TestAPoolWhoseCellsFailWaitsLongerEachTimeUntilOneIsReady(t *testing.T) {
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	list := []Pool{{Name: "nano", Count: 1, Offerings: func() ([]Offering, error) { return nil, nil }}}
	p := newPools(Config{Pools: list, Clock: clk, Random: func() float64 { return 1 }}, &recipe{})
	failed := *standbyAt("nano", "", apiv1.Gone, 1)
	ready := failed
	ready.step(apiv1.StepReady, time.Unix(2, 0))
	for i, step := range []struct {
		gone Cell
		wait time.Duration
	}{{failed, time.Second}, {failed, 2 * time.Second}, {failed, 4 * time.Second}, {ready, 0}, {failed, time.Second}} {
		p.noteGone(step.gone)
		if step.wait > 0 {
			clk.SetTime(clk.Now().Add(step.wait - 1))
			if _, err := p.offerings("nano"); !errors.Is(err, errLater) {
				t.Errorf("step %d: a cell is made too soon: %v", i, err)
			}
			clk.SetTime(clk.Now().Add(1))
		}
		if _, err := p.offerings("nano"); err != nil {
			t.Errorf("step %d: none is made after %s: %v", i, step.wait, err)
		}
	}
}

func TestAPoolIsLookedAtAgainWhenItsWaitIsOver(t *testing.T) {
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	p := newPools(Config{Pools: []Pool{{Name: "nano", Count: 1}}, RefillDelay: 2 * time.Second, Clock: clk}, &recipe{})
	if got := p.next(); got != poolCheck {
		t.Errorf("without a wait it is %s, want %s", got, poolCheck)
	}
	p.noteTaken("nano")
	p.noteTaken("another") // no pool of that name
	if got := p.next(); got != 2*time.Second {
		t.Errorf("after one is taken it is %s, want 2s", got)
	}
}

func TestWhyAPoolIsNotFullIsNewsOnce(t *testing.T) {
	p := newPools(Config{Pools: []Pool{{Name: "nano", Count: 1}}, Clock: testclock.NewFakeClock(time.Unix(0, 0))}, &recipe{})
	none := errors.New("no capacity")
	for i, step := range []struct {
		err  error
		news bool
		why  string
	}{{nil, false, ""}, {none, true, "no capacity"}, {none, false, "no capacity"}, {nil, true, ""}} {
		news := p.noteFilled("nano", step.err)
		if s := p.states(nil); news != step.news || s[0].Why != step.why {
			t.Errorf("step %d: news %t, why %q; want %t, %q", i, news, s[0].Why, step.news, step.why)
		}
	}
}

func TestEmptiedPoolsWantNothing(t *testing.T) {
	p := newPools(Config{Pools: []Pool{{Name: "nano", Count: 1}}, Clock: testclock.NewFakeClock(time.Unix(0, 0))}, &recipe{})
	p.empty()
	surplus, lacking := p.plan([]*Cell{standbyAt("nano", "", apiv1.Ready, 1)})
	if len(surplus) != 1 || len(lacking) != 0 || p.states(nil)[0].Want != 0 {
		t.Errorf("it ends %v, lacks %v, states %+v", surplus, lacking, p.states(nil))
	}
}

func TestAStandbyCellIsReplacedAtHalfTheAgeThatCellsMayHave(t *testing.T) {
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	p := newPools(Config{Pools: []Pool{{Name: "nano", Count: 1}}, MaxAge: 10 * time.Hour, Clock: clk}, &recipe{settings: "t"})
	cell := standbyAt("nano", p.recipe.template(p.recipe.digest()), apiv1.Ready, 1)
	cell.step(apiv1.StepLaunched, time.Unix(0, 0))
	clk.SetTime(time.Unix(0, 0).Add(5*time.Hour - time.Second))
	if surplus, lacking := p.plan([]*Cell{cell}); len(surplus) > 0 || len(lacking) > 0 {
		t.Errorf("before that, surplus %v, lacking %v", surplus, lacking)
	}
	clk.SetTime(time.Unix(0, 0).Add(5 * time.Hour))
	if surplus, lacking := p.plan([]*Cell{cell}); len(surplus) > 0 || lacking["nano"] != 1 {
		t.Errorf("then, surplus %v, lacking %v: want that another is made, and this one stays until that is ready", surplus, lacking)
	}
}
