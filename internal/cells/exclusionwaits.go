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
	switch exclusive, doubt := s.exclusionWaits.ensureExclusive(e); {
	case exclusive:
		return done, nil
	case doubt == behind:
		return waitFor("the store to know all instances", idlePoll), nil
	}
	s.inventory.pollSoon()
	return waitFor("a list without another instance for its pod", time.Second), nil
}

// waitsForLocked returns why it is not sure that nothing else runs the pod of a cell, unless the cell is being launched and the store is
// not behind: it was sure then. The caller holds table.mu.
func (s *exclusiveLaunch) waitsForLocked(e *entry) string {
	exclusion := s.exclusionWaits.exclusion
	if e.launching && !exclusion.generation.isBehind() {
		return ""
	}
	return exclusion.whyUnsureLocked(e)
}

// ensureExclusive ends all other instances that may run the pod of a cell. It returns true if the cloud surely shows no such
// instance; otherwise it reports why the cell waits. doubt is that of exclusion.check.
func (s *exclusionWaits) ensureExclusive(e *entry) (exclusive bool, doubt string) {
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
	return doubt == "" && len(others) == 0, doubt
}
