package cells

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// keepFor is for how long the cells of the tests' failed pods stay.
const keepFor = 10 * time.Minute

// keptOfOne is how many of them a namespace has at a time.
const keptOfOne = 2

// failed has a pod that runs fail, and be released.
func (b *bubble) failed(pod string) {
	b.later(10 * time.Second)
	b.cells.ReleaseFailed(ref(pod).UID, "the pod has Failed", keepFor, keptOfOne)
	b.later(5 * time.Second)
}

func TestTheCellOfAFailedPodStaysForItsTimeAlsoOverRestarts(t *testing.T) {
	for name, restart := range map[string]time.Duration{
		"": 0, "Kip starts again": time.Second, "Kip starts again when the time is over": keepFor,
	} {
		t.Run(name, func(t *testing.T) {
			saved := 0
			inBubble(t, func(c *setup) {
				c.Logs = saves(func(context.Context, Cell, agentapi.Conn) error { saved++; return nil })
			}, nil, func(t *testing.T, b *bubble) {
				b.request("a", "nano")
				b.failed("a")
				cell, _ := b.cells.ForPod(ref("a").UID)
				if saved != 1 || cell.Phase != apiv1.Draining || len(b.said("CellKept", cell.ID)) != 1 {
					t.Fatalf("saved %d times, the cell is %s, said %q", saved, cell.Phase, b.said("CellKept"))
				}
				if why := b.cells.WaitsFor(cell.ID); !strings.Contains(why, cell.KeepUntil.UTC().Format(time.RFC3339)) {
					t.Errorf("it waits for %q", why)
				}
				b.cells.ReleaseFailed(ref("a").UID, "again", time.Hour, keptOfOne)
				b.cells.Release(ref("a").UID, "the pod was deleted", false)
				if restart > 0 {
					b.stop()
					time.Sleep(restart)
					b.run()
					b.later(time.Second)
				}
				if left := time.Until(cell.KeepUntil); left > 0 {
					b.later(left - time.Second)
					_, err := b.cells.Conn(ref("a").UID)
					if link := b.links.of(cell.ID); len(b.cloud.running()) != 1 || err != nil || !link.kept {
						t.Errorf("before the time is over, instances are %v, its agent %v, its pod is kept %t", b.cloud.running(), err, link.kept)
					}
				}
				b.later(15 * time.Second)
				if left := b.cloud.running(); b.phase("a") != "" || len(left) != 0 || saved != 1 {
					t.Errorf("when the time is over the cell is %q, instances %v, and logs were saved %d times", b.phase("a"), left, saved)
				}
			})
		})
	}
}

func TestAKeptCellEndsBeforeItsTime(t *testing.T) {
	for name, end := range map[string]func(b *bubble){
		"its pod does not ask for it any more": func(b *bubble) { b.cells.Release(ref("a").UID, "", true) },
		"after a restart, too": func(b *bubble) {
			b.stop()
			b.run()
			b.later(time.Second)
			b.cells.Release(ref("a").UID, "", true)
		},
		"Kip is cleaned up":    func(b *bubble) { b.cells.EmptyPools() },
		"its instance is gone": func(b *bubble) { b.vanish("a") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
				b.request("a", "nano")
				b.failed("a")
				end(b)
				b.later(keepFor / 5)
				if left := b.cloud.running(); b.phase("a") != "" || len(left) != 0 {
					t.Errorf("the cell is %q, instances %v", b.phase("a"), left)
				}
			})
		})
	}
}

func TestAKeptCellThatIsSilentStaysAsLongAsItsInstanceRuns(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.failed("a")
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.links.of(cell.ID).set(false, errors.New("no route to host"))
		b.later(keepFor / 2)
		if b.phase("a") != apiv1.Draining {
			t.Errorf("the cell is %q", b.phase("a"))
		}
		b.later(keepFor)
		if b.phase("a") != "" {
			t.Errorf("when its time is over the cell is %q", b.phase("a"))
		}
	})
}

