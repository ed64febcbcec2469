package cells

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
	"k8s.io/apimachinery/pkg/types"
)

func TestARestartAtEachPhaseNeitherLosesNorDoubles(t *testing.T) {
	phases := []apiv1.Phase{
		apiv1.Requested, apiv1.Launching, apiv1.Booting, apiv1.Ready, apiv1.Bound, apiv1.Draining, apiv1.Terminating,
	}
	for _, phase := range phases {
		t.Run(string(phase), func(t *testing.T) {
			// The first Kip stores nothing more once it has stored the phase; what
			// it does then, nobody learns.
			var dead atomic.Bool
			hook := func(_, key string) error {
				if dead.Load() && strings.Contains(key, keyPrefix) {
					return errors.New("this Kip is dead")
				}
				return nil
			}
			var once sync.Once
			dies := onChange{told: func(cell Cell) {
				if cell.Phase == phase {
					once.Do(func() { dead.Store(true) })
				}
			}}
			inBubble(t, nil, hook, func(t *testing.T, b *bubble) {
				b.request("a", "nano")
				b.later(10 * time.Second)
				ends := order(phase) > order(apiv1.Bound)
				if ends {
					b.cloud.linger = true
					b.cells.Release(ref("a").UID, "done", true)
					b.later(10 * time.Second)
				}
				if got := b.phase("a"); got != phase || !dead.Load() {
					t.Fatalf("the cell is %q", got)
				}
				b.stop()
				dead.Store(false)
				b.cloud.linger = false
				began := time.Now()
				b.run()
				b.later(10 * time.Second)
				if look := b.cells.core.inventory.last(); look.began.Before(began) {
					t.Fatal("the second Kip has not looked at the cloud")
				}
				if !ends {
					cell, _ := b.cells.ForPod(ref("a").UID)
					if cell.Phase != apiv1.Bound || !slices.Equal(b.cloud.running(), []string{cell.Instance.ID}) {
						t.Fatalf("the cell is %+v, instances %v", cell, b.cloud.running())
					}
					if got := b.links.of(cell.ID).bound; !slices.Equal(got, []types.UID{ref("a").UID}) {
						t.Errorf("it shows %v", got)
					}
					b.cells.Release(ref("a").UID, "done", true)
					b.later(10 * time.Second)
				}
				if got := b.phase("a"); got != "" || len(b.cloud.running()) != 0 {
					t.Errorf("the cell is %q, instances %v are left", got, b.cloud.running())
				}
				if n := len(b.cloud.byToken); n != 1 {
					t.Errorf("%d instances were launched, by the calls %v", n, b.cloud.launches)
				}
			}, dies)
		})
	}
}

func TestOfTwoStoredCellsOfOnePodTheOneThatGotFurtherIsIts(t *testing.T) {
	b := newBench(t)
	put := func(key string, v any) {
		t.Helper()
		if _, err := b.records.store.Put(t.Context(), key, v, 0); err != nil {
			t.Fatal(err)
		}
	}
	instance := &cloud.Instance{ID: "i"}
	put(keyPrefix+"1", Cell{ID: "1", Pod: ref("a"), Phase: apiv1.Requested})
	put(keyPrefix+"2", Cell{ID: "2", Pod: ref("a"), Phase: apiv1.Bound, Instance: instance})
	put(keyPrefix+"3", Cell{ID: "3", Pod: ref("b"), Phase: apiv1.Terminating, Instance: &cloud.Instance{ID: "j"}})
	put(keyPrefix+"4", Cell{ID: "4", Phase: apiv1.Launching, Launch: &Launch{ID: "l"}})
	put(launchesPrefix+"l", storedCall{})
	put(launchesPrefix+"of-nobody", storedCall{})
	decided := guard.New(guard.Config{Clock: b.clock, Behind: func() string { return "why" }})
	parts := &loading{clock: b.clock, listening: &listening{}, parts: []loader{
		&births{clock: b.clock, store: b.records.store, inventory: b.inventory},
		&storedCells{table: b.table, loop: b.loop, store: b.records.store, guard: decided, ends: b.ends},
		&orphanCalls{table: b.table, store: b.records.store},
	}}
	if err := parts.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, second := b.table.find("1"), b.table.find("2")
	if b.table.ofPod(ref("a").UID) != second || first.ending == "" || second.ending != "" || first.pod.UID != "" {
		t.Errorf("the first ends for %q, the second for %q", first.ending, second.ending)
	}
	if b.table.havingInstance("i") != second || !second.loaded || len(b.woken()) != 4 {
		t.Error("its instance is not found, or not all cells are woken")
	}
	// The guard knows of what an earlier process has decided.
	end := guard.End{Instance: "j", Ground: guard.Unrequested}
	if decided.Admit(t.Context(), end, 0) != nil || !b.inventory.born.Equal(b.clock.Now()) {
		t.Error("an end that was decided is held back, or the store is not new")
	}
	for key, want := range map[string]bool{"l": true, "of-nobody": false} {
		if revision, err := b.records.store.Get(t.Context(), launchesPrefix+key, new(storedCall)); (revision != 0) != want || err != nil {
			t.Errorf("the call %s is stored %t (%v)", key, revision != 0, err)
		}
	}
	born := b.clock.Now()
	b.clock.Step(time.Hour)
	if err := parts.parts[0].load(t.Context()); err != nil || !b.inventory.born.Equal(born) {
		t.Errorf("a store is born twice: %s (%v)", b.inventory.born, err)
	}
}
