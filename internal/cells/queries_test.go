package cells

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"k8s.io/utils/clock"
)

// link is a session that is up or down.
type link struct {
	Session
	up bool
}

func (l link) Connected() bool     { return l.up }
func (l link) Conn() agentapi.Conn { return http.DefaultTransport }

func (l link) Streams() agentapi.Conn { return http.DefaultTransport }

func TestWaysAreToBoundCellsAlone(t *testing.T) {
	c := New(Config{Calls: pipe.New(pipe.Config{Cloud: newModelCloud(), Clock: clock.RealClock{}}), Clock: clock.RealClock{}})
	t.Cleanup(c.core.loop.queue.ShutDown) // which Run would do
	for name, e := range map[string]struct {
		phase   apiv1.Phase
		session Session
	}{
		"booting": {apiv1.Booting, link{up: true}}, "ready": {apiv1.Ready, link{up: true}}, "draining": {apiv1.Draining, link{up: true}},
		"up": {apiv1.Bound, link{up: true}}, "down": {apiv1.Bound, link{}}, "new": {apiv1.Bound, nil},
	} {
		entry := newEntry(Cell{ID: "cell-" + name, Phase: e.phase, Pod: ref(name)}, 0)
		entry.open(e.session, nil, time.Time{})
		c.core.table.byID[entry.id] = entry
	}
	standby := newEntry(Cell{ID: "standby", Phase: apiv1.Ready}, 0)
	standby.open(link{up: true}, nil, time.Time{})
	c.core.table.byID[standby.id] = standby
	var got []string
	for _, w := range c.Endpoints() {
		if w.Cell != "cell-"+w.Pod.Name || (w.Conn != nil) != (w.Pod.Name == "up") {
			t.Errorf("%+v", w)
		}
		got = append(got, w.Pod.Name)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"down", "new", "up"}) {
		t.Errorf("the ways are to %v", got)
	}
}

// changes count what an observer is told of a cell.
type changes struct {
	Unobserved
	n int
}

func (o *changes) CellChanged(Cell) { o.n++ }

func TestALaunchThatIsHeldUntilTheCloudHasListedSaysSo(t *testing.T) {
	c := New(Config{Calls: pipe.New(pipe.Config{Cloud: newModelCloud(), Clock: clock.RealClock{}}), Clock: clock.RealClock{}})
	t.Cleanup(c.core.loop.queue.ShutDown) // which Run would do
	c.core.table.byID["c"] = newEntry(Cell{ID: "c", Phase: apiv1.Launching}, 0)
	if got := c.WaitsFor("c"); !strings.Contains(got, "has not read a complete list") {
		t.Errorf("a launch of an earlier Kip, which this one has not sent, waits for %q", got)
	}
}

func TestWhatACellWaitsForIsOfItsPhase(t *testing.T) {
	c := New(Config{Calls: pipe.New(pipe.Config{Cloud: newModelCloud(), Clock: clock.RealClock{}}), Clock: clock.RealClock{}})
	t.Cleanup(c.core.loop.queue.ShutDown) // which Run would do
	var seen changes
	*c.core.observers = observers{&seen}
	for phase, want := range map[apiv1.Phase]string{
		apiv1.Requested: "the cloud has not answered yet", apiv1.Launching: "the cloud has not answered yet",
		apiv1.Booting: "its kubelet is not ready", apiv1.Ready: "a disk", apiv1.Bound: "",
		apiv1.Draining: "as the step said", apiv1.Terminating: "as the step said",
	} {
		e := newEntry(Cell{ID: "c", Phase: phase}, 0)
		e.open(link{up: true}, nil, time.Time{})
		e.launching = phase == apiv1.Requested || phase == apiv1.Launching
		c.core.table.byID[e.id] = e
		if phase != apiv1.Bound {
			e.waits = "as the step said"
		}
		c.shared.waits.note(t.Context(), e, lastReport{"Reason", "a disk"})
		if got := c.WaitsFor(e.id); got != want {
			t.Errorf("a cell that is %s waits for %q, want %q", phase, got, want)
		}
		seen.n = 0
		if c.shared.waits.note(t.Context(), e, lastReport{"Reason", "a disk"}) || seen.n != 0 {
			t.Errorf("observers are told %d times of what is known", seen.n)
		}
		if !c.shared.waits.note(t.Context(), e, lastReport{}) || seen.n != 1 || phase == apiv1.Ready && c.WaitsFor(e.id) != "as the step said" {
			t.Errorf("observers are told %d times that the wait is over, want once; it waits for %q", seen.n, c.WaitsFor(e.id))
		}
	}
	if got := c.WaitsFor("other"); got != "it is gone" {
		t.Errorf("a cell that nobody knows waits for %q", got)
	}
}

