package cells

import (
	"errors"
	"slices"
	"strings"
	"testing"

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
		if _, err := b.cells.Request(t.Context(), Request{Pod: ref("a")}); err == nil || !strings.Contains(err.Error(), "no offers") {
			t.Errorf("without offers: %v", err)
		}
		b.request("a", "nano")
		r := Request{Pod: ref("a"), Offers: []Offer{{InstanceType: "nano", Zone: "a"}}}
		if _, err := b.cells.Request(t.Context(), r); !errors.Is(err, ErrHasCell) {
			t.Errorf("for a pod that has a cell: %v", err)
		}
		if cells := b.cells.List(); len(cells) != 1 {
			t.Errorf("there are %d cells, want the first alone", len(cells))
		}
	})
}
