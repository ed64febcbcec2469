package faults

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"
)

var (
	seedFlag  = flag.Uint64("seed", envUint("FAULTS_SEED", 0), "the seed of the first history; 0 takes one from the clock")
	stepsFlag = flag.Uint64("steps", envUint("STEPS", 100_000), "how many steps to play")
	shortFlag = flag.Uint64("short-steps", envUint("FAULTS_SHORT_STEPS", 10*perHistory), "how many of them with -short")
	oneFlag   = flag.Bool("one", false, "play one history only: that of -seed")
	shrinkFor = flag.Duration("shrink", time.Minute, "how long to search for a shorter history that breaks the same")
	verbose   = flag.Bool("trace", false, "print what Kip logs, with the virtual time")
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // informers' complaints of watches that end
	goleak.VerifyTestMain(m)
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

// firstSeed returns that of -seed, or one from the clock. It is printed at once, since a hang
// would not say it.
var firstSeed = sync.OnceValue(func() uint64 {
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	fmt.Fprintln(os.Stderr, "the first seed is", seed)
	return seed
})

// perHistory is how many steps a history has.
const perHistory = 250

// TestRandomHistories plays random histories. A step is one event, after which
// everything that can happen without time passing has happened, and all
// invariants are checked.
func TestRandomHistories(t *testing.T) {
	first, steps := firstSeed(), *stepsFlag
	if testing.Short() {
		steps = min(steps, *shortFlag)
	}
	began, virtual, played, histories, live, plays := time.Now(), time.Duration(0), uint64(0), 0, map[string]int{}, map[string]int{}
	for seed := first; played < steps; seed++ {
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
			t.Fatalf("an invariant broke with seed %d:\n  %s\npools %+v, health by the cloud %t, moving addresses %t, at most %d attempts\nhistory, as short as it was got (%d events):\n%san invariant broke with seed %d: %s\nagain: go test ./test/faults -run TestRandomHistories -seed %d -one [-trace]",
				seed, strings.Join(report, "\n  "), s.pools, s.cloudAPI, s.movingAddr, s.maxTries, len(events), lines(events), seed, report[0],
				seed)
		}
		played += uint64(len(events))
		histories++
		if *oneFlag {
			break
		}
	}
	t.Logf("%d steps in %d histories, %s of virtual time, in %s", played, histories, virtual.Round(time.Minute),
		time.Since(began).Round(time.Millisecond))
	t.Logf("events that had an effect: %v", plays)
	t.Logf("checks in which a bound could have been broken: %v", live)
	if *oneFlag {
		return
	}
	again := fmt.Sprintf("again: go test ./test/faults -run TestRandomHistories -seed %d -steps %d", first, steps)
	if lack := lacks(first, played, plays, live); len(lack) > 0 {
		t.Errorf("no invariant broke, but the histories of seed %d and on saw too little:\n  %s\n%s", first, strings.Join(lack, "\n  "), again)
		return
	}
	t.Logf("no invariant broke with seed %d and on; %s", first, again)
}

// usualSeed is that of make test: its histories are the same each time, so what they lack is not
// by chance. A run from another seed lacks only what it has not seen at all, of what a run
// sees often.
const usualSeed = 1

// A run of wholeRun steps must have seen what leastPlays and leastLive say, and one of leastRun or
// more its share. Below that chance has too much of a say: of 20,000 steps, which are 80 histories,
// one run in four lacks something. So make test, which plays shortRun with the usual seed, must only have
// seen each frequent kind once.
const wholeRun, leastRun, shortRun = 100_000, 50_000, 15_000

// usualPlays is how often each kind of event, and each kind of fault of one call,
// must have had its effect in a whole run: one that never has tests nothing.
const usualPlays = 100

