package cells

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

// modelRouter is the route table of a model cloud. It writes down what is done.
type modelRouter struct {
	cloud *modelCloud

	mu   sync.Mutex
	to   string // the instance that the network is led to
	did  []string
	fail error
}

var behindPod = netip.MustParsePrefix("10.20.0.0/16")

func (r *modelRouter) Route(_ context.Context, instance string, to []netip.Prefix) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.fail != nil:
		return r.fail
	case !slices.Equal(to, []netip.Prefix{behindPod}):
		return fmt.Errorf("asked to lead %v", to)
	case r.to != "" && r.to != instance:
		return &cloud.RouteTakenError{To: to[0], Table: "main", Target: r.to}
	case !slices.Contains(r.cloud.running(), instance):
		return cloud.ErrNotFound
	}
	r.to = instance
	r.did = append(r.did, "route "+instance)
	return nil
}

func (r *modelRouter) Unroute(_ context.Context, instance string, to []netip.Prefix) error {
	lives := slices.Contains(r.cloud.running(), instance)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	if r.to == instance && (to == nil || slices.Equal(to, []netip.Prefix{behindPod})) {
		r.to = ""
	}
	r.did = append(r.did, fmt.Sprintf("unroute %s, which lives: %v", instance, lives))
	return nil
}

func (r *modelRouter) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *modelRouter) done() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.did)
}

func (r *modelRouter) leadsTo() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to
}

func withRoutes(t *testing.T, f func(t *testing.T, b *bubble, r *modelRouter)) {
	t.Helper()
	r := &modelRouter{}
	inBubble(t, func(c *setup) {
		r.cloud = c.Cloud.(*modelCloud)
		r.cloud.optional.Router = r
		c.APIs.(*modelLinks).binds = func(string) { r.set(func() { r.did = append(r.did, "shown") }) }
	}, nil, func(t *testing.T, b *bubble) { f(t, b, r) })
}

func (b *bubble) requestRoute(pod string) Cell {
	return b.ask(pod, Options{CloudRoutes: []netip.Prefix{behindPod}}, "nano")
}

func TestNetworksAreLedToACellBeforeItsPodAndNoLongerAfterIt(t *testing.T) {
	for name, restart := range map[string]bool{"": false, "with a restart in between": true} {
		t.Run(name, func(t *testing.T) {
			withRoutes(t, func(t *testing.T, b *bubble, r *modelRouter) {
				b.cloud.set(func() { b.cloud.linger = true })
				b.requestRoute("a")
				b.later(10 * time.Second)
				if got := b.phase("a"); got != apiv1.Bound {
					t.Fatalf("the cell is %s; it was said %q", got, b.said())
				}
				if restart {
					b.stop()
					b.run()
					b.later(10 * time.Second)
				}
				b.cells.Release(ref("a").UID, "done", false)
				b.later(10 * time.Second)
				want := []string{"route i-0", "shown", "unroute i-0, which lives: true"}
				if restart {
					want = slices.Insert(want, 2, "shown")
				}
				if got := r.done(); !slices.Equal(got, want) || r.leadsTo() != "" {
					t.Errorf("while it ends: %q, want %q; it leads to %q", got, want, r.leadsTo())
				}
				b.cloud.set(func() { b.cloud.linger = false; clear(b.cloud.instances) })
				b.later(time.Minute)
				// A call that was given up may have made the route meanwhile.
				if got := r.done(); !slices.Equal(got, append(want, "unroute i-0, which lives: false")) {
					t.Errorf("done %q", got)
				}
				if _, has := b.cells.ForPod(ref("a").UID); has {
					t.Error("the cell is there still")
				}
			})
		})
	}
}

// The record of a cell is what knows of its routes: it stays as long as they may.
func TestACellIsNotGoneBeforeItsRoutes(t *testing.T) {
	withRoutes(t, func(t *testing.T, b *bubble, r *modelRouter) {
		b.requestRoute("a")
		b.later(10 * time.Second)
		r.set(func() { r.fail = errors.New("the API is away") })
		b.vanish("a")
		b.later(10 * time.Minute)
		if cells := b.cells.List(); len(cells) != 1 || cells[0].Phase != apiv1.Terminating {
			t.Fatalf("%+v", cells)
		}
		b.stop()
		b.run()
		r.set(func() { r.fail = nil })
		b.later(10 * time.Minute)
		if cells := b.cells.List(); len(cells) != 0 || r.leadsTo() != "" {
			t.Errorf("%d cells, and the network leads to %q", len(cells), r.leadsTo())
		}
	})
}

func TestANetworkThatLeadsElsewhereIsWaitedFor(t *testing.T) {
	withRoutes(t, func(t *testing.T, b *bubble, r *modelRouter) {
		r.set(func() { r.to = "igw-1" })
		b.requestRoute("a")
		b.later(30 * time.Second)
		if got := b.phase("a"); got != apiv1.Ready {
			t.Errorf("the cell is %s: want Ready", got)
		}
		cell, _ := b.cells.ForPod(ref("a").UID)
		if waits := b.cells.WaitsFor(cell.ID); !strings.Contains(waits, "10.20.0.0/16 leads to igw-1 in route table main") {
			t.Errorf("it waits for %q", waits)
		}
		if said := b.said("Warning RouteFailed", "igw-1"); len(said) != 1 {
			t.Errorf("it was said %q", said)
		}
		// Nobody else may have the machine meanwhile, and it is paid for.
		b.later(heldTimeout)
		if got, has := b.cells.ForPod(ref("a").UID); has && got.Live() {
			t.Errorf("the cell is %s after %s", got.Phase, heldTimeout)
		}
		if r.leadsTo() != "igw-1" {
			t.Error("another's route is gone")
		}
	})
}

// An instance without a cell has no record of what leads to it.
func TestNothingLeadsToAStray(t *testing.T) {
	withRoutes(t, func(t *testing.T, b *bubble, r *modelRouter) {
		b.bound(1)
		b.cloud.set(func() {
			for _, i := range b.cloud.instances {
				i.ID, i.Tags = "i-stray", maps.Clone(i.Tags)
				i.Tags[cloud.TagCell] = "cell-stray"
				b.cloud.instances["i-stray"] = i
				break
			}
		})
		r.set(func() { r.to = "i-stray" })
		b.later(10 * time.Minute)
		if left := b.cloud.running(); len(left) != 1 || r.leadsTo() != "" {
			t.Errorf("%v run, and the network leads to %q", left, r.leadsTo())
		}
	})
}

// The pod of the next cell waits for the last one's routes, and no longer.
func TestTheNextCellHasTheNetworkOnceTheLastOneEnds(t *testing.T) {
	withRoutes(t, func(t *testing.T, b *bubble, r *modelRouter) {
		b.cloud.set(func() { b.cloud.linger = true })
		b.requestRoute("a")
		b.later(10 * time.Second)
		b.requestRoute("b")
		b.later(20 * time.Second)
		if got := b.phase("b"); got != apiv1.Ready {
			t.Errorf("the second cell is %s: want Ready", got)
		}
		b.cells.Release(ref("a").UID, "done", false)
		b.later(20 * time.Second)
		if got := b.phase("b"); got != apiv1.Bound || r.leadsTo() != "i-1" {
			t.Errorf("the second cell is %s, and the network leads to %q", got, r.leadsTo())
		}
	})
}
