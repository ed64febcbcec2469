package progress

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// screen is what a person sees; each write is announced.
type screen struct {
	mu      sync.Mutex
	text    strings.Builder
	written chan struct{}
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.text.Write(p)
	s.written <- struct{}{}
	return n, err
}

func TestAPhaseShowsThatItRunsAndHowItEnded(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, "starting ..... 4.0s\n"},
		{boom, "starting ..... failed after 4.0s\n"},
	} {
		clock := clocktesting.NewFakeClock(time.Unix(0, 0))
		out := &screen{written: make(chan struct{}, 10)}
		finish, result := make(chan error), make(chan error)
		go func() {
			result <- Line{Out: out, Clock: clock}.Phase("starting", func() error { return <-finish })
		}()
		<-out.written // the name; then a ticker is made
		for !clock.HasWaiters() {
			select {
			case err := <-result:
				t.Fatalf("the phase ended early: %v", err)
			default:
			}
		}
		for range 2 {
			clock.Step(dotEvery)
			<-out.written
		}
		finish <- tt.err
		if err := <-result; !errors.Is(err, tt.err) {
			t.Errorf("Phase returned %v, want %v", err, tt.err)
		}
		if got := out.text.String(); got != tt.want {
			t.Errorf("shown %q, want %q", got, tt.want)
		}
	}
}
