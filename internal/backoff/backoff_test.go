package backoff

import (
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
)

var _ workqueue.TypedRateLimiter[string] = (*PerItem[string])(nil)

func TestJitterIsUpToAQuarter(t *testing.T) {
	for random, want := range map[float64]time.Duration{0: 750 * time.Millisecond, 0.5: 875 * time.Millisecond, 1: time.Second} {
		if got := Random(func() float64 { return random }).Jittered(time.Second); got != want {
			t.Errorf("with %v it is %v, want %v", random, got, want)
		}
	}
	seen := map[time.Duration]bool{}
	for range 100 {
		d := Random(nil).Jittered(time.Second)
		if seen[d] = true; d < 750*time.Millisecond || d > time.Second {
			t.Errorf("by chance it is %v", d)
		}
	}
	if len(seen) < 2 {
		t.Error("by chance it is always the same")
	}
}

func TestWaitsDoubleUpToTheLongest(t *testing.T) {
	const longest = 12 * time.Second
	most := Random(func() float64 { return 1 })
	for failures, want := range map[int]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: longest, 64: longest, 1 << 40: longest,
	} {
		if got := most.After(failures, time.Second, longest); got != want {
			t.Errorf("after %d failures it is %v, want %v", failures, got, want)
		}
	}
	if got := Random(func() float64 { return 0 }).After(2, time.Second, longest); got != 1500*time.Millisecond {
		t.Errorf("with the most jitter it is %v", got)
	}
}

func TestItemsThatFailTogetherAreNotTriedTogether(t *testing.T) {
	next := 0.0
	q := Items[string](time.Second, 3*time.Second, func() float64 { next += 0.25; return next - 0.25 })
	for i, milliseconds := range []float64{750, 812.5, 1750, 2812.5} {
		want := time.Duration(milliseconds * float64(time.Millisecond))
		if got := q.When([]string{"a", "b", "a", "a"}[i]); got != want {
			t.Errorf("wait %d is %v, want %v", i, got, want)
		}
	}
	if a, b := q.NumRequeues("a"), q.NumRequeues("b"); a != 3 || b != 1 {
		t.Errorf("counted %d and %d failures, want 3 and 1", a, b)
	}
	q.Forget("a")
	next = 0.5
	if got := q.When("a"); got != 875*time.Millisecond {
		t.Errorf("after a success the wait is %v, want the first", got)
	}
}
