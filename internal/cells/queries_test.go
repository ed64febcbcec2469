package cells

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
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
		entry.session = agentSession{e.session}
		c.core.table.byID[entry.id] = entry
	}
	standby := newEntry(Cell{ID: "standby", Phase: apiv1.Ready}, 0)
	standby.session = agentSession{link{up: true}}
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
		apiv1.Draining: "its pod's logs and volumes are not saved yet", apiv1.Terminating: "the cloud has not ended it yet",
	} {
		e := newEntry(Cell{ID: "c", Phase: phase}, 0)
		e.session, e.launching = agentSession{link{up: true}}, phase == apiv1.Requested || phase == apiv1.Launching
		c.core.table.byID[e.id] = e
		c.shared.waits.note(t.Context(), e, lastReport{"Reason", "a disk"})
		if got := c.WaitsFor(e.id); got != want {
			t.Errorf("a cell that is %s waits for %q, want %q", phase, got, want)
		}
		seen.n = 0
		if c.shared.waits.note(t.Context(), e, lastReport{"Reason", "a disk"}) || seen.n != 0 {
			t.Errorf("observers are told %d times of what is known", seen.n)
		}
		if !c.shared.waits.note(t.Context(), e, lastReport{}) || seen.n != 1 || phase == apiv1.Ready && c.WaitsFor(e.id) != "" {
			t.Errorf("observers are told %d times that the wait is over, want once; it waits for %q", seen.n, c.WaitsFor(e.id))
		}
	}
	if got := c.WaitsFor("other"); got != "it is gone" {
		t.Errorf("a cell that nobody knows waits for %q", got)
	}
}
