package cells

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clocktesting "k8s.io/utils/clock/testing"
)

// launchedWith is a cell of an architecture that was launched at a time with an image.
func launchedWith(id, arch, image string, at time.Time) Cell {
	return Cell{
		ID:        id,
		Phase:     apiv1.Bound,
		Offerings: []Offering{{Arch: arch}},
		Launch:    &Launch{Image: image},
		Instance:  &cloud.Instance{Launched: at},
	}
}

// old is what the resource says of a cell's age, once what waits for that is written.
func (m mirrored) old(id string) string {
	m.Helper()
	if err := m.write(m.Context(), id); err != nil {
		m.Fatal(err)
	}
	object, err := m.client.Get(m.Context(), id, metav1.GetOptions{})
	if err != nil {
		m.Fatal(err)
	}
	old, _, err := unstructured.NestedString(object.Object, "status", "old")
	if err != nil {
		m.Fatal(err)
	}
	return old
}

func TestACellIsOldOnceOthersLikeItBootAnotherImage(t *testing.T) {
	m := newMirrored(t)
	now := m.clock.Now()
	withGPUs := launchedWith("gpus", "amd64", "ami-gpus", now.Add(-time.Hour))
	withGPUs.GPUs = 1
	for _, c := range []Cell{
		launchedWith("first", "amd64", "ami-1", now.Add(-time.Hour)), launchedWith("arm", "arm64", "ami-2", now.Add(-time.Minute)), withGPUs,
		{ID: "local", Phase: apiv1.Bound, Offerings: []Offering{{Arch: "amd64"}}, Launch: &Launch{}, Instance: &cloud.Instance{Launched: now}},
	} {
		m.told(c)
	}
	says := func(what string, want map[string]string) {
		t.Helper()
		for _, id := range []string{"first", "second", "arm", "gpus", "local"} {
			if _, there := m.latest[id]; there && m.old(id) != want[id] {
				t.Errorf("%s: cell %s is old by %q, want %q", what, id, m.old(id), want[id])
			}
		}
	}
	says("nothing is newer", nil)
	written := func(id string) (is bool) { // whether a cell is to be written
		for begun := time.Now(); !is && time.Since(begun) < 10*mirrorDelay; time.Sleep(mirrorDelay / 10) {
			for m.queue.Len() > 0 {
				next, _ := m.queue.Get()
				m.queue.Done(next)
				is = is || next == id
			}
		}
		return is
	}
	if written("none") {
		t.Error("a cell is written that is not there")
	}
	m.told(launchedWith("second", "amd64", "ami-3", now))
	if !written("first") {
		t.Error("the cell that is old now is not written again")
	}
	says("another boots a newer one", map[string]string{"first": "image"})
	m.told(launchedWith("first", "amd64", "ami-1", now.Add(-time.Hour))) // a change of an old cell says nothing
	says("the old one changes", map[string]string{"first": "image"})
	m.told(Cell{ID: "second", Phase: apiv1.Gone})
	says("the newer one is gone", map[string]string{"first": "image"})
}

func TestCellsOfAnImageThatWasConfiguredBeforeAreOld(t *testing.T) {
	m := newMirrored(t)
	m.currentImage = func(_ context.Context, c Cell) (string, error) { return "of " + c.Options.Image["imageID"], nil }
	before := launchedWith("before", "amd64", "of before", m.clock.Now().Add(-time.Hour))
	before.Options.Image = map[string]string{"imageID": "before"}
	m.told(before)
	m.askForImages(t.Context())
	if m.old("before") != "image" {
		t.Errorf("it is old by %q", m.old("before"))
	}
}

func TestTheMirrorAsksWhatCellsWouldBootNow(t *testing.T) {
	m := newMirrored(t)
	now := m.clock.Now()
	asked, id, err := []string{}, "ami-1", error(nil)
	m.currentImage = func(_ context.Context, c Cell) (string, error) {
		asked = append(asked, c.ID)
		return id, err
	}
	m.told(launchedWith("first", "amd64", "ami-1", now.Add(-2*time.Hour)))
	m.told(launchedWith("second", "amd64", "ami-1", now.Add(-time.Hour)))
	m.askForImages(t.Context())
	if len(asked) != 1 || asked[0] != "second" || m.old("first") != "" {
		t.Errorf("it asked of %q, and the cell is old by %q", asked, m.old("first"))
	}
	id = "ami-2"
	m.askForImages(t.Context())
	if m.old("first") != "image" || m.old("second") != "image" {
		t.Errorf("old are %q and %q", m.old("first"), m.old("second"))
	}
	id, err = "", errors.New("no answer")
	m.askForImages(t.Context())
	if m.old("first") != "image" {
		t.Error("an answer that is missing makes an old cell new")
	}
}

func TestTheMirrorAsksForImagesOnceAnHourAndNotesWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t)
		clk := m.clock.(*clocktesting.FakeClock)
		began, id, asked := clk.Now(), "ami-2", 0
		m.currentImage = func(context.Context, Cell) (string, error) {
			asked++
			return id, nil
		}
		m.told(launchedWith("first", "amd64", "ami-1", began.Add(-time.Hour)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go m.keepImages(ctx)
		for n, wait := range []time.Duration{0, imagesEvery - 1, 1} {
			clk.Step(wait)
			synctest.Wait()
			if want := []int{1, 1, 2}[n]; asked != want {
				t.Errorf("after another %s it has asked %d times, want %d", wait, asked, want)
			}
		}
		// A launch counts from when the cell was launched, not from when the mirror hears of it.
		m.told(launchedWith("earlier", "amd64", "ami-1", clk.Now().Add(-time.Second)))
		if m.old("earlier") != "image" {
			t.Error("a launch from before the last answer counts as newer")
		}
		m.told(launchedWith("later", "amd64", "ami-1", clk.Now().Add(time.Second)))
		if old := m.old("later"); old != "" {
			t.Errorf("a cell that was launched after the last answer is old by %q", old)
		}
	})
}

func TestACellWithAnAgentOlderThanKipIsOld(t *testing.T) {
	m := newMirrored(t) // of v1.4.2
	for version, want := range map[string]string{
		"v1.4.1": "agent", "v1.4.2-rc.1": "agent", "v1.4.2": "", "v1.5.0": "", "": "", "unknown": "",
	} {
		c := Cell{ID: "c", AgentReport: AgentReport{AgentRuns: agentapi.RunningAgent{Version: version}}}
		if got := m.Status(c).Old; got != want {
			t.Errorf("with agent %q it is old by %q, want %q", version, got, want)
		}
		c.Launch = &Launch{Agent: &agentapi.Agent{Version: version}}
		if got := m.Status(c).Old; got != "" {
			t.Errorf("with agent %q, which the operator asked for, it is old by %q", version, got)
		}
	}
}
