package cells

import (
	"testing"

	"github.com/elotl/kip/internal/offering"
	"k8s.io/utils/clock"
)

// Calls that were under way together are throttled together: the smallest says how many go at once.
func TestThrottledCallsThatWereUnderWayTogetherLeaveTheSmallestSize(t *testing.T) {
	sizes := &batchSizes{clock: clock.RealClock{}, apart: map[location]fewer{}}
	if got := sizes.throttledTries(); got != throttledTries {
		t.Errorf("the first calls are made smaller after %d tries, want %d", got, throttledTries)
	}
	for _, cells := range []int{20, 100} {
		sizes.note(Offering{Zone: "z"}, cells, []*outcome{{verdict: isTooMany}})
	}
	if got := sizes.atMost()(offering.Key{Zone: "other"}); got != 10 {
		t.Errorf("%d are launched at once, want 10", got)
	}
	if got := sizes.throttledTries(); got != 1 {
		t.Errorf("later calls are made smaller after %d tries, want 1", got)
	}
}

// There was no room for several in one place: elsewhere there may be.
func TestCellsAreLaunchedOneByOneOnlyWhereThereWasNoRoomForSeveral(t *testing.T) {
	sizes := &batchSizes{clock: clock.RealClock{}, apart: map[location]fewer{}}
	sizes.note(Offering{Zone: "z", Subnet: "s"}, 20, []*outcome{{verdict: isApart}, {verdict: isLaunched}})
	most := sizes.atMost()
	if got := most(offering.Key{Zone: "z", Subnet: "s"}); got != 1 {
		t.Errorf("%d are launched at once there, want 1", got)
	}
	if got := most(offering.Key{Zone: "z", Subnet: "other"}); got <= 1 {
		t.Errorf("%d are launched at once elsewhere", got)
	}
}
