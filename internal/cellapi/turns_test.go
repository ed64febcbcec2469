package cellapi

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/keyed"
)

// However much some cells want of the API server, another gets its turn, no cell
// has more than its share at the same time, and all together no more than all.
func TestCellsShareTurnsFairly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		turns := keyed.NewPlaces[int](passedAtOnce, passedOfOne)
		var total, most atomic.Int64
		var running sync.WaitGroup
		const slow = 30 * time.Second
		const cells = 2 * passedAtOnce / passedOfOne
		for cell := range cells {
			var own atomic.Int64
			for range openRequests {
				running.Go(func() {
					for ctx.Err() == nil {
						done, err := turns.Take(ctx, cell)
						if err != nil {
							return
						}
						if n := own.Add(1); n > passedOfOne {
							t.Errorf("a cell has %d turns", n)
						}
						if n := total.Add(1); n > most.Load() {
							most.Store(n)
						}
						time.Sleep(slow)
						own.Add(-1)
						total.Add(-1)
						done()
						done() // counts once
					}
				})
			}
		}
		time.Sleep(10 * slow)
		began := time.Now()
		done, err := turns.Take(ctx, cells)
		if err != nil {
			t.Fatal(err)
		}
		// At most those that had come before are served before.
		if took := time.Since(began); took > 2*slow {
			t.Errorf("another cell waited %v", took)
		}
		done()
		if n := most.Load(); n != passedAtOnce {
			t.Errorf("at most %d turns were taken, want %d", n, passedAtOnce)
		}
		// Who gives up leaves nothing taken.
		short, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if _, err := turns.Take(short, cells); err == nil {
			t.Error("a turn while all are taken")
		}
		cancel()
		running.Wait()
		if own, all := turns.Taken(cells); own+all > 0 {
			t.Error("a turn was not given back")
		}
	})
}

// A cell that leaves the API server much to do has few requests there at once, and
// what others ask is passed meanwhile.
func TestRequestsThatWaitForTheAPIServerLeaveRoomForOthers(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	c1, c2 := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	h.bindNew(c1, podOn("one"))
	h.bindNew(c2, podOn("two"))
	release := make(chan struct{})
	var open atomic.Int32
	h.up.mu.Lock()
	h.up.refuse = func(r apiRequest) error {
		if r.verb == "get" && r.name == "one" {
			open.Add(1)
			<-release
		}
		return nil
	}
	h.up.mu.Unlock()
	var asked sync.WaitGroup
	for range openRequests {
		asked.Go(func() {
			if code, _, _ := get(ctx, c1, "/api/v1/namespaces/shop/pods/one"); code != http.StatusOK {
				t.Errorf("answered %d", code)
			}
		})
	}
	eventually(t, "its turns are taken", func() bool { return open.Load() == passedOfOne })
	if code, _, b := get(ctx, c2, "/api/v1/namespaces/shop/pods/two"); code != http.StatusOK {
		t.Errorf("another cell: %d (%s)", code, b)
	}
	if n := open.Load(); n != passedOfOne {
		t.Errorf("%d requests of a cell are open at the API server, want %d", n, passedOfOne)
	}
	close(release)
	asked.Wait()
}

// The time that Kip works on what a cell sends is charged to the cell, and not what
// it waits. A cell that has used up its time is refused all but its lease.
func TestTheTimeThatKipWorksForACellIsCharged(t *testing.T) {
	ctx := context.Background()
	clk := clocktesting.NewFakeClock(time.Now())
	h := newHouseAt(t, clk)
	c, other := h.server.AddCell("c1", info), h.server.AddCell("c2", info)
	rest, err := c.work(ctx)
	if err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
	defer stop()
	if _, err := c.work(short); err == nil {
		t.Error("a cell has two things worked on at the same time")
	}
	clk.Step(time.Second)
	rest()
	rest() // counts once
	if u := c.Usage(); u.Worked != time.Second {
		t.Errorf("charged %v, want a second", u.Worked)
	}
	const node = "/api/v1/nodes/" + nodeName
	patch := func(c *Cell) int {
		code, _, _ := do(ctx, c, http.MethodPatch, node+"/status", strategic, []byte(`{"status":{}}`))
		return code
	}
	eventually(t, "the node is there", func() bool { return c.Node() != nil && other.Node() != nil })
	get(ctx, c, node)
	if code := patch(c); code != http.StatusOK {
		t.Fatalf("within its time: %d", code)
	}
	for range 2 {
		c.budget.workedFor(clk.Now(), workBurst*time.Microsecond)
	}
	for path, want := range map[string]int{node: 429, "/api/v1/services": 429,
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/kip-0": 404} {
		if code, _, b := get(ctx, c, path); code != want || want == 429 && !strings.Contains(string(b), "Kip works") {
			t.Errorf("%s beyond its time: %d %s, want %d", path, code, b, want)
		}
	}
	get(ctx, other, node)
	if code := patch(other); code != http.StatusOK {
		t.Errorf("another cell: %d", code)
	}
	clk.Step(2 * time.Minute)
	if code := patch(c); code != http.StatusOK {
		t.Errorf("later: %d", code)
	}
}
