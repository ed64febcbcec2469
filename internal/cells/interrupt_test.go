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

func TestANoticeIsCountedByKipsClockWhateverTheCloudsSays(t *testing.T) {
	for _, ahead := range []time.Duration{-3 * time.Minute, 3 * time.Minute} {
		inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
			b.request("a", "small")
			b.later(time.Minute)
			cell, _ := b.cells.ForPod(ref("a").UID)
			b.cells.interrupt(t.Context(), cloud.Interruption{
				InstanceID: cell.Instance.ID,
				At:         time.Now().Add(2*time.Minute + ahead),
				Left:       2 * time.Minute,
				Reason:     "spot",
			})
			b.later(time.Minute)
			if b.phase("a") != apiv1.Bound {
				t.Errorf("a cloud that is %s ahead: within the notice it is %q", ahead, b.phase("a"))
			}
			b.links.of(cell.ID).set(false, errors.New("no route to host")) // one that is heard goes on
			b.later(75 * time.Second)
			if b.phase("a") == apiv1.Bound {
				t.Errorf("a cloud that is %s ahead: after the notice it is %q", ahead, b.phase("a"))
			}
		})
	}
}

func TestTheAgeOfAnInstanceIsByKipsClock(t *testing.T) {
	placed := time.Unix(1000, 0)
	now := placed.Add(30 * time.Second)
	for ahead, want := range map[time.Duration]time.Duration{-2 * time.Minute: 0, 0: 10 * time.Second, 2 * time.Minute: 30 * time.Second} {
		var cell Cell
		cell.step(apiv1.StepPlaced, placed)
		cell.step(apiv1.StepLaunched, now)
		cell.take(cloud.Instance{ID: "i-a", Launched: placed.Add(10*time.Second + ahead)}, now)
		if got := cell.launched().Sub(placed); got != want {
			t.Errorf("a cloud that is %s ahead: launched %s after it was asked for, want %s", ahead, got, want)
		}
	}
	var cell Cell
	cell.step(apiv1.StepPlaced, placed)
	cell.step(apiv1.StepLaunched, now)
	cell.take(cloud.Instance{ID: "i-a"}, now) // of a cloud that does not say it
	if !cell.launched().Equal(now) {
		t.Errorf("launched %s, want when its launch was known", cell.launched())
	}
}
