//go:build e2e

package e2e

import (
	"strings"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Not parallel: it kills the Kip that all tests share. Parallel tests are
// paused while it runs.
func TestAPodDoesNotNoticeThatKipIsKilled(t *testing.T) {
	s := newSpace(t)
	s.apply(sleeper("a"))
	before := s.waitReady("a")
	instance := s.cellOf("a").Status.InstanceID

	killKip(t)
	if _, code, _ := s.try("exec", "a", "--", "true"); code == 0 {
		t.Fatal("exec works without Kip: the test killed something else")
	}
	s.kubectl("annotate", "pod", "a", "while-away=yes")
	startKip(t)

	s.eventually("exec works again", s.execTrue("a"))
	after := s.waitReady("a")
	b, a := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if a.ContainerID != b.ContainerID || a.RestartCount != 0 || after.UID != before.UID {
		t.Fatalf("the pod noticed: %s, %s before", states(after), states(before))
	}
	if got := s.cellOf("a").Status.InstanceID; got != instance {
		t.Fatalf("the pod moved from %s to %s", instance, got)
	}
	if log := s.kubectl("logs", "a"); strings.Count(log, "started") != 1 {
		t.Fatalf("the log is %q", log)
	}
	s.kubectl("delete", "pod", "a", "--wait=false")
	s.waitGone("a")
}

// A pod that is deleted, and one that is made, while Kip is dead.
func TestKipCatchesUpWithWhatHappenedWhileItWasDead(t *testing.T) {
	s := newSpace(t)
	s.apply(sleeper("a"))
	s.waitReady("a")
	killKip(t)
	s.kubectl("delete", "pod", "a", "--force", "--grace-period=0")
	s.apply(sleeper("b"))
	startKip(t)
	s.waitGone("a")
	s.waitReady("b")
}

// Kip is killed while it launches: nothing is lost and nothing doubled.
func TestAKilledLaunchIsTakenUpAgain(t *testing.T) {
	s := newSpace(t)
	for i, phase := range []apiv1.Phase{apiv1.Requested, apiv1.Launching, apiv1.Booting, apiv1.Ready} {
		name := "p" + string(rune('a'+i))
		s.apply(sleeper(name))
		s.waitPhaseReached(name, phase)
		killKip(t)
		startKip(t)
		s.waitReady(name)
		s.cellOf(name)
	}
}
