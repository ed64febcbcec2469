package cells

import (
	"errors"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/tunnel"
)

// failing returns what ends booting cells, on a bench.
func (b *bench) failing() *bootFailures {
	return &bootFailures{
		table: b.table, bootTimes: &bootTimes{generation: b.generation, loop: b.loop},
		blockers: b.blocking(), ends: b.ends, upgrades: &upgrades{},
		consoles: &consoles{loop: b.loop, calls: b.calls, events: b.events, places: keyed.NewPlaces[string](1, 1)},
	}
}

func TestAMachineThatDoesNotJoinEndsForItsCause(t *testing.T) {
	type does func(*bench, *bootFailures, *entry) error
	unwanted := func(cause Cause) does {
		return func(b *bench, s *bootFailures, e *entry) error {
			b.end(e, cause)
			ended, err := s.endUnwanted(b.Context(), e)
			if ended != (err == nil) {
				b.Errorf("it ends %t (%v)", ended, err)
			}
			return err
		}
	}
	late := func(goesOver bool) does {
		return func(b *bench, s *bootFailures, e *entry) error {
			b.clock.Step(time.Minute)
			if goesOver {
				*s.upgrades.since.of(e) = b.clock.Now()
			}
			left, err := s.endIfLate(b.Context(), e, b.prepared(words("a route")))
			if left != 0 {
				b.Errorf("%s are left", left)
			}
			return err
		}
	}
	for name, tc := range map[string]struct {
		does    does
		cause   Cause
		said    int
		console bool // is read
		blocks  bool // launches like it
		why     string
	}{
		"nobody wants it":                           {unwanted(CausePodDeleted), CausePodDeleted, 0, false, false, "why"},
		"its instance is lost":                      {unwanted(CauseLost), CauseLost, 0, true, false, "why"},
		"the cloud takes its instance back":         {unwanted(CauseInterrupted), CauseInterrupted, 0, true, false, "why"},
		"its time is over":                          {late(false), CauseNotReady, 1, true, false, "a route"},
		"its time is over, and its agent goes over": {late(true), CauseUnfit, 1, true, true, "a route"},
		"it cannot have its agent": {func(b *bench, s *bootFailures, e *entry) error {
			return s.endWithoutAgent(b.Context(), e, errNoAgent)
		}, CauseUnfit, 1, false, true, errNoAgent.Error()},
		"its cloud-init file is refused": {func(b *bench, s *bootFailures, e *entry) error {
			return s.endWithoutCloudInit(b.Context(), e, errNoCloudInit)
		}, CauseUnfit, 1, false, true, errNoCloudInit.Error()},
		"it is too small": {func(b *bench, s *bootFailures, e *entry) error {
			return s.endTooSmall(b.Context(), e, "it has less")
		}, CauseTooSmall, 1, false, false, "it has less"},
	} {
		for _, fails := range []bool{false, true} { // the store
			b := newBench(t)
			console := &writers{text: "words", asked: make(chan string, 1)}
			b.cloud.set(func() { b.cloud.optional.Console = console })
			b.recipe.agent = &agentapi.Agent{}
			s, e := b.failing(), b.booting("c")
			b.edit(e, func(cell *Cell) { cell.Launch = &Launch{ID: "l", Agent: b.recipe.agent} })
			if fails {
				b.hook = func(string, string) error { return errors.New("no answer") }
			}
			err := tc.does(b, s, e)
			b.loop.running.Wait()
			got := e.cell()
			if (err != nil) != fails || (got.Phase == apiv1.Terminating) == fails || len(b.said) != tc.said {
				t.Errorf("%s, the store fails %t: it is %s (%v), said %v", name, fails, got.Phase, err, b.said)
			}
			if !fails && (got.Cause != tc.cause || !strings.Contains(got.Reason, tc.why)) {
				t.Errorf("%s: it ends for %q, %s", name, got.Reason, got.Cause)
			}
			if read := len(console.asked) == 1; read != (tc.console && !fails) || (len(s.blockers.byKind) == 1) != tc.blocks {
				t.Errorf("%s, the store fails %t: its console is read %t, launches wait for %d", name, fails, read, len(s.blockers.byKind))
			}
		}
	}
}

func TestAMachineThatIsWantedAndInTimeGoesOn(t *testing.T) {
	for name, tc := range map[string]struct {
		after   time.Duration
		refuses bool
		left    time.Duration
	}{
		"it has some time left":                      {59 * time.Second, false, time.Second},
		"its time is over, and it refuses this Kip":  {time.Hour, true, refusedPoll},
		"it refuses this Kip, and has some time yet": {30 * time.Second, true, 30 * time.Second},
	} {
		b := newBench(t)
		s, e := b.failing(), b.booting("c")
		if tc.refuses {
			e.open(&modelLink{err: &tunnel.RotatedError{}}, nil, time.Time{})
		}
		b.clock.Step(tc.after)
		ended, err := s.endUnwanted(t.Context(), e)
		left, lateErr := s.endIfLate(t.Context(), e, preparations{})
		if ended || left != tc.left || e.cell().Phase != apiv1.Booting || err != nil || lateErr != nil || len(b.said) != 0 {
			t.Errorf("%s: it is %s, unwanted %t, %s are left, said %v (%v, %v)", name, e.cell().Phase, ended, left, b.said, err, lateErr)
		}
	}
}
