package cells

import (
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestACellIsGoneOnlyWhenTheCloudNoLongerShowsIt(t *testing.T) {
	w := newWorld(t)
	w.cloud.linger = true
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	w.cells.Release(ref("a").UID, "done", false)
	w.until("the termination is accepted", func() bool {
		w.cloud.mu.Lock()
		defer w.cloud.mu.Unlock()
		return w.cloud.terminated["i-0"] == 1
	})
	began := w.cells.inventory.last().began
	w.until("two more looks", func() bool { return w.cells.inventory.last().began.After(began.Add(2 * soonPoll)) })
	if cell, ok := w.cells.ForPod(ref("a").UID); !ok || cell.Phase != apiv1.Terminating {
		t.Fatalf("the cell is %s while its instance is still shown", cell.Phase)
	}
	w.cloud.mu.Lock()
	clear(w.cloud.instances)
	w.cloud.mu.Unlock()
	w.until("gone", w.reached("a", apiv1.Gone))
}
