package faults

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
)

var (
	seedFlag  = flag.Uint64("seed", envUint("FAULTS_SEED", 0), "the seed of the first history; 0 takes one from the clock")
	stepsFlag = flag.Uint64("steps", envUint("STEPS", 100_000), "how many steps to play")
	oneFlag   = flag.Bool("one", false, "play one history only: that of -seed")
	shrinkFor = flag.Duration("shrink", time.Minute, "how long to search for a shorter history that breaks the same")
	verbose   = flag.Bool("trace", false, "print what Kip logs, with the virtual time")
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // informers' complaints of watches that end
	os.Exit(m.Run())
}

func envUint(name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%s is %q: want a number", name, text))
	}
	return n
}

// perHistory is how many steps a history has.
const perHistory = 250

// TestRandomHistories plays random histories. A step is one event, after which
// everything that can happen without time passing has happened, and all
// invariants are checked.
func TestRandomHistories(t *testing.T) {
	seed, steps := *seedFlag, *stepsFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if testing.Short() {
		steps = min(steps, 10*perHistory)
	}
	began, virtual, played, histories, live, plays := time.Now(), time.Duration(0), uint64(0), 0, map[string]int{}, map[string]int{}
	for ; played < steps; seed++ {
		r := rand.New(rand.NewPCG(seed, 0))
		s := draw(r)
		events := history(r, perHistory, s.mild)
		violations, told := play(t, seed, s, events)
		virtual += told.took
		for bound, n := range told.live {
			live[bound] += n
		}
		for kind, n := range told.plays {
			plays[kind] += n
		}
		if len(violations) > 0 {
			fmt.Fprintf(os.Stderr, "seed %d breaks, a shorter history is searched for %s: %s\n", seed, *shrinkFor, violations[0])
			report, events := shrink(t, seed, s, events, violations)
			t.Fatalf("seed %d breaks:\n  %s\nreplay: go test ./test/faults -run TestRandomHistories -seed %d -one [-trace]\npools %+v, health by the cloud %t, moving addresses %t, at most %d attempts\nhistory, as short as it was got (%d events):\n%s",
				seed, strings.Join(report, "\n  "), seed, s.pools, s.cloudAPI, s.movingAddr, s.maxTries, len(events), lines(events))
		}
		played += uint64(len(events))
		histories++
		if *oneFlag {
			break
		}
	}
	t.Logf("%d steps in %d histories, %s of virtual time, in %s", played, histories, virtual.Round(time.Minute), time.Since(began).Round(time.Millisecond))
	t.Logf("events that had an effect: %v", plays)
	t.Logf("checks in which a bound could have been broken: %v", live)
	if *oneFlag || played < wholeRun {
		return
	}
	for _, k := range kinds {
		if plays[k.kind] < leastPlays {
			t.Errorf("event %q had an effect %d times: want %d or more, see leastPlays", k.kind, plays[k.kind], leastPlays)
		}
	}
	for bound, least := range leastLive {
		if live[bound] < least {
			t.Errorf("bound %q could have been broken in %d checks: want %d or more, see leastLive", bound, live[bound], least)
		}
	}
}

// leastPlays is how often each kind of event must have had an effect in a whole run:
// one that never has tests nothing.
const leastPlays = 100

// What a run of so many steps must have seen.
const wholeRun = 100_000

// leastLive are the least checks, before the end of each history, in which a bound of
// an invariant was over: nothing had gone wrong for so long, and there was a pod
// that it is about. They are half of what is usual. A change that makes these fewer
// lets the invariants prove less, and must say so here.
var leastLive = map[string]int{"outlive": 80_000, "reason": 20_000, "reach": 8_000}

// told is what is known of a history that was played.
type told struct {
	took time.Duration
	live map[string]int
	// plays are the events that had an effect, by their kinds.
	plays map[string]int
}

func lines(events []event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "\t%s\n", e)
	}
	return b.String()
}

// play plays a history in a world of its own and returns what it violates.
func play(t *testing.T, seed uint64, s setting, events []event) (violations []string, told told) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, seed)
	defer watchdog(fmt.Sprintf("seed %d", seed))()
	synctest.Test(t, func(*testing.T) {
		w := newWorld(s)
		w.rest()
		for _, e := range events {
			w.play(e)
			w.rest()
			if violations = w.check(); len(violations) > 0 {
				break
			}
		}
		if len(violations) == 0 {
			w.finish()
			violations = w.check()
		}
		if s.mild && len(violations) == 0 {
			violations = w.compareWithTheBill(slowStop, slowNotice, w.unknownInstances())
		}
		if len(violations) > 0 {
			violations = append(violations, w.describe())
		}
		told.took, told.live, told.plays = time.Since(w.began), w.live, w.plays
		w.close()
	})
	return violations, told
}

// How far Kip's counter may be off for each instance of a mild history. It stops
// counting at most so long before an instance has stopped, and at most so long after
// its end: Kip was down, a termination came to nothing.
const slowStop, slowNotice = 2 * time.Minute, outliveBound + 8*time.Minute

// unknownInstances are those that no record ever had: strays, and those that were
// gone before Kip knew of them.
func (w *world) unknownInstances() map[string]bool {
	unknown := map[string]bool{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range w.cloud.History() {
		unknown[i.ID] = !w.books.known[i.ID]
	}
	return unknown
}

// watchdog ends the test when a world comes to no end in real time: something in it
// spins, so that its time stands still. It returns what calls that off.
func watchdog(what string) (stop func()) {
	t := time.AfterFunc(2*time.Minute, func() { panic(what + " spins or deadlocks: look for the goroutines that are not durably blocked") })
	return func() { t.Stop() }
}

func (w *world) play(e event) {
	if *verbose {
		fmt.Printf("%12s ====== %s\n", time.Since(w.began).Round(time.Millisecond), e)
	}
	w.acted = true
	for _, k := range kinds {
		if k.kind == e.kind {
			k.play(w, e)
		}
	}
	if w.acted {
		w.happened(e.kind)
	}
	if e.kind != "wait" {
		w.mu.Lock()
		w.lastEvent = time.Now()
		w.mu.Unlock()
	}
}

// happened counts an event that had an effect.
func (w *world) happened(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plays[kind]++
}

// shrink takes out of a history what is not needed to break the same.
func shrink(t *testing.T, seed uint64, s setting, events []event, violations []string) ([]string, []event) {
	if *verbose {
		return violations, events
	}
	end := time.Now().Add(*shrinkFor)
	for size := len(events) / 2; size > 0; size /= 2 {
		for from := 0; from < len(events) && time.Now().Before(end); {
			shorter := append(append([]event(nil), events[:from]...), events[min(from+size, len(events)):]...)
			if again, _ := play(t, seed, s, shorter); len(again) > 0 {
				violations, events = again, shorter
			} else {
				from += size
			}
		}
	}
	return violations, events
}
