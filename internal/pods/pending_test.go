package pods

import (
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// impatient is a pod that was bound at a time and waits for twenty minutes.
func impatient(bound time.Time, change ...func(*corev1.Pod)) *corev1.Pod {
	p := pod("a", change...)
	p.CreationTimestamp = metav1.NewTime(bound.Add(-time.Hour))
	p.Annotations = map[string]string{placement.AnnotationMaxPending: "20m"}
	p.Status.Conditions = []corev1.PodCondition{{
		Type:               corev1.PodScheduled,
		Status:             corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(bound),
	}}
	return p
}

// failedAs is the reason and the message of a pod that has failed; empty if it has not.
func (h *harness) failedAs(name string) (reason, message string) {
	h.Helper()
	p, err := h.client.CoreV1().Pods("ns").Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	if p.Status.Phase != corev1.PodFailed {
		return "", ""
	}
	return p.Status.Reason, p.Status.Message
}

func outOfAll(*corev1.Pod) ([]offering.Offering, error) {
	return nil, &placement.NoCapacityError{Need: "cpu 1", Types: []string{"nano"}}
}

func TestAPodThatWaitedLongEnoughFailsForTheReasonOfItsWait(t *testing.T) {
	h := newHarness(t)
	h.place = outOfAll
	h.put(impatient(h.clock.Now().Add(-19 * time.Minute)))
	if again := h.must("a"); again <= 0 || again > time.Minute {
		t.Errorf("it is looked at after %v", again)
	}
	if reason, _ := h.failedAs("a"); reason != "" {
		t.Fatalf("it has failed a minute early: %s", reason)
	}
	h.clock.Step(time.Minute)
	h.must("a")
	reason, message := h.failedAs("a")
	if reason != events.NoCapacity || !strings.Contains(message, "no running cell 20m0s after it was bound") ||
		!strings.Contains(message, "nano") {
		t.Errorf("it has failed as %q: %s", reason, message)
	}
	h.want("events", h.events, "Warning NoCapacity", "Warning NoCapacity")
	if len(h.cells.requests) > 0 {
		t.Errorf("cells were requested: %v", h.cells.requests)
	}
}

func TestAPodFailsForTheReasonOfItsWaitThoughItWaitsOnForAListOfInstances(t *testing.T) {
	h := newHarness(t)
	h.place = outOfAll
	h.put(impatient(h.clock.Now().Add(-19 * time.Minute)))
	h.must("a")
	h.clock.Step(time.Minute)
	h.cells.behind, h.cells.unsure = "not listed yet", true
	if again := h.must("a"); again != staleRetry {
		t.Errorf("it is looked at after %v", again)
	}
	h.cells.behind = ""
	h.clock.Step(time.Minute)
	h.must("a")
	reason, message := h.failedAs("a")
	if reason != events.NoCapacity || !strings.Contains(message, "nano") || !strings.Contains(message, "20m0s") {
		t.Errorf("it has failed as %q: %s", reason, message)
	}
}

// The next leader counts from the same moment, and finds out itself why the pod waits.
func TestATakeoverStartsNoWaitAnew(t *testing.T) {
	h := newHarness(t)
	h.place = outOfAll
	h.put(impatient(h.clock.Now()))
	h.must("a")
	h.clock.Step(20 * time.Minute)
	h.restarted(func(*Config) {})
	h.must("a")
	if reason, message := h.failedAs("a"); reason != events.NoCapacity || !strings.Contains(message, "nano") {
		t.Errorf("it has failed as %q: %s", reason, message)
	}
}

func TestWhatThereIsNowIsTooLateForAPodThatWaitedLongEnough(t *testing.T) {
	h := newHarness(t)
	h.put(impatient(h.clock.Now().Add(-20 * time.Minute)))
	h.must("a")
	if reason, _ := h.failedAs("a"); reason != events.PendingTooLong || len(h.cells.requests) > 0 {
		t.Errorf("it has failed as %q, with requests %v", reason, h.cells.requests)
	}
}

func TestACellThatIsNotReadyInTimeIsReleased(t *testing.T) {
	h := newHarness(t)
	h.put(impatient(h.clock.Now()))
	h.must("a") // a cell is requested
	h.cells.set("uid-a", func(c *cells.Cell) { c.Phase, c.Reason = apiv1.Booting, "it boots" })
	if again := h.must("a"); again != 20*time.Minute {
		t.Errorf("it is looked at after %v", again)
	}
	h.clock.Step(20 * time.Minute)
	h.must("a")
	h.want("released", h.cells.released, "uid-a unbound")
	if reason, message := h.failedAs("a"); reason != events.PendingTooLong || !strings.Contains(message, "is Booting: it boots") {
		t.Errorf("it has failed as %q: %s", reason, message)
	}
}

// A ReplicaSet makes a pod that failed again at once: else each takes a machine, and none runs.
func TestAPodFailsNotBeforeItsMachineCouldBoot(t *testing.T) {
	const boot = 30 * time.Minute // longer than the pod waits
	h := newHarness(t)
	h.put(impatient(h.clock.Now()))
	h.must("a")
	h.clock.Step(20 * time.Minute)
	waits := func(phase apiv1.Phase, want time.Duration, change func(*cells.Cell)) {
		t.Helper()
		h.cells.set("uid-a", func(c *cells.Cell) {
			c.Phase, c.Offerings = phase, []offering.Offering{{InstanceType: "nano", BootTimeout: boot}}
			change(c)
		})
		again := h.must("a")
		if reason, _ := h.failedAs("a"); reason != "" || again != want || len(h.cells.released) > 0 {
			t.Errorf("%s: it has failed as %q, or is looked at after %v, want %v", phase, reason, again, want)
		}
	}
	waits(apiv1.Launching, boot, func(*cells.Cell) {})
	waits(apiv1.Booting, boot-time.Minute, func(c *cells.Cell) {
		c.Instance = &cloud.Instance{Launched: h.clock.Now().Add(-time.Minute)}
	})
	h.clock.Step(boot - time.Minute)
	h.must("a")
	if reason, _ := h.failedAs("a"); reason != events.PendingTooLong {
		t.Errorf("when its machine could have booted it has failed as %q", reason)
	}
	h.want("released", h.cells.released, "uid-a unbound")

	// Nothing is paid for a cell that is not launched yet.
	h = newHarness(t)
	h.put(impatient(h.clock.Now()))
	h.must("a")
	h.clock.Step(20 * time.Minute)
	h.must("a")
	h.want("released", h.cells.released, "uid-a unbound")
}

func TestPodsThatMayWaitDoNotFail(t *testing.T) {
	for says, change := range map[string]func(*harness, *corev1.Pod){
		"it runs": func(h *harness, p *corev1.Pod) {
			h.cells.set(p.UID, func(c *cells.Cell) { c.Pod, c.Phase = apiv1.Ref(p), apiv1.Bound })
		},
		"it ran before":    func(_ *harness, p *corev1.Pod) { running(p) },
		"no annotation":    func(_ *harness, p *corev1.Pod) { p.Annotations = nil },
		"a bad annotation": func(_ *harness, p *corev1.Pod) { p.Annotations[placement.AnnotationMaxPending] = "20" },
		"it was just bound": func(h *harness, p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(h.clock.Now())
		},
		"it has no condition, and was just made": func(h *harness, p *corev1.Pod) {
			p.Status.Conditions, p.CreationTimestamp = nil, metav1.NewTime(h.clock.Now())
		},
	} {
		h := newHarness(t)
		h.place = outOfAll
		p := impatient(h.clock.Now().Add(-time.Hour))
		change(h, p)
		h.put(p)
		h.must("a")
		if reason, message := h.failedAs("a"); reason != "" {
			t.Errorf("%s: it has failed as %s: %s", says, reason, message)
		}
	}
}

// While it is not certain that nothing runs the pod, it waits for that.
func TestAPodThatMayRunElsewhereDoesNotFailYet(t *testing.T) {
	h := newHarness(t)
	h.cells.behind = "the store is behind"
	h.put(impatient(h.clock.Now().Add(-time.Hour)))
	if again := h.must("a"); again != behindRetry {
		t.Errorf("it is looked at after %v", again)
	}
	if reason, _ := h.failedAs("a"); reason != "" || len(h.cells.asked) > 0 {
		t.Errorf("it has failed as %q, or what may run it is ended: %v", reason, h.cells.asked)
	}
}