// leastPlays are the kinds with a number of their own, and what Kip must have said and
// met: under half of what is usual.
var leastPlays = map[string]int{
	"kubelet hangs":        60,
	"late calls":           60,
	"stuck":                60,
	"partial list":         1500,
	"partial group":        50,
	"termination refused":  600,
	"part left":            300,
	"store reads":          500,
	"eviction tried again": 80,
	"heal one by one":      25,
	"deposed":              80,
	"stale launch":         15,
	"kept to its time":     12, // about 40

	"dial of a deposed Kip": 5,

	"copy": 500, "copy of a deleted pod": 150, "lingered": 200, // about 1,200, 380 and 660

	"standby cell of another node": 80,

	"cloud fault of launch":        1000,
	"cloud fault of list":          700,
	"cloud fault of terminate":     500,
	"cloud fault of attachDisk":    80,
	"cloud fault of start":         15,
	"cloud fault of stop":          20,
	"cloud fault of interruptions": 150,

	"Event CellKept":               12,
	"Event CellLost":               500,
	"Event EndHeldBack":            100,
	"Event CellNotLaunched":        750, // about 1,750: a Kip whose store is behind launches nothing, also nothing in vain
	"Event CellSilent":             80,
	"Event DeletionOverdue":        50,
	"Event Evicted":                80,
	"Event EvictionBlocked":        50,
	"Event FailedAttachVolume":     50,
	"Event Interrupted":            150,
	"Event InterruptedPodStays":    60,
	"Event LogsNotSaved":           20,
	"Event NoCapacity":             5000,
	"Event StandbyCellTaken":       200,
	"Event SuccessfulAttachVolume": 200,
	"Event Unplaceable":            500,
	"Event VolumeInUse":            500,
}

// leastLive are the least checks that an invariant could have failed, under half of what is
// usual. A change that makes these fewer lets the invariants prove less, and must say so
// here.
var leastLive = map[string]int{
	// Before the end of each history: nothing had gone wrong for longer than the bound,
	// and there was a pod that it is about.
	"outlive": 18_000, "reason": 16_000, "reach": 6_000,
	// Kip's counter was compared with cells that had cost something, an attachment with a
	// record, and an eviction that was refused had not been tried again yet.
	"cost": 38_000, "disks": 20_000, "eviction": 400,
	// A time in which nothing may be written has passed, and what an instance type costs was
	// compared with the bill.
	"quiet": 190, "bill": 190, "days": 500,
	// A pod of a DaemonSet stood without a machine, or stood for copies for as long as these may take, and some of them were not ready.
	"daemon": 5_000, "set": 12_000, "set that is not ready": 2_500,
}

// floors are the least of each kind in a whole run.
func floors() map[string]int {
	all := maps.Clone(leastPlays)
	for _, k := range kinds {
		all[k.kind] = cmp.Or(all[k.kind], usualPlays)
	}
	for _, f := range cloudFaults {
		all["cloud fault: "+f.name] = cmp.Or(all["cloud fault: "+f.name], usualPlays)
	}
	delete(all, "wait") // it is what the others happen in
	return all
}

// lacks are what a run of so many steps should have seen and has not.
func lacks(seed, played uint64, plays, live map[string]int) (list []string) {
	if played < shortRun || played < leastRun && seed != usualSeed {
		return nil
	}
	share := func(least int) int {
		switch {
		case seed == usualSeed && played >= leastRun:
			return max(1, int(uint64(least)*min(played, wholeRun)/wholeRun))
		case least >= usualPlays:
			return 1
		}
		return 0
	}
	floors := floors()
	for _, kind := range slices.Sorted(maps.Keys(floors)) {
		if least := share(floors[kind]); plays[kind] < least {
			list = append(list, fmt.Sprintf("%q had an effect %d times in %d steps: want %d or more, see leastPlays", kind, plays[kind], played,
				least))
		}
	}
	for _, bound := range slices.Sorted(maps.Keys(leastLive)) {
		if least := share(leastLive[bound]); live[bound] < least {
			list = append(list, fmt.Sprintf("bound %q could have been broken in %d checks: want %d or more, see leastLive", bound, live[bound],
				least))
		}
	}
	return list
}

