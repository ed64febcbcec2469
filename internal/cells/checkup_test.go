package cells

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// checks is a cloud that finds machines impaired.
type checks struct {
	*modelCloud
	mu       sync.Mutex
	impaired []string
	err      error
	asked    int
}

func (c *checks) set(err error, impaired ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.impaired = err, impaired
}

func (c *checks) Impaired(context.Context) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.impaired, c.err
}

func TestASilentCellWhoseMachineIsImpairedIsLost(t *testing.T) {
	const never, long = time.Duration(0), time.Hour
	down := errors.New("down")
	for name, tc := range map[string]struct {
		timeout time.Duration
		silent  bool
		says    func(c *checks, id string, minute int)
		lost    bool
	}{
		"impaired":             {long, true, func(c *checks, id string, _ int) { c.set(nil, "i-other", id) }, true},
		"well":                 {long, true, func(c *checks, _ string, _ int) { c.set(nil, "i-other") }, false},
		"heard":                {long, false, func(c *checks, id string, _ int) { c.set(nil, id) }, false},
		"each second minute":   {long, true, func(c *checks, id string, m int) { c.set(nil, []string{id}[:m%2]...) }, false},
		"said by one answer":   {long, true, func(c *checks, id string, m int) { c.set([]error{down, nil}[min(1, m%5/4)], id) }, false},
		"which is to be borne": {never, true, func(c *checks, id string, _ int) { c.set(nil, id) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := &checks{}
			inBubble(t, func(c *setup) {
				cloud.modelCloud = c.Cloud.(*modelCloud)
				cloud.features.Checkup = cloud
				c.Health.HealthyTimeout = tc.timeout
			}, nil, func(t *testing.T, b *bubble) {
				b.request("a", "nano")
				b.request("b", "nano")
				b.later(time.Minute)
				cell, _ := b.cells.ForPod(ref("a").UID)
				tc.says(cloud, cell.Instance.ID, 0)
				if tc.silent {
					b.links.of(cell.ID).set(false, errors.New("cut"))
				}
				for minute := range 20 {
					tc.says(cloud, cell.Instance.ID, minute)
					b.later(time.Minute)
					if minute == 1 && b.phase("a") != apiv1.Bound {
						t.Errorf("it is %q too soon", b.phase("a"))
					}
				}
				if lost := b.phase("a") != apiv1.Bound; lost != tc.lost || b.phase("b") != apiv1.Bound {
					t.Errorf("it is %q, the other one %q; said %v", b.phase("a"), b.phase("b"), b.events)
				}
				said := b.said("CellLost", "the cloud's own checks have failed for 2m0s")
				if len(said) != map[bool]int{true: 1}[tc.lost] {
					t.Errorf("said %v", b.events)
				}
				if asks := cloud.asked > 0; asks != tc.silent {
					t.Errorf("the cloud was asked %d times", cloud.asked)
				}
			})
		})
	}
}

// What the cloud sees does not come over Kip's network to the cells.
func TestACellWhoseMachineIsImpairedIsLostWhileMostAreSilent(t *testing.T) {
	cloud := &checks{}
	inBubble(t, func(c *setup) {
		cloud.modelCloud = c.Cloud.(*modelCloud)
		cloud.features.Checkup = cloud
	}, nil, func(t *testing.T, b *bubble) {
		for _, pod := range []string{"a", "b", "c", "d"} {
			b.request(pod, "nano")
		}
		b.later(time.Minute)
		impaired, _ := b.cells.ForPod(ref("a").UID)
		cloud.set(nil, impaired.Instance.ID)
		for _, cell := range b.cells.List() {
			b.links.of(cell.ID).set(false, errors.New("cut"))
		}
		b.later(5 * time.Minute)
		if lost := b.said("CellLost"); len(lost) != 1 || b.phase("a") == apiv1.Bound {
			t.Errorf("lost are %v, want that of pod a", lost)
		}
	})
}
