package stall

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// stopped is time itself, but for its tickers, which fire only while nobody holds
// them, as those of a process that is stopped.
type stopped struct {
	clock.RealClock
	hold chan struct{} // taken while this process is stopped
}

func (c stopped) NewTicker(d time.Duration) clock.Ticker {
	t := &heldTicker{c: make(chan time.Time, 1), ticker: time.NewTicker(d), done: make(chan struct{})}
	go func() {
		for {
			select {
			case <-t.ticker.C:
			case <-t.done:
				return
			}
			c.hold <- struct{}{}
			<-c.hold
			select {
			case t.c <- time.Now():
			default:
			}
		}
	}()
	return t
}

type heldTicker struct {
	c      chan time.Time
	ticker *time.Ticker
	done   chan struct{}
}

func (t *heldTicker) C() <-chan time.Time { return t.c }
func (t *heldTicker) Stop()               { t.ticker.Stop(); close(t.done) }

// measured runs f in virtual time with a meter whose process can be stopped.
func measured(t *testing.T, f func(t *testing.T, m *Meter, stop func(time.Duration))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := stopped{hold: make(chan struct{}, 1)}
		m := New(c)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()
		f(t, m, func(d time.Duration) {
			c.hold <- struct{}{}
			time.Sleep(d)
			<-c.hold
			synctest.Wait()
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestAProcessThatIsOnTimeIsNeverLate(t *testing.T) {
	measured(t, func(t *testing.T, m *Meter, stop func(time.Duration)) {
		born := time.Now()
		for range 100 {
			time.Sleep(1700 * time.Millisecond)
			stop(Tolerance / 2)
			if got := m.OnTime(); !got.Equal(born) || m.IsLate() || m.Since(born) != 0 {
				t.Fatalf("on time since %s, late %v, for %s; want never late", got.Sub(born), m.IsLate(), m.Since(born))
			}
		}
	})
}

func TestAProcessThatWasStoppedIsLateUntilItGoesOn(t *testing.T) {
	measured(t, func(t *testing.T, m *Meter, stop func(time.Duration)) {
		born := time.Now()
		time.Sleep(time.Minute)
		stop(time.Minute)
		end := time.Now()
		if got := m.OnTime(); !got.Equal(end) || !m.IsLate() {
			t.Fatalf("on time since %s after birth, late %v, want since %s", got.Sub(born), m.IsLate(), end.Sub(born))
		}
		time.Sleep(10 * time.Second)
		if got := m.OnTime(); !got.Equal(end) || m.IsLate() {
			t.Fatalf("10 s later on time since %s after birth, late %v, want since %s", got.Sub(born), m.IsLate(), end.Sub(born))
		}
		for from, want := range map[time.Time]time.Duration{
			born:                        59 * time.Second, // the ticker had a second left
			born.Add(-time.Hour):        time.Hour + 59*time.Second,
			end.Add(-10 * time.Second):  10 * time.Second,
			end:                         0,
			end.Add(5 * time.Second):    0,
			time.Now().Add(time.Minute): 0,
		} {
			if got := m.Since(from); got < want-Period || got > want+Period {
				t.Errorf("late for %s since %s after birth, want %s", got, from.Sub(born), want)
			}
		}
	})
}

// A timer of somebody else may fire before the meter's own ticker.
func TestLatenessIsSeenBeforeTheTickerHasFired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(clock.RealClock{}) // does not run
		time.Sleep(30 * time.Second)
		if got := m.OnTime(); !got.Equal(time.Now()) || !m.IsLate() {
			t.Errorf("on time since %s ago, late %v, want late now", time.Since(got), m.IsLate())
		}
		if got := m.Since(time.Now().Add(-10 * time.Second)); got != 10*time.Second {
			t.Errorf("late for %s of the last 10 s", got)
		}
	})
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	measured(t, func(t *testing.T, m *Meter, stop func(time.Duration)) {
		for range 3 * maxSpans {
			time.Sleep(5 * time.Second)
			stop(5 * time.Second)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.spans) != maxSpans {
			t.Errorf("%d spans are remembered, want %d", len(m.spans), maxSpans)
		}
	})
}

func TestOneTimeOfOverloadIsOneSpan(t *testing.T) {
	measured(t, func(t *testing.T, m *Meter, stop func(time.Duration)) {
		time.Sleep(10 * time.Second)
		from := time.Now()
		for range 30 {
			stop(3 * time.Second)
		}
		if got := m.Since(from); got < 87*time.Second {
			t.Errorf("late for %s of 90 s, in which each look was late", got)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.spans) != 1 {
			t.Errorf("%d spans, want 1", len(m.spans))
		}
	})
}

func TestANilMeterIsNeverLate(t *testing.T) {
	var m *Meter
	if !m.OnTime().IsZero() || m.IsLate() || m.Since(time.Time{}) != 0 {
		t.Error("a nil meter is late")
	}
}
