package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// killed is a cloud that notes what it was told to end. It makes no other call.
type killed struct {
	cloud.Cloud
	cloud.Disks
	cloud.OwnedResources
	ids   []string
	calls int
}

func (*killed) Capabilities() cloud.Capabilities { return cloud.Capabilities{} }

func (k *killed) Optional() cloud.Optional { return cloud.Optional{Disks: k, OwnedResources: k} }

func (k *killed) Terminate(_ context.Context, ids ...string) cloud.Results {
	k.calls++
	k.ids = append(k.ids, ids...)
	return cloud.Each(nil, ids...)
}

func (k *killed) DeleteOwned(_ context.Context, ids ...string) cloud.Results {
	k.ids = append(k.ids, ids...)
	return cloud.Each(nil, ids...)
}

func (k *killed) DeleteDisk(_ context.Context, disk string) error {
	k.ids = append(k.ids, disk)
	return nil
}

type world struct {
	*Guard
	machines *pipe.Pipe // guarded
	cloud    *killed
	clock    *clocktesting.FakePassiveClock
}

func newWorld(l Limit) *world {
	w := &world{cloud: &killed{}, clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}
	w.live(nil, l)
	return w
}

// live is the next process.
func (w *world) live(s Store, l Limit) {
	w.Guard = New(Config{Limit: l, Store: s, Clock: w.clock})
	w.machines = pipe.New(pipe.Config{Cloud: w.cloud, Guard: w.Intercept, Clock: clock.RealClock{}})
}

func (w *world) pass(d time.Duration) { w.clock.SetTime(w.clock.Now().Add(d)) }

func lost(n int) []End {
	ends := make([]End, n)
	for i := range ends {
		ends[i] = End{Instance: fmt.Sprintf("i-%03d", i), Why: "silent"}
	}
	return ends
}

func (w *world) admitted(ends []End, population int) (n int) {
	for _, e := range ends {
		if w.Admit(context.Background(), e, population) == nil {
			n++
		}
	}
	return n
}

func TestNoMoreThanAShareEndsByWhatMayBeAMistake(t *testing.T) {
	for _, test := range []struct{ population, want int }{{0, 10}, {5, 10}, {100, 10}, {109, 10}, {110, 11}, {1000, 100}} {
		w := newWorld(Limit{})
		if got := w.admitted(lost(500), test.population); got != test.want {
			t.Errorf("of %d cells %d end, want %d", test.population, got, test.want)
		}
	}
}

func TestTheShareIsOfAsManyAsThereWereWhenTheTimeBegan(t *testing.T) {
	w := newWorld(Limit{})
	all := lost(500)
	if n := w.admitted(all[:50], 200); n != 20 {
		t.Fatalf("%d end, want 20", n)
	}
	w.pass(4 * time.Minute)
	if n := w.admitted(all[100:], 10_000); n != 0 {
		t.Errorf("%d more end in the same time, of a number that has grown", n)
	}
	w.pass(time.Minute)
	if n := w.admitted(all[100:], 300); n != 30 {
		t.Errorf("%d end in the next time, want 30", n)
	}
}

// A namespace whose cells end all the time leaves others their turn; one that is alone
// may have all.
func TestNamespacesTakeTurnsAtTheLimit(t *testing.T) {
	w := newWorld(Limit{})
	of := func(namespace, instance string) End {
		return End{Instance: instance, Pod: apiv1.PodReference{Namespace: namespace}}
	}
	serial := 0
	loses := func(namespace string) bool {
		serial++
		return w.Admit(t.Context(), of(namespace, fmt.Sprint(namespace, serial)), 100) == nil
	}
	for n := range 10 {
		if w.pass(time.Second); !loses("noisy-1") {
			t.Fatalf("alone, it is held back after %d", n)
		}
	}
	waits := map[string]time.Time{"quiet-1": w.clock.Now(), "quiet-2": w.clock.Now()}
	got := 0
	for range 600 {
		w.pass(time.Second)
		for _, noisy := range []string{"noisy-1", "noisy-2"} { // both ask first
			if loses(noisy) {
				got++
			}
		}
		for quiet, since := range waits {
			if w.Admit(t.Context(), of(quiet, quiet), 100) == nil {
				if long := w.clock.Now().Sub(since); long > DefaultLimit.Window {
					t.Errorf("%s waited for %s", quiet, long)
				}
				delete(waits, quiet)
			}
		}
	}
	if len(waits) > 0 {
		t.Errorf("in ten minutes it was never the turn of %v", waits)
	}
	if got != 18 {
		t.Errorf("the noisy ones had %d more ends in ten minutes, want all 20 but the 2 of others", got)
	}
}

func TestWhatSomebodyAskedForIsNotHeldBack(t *testing.T) {
	w := newWorld(Limit{Window: time.Minute}) // none may end for a mistake
	ends := lost(300)
	for i := range ends {
		ends[i].Ground = Harmless
	}
	if n := w.admitted(ends, 1000); n != 300 {
		t.Fatalf("%d of 300 may end", n)
	}
	ids := make([]string, len(ends))
	for n, e := range ends {
		ids[n] = e.Instance
	}
	if err := w.machines.Terminate(t.Context(), ids...).Err(); err != nil || len(w.cloud.ids) != 300 || w.cloud.calls != 1 {
		t.Errorf("%v; %d ended in %d calls, want 300 in one", err, len(w.cloud.ids), w.cloud.calls)
	}
}

