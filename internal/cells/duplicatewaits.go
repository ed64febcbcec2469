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

// duplicateWaits have cells wait until each is surely the only one that runs its pod, and report why they wait.
type duplicateWaits struct {
	clock      clock.PassiveClock
	events     *reporter
	listening  *listening
	duplicates *duplicates
	reported   perCell[dedup] // why they wait; of their workers
}

// launchDuplicates has cells that are to be launched wait until nothing else may run their pods.
type launchDuplicates struct {
	duplicateWaits *duplicateWaits
	inventory      *inventory
}

var _ preparation = (*launchDuplicates)(nil)

// prepare waits until a cell is the only one that may run its pod.
func (s *launchDuplicates) prepare(_ context.Context, e *entry) (progress, error) {
	switch why := s.duplicateWaits.endDuplicates(e); why {
	case "":
		return done, nil
	case behind:
		return waitFor(why, idlePoll), nil
	default:
		s.inventory.pollSoon()
		return waitFor(why, time.Second), nil
	}
}

// endDuplicates ends all other instances that may run the pod of a cell. It returns "" if the cloud surely shows no such
// instance; otherwise it returns why the cell waits, and reports it.
func (s *duplicateWaits) endDuplicates(e *entry) (why string) {
	doubt, others := s.duplicates.check(e)
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
