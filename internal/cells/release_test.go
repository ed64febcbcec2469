package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func TestPodsThatVanishEndNoMoreThanAShareOfTheCells(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pods := b.bound(40)
		b.links.mu.Lock()
		b.links.boots = func(string) bool { return false }
		b.links.mu.Unlock()
		b.request("young", "nano")
		for range 10 {
			for _, pod := range append(pods, "young") {
				b.cells.ReleaseVanished(t.Context(), ref(pod).UID, "the API server does not show the pod any more")
			}
			b.later(10 * time.Second)
		}
		if n := len(b.unbound(pods)); n != 10 || b.phase("young") != "" || len(b.guard.Held()) != 30 {
			t.Errorf("%d of 40 have ended, want 10; one that does not run its pod yet is %q; held back %d",
				n, b.phase("young"), len(b.guard.Held()))
		}
		b.guard.Allow(time.Now())
		for _, pod := range pods {
			if !b.cells.ReleaseVanished(t.Context(), ref(pod).UID, "again") {
				t.Fatalf("the cell of pod %s is held back, though a person has allowed its end", pod)
			}
		}
	})
}

func TestAPodThatGoesWhileItsLaunchIsUncertainLeavesNoInstance(t *testing.T) {
	w := newWorld(t)
	released := make(chan struct{})
	w.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
		select {
		case <-released:
			return nil, false
		default:
			return errors.New("timeout"), true
		}
	}
	w.request("a", "nano")
	w.until("an instance", func() bool { return len(w.cloud.running()) == 1 })
	if !w.cells.ReleaseUnbound(ref("a").UID, "deleted") {
		t.Fatal("a cell that is being launched counts as bound")
	}
	close(released)
	w.until("gone", w.reached("a", apiv1.Gone))
	if got := w.cloud.running(); len(got) != 0 {
		t.Fatalf("instances %v are left", got)
	}
}

func TestABoundCellIsItsKubeletsToEnd(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(10 * time.Second)
		if b.cells.ReleaseUnbound(ref("a").UID, "deleted") {
			t.Error("a bound cell is let go as if its kubelet had not seen the pod")
		}
		b.later(10 * time.Second)
		if got := b.phase("a"); got != apiv1.Bound {
			t.Errorf("it is %q", got)
		}
	})
}

func TestTheFirstReasonToLetACellGoIsKept(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.later(10 * time.Second)
		b.cloud.linger = true
		b.cells.Release(ref("a").UID, "the pod has ended", true)
		b.cells.Release(ref("a").UID, "the pod is deleted", false)
		b.cells.Release(ref("other").UID, "the pod is deleted", false) // it has none
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if cell.Reason != "the pod has ended" || cell.Cause != CausePodEnded || !cell.PodEnded {
			t.Errorf("the cell ends for %q (%s, ended %t)", cell.Reason, cell.Cause, cell.PodEnded)
		}
	})
}
