package pipe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"k8s.io/utils/clock"
)

// told is a cloud that does what a test says, and writes down what it was asked.
type told struct {
	cloud.Cloud
	cloud.Disks
	capabilities cloud.Capabilities
	// answers says what a call is answered with; nil for no error.
	answers func(ctx context.Context, kind cloud.Call, id string) error
	// whole says what a call is refused with as a whole; nil for nothing.
	whole func(ids []string) error

	mu    sync.Mutex
	began time.Time
	calls []string
}

func (c *told) Capabilities() cloud.Capabilities { return c.capabilities }
func (c *told) Optional() cloud.Optional         { return cloud.Optional{Disks: c, Stopper: c} }

func (c *told) each(ctx context.Context, kind cloud.Call, ids ...string) cloud.Results {
	c.mu.Lock()
	c.calls = append(c.calls, fmt.Sprintf("%v %s %s", time.Since(c.began), kind, strings.Join(ids, ",")))
	c.mu.Unlock()
	if c.whole != nil {
		if err := c.whole(ids); err != nil {
			return cloud.Each(err, ids...)
		}
	}
	results := cloud.Each(nil, ids...)
	for n, id := range ids {
		if c.answers != nil {
			results[n].Err = c.answers(ctx, kind, id)
		}
	}
	return results
}

func (c *told) Terminate(ctx context.Context, ids ...string) cloud.Results {
	return c.each(ctx, cloud.CallTerminate, ids...)
}

func (c *told) Stop(ctx context.Context, ids ...string) cloud.Results {
	return c.each(ctx, cloud.CallStop, ids...)
}

func (c *told) Start(ctx context.Context, ids ...string) cloud.Results {
	return c.each(ctx, cloud.CallStart, ids...)
}

func (c *told) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	if err := c.each(ctx, cloud.CallDescribe, ids...).Err(); err != nil {
		return nil, err
	}
	instances := make([]cloud.Instance, len(ids))
	for n, id := range ids {
		instances[n] = cloud.Instance{ID: id, State: cloud.Running}
	}
	return instances, nil
}

func (c *told) List(ctx context.Context, owner string) (cloud.Listing, error) {
	return cloud.Listing{}, c.each(ctx, cloud.CallList, owner).Err()
}

func (c *told) AttachDisk(ctx context.Context, id, _ string) error {
	return c.each(ctx, cloud.CallAttachDisk, id).Err()
}

func (c *told) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	return cloud.NotLaunched(len(r.Machines), c.each(ctx, cloud.CallLaunch, fmt.Sprint(len(r.Machines))).Err())
}

// sent are the calls, each after the time since the beginning, in their order.
func (c *told) sent() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func one() float64 { return 1 } // no jitter

// with runs f in virtual time.
func with(t *testing.T, capabilities cloud.Capabilities, f func(t *testing.T, c *Pipe, told *told)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cl := &told{capabilities: capabilities, began: time.Now()}
		f(t, New(Config{Cloud: cl, Random: one, Clock: clock.RealClock{}}), cl)
	})
}

func budget(kind cloud.Call, capacity, refill float64) cloud.Capabilities {
	return cloud.Capabilities{Budgets: map[cloud.Call]cloud.Budget{kind: {Requests: cloud.Bucket{Capacity: capacity, Refill: refill}}}}
}

// throttledNow is a cloud's answer to a call that did nothing.
func throttledNow(after time.Duration) error {
	return &cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: after, NothingDone: true}
}

func TestAnAnswerThatDoesNotFitIsAnErrorOfAll(t *testing.T) {
	p := New(Config{Cloud: &told{}, Clock: clock.RealClock{}})
	call := Call{Kind: cloud.CallDeleteOwned, IDs: []string{"a", "b"}}
	all := p.Do(t.Context(), call, func(context.Context, Call) []Answer { return []Answer{{}} })
	if len(all) != 2 || all[0].Err == nil || all[1].Err == nil {
		t.Errorf("answered %+v", all)
	}
}
