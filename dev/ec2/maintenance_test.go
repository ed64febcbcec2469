package ec2

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud/sim"
)

// An effect of another call takes the model's lock while the machines are locked. Whoever asks for the machines under that lock waits for
// the effect, and the effect waits for it.
func TestInstanceStatusIsReadUnderNoLockThatEffectsTake(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	errStuck := errors.New("an effect does not get the model's lock")
	effect := func() error {
		time.Sleep(2 * time.Millisecond) // in which the other calls come as far as they can
		for tries := 0; !c.model.base.mu.TryLock(); tries++ {
			if tries == 2000 {
				return errStuck
			}
			time.Sleep(time.Millisecond)
		}
		c.model.base.mu.Unlock()
		return nil
	}
	var describing sync.WaitGroup
	for range 8 { // so that one of them waits for the machines when an effect has them
		describing.Go(func() {
			for range 20 {
				call := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(encode("DescribeInstanceStatus")))
				call.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				answer := httptest.NewRecorder()
				if c.model.ServeHTTP(answer, call); answer.Code != http.StatusOK {
					t.Errorf("%d %s", answer.Code, answer.Body)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		describing.Wait()
		close(ended)
	}()
	for over := false; !over; {
		if err := c.model.Machines().Take(t.Context(), sim.Call{Kind: sim.KindDescribe}, effect); err != nil {
			t.Error(err)
			over = true
		}
		select {
		case <-ended:
			over = true
		default:
		}
	}
	<-ended
}