func TestTheVolumesOfAKeptCellAreFreeAtOnceOrItIsNotKept(t *testing.T) {
	for name, busy := range map[string]bool{"free": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
				if err := b.requestDisk("a", "d"); err != nil {
					t.Fatal(err)
				}
				b.later(10 * time.Second)
				d.mu.Lock()
				d.busy = busy
				d.mu.Unlock()
				b.failed("a")
				b.later(2 * drainTimeout)
				if phase, said := b.phase("a"), len(b.said("CellNotKept", errNotFreed.Error())); busy && (phase != "" || said != 1) ||
					!busy && (phase != apiv1.Draining || said != 0) {
					t.Errorf("the cell is %q, said %d times that it is not kept; done %q", phase, said, d.done())
				}
				if busy {
					return
				}
				if err := b.requestDisk("b", "d"); err != nil {
					t.Fatal(err)
				}
				b.later(10 * time.Second)
				if b.phase("b") != apiv1.Bound || b.phase("a") != apiv1.Draining {
					t.Errorf("the next cell with the disk is %q, the kept one %q", b.phase("b"), b.phase("a"))
				}
			})
		})
	}
}

// Else the pod's successor waits for as long as the cell stays.
func TestTheNetworksOfAKeptCellCanBeRoutedElsewhereAtOnce(t *testing.T) {
	withRoutes(t, func(t *testing.T, b *bubble, r *modelRouter) {
		b.requestRoute("a")
		b.later(10 * time.Second)
		r.set(func() { r.fail = errors.New("the API is away") })
		b.failed("a")
		if said := b.said("CellKept"); len(said) > 0 {
			t.Errorf("its routes are there yet: %q", said)
		}
		r.set(func() { r.fail = nil })
		b.later(time.Minute)
		b.requestRoute("b")
		b.later(time.Minute)
		if b.phase("a") != apiv1.Draining || len(b.said("CellKept")) != 1 || b.phase("b") != apiv1.Bound || r.leadsTo() == "" {
			t.Errorf("the kept cell is %q, the next one %q; the network leads to %q; done %q", b.phase("a"), b.phase("b"), r.leadsTo(), r.done())
		}
	})
}

// No quota counts failed pods, so a loop of them would keep any number of machines.
func TestANamespaceKeepsSoManyCellsAndNoMore(t *testing.T) {
	for name, restart := range map[string]bool{"": false, "Kip starts again": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
				again := func() {
					if restart {
						b.stop()
						b.run()
						b.later(time.Second)
					}
				}
				for _, pod := range []string{"a", "b", "c"} {
					b.request(pod, "nano")
				}
				b.later(10 * time.Second)
				for _, pod := range []string{"a", "b", "c"} { // c before anything is stored of the others
					b.cells.ReleaseFailed(ref(pod).UID, "the pod has Failed", keepFor, keptOfOne)
				}
				b.later(15 * time.Second)
				again()
				if said := b.said("CellNotKept", "maxKeptCells"); b.phase("a") != apiv1.Draining || b.phase("b") != apiv1.Draining ||
					b.phase("c") != "" || len(said) != 1 {
					t.Fatalf("they are %q, %q and %q; said %q", b.phase("a"), b.phase("b"), b.phase("c"), said)
				}
				b.request("d", "nano")
				b.failed("d")
				b.later(15 * time.Second)
				if b.phase("d") != "" {
					t.Errorf("a further one is %q", b.phase("d"))
				}
				b.cells.Release(ref("a").UID, "", true) // nobody wants it any more
				b.request("e", "nano")
				b.failed("e")
				b.later(15 * time.Second)
				if b.phase("e") != apiv1.Draining {
					t.Errorf("where there is room again, the next one is %q", b.phase("e"))
				}
			})
		})
	}
}

// What a namespace may spend counts the cells that are kept.
func TestAKeptCellCountsAgainstTheBudget(t *testing.T) {
	inBubble(t, func(c *setup) { c.Budgets = []Budget{{Namespace: "*", PerHour: 1.5}} }, nil, func(t *testing.T, b *bubble) {
		b.request("a", "nano")
		b.failed("a")
		var over *BudgetError
		if _, err := b.cells.Request(b.Context(), nano("b")); !errors.As(err, &over) {
			t.Errorf("a second cell of a dollar: %v", err)
		}
		b.later(keepFor + 15*time.Second)
		if _, err := b.cells.Request(b.Context(), nano("b")); err != nil {
			t.Errorf("when the time is over: %v", err)
		}
	})
}
