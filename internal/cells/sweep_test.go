package cells

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// modelParts are those of a cloud whose list says what the test says.
type modelParts struct {
	mu      sync.Mutex
	list    []cloud.OwnedResource
	fail    error          // of each deletion
	deleted map[string]int // calls, by ID
}

func (m *modelParts) ListOwned(context.Context, string) ([]cloud.OwnedResource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list), nil
}

func (m *modelParts) DeleteOwned(_ context.Context, ids ...string) cloud.Results {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		m.deleted[id]++
		if m.fail == nil {
			m.list = slices.DeleteFunc(m.list, func(p cloud.OwnedResource) bool { return p.ID == id })
		}
	}
	return cloud.Each(m.fail, ids...)
}

func (m *modelParts) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *modelParts) calls(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deleted[id]
}

// withParts lets a model cloud have parts.
func withParts(m *modelParts) func(*setup) {
	return func(c *setup) { c.Cloud.(*modelCloud).optional.OwnedResources = m }
}

func part(id, cell, instance string) cloud.OwnedResource {
	p := cloud.OwnedResource{ID: id, Kind: "address", Zone: "z", Instance: instance, Tags: map[string]string{cloud.TagOwner: "me"}}
	if cell != "" {
		p.Tags[cloud.TagCell] = cell
	}
	return p
}

func (m *modelParts) there() []cloud.OwnedResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list)
}

// swept is what an observer was told of parts.
type swept struct{ left, deleted, failed int }

type sweeps struct {
	Unobserved
	mu sync.Mutex
	swept
}

func (s *sweeps) told() swept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.swept
}

func (s *sweeps) OwnedLeft() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left++
}

func (s *sweeps) OwnedDeleted(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed++
	} else {
		s.deleted++
	}
}

func TestPartsThatOutliveTheirInstanceAreDeleted(t *testing.T) {
	m, observed := &modelParts{deleted: map[string]int{}}, &sweeps{}
	inBubble(t, withParts(m), nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if cell.Phase != apiv1.Bound {
			t.Fatalf("the cell is %s", cell.Phase)
		}
		b.cloud.set(func() {
			b.cloud.instances["i-stranger"] = cloud.Instance{
				ID:    "i-stranger",
				Zone:  "z",
				State: cloud.Terminating,
				Tags:  map[string]string{cloud.TagOwner: "me"},
			}
			b.cloud.linger = true
		})
		b.later(time.Minute)
		m.set(func() {
			m.list = []cloud.OwnedResource{
				part("of a cell", cell.ID, ""),
				part("of a cell's instance", "cell-old", cell.Instance.ID),
				part("of an instance that is listed", "cell-old", "i-stranger"),
				part("the owner's own", "", ""),
				part("left", "cell-old", ""),
				part("left with its instance's name", "", "i-old"),
			}
		})
		b.later(partsPoll)
		if told := observed.told(); told != (swept{left: 2}) {
			t.Fatalf("%+v after one list: want 2 left and none deleted", told)
		}
		b.later(2 * partsPoll)
		for _, p := range []string{"left", "left with its instance's name"} {
			if m.calls(p) != 1 {
				t.Errorf("the part %q was deleted %d times: want once", p, m.calls(p))
			}
		}
		if told := observed.told(); len(m.there()) != 4 || told != (swept{left: 2, deleted: 2}) {
			t.Errorf("%v is left, and %+v was told", m.there(), told)
		}
		// With the cell its part goes.
		b.cloud.set(func() { b.cloud.linger = false })
		b.cells.Release(ref("a").UID, "done", false)
		b.later(4 * partsPoll)
		if m.calls("of a cell") != 1 || m.calls("of a cell's instance") != 1 {
			t.Errorf("the parts of a cell that is gone were deleted so often: %v", m.deleted)
		}
		if m.calls("the owner's own") != 0 {
			t.Error("what is the owner's own was deleted")
		}
	}, observed)
}

func TestAPartWhoseDeletionIsRefusedIsTriedAgain(t *testing.T) {
	m, observed := &modelParts{deleted: map[string]int{}, fail: errors.New("it is in use")}, &sweeps{}
	inBubble(t, withParts(m), nil, func(t *testing.T, b *bubble) {
		m.set(func() { m.list = []cloud.OwnedResource{part("left", "cell-old", "")} })
		b.later(5*partsPoll + 20*time.Second) // each waits for a snapshot
		if told := observed.told(); m.calls("left") != 4 || told != (swept{left: 1, failed: 4}) {
			t.Fatalf("it was tried %d times, and told %+v: want 4 times, found once", m.calls("left"), told)
		}
		m.set(func() { m.fail = nil })
		b.later(partsPoll)
		if told := observed.told(); len(m.there()) != 0 || told.deleted != 1 {
			t.Fatalf("%v is left, told %+v", m.there(), told)
		}
	}, observed)
}

// Where a list could not look, an instance may run that has the part.
func TestPartsOfAZoneThatIsNotSeenStay(t *testing.T) {
	m := &modelParts{deleted: map[string]int{}}
	inBubble(t, withParts(m), nil, func(t *testing.T, b *bubble) {
		b.cloud.set(func() { b.cloud.blind = []string{"z"} })
		b.later(time.Minute)
		m.set(func() { m.list = []cloud.OwnedResource{part("left", "cell-old", "i-old")} })
		b.later(5 * partsPoll)
		if m.calls("left") != 0 {
			t.Fatal("it was deleted while its zone was not seen")
		}
		b.cloud.set(func() { b.cloud.blind = nil })
		b.later(3 * partsPoll)
		if m.calls("left") != 1 {
			t.Fatalf("it was deleted %d times once its zone was seen: want once", m.calls("left"))
		}
	})
}
