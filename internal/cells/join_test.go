package cells

import (
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

func TestACellThatDoesNotJoinInTimeIsReplacedAndSaysSo(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.links.boots = func(string) bool { return false }
		slow := Offering{InstanceType: "mac2.metal", Zone: "z", BootTimeout: time.Hour}
		if _, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Seen: time.Now(), Offerings: []Offering{slow}}); err != nil {
			t.Fatal(err)
		}
		b.request("b", "nano") // an hour too; changed below
		b.later(59 * time.Minute)
		if b.phase("a") != apiv1.Booting {
			t.Fatalf("it is %q before its time", b.phase("a"))
		}
		b.later(2 * time.Minute)
		if b.phase("a") != "" || len(b.said("CellNotReady", "did not join in time", "its agent has not joined")) != 2 {
			t.Fatalf("it is %q, said %v", b.phase("a"), b.events)
		}
	})
}

func TestObserversLookAnewAtWhyAMachineDoesNotAnswer(t *testing.T) {
	var changed atomic.Int32
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.links.boots = func(string) bool { return false }
		b.request("a", "nano")
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		changed.Store(0)
		fails := func(after time.Duration, err error, want int32) {
			t.Helper()
			b.later(after)
			b.links.of(cell.ID).set(false, err)
			b.later(time.Second)
			if got := changed.Load(); got != want {
				t.Errorf("observers are told %d times, want %d", got, want)
			}
		}
		fails(time.Second, io.EOF, 0) // machines boot
		fails(time.Minute, io.ErrUnexpectedEOF, 1)
		if got := b.cells.WaitsFor(cell.ID); got != "its agent has not joined: unexpected EOF" {
			t.Errorf("it waits for %q", got)
		}
		fails(2*time.Minute, io.ErrUnexpectedEOF, 1)
		fails(time.Second, io.EOF, 2)
		fails(time.Second, io.ErrUnexpectedEOF, 2)
		fails(time.Minute, io.ErrUnexpectedEOF, 3)
	}, onChange{told: func(Cell) { changed.Add(1) }})
}

// As an emulated machine on a busy host.
func TestAKubeletHasAsLongAsTheJoinOfItsMachineTook(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.links.joinsAfter, b.links.kubeletsFail = 8*time.Minute, true
		offering := Offering{InstanceType: "nano", Zone: "z", BootTimeout: 10 * time.Minute}
		if _, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Seen: time.Now(), Offerings: []Offering{offering}}); err != nil {
			t.Fatal(err)
		}
		b.later(15 * time.Minute)
		if first, _ := b.cells.ForPod(ref("a").UID); first.Phase != apiv1.Booting || len(b.said("CellNotReady", "")) != 0 {
			t.Fatalf("it is %q; said %v", first.Phase, b.events)
		}
		b.later(2 * time.Minute)
		if len(b.said("CellNotReady", "did not become ready in time")) != 1 {
			t.Errorf("it is %q after its time; said %v", b.phase("a"), b.events)
		}
	})
}

func TestABootTakesNoTimeInWhichKipCouldNotHaveAnswered(t *testing.T) {
	request := func(b *bubble) {
		b.links.boots = func(string) bool { return false }
		offering := Offering{InstanceType: "nano", Zone: "z", BootTimeout: 5 * time.Minute}
		if _, err := b.cells.Request(b.Context(), Request{Pod: ref("a"), Seen: time.Now(), Offerings: []Offering{offering}}); err != nil {
			b.Fatal(err)
		}
		b.later(time.Second)
	}
	// ends is told when the cell may end at the earliest, more or less.
	ends := func(b *bubble, left time.Duration, why string) {
		b.Helper()
		b.later(left - 10*time.Second)
		if b.phase("a") != apiv1.Booting {
			b.Fatalf("%s: it is %q before its time; said %v", why, b.phase("a"), b.events)
		}
		b.later(20 * time.Second)
		if b.phase("a") != "" {
			b.Fatalf("%s: it is %q after its time", why, b.phase("a"))
		}
	}
	inBubble(t, withMeter, nil, func(t *testing.T, b *bubble) {
		request(b)
		b.later(time.Hour)
		b.goOn()
		ends(b, 5*time.Minute, "Kip was late for an hour")
	})
	inBubble(t, withMeter, nil, func(t *testing.T, b *bubble) {
		b.goOn()
		request(b)
		b.later(time.Minute)
		b.stop()
		b.later(time.Hour)
		withMeter(&b.cfg)
		b.run()
		b.goOn()
		// What it had of its time before is not known any more.
		ends(b, 5*time.Minute, "Kip was down for an hour")
	})
	inBubble(t, withMeter, nil, func(t *testing.T, b *bubble) {
		b.goOn()
		request(b)
		cell, _ := b.cells.ForPod(ref("a").UID)
		link := b.links.of(cell.ID)
		b.later(4 * time.Minute)
		link.mu.Lock()
		link.held = time.Now()
		link.mu.Unlock()
		ends(b, 5*time.Minute, "Kip kept it waiting for 4 minutes")
	})
}

// An agent that has started anew may have lost what it was told: each connection
// is told of, also when the break before it was too short for the cell's worker to
// see.
func TestEveryConnectionToAnAgentIsToldOf(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	connected := onConnection{told: func(cell Cell, agent agentapi.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if agent == nil {
			t.Error("no way to the agent")
		}
		told[cell.Pod.Name]++
	}}
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		times := func() int {
			mu.Lock()
			defer mu.Unlock()
			return told["a"]
		}
		b.request("a", "nano")
		b.later(10 * time.Second)
		if n := times(); n != 1 {
			t.Fatalf("told of %d connections, want 1", n)
		}
		cell, _ := b.cells.ForPod(ref("a").UID)
		l := b.links.of(cell.ID)
		l.onState(false, errors.New("cut")) // and connected again at once
		l.onState(true, nil)
		b.later(10 * time.Second)
		if n := times(); n != 2 {
			t.Fatalf("told of %d connections, want 2", n)
		}
		l.set(false, errors.New("cut"))
		b.later(time.Second)
		l.set(true, nil)
		b.later(10 * time.Second)
		if n := times(); n != 3 {
			t.Fatalf("told of %d connections, want 3", n)
		}
	}, connected)
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
