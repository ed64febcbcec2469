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
				if look := b.cells.inventory.last(); look.began.Before(began) {
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