func TestACellThatWasHeardLatelyDoesNotEnd(t *testing.T) {
	w := newWorld(Limit{})
	e := End{Instance: "i-1", LastHeartbeat: w.clock.Now().Add(-10 * time.Second)}
	held, is := errors.AsType[*HeldError](w.Admit(t.Context(), e, 100))
	if !is || held.Reason != ByLease || held.After != 30*time.Second {
		t.Fatalf("it is held back %t: %+v", is, held)
	}
	w.pass(30*time.Second - 1)
	if w.Admit(t.Context(), e, 100) == nil {
		t.Error("it may end within 40 s of its last sign")
	}
	w.pass(1)
	if err := w.Admit(t.Context(), e, 100); err != nil {
		t.Errorf("after 40 s: %v", err)
	}
}

func TestWhoIsLetPassDoesNotCountAgain(t *testing.T) {
	w := newWorld(Limit{Least: 2, Window: time.Minute})
	e := lost(3)
	for range 5 { // as the cloud refuses it
		if err := w.Admit(t.Context(), e[0], 0); err != nil {
			t.Fatal(err)
		}
		w.pass(30 * time.Second)
	}
	if n := w.admitted(e[1:], 0); n != 2 {
		t.Errorf("%d of 2 others end: the first counted more than once, or for longer than its time", n)
	}
	w.Forget(e[0].Instance)
	if w.Admit(t.Context(), e[0], 0) == nil {
		t.Error("what was forgotten may end without counting")
	}
}

func TestWhoeverTerminatesWithoutAskingIsHeldToTheLimit(t *testing.T) {
	w := newWorld(Limit{Least: 1, Window: time.Minute})
	if err := w.Admit(t.Context(), End{Instance: "asked", Ground: Requested}, 0); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"first", "second", "asked"} {
		err := w.machines.Terminate(t.Context(), id).Err()
		held, isHeld := errors.AsType[*HeldError](err)
		if isHeld != (id == "second") || isHeld && held.Reason != ByLimit || !isHeld && err != nil {
			t.Errorf("%s ended with %v", id, err)
		}
	}
	if !slices.Equal(w.cloud.ids, []string{"first", "asked"}) || len(w.Held()) != 1 {
		t.Errorf("ended %v, held back %v", w.cloud.ids, w.Held())
	}
}

func TestAPersonLetsPassOnceWhatIsHeldBackNow(t *testing.T) {
	w := newWorld(Limit{Window: time.Minute})
	e := lost(3)
	w.admitted(e[:2], 100)
	held := w.Held()
	if len(held) != 2 || held[0].Instance != "i-000" || held[0].Why != "silent" || held[0].Reason != ByLimit || held[0].Text == "" {
		t.Fatalf("held back: %+v", held)
	}
	seen := w.clock.Now()
	w.pass(time.Second)
	w.admitted(e[2:], 100)
	if let := w.Allow(seen); len(let) != 2 || len(w.Held()) != 1 {
		t.Errorf("let pass: %+v, held back still: %+v", let, w.Held())
	}
	if w.admitted(e[:2], 100) != 2 || w.admitted(e[2:], 100) != 0 {
		t.Error("want those to pass that the person has seen, and no other")
	}
	w.Forget("i-000")
	if w.admitted(e[:1], 100) != 0 {
		t.Error("it passes a second time")
	}
}

// In a disruption the end of a silent cell waits for a person, however few end, and also where it would not count.
func TestInADisruptionEndsWaitForAPerson(t *testing.T) {
	const disruption = "most cells are silent"
	for name, tc := range map[string]struct {
		before func(*world, End)
		change func(*End)
		reason Reason // "" if it passes
	}{
		"in a disruption":               {reason: ByDisruption},
		"in a disruption, and harmless": {change: func(e *End) { e.Ground = Harmless }, reason: ByDisruption},
		"the disruption is over": {
			before: func(w *world, e End) { _ = w.Admit(t.Context(), e, 100) },
			change: func(e *End) { e.Disruption = "" },
		},
		"heard lately, too": {change: func(e *End) { e.LastHeartbeat = time.Unix(1e9, 0) }, reason: ByLease},
		"admitted before": {before: func(w *world, e End) {
			e.Disruption = ""
			_ = w.Admit(t.Context(), e, 100)
		}, reason: ByDisruption},
		"all may end": {before: func(w *world, _ End) { w.Open() }},
		"allowed": {before: func(w *world, e End) {
			_ = w.Admit(t.Context(), e, 100)
			w.Allow(w.clock.Now())
		}},
		"allowed before it was asked": {before: func(w *world, e End) {
			seen := w.clock.Now()
			w.pass(time.Second)
			_ = w.Admit(t.Context(), e, 100)
			w.Allow(seen)
		}, reason: ByDisruption},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(DefaultLimit)
			e := End{Instance: "i-1", Why: "silent", Disruption: disruption}
			if tc.before != nil {
				tc.before(w, e)
			}
			if tc.change != nil {
				tc.change(&e)
			}
			err := w.Admit(t.Context(), e, 100)
			held, _ := errors.AsType[*HeldError](err)
			switch {
			case tc.reason == "" && err != nil, tc.reason != "" && (held == nil || held.Reason != tc.reason):
				t.Errorf("%v, want it held back for %q", err, tc.reason)
			case tc.reason == ByDisruption &&
				(held.Text != disruption || held.After <= 0 || len(w.Held()) != 1 || w.Held()[0].Reason != ByDisruption):
				t.Errorf("%+v; shown as held back: %+v", held, w.Held())
			case tc.reason == "" && len(w.Held()) > 0:
				t.Errorf("it passes, and is shown as held back: %+v", w.Held())
			}
		})
	}
}

