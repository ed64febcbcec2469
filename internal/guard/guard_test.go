package guard

import (
	"context"
	"fmt"
	"testing"
	"time"

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
