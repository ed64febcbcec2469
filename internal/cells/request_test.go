package cells

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/store"
)

func TestAPodThatAnUnknownInstanceRunsGetsAnotherOnlyAfterThatOnesEnd(t *testing.T) {
	w := newWorld(t)
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	w.stop()
	// The store is lost: a new Kip, in an empty one, finds the pod without a cell.
	fresh, err := store.OpenEmbedded(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fresh.Close(); err != nil {
			t.Error(err)
		}
	})
	w.store, w.cloud.linger, w.phases = fresh, true, map[string][]apiv1.Phase{}
	w.start()
	// What this Kip knows it is yet to write: a write that is cut off may come after the next.
	w.until("the store says that it is behind", func() bool {
		var g generation
		_, err := w.store.Get(t.Context(), generationKey, &g)
		return err == nil && len(g.UnknownLines) > 0
	})
	w.stop()
	w.takeOver()
	w.start()
	w.request("a", "nano")
	w.until("the old instance is being terminated", func() bool {
		w.cloud.mu.Lock()
		defer w.cloud.mu.Unlock()
		return w.cloud.terminated["i-0"] > 0
	})
	if cell, _ := w.cells.ForPod(ref("a").UID); cell.Phase != apiv1.Requested {
		t.Fatalf("the second cell is %s while the first instance is still there", cell.Phase)
	}
	w.cloud.mu.Lock()
	clear(w.cloud.instances)
	w.cloud.mu.Unlock()
	w.until("booting", w.reached("a", apiv1.Booting))
	if got := w.cloud.running(); !slices.Equal(got, []string{"i-1"}) {
		t.Fatalf("instances %v, want a new one", got)
	}
}

func TestARequestIsRefusedWithoutOffersAndForAPodThatHasACell(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		if _, err := b.cells.Request(t.Context(), Request{Pod: ref("a")}); err == nil || !strings.Contains(err.Error(), "no offerings") {
			t.Errorf("without offerings: %v", err)
		}
		b.request("a", "nano")
		r := Request{Pod: ref("a"), Offerings: []Offering{{InstanceType: "nano", Zone: "a"}}}
		if _, err := b.cells.Request(t.Context(), r); !errors.Is(err, ErrHasCell) {
			t.Errorf("for a pod that has a cell: %v", err)
		}
		if cells := b.cells.List(); len(cells) != 1 {
			t.Errorf("there are %d cells, want the first alone", len(cells))
		}
	})
}

// A standby cell of a lost store may have been given to any pod that was there then.
func TestAStrangerThatDoesNotEndHoldsUpNoPodThatIsYoungerThanTheLoss(t *testing.T) {
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.later(time.Minute)
		b.stop()
		stranger := b.cloud.running()[0]
		b.cloud.set(func() { b.cloud.keep = map[string]error{stranger: errors.New("protected")} })
		b.store = store.Memory(nil)
		b.cfg.Store = b.store
		created := time.Now()
		b.later(time.Second)
		b.run()
		b.takeOver()
		b.later(5 * time.Minute)
		if pools := b.cells.Standby(); pools[0].Ready != 1 {
			t.Errorf("the pool is not filled: %+v", pools)
		}
		for pod, at := range map[string]time.Time{"old": created, "young": time.Now()} {
			if _, err := b.cells.Request(t.Context(), Request{
				Pod:       ref(pod),
				Created:   at,
				Offerings: []Offering{{InstanceType: "nano", Zone: "z", BootTimeout: time.Hour}},
			}); err != nil {
				t.Fatal(err)
			}
		}
		b.later(5 * time.Minute)
		if b.phase("young") != apiv1.Bound || b.phase("old") == apiv1.Bound {
			t.Fatalf("the cell of the young pod is %q, that of the old one %q", b.phase("young"), b.phase("old"))
		}
		if n := len(b.said("CellUnknown")); n > 3 {
			t.Errorf("%d Events of one stranger", n)
		}
		b.cloud.set(func() { b.cloud.keep = nil })
		b.later(3 * time.Minute)
		if b.phase("old") != apiv1.Bound {
			t.Errorf("without the stranger its cell is %q", b.phase("old"))
		}
	})
}