// TestARunFailsThatSawTooLittle takes each kind and each bound out of a run that saw
// all.
func TestARunFailsThatSawTooLittle(t *testing.T) {
	enough := func() (plays, live map[string]int) { return floors(), maps.Clone(leastLive) }
	all, bounds := enough()
	if lack := lacks(usualSeed, wholeRun, all, bounds); len(lack) > 0 {
		t.Fatalf("a run that saw enough lacks %q", lack)
	}
	for kind := range all {
		for _, left := range []int{0, all[kind] - 1} {
			plays, live := enough()
			plays[kind] = left
			if lack := lacks(usualSeed, wholeRun, plays, live); len(lack) != 1 || !strings.Contains(lack[0], strconv.Quote(kind)) {
				t.Errorf("%q had an effect %d times, and the run lacks %q: want that", kind, left, lack)
			}
		}
		plays, live := enough()
		delete(plays, kind)
		if lack := lacks(usualSeed, leastRun, plays, live); len(lack) != 1 {
			t.Errorf("%q had no effect in %d steps, and the run lacks %q: want that", kind, leastRun, lack)
		}
		if lack := lacks(usualSeed, shortRun, plays, live); len(lack) != 1 && all[kind] >= usualPlays {
			t.Errorf("%q had no effect in %d steps, and the run lacks %q: want that", kind, shortRun, lack)
		}
		if lack := lacks(usualSeed+1, leastRun, plays, live); len(lack) != 1 && all[kind] >= usualPlays {
			t.Errorf("%q had no effect with another seed, and the run lacks %q: want that", kind, lack)
		}
	}
	for bound := range bounds {
		plays, live := enough()
		live[bound]--
		if lack := lacks(usualSeed, wholeRun, plays, live); len(lack) != 1 || !strings.Contains(lack[0], strconv.Quote(bound)) {
			t.Errorf("bound %q was short of a check, and the run lacks %q: want that", bound, lack)
		}
	}
	for kind, least := range all {
		all[kind] = min(least/usualPlays, 1)
	}
	for bound := range bounds {
		bounds[bound] = 1
	}
	if lack := lacks(usualSeed+1, wholeRun, all, bounds); len(lack) > 0 {
		t.Errorf("a run with another seed that saw once what is frequent lacks %q", lack)
	}
}

// told is what is known of a history that was played.
type told struct {
	took time.Duration
	live map[string]int
	// plays are the events that had an effect, by their kinds.
	plays    map[string]int
	mostPods int // of a storm, at a time
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
	defer watchdog(fmt.Sprintf("seed %d", seed), mostCPU)()
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
			w.compareDays()
			violations = w.check()
		}
		if s.mild && len(violations) == 0 {
			violations = w.compareWithTheBill(slowStop, slowNotice, w.unknownInstances())
		}
		if len(violations) > 0 {
			violations = append(violations, w.describe())
		}
		told.took, told.live, told.plays, told.mostPods = time.Since(w.began), w.live, w.plays, w.mostPods
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

// mostCPU is what a history or a story takes this process, and more than any does.
const mostCPU = 2 * time.Minute

// watchdog ends the test when a world takes this process so much CPU: something in it
// spins, so that its time stands still. Real time would say nothing on a machine that
// others use; what deadlocks has the time of go test. It returns what calls that off.
func watchdog(what string, most time.Duration) (stop func()) {
	began, ticker, over := cpuTime(), time.NewTicker(time.Second), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
			}
			if cpuTime()-began > most {
				panic(what + " spins: look for the goroutines that are not durably blocked")
			}
		}
	})
	return func() {
		ticker.Stop()
		close(over)
		running.Wait()
	}
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func (w *world) play(e event) {
	if *verbose {
		fmt.Printf("%12s ====== %s\n", time.Since(w.began).Round(time.Millisecond), e)
	}
	all := slices.Concat(kinds, stormKinds)
	n := slices.IndexFunc(all, func(k kind) bool { return k.kind == e.kind })
	if n < 0 {
		panic(fmt.Sprintf("event %q: want one of kinds or stormKinds", e.kind))
	}
	all[n].play(w, e)
	if e.kind != "wait" {
		w.mu.Lock()
		w.lastEvent = time.Now()
		w.mu.Unlock()
	}
}

// happened counts the effect of a kind of event, where it takes effect.
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
