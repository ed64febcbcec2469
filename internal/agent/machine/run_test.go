package machine

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/dhcp"
	"github.com/elotl/kip/internal/agent/userdata"
	"github.com/elotl/kip/internal/agentapi"
)

// rendezvous is of two steps that run beside each other: each goes on once the other has begun. In a chain
// the first of them waits in vain.
type rendezvous struct {
	t     *testing.T
	begun [2]chan struct{}
	once  [2]sync.Once
}

func newRendezvous(t *testing.T) *rendezvous {
	return &rendezvous{t: t, begun: [2]chan struct{}{make(chan struct{}), make(chan struct{})}}
}

// begins is called by one step, 0 or 1, and waits for the other, at the longest until ctx ends.
func (r *rendezvous) begins(ctx context.Context, one int, what string) error {
	r.once[one].Do(func() { close(r.begun[one]) })
	select {
	case <-r.begun[1-one]:
		return nil
	case <-ctx.Done():
		r.t.Errorf("what runs beside %s has not begun", what)
		return ctx.Err()
	}
}

// endless are steps that end with the machine, and of which the agent waits until each has begun.
type endless struct {
	t     *testing.T
	begun chan string
}

func (e endless) step(what string) func(context.Context) {
	return func(ctx context.Context) {
		e.begun <- what
		select {
		case <-ctx.Done():
		case <-time.After(24 * time.Hour):
			e.t.Errorf("%s is waited for", what)
		}
	}
}

// wait returns when so many have begun.
func (e endless) wait(all int) {
	var seen []string
	for range all {
		select {
		case what := <-e.begun:
			seen = append(seen, what)
		case <-time.After(time.Hour):
			e.t.Errorf("beside the agent there are only %q, want %d", seen, all)
			return
		}
	}
}

var errAgentEnded = errors.New("the agent of the test has ended")

// What does not need another step runs beside it. The time is the bubble's: a step that waits in vain costs none.
func TestStepsThatNeedNotEachOtherRunBesideEachOther(t *testing.T) {
	for _, byNetwork := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			c := console.New(&out)
			// The user data beside DHCP or, where it comes over the network, beside the time.
			besideData := newRendezvous(t)
			beside := endless{t, make(chan string, 10)}
			nothing := func() error { return nil }
			source := userdata.Source{
				Name:    "the test",
				Network: byNetwork,
				Limit:   time.Minute,
				Here:    func() (bool, error) { return true, nil },
				Fetch: func(ctx context.Context) (userdata.Data, error) {
					return userdata.Data{Document: []byte("#cloud-config\n")}, besideData.begins(ctx, 0, "the user data")
				},
				Ready: func(ctx context.Context) error { beside.step("the report to the cloud")(ctx); return nil },
			}
			m := &machine{console: c, steps: steps{
				mount:     nothing,
				firstLife: nothing,
				settle:    nothing,
				ahead:     beside.step("reading programs ahead"),
				drivers:   func() (func(context.Context), error) { return beside.step("drivers of later devices"), nil },
				power:     beside.step("the power button"),
				sources:   func() []userdata.Source { return []userdata.Source{source} },
				up: func(_ *network, ctx context.Context) error {
					if byNetwork {
						return nil
					}
					ctx, cancel := context.WithTimeout(ctx, leaseLimit)
					defer cancel()
					return besideData.begins(ctx, 1, "the network")
				},
				keep:  func(_ *network, ctx context.Context) { beside.step("the lease")(ctx) },
				keep6: func(_ *network, ctx context.Context) { beside.step("the address of IPv6")(ctx) },
				clock: func(userdata.Source, dhcp.Lease) timekeeper {
					return timekeeper{
						console: c,
						servers: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
						ask: func(ctx context.Context, _ netip.Addr) (time.Duration, error) {
							if !byNetwork {
								return time.Hour, nil
							}
							return time.Hour, besideData.begins(ctx, 1, "the clock")
						},
						set:    func(time.Time) error { return nil },
						adjust: func(*unix.Timex) error { return nil },
						now:    func() time.Time { return written },
					}
				},
				leave: func(userdata.Data, *network) error { return nil },
				life:  func() (func(context.Context), error) { return beside.step("the watch for a pod"), nil },
			}}
			err := m.run(t.Context(), func(context.Context, agentapi.Boot) error {
				beside.wait(7)
				return errAgentEnded
			})
			if !errors.Is(err, errAgentEnded) {
				t.Errorf("user data by the network: %t: the machine ends with %v, and its console has\n%s", byNetwork, err, &out)
			}
		})
	}
}
