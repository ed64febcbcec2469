package guard

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// kept is a store of one record.
type kept struct {
	value    []byte
	revision int64
	writes   int
	// before and after are what a write answers that has not, or has, come through.
	before, after, read error
	during              func() // a write
}

var errStore = errors.New("no store")

func (k *kept) Get(_ context.Context, _ string, v any) (int64, error) {
	if k.read != nil || k.revision == 0 {
		return 0, k.read
	}
	return k.revision, json.Unmarshal(k.value, v)
}

func (k *kept) Put(_ context.Context, _ string, v any, revision int64) (int64, error) {
	if k.before != nil {
		return 0, k.before
	}
	if revision != k.revision {
		return 0, errors.New("conflict")
	}
	if k.during != nil {
		k.during()
	}
	value, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	k.value, k.revision, k.writes = value, k.revision+1, k.writes+1
	return k.revision, k.after
}

func TestWhatHasEndedCountsInTheNextLife(t *testing.T) {
	for _, test := range []struct{ population, most, least int }{{40, 10, 10}, {1000, 100, 75}} {
		w, k := newWorld(Limit{}), &kept{}
		all, ended := lost(1000), 0
		for life := range 50 { // it dies again and again
			w.live(k, Limit{})
			n := w.admitted(all[ended:ended+1+life%2], test.population)
			ended += n
			w.pass(time.Second)
		}
		if ended > test.most || ended < test.least {
			t.Errorf("of %d, %d have ended in 50 lives, want %d at most, and %d at least", test.population, ended, test.most, test.least)
		}
		w.pass(5 * time.Minute)
		w.live(k, Limit{})
		if n := w.admitted(all[ended:], test.population); n != test.most {
			t.Errorf("of %d, %d end in the next time, want %d", test.population, n, test.most)
		}
	}
}

func TestWhatCountsIsStoredInAFewRecordsAndOnlyWhenSomethingEnds(t *testing.T) {
	w, k := newWorld(Limit{}), &kept{}
	w.live(k, Limit{})
	none := []End{{Instance: "asked", Ground: Requested}, {Instance: "heard", LastHeartbeat: w.clock.Now()}}
	if n := w.admitted(none, 1000); n != 1 || k.writes != 0 {
		t.Errorf("%d end, %d writes", n, k.writes)
	}
	if n := w.admitted(lost(1000), 1000); n != 100 || k.writes != 100 {
		t.Errorf("%d end, with %d writes", n, k.writes)
	}
	before := k.writes
	for range 100 {
		w.pass(time.Second)
		w.admitted(lost(1000), 1000)
	}
	if k.writes != before {
		t.Errorf("%d writes while nothing ends", k.writes-before)
	}
	for range 400 { // one after the other
		w.pass(4 * time.Second)
		w.admitted(lost(1000), 1000)
	}
	var stored []passed
	if err := json.Unmarshal(k.value, &stored); err != nil || len(stored) > 12 {
		t.Errorf("%d records of 5 minutes, %v", len(stored), err)
	}
}

func TestNothingThatCountsEndsBeforeItIsStored(t *testing.T) {
	w, k := newWorld(Limit{}), &kept{}
	w.live(k, Limit{})
	held := func(what string) {
		t.Helper()
		because, is := errors.AsType[*HeldError](w.Admit(t.Context(), lost(1)[0], 40))
		if !is || because.After != storeRetry || len(w.Held()) != 1 {
			t.Errorf("%s: %+v", what, because)
		}
	}
	k.read = errStore
	held("it cannot be read")
	k.read, k.before = nil, errStore
	held("it cannot be written")
	if err := w.Admit(t.Context(), End{Instance: "asked", Ground: Requested}, 40); err != nil {
		t.Errorf("what does not count: %v", err)
	}
	k.before, k.after = nil, errStore
	held("the answer is lost")
	k.after = nil
	if n := w.admitted(lost(100), 40); n != 9 || len(w.Held()) != 91 {
		t.Errorf("%d end, want as many as may less the one of which nothing was heard; held back %d", n, len(w.Held()))
	}
}

func TestWhatAClockThatWasAheadHasStoredIsOverInTime(t *testing.T) {
	w, k := newWorld(Limit{}), &kept{}
	w.live(k, Limit{})
	w.admitted(lost(10), 0)
	w.clock = clocktesting.NewFakePassiveClock(w.clock.Now().Add(-time.Hour))
	w.live(k, Limit{})
	if n := w.admitted(lost(20), 0); n != 0 {
		t.Errorf("%d end at once", n)
	}
	w.pass(5 * time.Minute)
	if n := w.admitted(lost(20), 0); n != 10 {
		t.Errorf("%d end in the next time, want 10", n)
	}
}

// While an end is stored, what speaks for it may change.
func TestAnEndIsJudgedAgainOnceItIsStored(t *testing.T) {
	for what, tc := range map[string]struct {
		during func(w *world, heard *time.Time, behind *string)
		want   Reason
	}{
		"nothing happens":           {func(*world, *time.Time, *string) {}, ""},
		"its cell is heard":         {func(w *world, heard *time.Time, _ *string) { *heard = w.clock.Now() }, ByLease},
		"the store may lack others": {func(_ *world, _ *time.Time, behind *string) { *behind = "it is older" }, ByStore},
	} {
		t.Run(what, func(t *testing.T) {
			w, k := newWorld(Limit{}), &kept{}
			w.live(k, Limit{})
			heard, behind := w.clock.Now().Add(-time.Hour), ""
			w.cfg.Behind = func() string { return behind }
			k.during = func() { tc.during(w, &heard, &behind) }
			e := End{Instance: "i-1", LastHeartbeat: heard, Heard: func() time.Time { return heard }}
			err := w.Admit(t.Context(), e, 100)
			held, isHeld := errors.AsType[*HeldError](err)
			if tc.want == "" && err != nil || tc.want != "" && (!isHeld || held.Reason != tc.want) {
				t.Fatalf("%v, want it held back for %q", err, tc.want)
			}
			// One that did not end counts again when it does: it may be long after.
			k.during, behind, heard = nil, "", w.clock.Now().Add(-time.Hour)
			e.LastHeartbeat = heard
			writes := 1
			if tc.want != "" {
				writes = 2
			}
			if err := w.Admit(t.Context(), e, 100); err != nil || k.writes != writes {
				t.Errorf("afterwards it is answered %v, with %d writes, want %d", err, k.writes, writes)
			}
		})
	}
}

