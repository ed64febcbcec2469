package pods

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

func TestAPodGetsOneCellHoweverOftenItIsLookedAt(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	for range 3 {
		h.must("a")
	}
	h.want("requests", h.cells.requests, "uid-a#1")
	h.want("events", h.events, "Normal CellRequested")
}

// afterTwoCells returns what has become of a pod that may have two cells in a row which do not
// become ready, when two are gone: as end says.
func afterTwoCells(t *testing.T, end func(*cells.Cell)) corev1.PodStatus {
	t.Helper()
	h := newHarness(t)
	h.restarted(func(c *Config) { c.MaxAttempts = 2 })
	h.put(pod("a"))
	for range 2 {
		h.must("a")
		cell, has := h.cells.ForPod("uid-a")
		if !has {
			t.Fatal("no cell")
		}
		cell.Phase = apiv1.Gone
		end(&cell)
		delete(h.cells.cells, "uid-a")
		h.c.CellChanged(cell)
		h.clock.Step(time.Hour)
	}
	h.must("a")
	got, err := h.client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status
}

// What the pod itself asks for is refused again and again; that there is no capacity ends.
func TestAPodThatTheCloudRefusesFailsAfterItsAttempts(t *testing.T) {
	for refusals, want := range map[int]corev1.PodPhase{0: corev1.PodPending, 2: corev1.PodFailed} {
		got := afterTwoCells(t, func(c *cells.Cell) {
			c.Cause, c.Refusals, c.Reason = cells.CauseNotLaunched, refusals, "InvalidParameterValue: words"
		})
		if told := strings.Contains(got.Message, "InvalidParameterValue: words"); got.Phase != want || told != (want == corev1.PodFailed) {
			t.Errorf("after cells with %d refusals: %+v, want %s", refusals, got, want)
		}
	}
}

// That the cloud takes instances back before they run, or gives them no disk, is no failure of the pod's.
func TestAPodWhoseInstancesTheCloudTakesBackWaitsOn(t *testing.T) {
	for cause, want := range map[cells.Cause]corev1.PodPhase{
		cells.CauseInterrupted: corev1.PodPending,
		cells.CauseUnfit:       corev1.PodPending, // the operator's fault
		cells.CauseNoDisk:      corev1.PodPending, // the cloud's, or of who has the disk
		cells.CauseLost:        corev1.PodFailed,
	} {
		got := afterTwoCells(t, func(c *cells.Cell) { c.Cause, c.Instance = cause, &cloud.Instance{ID: "i-1"} })
		if got.Phase != want {
			t.Errorf("after cells that ended as %s: %+v, want %s", cause, got, want)
		}
	}
}

func TestAPodThatFitsNothingSaysWhyOnceAndIsLookedAtAgain(t *testing.T) {
	h := newHarness(t)
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&placement.UnplaceableError{Need: "cpu 64"}, "Warning Unplaceable"},
		{errors.New("read the labels of node kip-1: no answer"), "Warning CellNotRequested"},
		{&placement.InvalidAnnotationError{}, "Warning InvalidAnnotation"},
		{&placement.NoCapacityError{}, "Warning NoCapacity"},
	} {
		name := strings.ToLower(strings.Fields(tc.want)[1])
		h.events = nil
		h.place = func(*corev1.Pod) ([]offering.Offering, error) { return nil, tc.err }
		h.put(pod(name))
		again := h.must(name)
		if again <= 0 {
			t.Errorf("%s: never looked at again", tc.want)
		}
		h.must(name) // too early
		h.clock.Step(again)
		h.must(name) // the same reason again
		h.want("events", h.events, tc.want)
		if got := h.c.Waiting(types.UID("uid-" + name)); got != tc.err.Error() {
			t.Errorf("waits for %q, want %q", got, tc.err)
		}
	}
	h.want("requests", h.cells.requests)
}

func TestAPodWhoseAnnotationIsMendedIsPlacedSoon(t *testing.T) {
	h := newHarness(t)
	looks := 0
	h.place = func(p *corev1.Pod) ([]offering.Offering, error) {
		looks++
		if p.Annotations["type"] == "bad" {
			return nil, &placement.InvalidAnnotationError{}
		}
		return []offering.Offering{{InstanceType: "nano"}}, nil
	}
	annotate := func(v string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{"type": v} }
	}
	h.put(pod("a", annotate("bad")))
	h.must("a")
	h.want("requests", h.cells.requests)
	// Whoever changes it all the time has it looked at no more often for that.
	for i := range 10 {
		h.put(pod("a", annotate("bad"), func(p *corev1.Pod) { p.Annotations["i"] = strconv.Itoa(i) }))
		h.must("a")
	}
	if looks != 1 {
		t.Errorf("looked for an instance %d times at once", looks)
	}
	h.put(pod("a", annotate("good")))
	if again := h.must("a"); again != changeSettles {
		t.Errorf("looked at again after %v, want %v", again, changeSettles)
	}
	h.clock.Step(changeSettles)
	h.must("a")
	h.want("requests", h.cells.requests, "uid-a#1")
}

func TestALostCellIsReplacedAsTheRestartPolicyAllows(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a", running))
	h.must("a")
	h.cells.gone("uid-a")
	again := h.must("a")
	if again <= 0 {
		t.Fatal("a second cell at once: no back-off")
	}
	h.clock.Step(again)
	h.must("a")
	h.want("requests", h.cells.requests, "uid-a#1", "uid-a#2")

	h = newHarness(t)
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	h.put(pod("b", never))
	h.must("b")
	h.cells.gone("uid-b")
	h.put(pod("b", never, running))
	h.clock.Step(time.Minute)
	h.must("b")
	h.want("requests", h.cells.requests, "uid-b#1")
	got, err := h.client.CoreV1().Pods("ns").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := got.Status
	if s.Phase != corev1.PodFailed || s.Reason != "CellLost" ||
		s.ContainerStatuses[0].State.Terminated == nil || s.ContainerStatuses[0].Ready {
		t.Fatalf("status %+v, want Failed with a terminated container", s)
	}
}

// The watch may lag behind what the lost cell's kubelet wrote.
func TestAPodOfALostCellRunsAgainOnlyIfTheAPIServerKnowsOfNoEnd(t *testing.T) {
	for what, now := range map[string]*corev1.Pod{
		"it has ended":      pod("a", running, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		"it is deleted":     pod("a", running, deletedAt(time.Now())),
		"it is another one": pod("a", running, func(p *corev1.Pod) { p.UID = "uid-other" }),
		"it is gone":        nil,
	} {
		h := newHarness(t)
		seen := pod("a", running)
		h.put(seen)
		var err error
		if now == nil {
			err = h.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "a")
		} else {
			err = h.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), now, "ns")
		}
		if err != nil {
			t.Fatal(err)
		}
		if again := h.must("a"); again != staleRetry || len(h.cells.requests) > 0 {
			t.Errorf("%s: requests %q, again after %s, want none and %s", what, h.cells.requests, again, staleRetry)
		}
		h.put(seen)
		h.must("a")
		h.want(what+" no longer: requests", h.cells.requests, "uid-a#1")
	}

	h := newHarness(t)
	h.put(pod("a", running))
	h.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	if _, err := h.reconcile("a"); err == nil || len(h.cells.requests) > 0 {
		t.Errorf("%v, requests %q: want an error and none", err, h.cells.requests)
	}
	h.want("events", h.events, "Warning CellNotRequested")
}
