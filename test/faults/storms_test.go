package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Storms are histories of hundreds of pods, which come and go in bursts: of what a batch, a
// budget or a group does there is nothing to see among a dozen.
const (
	storms, stormsShort = 20, 1 // histories
	// perStorm is how many steps a storm has. Each is many times as dear as those of a
	// random history, and most of it is what one step does to hundreds.
	perStorm = 40
	// leastStorm and mostStorm are how many pods come at once, and mostStormPods how many
	// there are at a time.
	leastStorm, mostStorm, mostStormPods = 100, 200, 300
	// dozens is how many instances are taken back, lost or left at once, at least.
	dozens = 24
)

// stormKinds are what happens in a storm besides waits: the same as in other histories, of
// many at once.
var stormKinds = []kind{
	{"wait", 16, (*world).pass, false},
	{"storm", 4, (*world).storm, false},
	{"mass exit", 4, (*world).massExit, false},
	{"mass delete", 4, (*world).massDelete, false},
	{"reclaim", 6, func(w *world, e event) { w.massStrike("reclaim", e, true, w.cloud.Interrupter.Interrupt) }, false},
	{"mass loss", 2, func(w *world, e event) { w.massStrike("mass loss", e, false, w.cloud.Interrupter.Vanish) }, false},
	{"cloud fault", 8, (*world).failCloud, false},
	{"cloud faults", 3, func(w *world, e event) { w.toggle("cloud faults", e) }, true},
	{"throttling", 3, func(w *world, e event) { w.toggle("throttling", e) }, true},
	{"api faults", 1, func(w *world, e event) { w.toggle("api faults", e) }, true},
	{"late calls", 1, func(w *world, e event) { w.toggle("late calls", e) }, true},
	{"capacity", 2, (*world).setCapacity, false},
	{"slow ends", 3, func(w *world, e event) { w.toggle("slow ends", e) }, true},
	{"cut off", 2, func(w *world, e event) { w.cutOff(e) }, false},
	{"kill", 2, func(w *world, e event) { w.killFor(e) }, false},
	{"pause", 1, func(w *world, e event) { w.pauseKip(e) }, false},
}

// leastStorms are how often each must have had an effect in all storms: what never has tests
// nothing. They are under half of what is usual.
var leastStorms = map[string]int{
	"storm":             25,
	"mass exit":         12,
	"mass delete":       20,
	"reclaim":           25,
	"mass loss":         8,
	"cloud faults":      100,
	"throttling":        60,
	"Event Interrupted": 400,
	"Event Evicted":     150,
	"Event CellLost":    150,
}

// TestStorms plays histories of hundreds of pods, and checks the same invariants.
func TestStorms(t *testing.T) {
	seed, count := firstSeed(), uint64(storms)
	if testing.Short() {
		count = stormsShort
	}
	if *oneFlag {
		count = 1
	}
	began, cpu, plays, most := time.Now(), cpuTime(), map[string]int{}, 0
	for n := range count {
		r := rand.New(rand.NewPCG(seed+n, 1))
		s := drawStorm(r)
		events := stormHistory(r)
		violations, told := play(t, seed+n, s, events)
		if len(violations) > 0 {
			t.Fatalf("an invariant broke in storm %d:\n  %s\nhistory (%d events):\n%san invariant broke in storm %d: %s\nagain: go test ./test/faults -run TestStorms -seed %d -one [-trace]",
				seed+n, strings.Join(violations, "\n  "), len(events), lines(events), seed+n, violations[0], seed+n)
		}
		for kind, n := range told.plays {
			plays[kind] += n
		}
		if told.mostPods < leastStorm {
			t.Errorf("storm %d had %d pods at most at a time: want %d or more", seed+n, told.mostPods, leastStorm)
		}
		most = max(most, told.mostPods)
	}
	t.Logf("%d storms, of %d pods at a time at most, in %s, of which %s of CPU", count, most, time.Since(began).Round(time.Millisecond),
		(cpuTime() - cpu).Round(time.Millisecond))
	t.Logf("events that had an effect: %v", plays)
	if count < storms {
		return // chance has too much of a say
	}
	var lack []string
	for _, kind := range slices.Sorted(maps.Keys(leastStorms)) {
		least := 1
		if seed == usualSeed {
			least = leastStorms[kind]
		}
		if plays[kind] < least {
			lack = append(lack, fmt.Sprintf("%q had an effect %d times in %d storms: want %d or more, see leastStorms", kind, plays[kind], count,
				least))
		}
	}
	again := fmt.Sprintf("again: go test ./test/faults -run TestStorms -seed %d", seed)
	if len(lack) > 0 {
		t.Errorf("no invariant broke, but the storms of seed %d and on saw too little:\n  %s\n%s", seed, strings.Join(lack, "\n  "), again)
		return
	}
	t.Logf("no invariant broke with seed %d and on; %s", seed, again)
}

