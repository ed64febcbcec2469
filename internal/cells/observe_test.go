package cells

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

// everything notes all that an observer is told, with its own name first.
type everything struct {
	name string
	note func(string)
}

var _ Observer = everything{}

func (o everything) CellChanged(c Cell)                    { o.note(o.name + " changed " + c.ID) }
func (o everything) CellConnected(c Cell, _ agentapi.Conn) { o.note(o.name + " connected " + c.ID) }
func (o everything) CellSilent(c Cell, _ time.Time)        { o.note(o.name + " silent " + c.ID) }
func (o everything) CellInterrupted(c Cell)                { o.note(o.name + " interrupted " + c.ID) }
func (o everything) CellTakenBack(c Cell)                  { o.note(o.name + " taken back " + c.ID) }
func (o everything) CellMeasured(c Cell)                   { o.note(o.name + " measured " + c.ID) }
func (o everything) OrphanFound()                          { o.note(o.name + " orphan found") }
func (o everything) OrphanEnded(err error)                 { o.note(o.name + " orphan ended: " + err.Error()) }
func (o everything) OwnedLeft()                            { o.note(o.name + " owned left") }
func (o everything) OwnedDeleted(err error)                { o.note(o.name + " owned deleted: " + err.Error()) }

func TestObserversAreToldEverythingInTheirOrder(t *testing.T) {
	var told []string
	note := func(s string) { told = append(told, s) }
	all := observers{everything{"first", note}, Unobserved{}, everything{"second", note}}
	cell := Cell{ID: "c"}
	for _, step := range []struct {
		what string
		tell func()
	}{
		{"changed c", func() { all.CellChanged(cell) }},
		{"connected c", func() { all.CellConnected(cell, nil) }},
		{"silent c", func() { all.CellSilent(cell, time.Time{}) }},
		{"interrupted c", func() { all.CellInterrupted(cell) }},
		{"taken back c", func() { all.CellTakenBack(cell) }},
		{"measured c", func() { all.CellMeasured(cell) }},
		{"orphan found", func() { all.OrphanFound() }},
		{"orphan ended: no", func() { all.OrphanEnded(errors.New("no")) }},
		{"owned left", func() { all.OwnedLeft() }},
		{"owned deleted: no", func() { all.OwnedDeleted(errors.New("no")) }},
	} {
		told = nil
		step.tell()
		if want := []string{"first " + step.what, "second " + step.what}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	}
}

// orphans counts what is told of them.
type orphans struct {
	Unobserved
	found, ended atomic.Int32
}

func (o *orphans) OrphanFound()      { o.found.Add(1) }
func (o *orphans) OrphanEnded(error) { o.ended.Add(1) }

func TestAnOrphanIsToldOfWhenItIsFoundAndWhenItIsEnded(t *testing.T) {
	var told orphans
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.bound(1)
		b.cloud.mu.Lock()
		b.cloud.instances["i-orphan"] = cloud.Instance{
			ID:    "i-orphan",
			State: cloud.Running,
			Tags:  map[string]string{cloud.TagOwner: "me", cloud.TagCell: "cell-lost"},
		}
		b.cloud.mu.Unlock()
		b.later(idlePoll)
		if found, ended := told.found.Load(), told.ended.Load(); found != 1 || ended != 0 {
			t.Fatalf("after one snapshot, found %d and ended %d", found, ended)
		}
		b.later(2 * idlePoll)
		if found, ended := told.found.Load(), told.ended.Load(); found != 1 || ended != 1 {
			t.Fatalf("after more looks, found %d and ended %d", found, ended)
		}
	}, &told)
}

func TestTheEndOfACellIsToldOf(t *testing.T) {
	var last apiv1.Phase
	changes := onChange{told: func(c Cell) { last = c.Phase }}
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(10 * time.Second)
		b.cells.Release(ref("a").UID, "done", false)
		b.later(10 * time.Second)
	}, changes)
	if last != apiv1.Gone {
		t.Errorf("the last change that was told is to %q", last)
	}
}