// A launch that is held up says by what, and not that the cloud has not answered: no call is sent.
func TestACellSaysWhatItsLastStepWaitedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*bench, *enqueuing, *entry)
		want   string
	}{
		"nothing holds it up": {func(*bench, *enqueuing, *entry) {}, notAnswered},
		"Kip has no right to launch": {func(b *bench, s *enqueuing, _ *entry) {
			s.breakers.rights.breaker = rightsBreaker{breaker: breaker{until: b.clock.Now().Add(time.Minute), why: "denied"}, since: b.clock.Now()}
		}, noRights + "denied"},
		"the operator has to fix something": {func(b *bench, s *enqueuing, e *entry) {
			fault := s.breakers.blockers.ofKindLocked(b.recipe.startKind(e.cell()))
			fault.why, fault.until = "no key", b.clock.Now().Add(time.Second)
		}, "no key"},
		"another instance may run its pod": {func(b *bench, _ *enqueuing, _ *entry) {
			b.listed(snapshot{began: b.clock.Now(), lostOrphans: []string{"i-1"}, byID: map[string]cloud.Instance{"i-1": {ID: "i-1"}}})
		}, "instances [i-1] may run it"},
		"nothing is listed": {func(b *bench, _ *enqueuing, _ *entry) { b.listed(snapshot{}) }, unread},
		"its launch was not resolved": {func(b *bench, _ *enqueuing, e *entry) {
			b.retries.fail(e, errors.New("no answer"))
		}, "tries again: no answer"},
	} {
		b := newBench(t)
		s := b.enqueuing()
		b.generation.compared = true
		b.listed(snapshot{began: b.clock.Now()})
		e := b.requested("c")[0]
		tc.before(b, s, e)
		stepOf := func(apiv1.Phase) step { return s }
		b.loop.process(t.Context(), e.id, stepOf)
		got := (&queries{table: b.table}).waitsFor(e.id, stepOf)
		if !strings.Contains(got, tc.want) || e.launching != (tc.want == notAnswered) {
			t.Errorf("%s: it waits for %q, want %q", name, got, tc.want)
		}
	}
}

func TestWhatACellWaitsForIsThatOfItsLastStep(t *testing.T) {
	b := newBench(t)
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Ready})
	pages := waitFor("its kubelet does not count its huge pages yet", countPoll)
	for _, next := range []struct {
		is   stepOnce
		want string
	}{
		{stepOnce{got: pages}, pages.why},
		{stepOnce{got: underWay(waitsOfOps[setsKernel])}, waitsOfOps[setsKernel]},
		{stepOnce{err: errMoved}, waitsOfOps[setsKernel]},
		{stepOnce{err: errors.New("no answer")}, "Kip tries again what has failed: no answer"},
		{stepOnce{got: done}, ""},
	} {
		stepOf := func(apiv1.Phase) step { return next.is }
		b.loop.process(t.Context(), e.id, stepOf)
		if got := (&queries{table: b.table}).waitsFor(e.id, stepOf); got != next.want {
			t.Errorf("after %+v it waits for %q, want %q", next.is, got, next.want)
		}
	}
	bound := b.running("d")
	b.loop.process(t.Context(), bound.id, func(apiv1.Phase) step { return stepOnce{got: waitFor(notConnected, silentPoll)} })
	if bound.waits != "" {
		t.Errorf("a cell that runs its pod waits for %q", bound.waits)
	}
}
