package cellapi

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/daemonsets"
)

// countedClock counts the waits that somebody has asked it for.
type countedClock struct {
	*stepped
	asked atomic.Int64
}

func (c *countedClock) NewTimer(d time.Duration) clock.Timer {
	c.asked.Add(1)
	return c.stepped.NewTimer(d)
}

func (c *countedClock) After(d time.Duration) <-chan time.Time {
	c.asked.Add(1)
	return c.stepped.After(d)
}

// countedHouse is a setHouse with such a clock.
func countedHouse(t *testing.T, entry daemonsets.Entry) (*house, *countedClock, *toldEvents) {
	told := &toldEvents{}
	clk := &countedClock{stepped: steppedClock(t)}
	return newHouseAt(t, clk, func(h *house) { h.sets, h.events = daemonsets.New([]daemonsets.Entry{entry}, nil), told }), clk, told
}

func TestACellThatWaitsForCopiesHasOneTimer(t *testing.T) {
	h, clk, told := countedHouse(t, daemonsets.Entry{Namespace: "logging", MaxDelay: 10 * time.Minute})
	clk.hold(true)
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	c := newMachine(t, "c1").joinReady(h)
	h.bindNew(c, podOn("web"))
	eventually(t, "the copy is there", func() bool { return len(h.server.Copies(set.UID)) == 1 })
	waits := clk.Waiters()
	for range 20 {
		c.setsChanged()
	}
	eventually(t, "what came before has ended", func() bool { return clk.Waiters() <= waits })

	clk.hold(false)
	eventually(t, "the owner is told", func() bool { return told.about("shop/web", "WaitsForDaemonSets") == 1 })
	asked := clk.asked.Load()
	eventually(t, "the wait is over", func() bool { return told.about("shop/web", "DaemonSetNotReady") == 1 })
	if n := clk.asked.Load() - asked; n > 5 {
		t.Errorf("the clock was asked for %d waits meanwhile", n)
	}
}

func failedCopy(set *corev1.Pod, message string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"phase":"Failed","reason":"Evicted","message":%q}}`, set.UID, message)
}

func TestACopyThatHasFailedHasOneTimer(t *testing.T) {
	h, clk, _ := countedHouse(t, daemonsets.Entry{Namespace: "logging"})
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	m := newMachine(t, "c1")
	c := m.joinReady(h)
	h.bindNew(c, podOn("web"))
	eventually(t, "the copy is there", func() bool { return len(h.server.Copies(set.UID)) == 1 })
	clk.hold(true)
	patch := func(body []byte) {
		t.Helper()
		if _, err := m.kubelet(t).CoreV1().Pods("logging").Patch(t.Context(), "shipper-1", types.StrategicMergePatchType, body,
			metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	retries := func() int {
		c.boundPod.mu.Lock()
		defer c.boundPod.mu.Unlock()
		return c.copies.all[set.UID].retries
	}
	waits := clk.Waiters()
	for i := range 20 {
		patch(failedCopy(set, fmt.Sprint(i)))
	}
	if n := retries(); n != 1 {
		t.Errorf("one failure counts as %d", n)
	}
	for range 5 {
		patch(fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"phase":"Running"}}`, set.UID))
		patch(failedCopy(set, "again"))
	}
	eventually(t, "one timer is left", func() bool { return clk.Waiters() <= waits+1 })
	if n := retries(); n != 6 {
		t.Errorf("six failures count as %d", n)
	}
	clk.hold(false)
	eventually(t, "it is shown as new", func() bool {
		all := h.server.Copies(set.UID)
		return len(all) == 1 && !all[0].Reported
	})
}

func TestTheStatusesOfCopiesAreChargedAndTheLastIsKept(t *testing.T) {
	h, clk, _ := countedHouse(t, daemonsets.Entry{Namespace: "logging"})
	set := h.up.put(setPodOn("shipper", "shipper-1")).(*corev1.Pod)
	m := newMachine(t, "c1")
	c := m.joinReady(h)
	h.bindNew(c, podOn("web"))
	eventually(t, "the copy is there", func() bool { return len(h.server.Copies(set.UID)) == 1 })
	clk.hold(true)
	pods := m.kubelet(t).CoreV1().Pods("logging")
	patch := func(message string) error {
		_, err := pods.Patch(t.Context(), "shipper-1", types.StrategicMergePatchType,
			fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"phase":"Running","message":%q}}`, set.UID, message), metav1.PatchOptions{}, "status")
		return err
	}
	was, had := c.passed.TokensAt(clk.Now()), c.written.TokensAt(clk.Now())
	if err := patch(strings.Repeat("x", 1000)); err != nil {
		t.Fatal(err)
	}
	if n := was - c.passed.TokensAt(clk.Now()); n != 1 {
		t.Errorf("%v requests are charged, want 1", n)
	}
	if n := had - c.written.TokensAt(clk.Now()); n < 1000 {
		t.Errorf("%v bytes are charged, want 1000 and more", n)
	}
	// More than the cell may wait for is refused, and is not held against its own pod's status.
	c.written.ReserveN(clk.Now(), c.written.Burst())
	c.written.SetLimitAt(clk.Now(), rate.Limit(1))
	c.written.ReserveN(clk.Now(), 100)
	if _, err := doPatch(t, c, set, "too much"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("%v, want TooManyRequests", err)
	}
	if trouble := c.StatusTrouble(); trouble != "" {
		t.Errorf("the pod's own status: %s", trouble)
	}
	// What the cell may wait for is kept when it may be.
	c.written.SetLimitAt(clk.Now(), rate.Limit(1<<20))
	done := make(chan error)
	go func() { done <- patch("the last") }()
	eventually(t, "it waits", func() bool { return clk.HasWaiters() })
	clk.hold(false)
	if err := <-done; err != nil {
		t.Errorf("the last: %v", err)
	}
	if p := c.copyOf("logging", "shipper-1"); p == nil || p.Status.Message != "the last" {
		t.Errorf("the copy is %+v", p)
	}
}

// doPatch sends a status as no client that tries again does.
func doPatch(t *testing.T, c *Cell, set *corev1.Pod, message string) (string, error) {
	t.Helper()
	code, _, answer := do(t.Context(), c, "PATCH", "/api/v1/namespaces/logging/pods/"+set.Name+"/status", strategic,
		fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"phase":"Running","message":%q}}`, set.UID, message))
	if code == 200 {
		return string(answer), nil
	}
	return "", &apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(code), Reason: map[int]metav1.StatusReason{
		429: metav1.StatusReasonTooManyRequests,
	}[code]}}
}
