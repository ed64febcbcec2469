package cells

import (
	"net/http"
	"slices"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

// link is a session that is up or down.
type link struct {
	Session
	up bool
}

func (l link) Connected() bool                 { return l.up }
func (l link) RoundTripper() http.RoundTripper { return http.DefaultTransport }

func TestWaysAreToBoundCellsAlone(t *testing.T) {
	c := New(Config{})
	t.Cleanup(c.queue.ShutDown) // which Run would do
	for name, e := range map[string]struct {
		phase   apiv1.Phase
		session Session
	}{
		"booting": {apiv1.Booting, link{up: true}}, "ready": {apiv1.Ready, link{up: true}}, "draining": {apiv1.Draining, link{up: true}},
		"up": {apiv1.Bound, link{up: true}}, "down": {apiv1.Bound, link{}}, "new": {apiv1.Bound, nil},
	} {
		entry := newEntry(Cell{ID: "cell-" + name, Phase: e.phase, Pod: ref(name)}, 0)
		entry.session = e.session
		c.cells[entry.id] = entry
	}
	standby := newEntry(Cell{ID: "standby", Phase: apiv1.Ready}, 0)
	standby.session = link{up: true}
	c.cells[standby.id] = standby
	var got []string
	for _, w := range c.Ways() {
		if w.Cell != "cell-"+w.Pod.Name || (w.RoundTripper != nil) != (w.Pod.Name == "up") {
			t.Errorf("%+v", w)
		}
		got = append(got, w.Pod.Name)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"down", "new", "up"}) {
		t.Errorf("the ways are to %v", got)
	}
}