// drawStorm makes the setting of a storm. The cloud's limits are EC2's own.
func drawStorm(r *rand.Rand) setting {
	s := draw(r)
	s.stormy, s.mild = true, false
	s.ec2, s.looksEvery = false, 0 // TestADayOfAWS has hundreds of pods there
	s.knobs.RateLimits = sim.EC2RateLimits()
	return s
}

// stormHistory draws the events of a storm, which begins with one.
func stormHistory(r *rand.Rand) []event {
	return append([]event{{kind: "storm", a: r.Uint32(), b: r.Uint32(), t: duration(r)}, {kind: "wait", t: time.Minute}},
		drawEvents(r, stormKinds, perStorm, false)...)
}

// storm makes many pods at once, half of them for spot.
func (w *world) storm(e event) {
	made, want := 0, leastStorm+int(e.a%(mostStorm-leastStorm))
	r := rand.New(rand.NewPCG(uint64(e.a), uint64(e.b)))
	policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
	for range want {
		size := "spot"
		if r.IntN(2) == 0 {
			size = sizes[r.IntN(len(sizes)-1)] // but for the huge one, which never runs
		}
		if w.addPod(policies[r.IntN(len(policies))], size, r.IntN(5) != 0, int64(1+r.IntN(30))) != "" {
			made++
		}
	}
	there := len(w.api.list())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mostPods = max(w.mostPods, there)
	if made >= dozens {
		w.plays["storm"]++
	}
}

// massExit has the containers of many pods exit.
func (w *world) massExit(e event) {
	w.mu.Lock()
	var list []*machine
	for _, m := range w.machines {
		if m.up && m.running && m.exit == nil {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b *machine) int { return strings.Compare(string(a.pod), string(b.pod)) })
	some := list[:min(len(list), dozens+int(e.a%100))]
	for n, m := range some {
		code := n % 2
		m.exit, m.cutAtEnd = &code, e.b%8 < 2
		m.poke()
	}
	if len(some) >= dozens {
		w.plays["mass exit"]++
	}
	w.mu.Unlock()
}

// massDelete deletes many pods.
func (w *world) massDelete(e event) {
	list, gone := w.api.list(), 0
	for n := range min(len(list), dozens+int(e.a%150)) {
		p := list[(int(e.b%uint32(len(list)))+n)%len(list)]
		if p.DeletionTimestamp == nil && w.deletePod(p, nil) {
			gone++
		}
	}
	if gone >= dozens {
		w.happened("mass delete")
	}
}

// massStrike hits dozens of instances that run, as a cloud does which wants its spot
// capacity back.
func (w *world) massStrike(what string, e event, spot bool, do func(...string) error) {
	var ids []string
	for _, i := range w.cloud.Truth() {
		if i.State == cloud.Running && (!spot || i.Spot) {
			ids = append(ids, i.ID)
		}
	}
	if len(ids) < dozens {
		return
	}
	ids = ids[:min(len(ids), dozens+int(e.a%50))]
	if err := do(ids...); err != nil {
		panic(fmt.Sprintf("%s of instances that run: %v", what, err))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strikes = time.Now().Add(noticeTime)
	w.troubled(time.Now())
	w.plays[what]++
}
