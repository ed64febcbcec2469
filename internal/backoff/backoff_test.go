package backoff

import (
	"testing"
	"time"
)

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

func TestItemsThatFailTogetherAreNotTriedTogether(t *testing.T) {
	next := 0.0
	q := Items[string](time.Second, 3*time.Second, func() float64 { next += 0.25; return next - 0.25 })
	for i, milliseconds := range []float64{750, 812.5, 1750, 2812.5} {
		want := time.Duration(milliseconds * float64(time.Millisecond))
		if got := q.When([]string{"a", "b", "a", "a"}[i]); got != want {
			t.Errorf("wait %d is %v, want %v", i, got, want)
		}
	}
	q.Forget("a")
	next = 0.5
	if got := q.When("a"); got != 875*time.Millisecond {
		t.Errorf("after a success the wait is %v, want the first", got)
	}
}
