package cells

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// stage is a preparation that notes when it is asked.
type stage struct {
	name  string
	asked *[]string
	got   progress
	err   error
	then  func() // nil for nothing
}

func (s *stage) prepare(context.Context, *entry) (progress, error) {
	*s.asked = append(*s.asked, s.name)
	if s.then != nil {
		s.then()
	}
	return s.got, s.err
}

// failing returns what ends booting cells, on a bench.
func (b *bench) failing() *bootFailures {
	return &bootFailures{
		table: b.table, bootTimes: &bootTimes{generation: b.generation, loop: b.loop},
		blockers: b.blocking(), consoles: &consoles{calls: b.calls}, ends: b.ends, upgrades: &upgrades{},
	}
}

// booting is a cell that has a minute to join.
func (b *bench) booting(id string) *entry {
	return b.stored(Cell{
		ID: id, Pod: ref("pod of " + id), Phase: apiv1.Booting, Offerings: []Offering{{BootTimeout: time.Minute}},
		Instance: &cloud.Instance{ID: "i-" + id, Launched: b.clock.Now()},
	})
}

func TestAMachineJoinsStageByStageWithinItsTime(t *testing.T) {
	b := newBench(t)
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		first stage
		asked []string
		again time.Duration
		err   error
	}{
		"the first is ready":               {stage{got: done}, []string{"first", "second"}, time.Minute, nil},
		"the first is not":                 {stage{got: waitFor("", time.Second)}, []string{"first"}, time.Second, nil},
		"its cell ends by it":              {stage{got: leave}, []string{"first"}, 0, nil},
		"it would be later than its time":  {stage{got: waitFor("", time.Hour)}, []string{"first"}, time.Minute, nil},
		"something else will wake it":      {stage{}, []string{"first"}, time.Minute, nil},
		"it has failed":                    {stage{err: broken}, []string{"first"}, time.Minute, broken},
		"it has failed, and says for when": {stage{got: waitFor("", time.Second), err: broken}, []string{"first"}, time.Second, broken},
	} {
		var asked []string
		tc.first.name, tc.first.asked = "first", &asked
		s := &joining{
			clock: b.clock, generation: b.generation, evacuating: &evacuating{}, failures: b.failing(),
			stages: preparations{table: b.table, list: []preparation{&tc.first, &stage{name: "second", asked: &asked}}},
		}
		again, err := after(s.Step(t.Context(), b.booting(name)))
		if again != tc.again || !errors.Is(err, tc.err) || !slices.Equal(asked, tc.asked) {
			t.Errorf("%s: asked %v, again after %s (%v)", name, asked, again, err)
		}
	}
}

func TestAMachineThatDoesNotJoinEndsForItsCause(t *testing.T) {
	for name, tc := range map[string]struct {
		does  func(b *bench, s *bootFailures, e *entry) error
		cause Cause
		said  int
	}{
		"nobody wants it": {func(b *bench, s *bootFailures, e *entry) error {
			e.ending, e.cause = "the pod is deleted", CausePodDeleted
			ended, err := s.endUnwanted(b.Context(), e)
			if !ended {
				b.Error("it does not end")
			}
			return err
		}, CausePodDeleted, 0},
		"its time is over": {func(b *bench, s *bootFailures, e *entry) error {
			b.clock.Step(time.Minute)
			_, err := s.endIfLate(b.Context(), e, preparations{})
			return err
		}, CauseNotReady, 1},
		"its time is over, and its agent goes over": {func(b *bench, s *bootFailures, e *entry) error {
			b.clock.Step(time.Minute)
			*s.upgrades.since.of(e) = b.clock.Now()
			_, err := s.endIfLate(b.Context(), e, preparations{})
			return err
		}, CauseUnfit, 1},
		"it is too small": {func(b *bench, s *bootFailures, e *entry) error {
			return s.endTooSmall(b.Context(), e, "it has less")
		}, CauseTooSmall, 1},
		"its cloud-init file is refused": {func(b *bench, s *bootFailures, e *entry) error {
			return s.endWithoutCloudInit(b.Context(), e, errNoCloudInit)
		}, CauseUnfit, 1},
	} {
		b := newBench(t)
		e := b.booting("c")
		if err := tc.does(b, b.failing(), e); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := e.cell(); got.Phase != apiv1.Terminating || got.Cause != tc.cause || len(b.said) != tc.said {
			t.Errorf("%s: it is %s for %q, said %v", name, got.Phase, got.Cause, b.said)
		}
	}
}

func TestAMachineIsReadyOrTooSmall(t *testing.T) {
	for _, tc := range []struct {
		needs int64
		phase apiv1.Phase
	}{{800, apiv1.Ready}, {901, apiv1.Terminating}} {
		b := newBench(t)
		s := &readying{clock: b.clock, records: b.records, observers: b.observers, failures: b.failing(), reserved: 100}
		e := b.booting("c")
		sized := e.cell().clone()
		sized.Measured, sized.Needs = catalog.Resources{MemoryBytes: 1000}, catalog.Resources{MemoryBytes: tc.needs}
		e.current.Store(&sized)
		if _, err := s.prepare(t.Context(), e); err != nil || e.cell().Phase != tc.phase {
			t.Errorf("a pod that needs %d of 900: its cell is %s (%v)", tc.needs, e.cell().Phase, err)
		}
	}
}
