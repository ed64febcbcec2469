package machine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/agent/console"
)

// blocked is a console that takes nothing until it is let go.
type blocked chan struct{}

func (b blocked) Write(p []byte) (int, error) { <-b; return len(p), nil }

func TestAMachineEndsWhateverItsConsoleTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(blocked)
		ctx, end := context.WithCancel(t.Context())
		off := make(chan time.Time, 1)
		boundEnd(ctx, console.New(out), func() { off <- time.Now() })
		end()
		began := time.Now()
		select {
		case at := <-off:
			if at.Sub(began) != endLimit {
				t.Errorf("the power goes off after %v, want %v", at.Sub(began), endLimit)
			}
		case <-time.After(time.Hour):
			t.Error("the power stays on while the console takes nothing")
		}
		close(out)
	})
}