func TestWhatAPersonLetsPassWhileTheStoreIsWaitedForPasses(t *testing.T) {
	w, k := newWorld(Limit{}), &kept{}
	one := Limit{Percent: 1, Least: 1, Window: time.Hour}
	w.live(k, one)
	if w.admitted(lost(2), 10) != 1 {
		t.Fatal("not one of two ended")
	}
	w.live(k, one) // which reads what is stored while the person decides
	second := lost(2)[1]
	_ = w.Admit(t.Context(), second, 10)
	w.read = false
	w.cfg.Store = readOnce{k, func() { w.Allow(w.clock.Now()) }}
	if err := w.Admit(t.Context(), second, 10); err != nil {
		t.Errorf("it is held back: %v", err)
	}
}

// readOnce does something when it is read.
type readOnce struct {
	*kept
	read func()
}

func (r readOnce) Get(ctx context.Context, key string, v any) (int64, error) {
	r.read()
	return r.kept.Get(ctx, key, v)
}

func TestANamespaceWhoseEndWasRequestedMeanwhileHoldsUpNoOther(t *testing.T) {
	w := newWorld(Limit{Percent: 1, Least: 2, Window: time.Minute})
	of := func(instance, namespace string) End {
		e := End{Instance: instance}
		e.Pod.Namespace = namespace
		return e
	}
	if w.admitted([]End{of("b-1", "b")}, 10) != 1 {
		t.Fatal("the first does not end")
	}
	w.pass(30 * time.Second)
	if w.admitted([]End{of("b-2", "b"), of("a-1", "a")}, 10) != 1 {
		t.Fatal("not one of the next two ends")
	}
	w.pass(31 * time.Second)
	requested := of("a-1", "a")
	requested.Ground = Requested
	if w.admitted([]End{requested, of("b-3", "b")}, 10) != 2 {
		t.Error("it is another namespace's turn that wants nothing")
	}
}

func TestANamespaceWhoseEndNobodyRequestsAnyMoreHoldsUpNoOther(t *testing.T) {
	w := newWorld(Limit{Percent: 1, Least: 2, Window: 10 * time.Minute})
	of := func(instance, namespace string) End {
		return End{Instance: instance, Pod: apiv1.PodReference{Namespace: namespace}}
	}
	if w.admitted([]End{of("b-1", "b")}, 10) != 1 {
		t.Fatal("the first does not end")
	}
	w.pass(9 * time.Minute)
	if w.admitted([]End{of("b-2", "b"), of("a-1", "a")}, 10) != 1 {
		t.Fatal("not one of the next two ends")
	}
	w.pass(heldFor)
	if w.admitted([]End{of("b-3", "b")}, 10) != 0 {
		t.Error("it is not the turn of a namespace that wanted an end a minute ago")
	}
	w.pass(time.Second) // nobody asks again for the cell of a
	if w.admitted([]End{of("b-3", "b")}, 10) != 1 {
		t.Error("it is the turn of a namespace that wants nothing any more")
	}
}

// Who ends what nobody has asked about does not know how many there are.
func TestTheLimitIsThatOfTheLastKnownPopulation(t *testing.T) {
	w := newWorld(Limit{})
	if w.admitted(lost(1), 1000) != 1 {
		t.Fatal("it does not end")
	}
	w.pass(time.Hour)
	if err := w.machines.Terminate(t.Context(), "i-000", "i-asked-nobody").Err(); err != nil {
		t.Fatal(err)
	}
	if n := w.admitted(lost(200)[1:], 1000); n != 99 {
		t.Errorf("%d end besides, want 99", n)
	}
}

func TestAnEndThatWasVetoedOnceItWasStoredKeepsNoTurn(t *testing.T) {
	w := newWorld(Limit{Percent: 1, Least: 4, Window: time.Minute})
	ends := func(instance string) int { // of the namespace with which its name begins
		e := End{Instance: instance}
		e.Pod.Namespace = instance[:1]
		return w.admitted([]End{e}, 10)
	}
	ended := ends("c-1")
	w.pass(5 * time.Second)
	ended += ends("d-1")
	w.pass(5 * time.Second)
	if ended += ends("a-1") + ends("a-2"); ended != 4 || ends("b-1") != 0 {
		t.Fatalf("%d end, want 4", ended)
	}
	w.pass(51 * time.Second) // c-1 counts no more
	heard := End{Instance: "b-1", Heard: w.clock.Now}
	heard.Pod.Namespace = "b"
	if w.admitted([]End{heard}, 10) != 0 {
		t.Fatal("a cell that is heard ends")
	}
	w.pass(5 * time.Second) // nor does d-1
	if ends("a-3") != 1 {
		t.Error("it is the turn of a namespace that wants nothing")
	}
}
