package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func TestAnInterruptedCellIsToldOnceAndEndsWithTheNotice(t *testing.T) {
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.request("a", "small")
		b.later(time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		for range 2 {
			at := time.Now().Add(2 * time.Minute)
			b.cells.interrupt(t.Context(), cloud.Interruption{InstanceID: cell.Instance.ID, At: at, Reason: "spot"})
		}
		b.later(time.Minute)
		if b.phase("a") != apiv1.Bound || len(b.said("interrupted a")) != 1 || len(b.said("Warning Interrupted")) != 1 {
			t.Fatalf("it is %q, said %v", b.phase("a"), b.events)
		}
		b.vanish("a")
		b.later(2 * time.Minute)
		if b.phase("a") != "" {
			t.Fatalf("it is %q after its end", b.phase("a"))
		}
		// A standby cell is replaced at once.
		standby := b.cloud.running()[0]
		b.cells.interrupt(t.Context(), cloud.Interruption{InstanceID: standby, At: time.Now().Add(2 * time.Minute), Reason: "spot"})
		b.later(10 * time.Second)
		if now := b.cloud.running(); len(now) != 1 || now[0] == standby {
			t.Fatalf("instances %v, want another than %s", now, standby)
		}
	})
}

func TestACellThatIsHeardAfterItsNoticeGoesOn(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pod := b.bound(1)[0]
		cell, _ := b.cells.ForPod(ref(pod).UID)
		b.cells.interrupt(t.Context(), cloud.Interruption{InstanceID: cell.Instance.ID, At: time.Now().Add(time.Minute), Reason: "spot"})
		b.later(10 * time.Minute)
		if b.phase(pod) != apiv1.Bound || len(b.said("EndHeldBack")) == 0 {
			t.Fatalf("it is %q, said %v", b.phase(pod), b.events)
		}
		b.links.of(cell.ID).set(false, errors.New("no route to host"))
		b.later(45 * time.Second)
		if b.phase(pod) == apiv1.Bound {
			t.Error("it is bound still when nothing was heard of it for 40 s")
		}
	})
}
