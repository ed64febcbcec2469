package cells

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/store"
)

func TestTwoWritersOfOneRecordEndTheController(t *testing.T) {
	w := newWorld(t)
	w.stop()
	cell := w.request("a", "nano")
	var stored Cell
	revision, err := w.store.Get(t.Context(), keyPrefix+cell.ID, &stored)
	if err != nil {
		t.Fatal(err)
	}
	stored.Reason = "another Kip was here"
	if _, err := w.store.Put(t.Context(), keyPrefix+cell.ID, stored, revision); err != nil {
		t.Fatal(err)
	}
	c := New(w.config)
	c.core.table.byID, c.core.table.byPod = w.cells.core.table.byID, w.cells.core.table.byPod // what was read before the other one wrote
	c.core.loop.queue.Add(cell.ID)
	if err := c.Run(t.Context()); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("it went on: %v", err)
	}
	if len(w.cloud.launches) != 0 {
		t.Fatal("it launched all the same")
	}
}

func TestAFencedKipEnds(t *testing.T) {
	fenced := false
	hook := func(string, string) error {
		if fenced {
			return store.ErrNotLeader
		}
		return nil
	}
	inBubble(t, nil, hook, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		fenced = true
		_, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Offerings: []Offering{{InstanceType: "nano"}}})
		if !errors.Is(err, store.ErrNotLeader) {
			t.Fatal(err)
		}
		b.later(time.Minute)
		select {
		case err := <-b.ended:
			b.stop = func() {}
			if !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Error("it goes on")
		}
	})
}

func TestAWriteWhoseAnswerIsLostIsNeitherRepeatedNorForgotten(t *testing.T) {
	for _, done := range []bool{false, true} {
		for n := 1; n <= 11; n++ { // as many as there are
			t.Run(fmt.Sprintf("write %d done %t", n, done), func(t *testing.T) {
				var mu sync.Mutex
				writes := 0
				hook := func(op, key string) error {
					if !strings.Contains(key, keyPrefix) || (op == "applied") != done {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					if writes++; writes == n {
						return errors.New("no answer")
					}
					return nil
				}
				inBubble(t, nil, hook, func(t *testing.T, b *bubble) {
					r := nano("a")
					for range 5 {
						if _, err := b.cells.Request(t.Context(), r); err == nil || errors.Is(err, ErrHasCell) {
							break
						}
						b.later(time.Minute)
					}
					b.later(time.Minute)
					if _, has := b.cells.ForPod(r.Pod.UID); !has {
						if _, err := b.cells.Request(t.Context(), r); err != nil {
							t.Fatal(err)
						}
						b.later(time.Minute)
					}
					if b.phase("a") != apiv1.Bound || len(b.cloud.running()) != 1 {
						t.Fatalf("it is %q, instances %v", b.phase("a"), b.cloud.running())
					}
					b.cells.Release(r.Pod.UID, "done", true)
					b.later(time.Minute)
					if b.phase("a") != "" || len(b.cloud.running()) != 0 {
						t.Fatalf("it is %q, instances %v", b.phase("a"), b.cloud.running())
					}
					left := func(key string, _ []byte, _ int64) error { return errors.New(key) }
					if err := b.store.List(t.Context(), keyPrefix, left); err != nil {
						t.Fatalf("a record is left: %v", err)
					}
				})
				if writes < n {
					t.Errorf("there were %d writes only", writes)
				}
			})
		}
	}
}

func TestACellThatIsGoneHasNoChange(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		cell := b.request("a", "nano")
		b.cells.core.table.mu.Lock()
		e := b.cells.core.table.byID[cell.ID]
		b.cells.core.table.mu.Unlock()
		b.later(time.Minute)
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Minute)
		err := b.cells.core.records.save(t.Context(), e, func(c *Cell) error { c.Phase = apiv1.Booting; return nil })
		if !errors.Is(err, errGone) {
			t.Errorf("a change of it: %v", err)
		}
		if revision, err := b.store.Get(t.Context(), keyPrefix+cell.ID, new(Cell)); revision != 0 || err != nil {
			t.Errorf("it has a record again, of revision %d, %v", revision, err)
		}
	})
}

func TestACellTakesNoPodFromAnother(t *testing.T) {
	c := New(Config{})
	defer c.core.loop.queue.ShutDown()
	first, second := newEntry(Cell{ID: "first", Pod: ref("a")}, 0), newEntry(Cell{ID: "second", Pod: ref("a")}, 0)
	c.core.table.reserveLocked(second)
	c.core.table.unreserveLocked(first)
	if c.core.table.byPod["uid-a"] != "second" || len(c.core.table.named) != 1 {
		t.Errorf("pod a has cell %q, and %d names are known", c.core.table.byPod["uid-a"], len(c.core.table.named))
	}
	c.core.table.unreserveLocked(second)
	if len(c.core.table.byPod) != 0 || len(c.core.table.named) != 0 {
		t.Errorf("left are %v and %v", c.core.table.byPod, c.core.table.named)
	}
}
