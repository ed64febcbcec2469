package cells

import (
	"bytes"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// A backup is older than what runs. Whatever has become of its cells since, no pod
// may run on two instances, and no cell may run a second pod.
func TestARestoredBackupRunsNoPodTwice(t *testing.T) {
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		b.request("before", "small")
		b.later(10 * time.Second)
		kept, _ := b.cells.ForPod(ref("before").UID)
		var file bytes.Buffer
		if err := b.store.Backup(t.Context(), &file, time.Now()); err != nil {
			t.Fatal(err)
		}
		// The standby cell of the backup is taken, and so is the next, of which the
		// backup knows nothing.
		b.later(time.Second)
		b.request("taken", "nano")
		b.later(10 * time.Second)
		b.request("younger", "nano")
		b.later(10 * time.Second)
		old := map[string]string{} // pod → instance
		for _, pod := range []string{"taken", "younger"} {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			if cell.Phase != apiv1.Bound || cell.Standby == "" {
				t.Fatalf("pod %s: %s, standby %q", pod, cell.Phase, cell.Standby)
			}
			old[pod] = cell.Instance.ID
		}
		b.stop()

		if err := b.store.Restore(t.Context(), &file, true); err != nil {
			t.Fatal(err)
		}
		dropped, err := Restored(t.Context(), b.store, time.Now())
		if err != nil || dropped != 1 {
			t.Fatalf("%d cells were taken out, %v; want the standby cell", dropped, err)
		}
		b.run()
		b.takeOver()
		for pod := range old {
			b.request(pod, "nano")
		}
		for range 60 {
			b.later(time.Second)
			for pod, instance := range old {
				if cell, _ := b.cells.ForPod(ref(pod).UID); cell.Instance != nil && slices.Contains(b.cloud.running(), instance) {
					t.Fatalf("pod %s has instance %s while %s may run it too", pod, cell.Instance.ID, instance)
				}
			}
		}
		for pod := range old {
			if got := b.phase(pod); got != apiv1.Bound {
				t.Errorf("pod %s has no other cell: %s", pod, got)
			}
		}
		if cell, _ := b.cells.ForPod(ref("before").UID); cell.ID != kept.ID || cell.Phase != apiv1.Bound {
			t.Errorf("the cell that the backup knows is %s, %s; want %s to go on", cell.ID, cell.Phase, kept.ID)
		}
		if n := len(b.cloud.running()); n != 4 {
			t.Errorf("%d instances, want 3 of pods and one on standby", n)
		}
	})
}

func TestAnEmptiedPoolStaysEmpty(t *testing.T) {
	inBubble(t, keep(2), nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		b.cells.EmptyPools()
		b.later(time.Minute)
		if s := b.cells.Standby(); len(b.cells.List()) != 0 || len(b.cloud.running()) != 0 || s[0].Want != 0 {
			t.Errorf("cells %v, instances %v, pools %+v; want none", b.cells.List(), b.cloud.running(), s)
		}
	})
}
