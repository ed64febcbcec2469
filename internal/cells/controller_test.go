package cells

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// The store is slow, and all cells of one namespace end at once, before the cell of another.
func TestManyCellsOfOneNamespaceDelayThatOfAnotherByOne(t *testing.T) {
	var slow atomic.Bool
	inBubble(t, nil, func(op, key string) error {
		// Not what has costs: others wait for the lock of these, and in a bubble no time passes then.
		if slow.Load() && op != "applied" && !strings.Contains(key, ",") {
			time.Sleep(time.Second)
		}
		return nil
	}, func(t *testing.T, b *bubble) {
		pods := b.bound(5 * workers)
		small := nano("small")
		small.Pod.Namespace = "other"
		if _, err := b.cells.Request(t.Context(), small); err != nil {
			t.Fatal(err)
		}
		b.later(time.Minute)
		slow.Store(true)
		for _, pod := range append(pods, small.Pod.Name) {
			b.cells.Release(ref(pod).UID, "it was deleted", false)
		}
		for b.phase(small.Pod.Name) == apiv1.Bound {
			b.later(100 * time.Millisecond)
		}
		if n := len(b.unbound(pods)); n > 2*workers {
			t.Errorf("the cell waited for %d of the other namespace, and %d are moved at the same time", n, workers)
		}
	})
}
