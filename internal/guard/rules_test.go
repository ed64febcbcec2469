package guard

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

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

func TestAnEndIsJudgedByItsGroundAndByWhatIsKnownOfIt(t *testing.T) {
	now := time.Unix(1e9, 0)
	heard, deaf := End{LastHeartbeat: now.Add(1 - Fresh)}, End{Disruption: "most are silent"}
	admitted, allowed, lacks := known{admitted: true}, known{allowed: true}, known{behind: "it is older"}
	of := func(e End, ground Ground) End {
		e.Ground = ground
		return e
	}
	for name, tc := range map[string]struct {
		end     End
		known   known
		because Reason // "" if it passes
		counts  bool
	}{
		"nobody has requested it":                    {End{}, known{}, "", true},
		"it costs no pod":                            {of(End{}, Harmless), known{}, "", false},
		"it is requested":                            {of(End{}, Requested), known{}, "", false},
		"it is admitted":                             {End{}, admitted, "", false},
		"a person lets it pass":                      {End{}, allowed, "", false},
		"the store lacks some":                       {End{}, lacks, ByStore, false},
		"the store lacks some, and it costs no pod":  {of(End{}, Harmless), lacks, ByStore, false},
		"the store lacks some, and a person is sure": {End{}, known{allowed: true, behind: "it is older"}, ByStore, false},
		"the store lacks some, and it is requested":  {of(End{}, Requested), lacks, "", false},
		"the store lacks some, and it is admitted":   {End{}, known{admitted: true, behind: "it is older"}, "", false},
		"it was heard":                               {heard, known{}, ByLease, false},
		"it was heard, and costs no pod":             {of(heard, Harmless), known{}, ByLease, false},
		"it was heard, and is admitted":              {heard, admitted, ByLease, false},
		"it was heard, and a person lets it pass":    {heard, allowed, "", false},
		"it was heard long ago":                      {End{LastHeartbeat: now.Add(-Fresh)}, known{}, "", true},
		"Kip may be deaf":                            {deaf, known{}, ByDisruption, false},
		"Kip may be deaf, and it is admitted":        {deaf, admitted, ByDisruption, false},
		"Kip may be deaf, and a person lets it pass": {deaf, allowed, "", false},
	} {
		tc.known.now = now
		held, counts := judge(tc.end, tc.known)
		if (held != nil) != (tc.because != "") || counts != tc.counts {
			t.Errorf("%s: %v, it counts %t", name, held, counts)
		}
		if held != nil && (held.Reason != tc.because || held.After <= 0) {
			t.Errorf("%s: %+v", name, held)
		}
	}
}
