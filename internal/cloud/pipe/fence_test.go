package pipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"k8s.io/utils/clock"
)

var (
	errDeposed = errors.New("deposed")
	errSent    = errors.New("sent")
)

// wire is a meter behind which no cloud is: it answers errSent to all.
type wire struct{ waits }

func (*wire) Intercept(_ context.Context, call Call, _ Send) []Answer { return call.Fail(errSent) }

func TestNothingEndsUnlessThisKipSurelyLeads(t *testing.T) {
	for leads, want := range map[error][]cloud.Call{
		nil: nil,
		errDeposed: {
			cloud.CallAdmit, cloud.CallAttachDisk, cloud.CallDeleteDisk, cloud.CallDeleteOwned, cloud.CallDetachDisk,
			cloud.CallRoute, cloud.CallStop, cloud.CallTerminate, cloud.CallUnroute,
		},
	} {
		var fenced []cloud.Call
		p := New(Config{Cloud: hangs{}, Leads: func(context.Context) error { return leads }, Meter: &wire{}, Clock: clock.RealClock{}})
		for kind, call := range everyCall(p) {
			switch err := call(t.Context()); {
			case errors.Is(err, errDeposed):
				fenced = append(fenced, kind)
			case !errors.Is(err, errSent):
				t.Errorf("%s ended with %v", kind, err)
			}
		}
		if slices.Sort(fenced); !slices.Equal(fenced, want) {
			t.Errorf("a Kip that leads with %v cannot %v, want %v", leads, fenced, want)
		}
	}
}

// noted is a meter that notes each call that is sent.
type noted struct {
	waits
	note func(string)
}

func (m *noted) Intercept(ctx context.Context, call Call, next Send) []Answer {
	m.note("meter")
	return next(ctx, call)
}

func TestTheGuardIsAskedBeforeEveryWaitAndTheFenceAfterEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := &told{began: time.Now()}
		var order []string
		note := func(what string) { order = append(order, fmt.Sprint(time.Since(cl.began), " ", what)) }
		cl.answers = func(context.Context, cloud.Call, string) error {
			note("cloud")
			if time.Since(cl.began) < 3*time.Second {
				return throttledNow(0)
			}
			return nil
		}
		p := New(Config{
			Cloud: cl, Random: one, Clock: clock.RealClock{}, Meter: &noted{note: note},
			Guard: func(ctx context.Context, call Call, next Send) []Answer {
				note("guard")
				return next(ctx, call)
			},
			Leads: func(context.Context) error {
				note("fence")
				return nil
			},
		})
		if err := p.Terminate(t.Context(), "a").Err(); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"0s guard", "0s fence", "0s meter", "0s cloud", "1s fence", "1s meter", "1s cloud", "3s fence", "3s meter", "3s cloud",
		}
		if !slices.Equal(order, want) {
			t.Errorf("went %q, want %q", order, want)
		}
	})
}
