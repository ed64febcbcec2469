package cells

import (
	"fmt"
	"time"

	"github.com/elotl/kip/internal/events"
	"k8s.io/utils/clock"
)

// quietStart is how long after its start Kip does not say that it waits for the cloud's first list,
// which mostly comes within a second.
const quietStart = 5 * time.Second

// excluding has cells wait until each is surely the only one that runs its pod, and reports why they wait.
type excluding struct {
	clock     clock.PassiveClock
	events    *reporter
	inventory *inventory
	listening *listening
	exclusion *exclusion
	told      perCell[dedup] // why they wait; of their workers
}

// delayLaunch ensures that a cell is the only one that may run its pod. It returns 0 if it is; otherwise it reports why
// not, and returns after how long to ask again.
func (s *excluding) delayLaunch(e *entry) time.Duration {
	switch sole, doubt := s.ensureSole(e); {
	case sole:
		return 0
	case doubt == behind:
		return idlePoll
	}
	s.inventory.pollSoon()
	return time.Second
}

// ensureSole ends all other instances that may run the pod of a cell. It returns true if the cloud surely shows no such
// instance; otherwise it reports why the cell waits. doubt is that of exclusion.check.
func (s *excluding) ensureSole(e *entry) (sole bool, doubt string) {
	doubt, others := s.exclusion.check(e)
	now := s.clock.Now()
	switch {
	case doubt == unlooked && now.Sub(s.listening.since()) < quietStart:
	case doubt != "" && s.told.of(e).note(doubt, now):
		waits := events.NewInstancesNotListed(doubt)
		if doubt == behind {
			waits = events.NewStoreBehind(doubt)
		}
		s.events.report(e.cell(), waits)
	case len(others) > 0 && s.told.of(e).note(fmt.Sprint(others), now):
		s.events.report(e.cell(), events.NewCellUnknown(events.InstancesMayRun(others)))
	}
	return doubt == "" && len(others) == 0, doubt
}
