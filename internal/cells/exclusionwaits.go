package cells

import (
	"context"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/events"
	"k8s.io/utils/clock"
)

// quietStart is how long after its start Kip does not say that it waits for the cloud's first list,
// which mostly comes within a second.
const quietStart = 5 * time.Second

// exclusionWaits have cells wait until each is surely the only one that runs its pod, and reports why they wait.
type exclusionWaits struct {
	clock     clock.PassiveClock
	events    *reporter
	listening *listening
	exclusion *exclusion
	reported  perCell[dedup] // why they wait; of their workers
}

// exclusiveLaunch has cells that are to be launched wait until nothing else may run their pods.
type exclusiveLaunch struct {
	exclusionWaits *exclusionWaits
	inventory      *inventory
}

var _ preparation = (*exclusiveLaunch)(nil)

// prepare waits until a cell is the only one that may run its pod.
func (s *exclusiveLaunch) prepare(_ context.Context, e *entry) (progress, error) {
	switch why := s.exclusionWaits.ensureExclusive(e); why {
	case "":
		return done, nil
	case behind:
		return waitFor(why, idlePoll), nil
	default:
		s.inventory.pollSoon()
		return waitFor(why, time.Second), nil
	}
}

// ensureExclusive ends all other instances that may run the pod of a cell. It returns "" if the cloud surely shows no such
// instance; otherwise it returns why the cell waits, and reports it.
func (s *exclusionWaits) ensureExclusive(e *entry) (why string) {
	doubt, others := s.exclusion.check(e)
	now := s.clock.Now()
	switch {
	case doubt == unread && now.Sub(s.listening.since()) < quietStart:
	case doubt != "" && s.reported.of(e).note(doubt, now):
		waits := events.NewInstancesNotListed(doubt)
		if doubt == behind {
			waits = events.NewStoreBehind(doubt)
		}
		s.events.report(e.cell(), waits)
	case len(others) > 0 && s.reported.of(e).note(fmt.Sprint(others), now):
		s.events.report(e.cell(), events.NewCellUnknown(events.InstancesMayRun(others)))
	}
	if doubt == "" && len(others) > 0 {
		return events.InstancesMayRun(others)
	}
	return doubt
}