func TestNobodyIsHeldBackAnyMoreOfWhomNobodyAsks(t *testing.T) {
	w := newWorld(Limit{Window: time.Hour})
	e := lost(1)
	w.admitted(e, 0)
	since := w.clock.Now()
	w.pass(heldFor)
	w.admitted(e, 0)
	if held := w.Held(); len(held) != 1 || !held[0].Since.Equal(since) || !w.Holds("i-000") {
		t.Errorf("held back: %+v; want one, since %v", held, since)
	}
	w.Allow(w.clock.Now())
	w.pass(heldFor + 1)
	if w.admitted(e, 0) != 0 {
		t.Error("it passes for what a person has said long ago")
	}
	w.pass(heldFor + 1)
	if len(w.Held()) != 0 || w.Holds("i-000") {
		t.Error("it is still shown")
	}
	if w.admitted(e, 0) != 0 {
		t.Error("it passes for what a person has said of another time")
	}
}

func TestAnOpenGuardLetsEverythingEnd(t *testing.T) {
	w := newWorld(Limit{Window: time.Minute})
	e := lost(2)
	e[1].LastHeartbeat = w.clock.Now()
	w.Open()
	if n := w.admitted(e, 100); n != 2 {
		t.Errorf("%d of 2 may end", n)
	}
	if err := w.machines.Terminate(t.Context(), "unasked").Err(); err != nil {
		t.Error(err)
	}
}

func TestWhatWasDecidedBeforeIsNotHeldBack(t *testing.T) {
	w := newWorld(Limit{Window: time.Minute}) // none may end for a mistake
	e := lost(2)
	w.Resume(e[0].Instance)
	if w.admitted(e, 0) != 1 || w.Admit(t.Context(), e[0], 0) != nil {
		t.Error("want the one to end that was decided")
	}
}

func TestToAskOfOneThatIsHeldBackCostsTheSameHoweverManyAre(t *testing.T) {
	w := newWorld(Limit{Window: time.Hour})
	w.admitted(lost(1000), 0)
	if n := testing.AllocsPerRun(10, func() { w.Holds("i-500") }); n != 0 || !w.Holds("i-500") || w.Holds("other") {
		t.Errorf("%v allocations; held back %t, another %t", n, w.Holds("i-500"), w.Holds("other"))
	}
}

func TestNothingEndsUnaskedWhileTheStoreMayBeTooOld(t *testing.T) {
	behind := "the store is older"
	w := newWorld(Limit{})
	w.cfg.Behind = func() string { return behind }
	unasked, asked := End{Instance: "i-1", Why: "it has no cell"}, End{Instance: "i-2", Why: "the pod has ended", Ground: Requested}
	w.Open()
	for range 2 {
		if err := w.Admit(t.Context(), asked, 2); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"an end":                 w.Admit(t.Context(), unasked, 2),
			"a call":                 w.machines.Terminate(t.Context(), "i-1").Err(),
			"the deletion of a disk": w.machines.Optional().Disks.DeleteDisk(t.Context(), "disk"),
			"the deletion of a part": w.machines.Optional().OwnedResources.DeleteOwned(t.Context(), "part").Err(),
		} {
			held, isHeld := errors.AsType[*HeldError](err)
			if !isHeld || held.Reason != ByStore || held.Text != behind || held.After <= 0 {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if err := w.machines.Terminate(t.Context(), "i-2").Err(); err != nil {
			t.Fatal(err)
		}
		w.Allow(w.clock.Now()) // is no decision about the store
	}
	if !slices.Equal(w.cloud.ids, []string{"i-2", "i-2"}) || len(w.Held()) > 1 {
		t.Errorf("ended %v, held back %v", w.cloud.ids, w.Held())
	}
	behind = ""
	if err := errors.Join(w.Admit(t.Context(), unasked, 2), w.machines.Terminate(t.Context(), "i-1").Err(),
		w.machines.Optional().Disks.DeleteDisk(t.Context(), "disk"),
		w.machines.Optional().OwnedResources.DeleteOwned(t.Context(), "part").Err()); err != nil {
		t.Error(err)
	}
}
