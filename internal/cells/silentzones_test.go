package cells

import (
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
)

func TestLaunchesLeaveAZoneAloneThatDoesNotAnswer(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		b.request("a", "nano")
		b.later(10 * time.Second)
		silent := func() (zones []string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, no := range b.refused {
				if scope := cloud.ScopeOf(no); errors.Is(no, cloud.ErrCapacity) && scope == (cloud.Scope{Zone: scope.Zone}) {
					zones = append(zones, scope.Zone)
				}
			}
			b.refused = nil
			return zones
		}
		if zones := silent(); len(zones) > 0 {
			t.Errorf("launches leave %v alone while all zones answer", zones)
		}
		b.cloud.set(func() { b.cloud.blind = []string{"z"} })
		b.cells.upkeep.silentZones.avoid([]string{"z", ""})
		if zones := silent(); len(zones) > 0 {
			t.Errorf("launches leave %v alone since one call has failed", zones)
		}
		// Lists follow each other while there are launches on their way: one brown-out fails several.
		b.later(3 * time.Second)
		b.cells.upkeep.silentZones.avoid([]string{"z", ""})
		if zones := silent(); len(zones) > 0 {
			t.Errorf("launches leave %v alone since it did not answer for seconds", zones)
		}
		b.later(2 * idlePoll)
		if zones := slices.Compact(silent()); !slices.Equal(zones, []string{"z"}) {
			t.Errorf("launches leave %v alone, want z", zones)
		}
		if b.phase("a") != apiv1.Bound || len(b.cloud.running()) != 1 {
			t.Errorf("the cell in the zone is %s", b.phase("a"))
		}
		b.cloud.set(func() { b.cloud.blind = nil })
		b.later(idlePoll + time.Second)
		silent()
		b.later(time.Minute)
		if zones := silent(); len(zones) > 0 {
			t.Errorf("launches leave %v alone after it answers again", zones)
		}
	})
}
