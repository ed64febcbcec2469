package cells

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"k8s.io/apimachinery/pkg/types"
)

// exclusion ends whatever else may run the pod of a cell. A pod runs on one cell at a time.
type exclusion struct {
	table     *table
	loop      *loop
	events    *reporter
	lineage   *Lineage
	inventory *inventory
	listening *listening
	orphans   *orphanTerminations
}

// doubt says why an instance that this Kip does not know of may run the pod of a cell; "" where
// the lists of the cloud do not have to say more. The caller holds table.mu.
func (s *exclusion) doubt(e *entry) string {
	why, sure := s.lineage.behind()
	seen := s.inventory.last()
	switch {
	case why != "" && sure:
		return why
	case seen.began.IsZero():
		return unlooked // whether the store is behind
	case why == "" && !seen.blind, e.arrived:
		return ""
	case e.pod.UID == "" && (why == "" || why == unseen):
		return "" // nothing is run twice before the cell is given to a pod, which asks again
	}
	return cmp.Or(why, unseen)
}

// endElsewhere is Controller.EndElsewhere.
func (s *exclusion) endElsewhere(pod types.UID, created time.Time, arrived bool) (why string, sure bool) {
	seen := s.inventory.last()
	why, sure = s.lineage.behind()
	switch {
	case why != "":
		sure = sure || why == unseen
	case seen.began.IsZero(): // it was compared with the store, and is shown next
		why, sure = unlooked, false
	case seen.blind:
		why = unseen
	}
	if why != "" && (s.lineage.isBehind() || !arrived) {
		return why, sure
	}
	own, _ := s.table.forPod(pod)
	if others := s.endOthers(pod, created, own.JoinID(), arrived); len(others) > 0 {
		return fmt.Sprintf(mayRun, others), true
	}
	return "", true
}

// delayLaunch ensures that a cell is the only one that may run its pod. It returns 0 if it is; otherwise it reports why
// not, and returns after how long to ask again.
func (s *exclusion) delayLaunch(e *entry) time.Duration {
	if why, sure := s.lineage.behind(); why != "" && sure {
		if e.unknown.note(why, s.loop.clock.Now()) {
			s.events.report(e.cell(), events.NewStoreBehind(why))
		}
		return idlePoll
	}
	if !s.ensureSole(e) {
		s.inventory.pollSoon()
		return time.Second
	}
	return 0
}

// clockSkew is how far the API server's clock may be from Kip's, and be believed.
const clockSkew = 5 * time.Minute

// ensureSole ends all other instances that may run the pod of a cell: one that a Kip launched whose store was lost
// would go on running it. An instance without a pod's tag may run any pod that was there before the store was lost, and
// holds up no other. It returns true if the cloud surely shows no such instance; otherwise it reports why it waits.
func (s *exclusion) ensureSole(e *entry) bool {
	cell := e.cell()
	s.table.mu.Lock()
	doubt, arrived := s.doubt(e), e.arrived
	tells := doubt != unlooked || s.loop.clock.Since(s.listening.since()) >= quietStart
	s.table.mu.Unlock()
	if doubt != "" {
		if tells && e.unknown.note(doubt, s.loop.clock.Now()) {
			waits := events.NewInstancesNotListed(doubt)
			if doubt == behind {
				waits = events.NewStoreBehind(doubt)
			}
			s.events.report(cell, waits)
		}
		return false
	}
	if cell.Pod.UID == "" {
		return true
	}
	other := s.endOthers(cell.Pod.UID, cell.PodCreated, cell.JoinID(), arrived)
	if len(other) == 0 {
		return true
	}
	if e.unknown.note(fmt.Sprint(other), s.loop.clock.Now()) {
		s.events.report(cell, events.NewCellUnknown(fmt.Sprintf(mayRun, other)))
	}
	return false
}

// quietStart is how long after its start Kip does not say that it waits for the cloud's first list,
// which mostly comes within a second.
const quietStart = 5 * time.Second

const mayRun = "instances %v may run it, since a Kip whose state is lost launched them; Kip terminates them before another runs it"

// endOthers ends the instances of the last snapshot that may run a pod, but for that of the cell
// with a JoinID, and returns them. No lost orphan can run a pod that arrived.
func (s *exclusion) endOthers(pod types.UID, created time.Time, joinID string, arrived bool) (other []string) {
	seen := s.inventory.last()
	if !arrived && (created.IsZero() || created.Before(s.inventory.born.Add(clockSkew))) {
		other = append(other, seen.lostOrphans...)
	}
	for _, id := range seen.byPod[pod] {
		if joinIDOf(seen.byID[id]) != joinID {
			other = append(other, id)
		}
	}
	slices.Sort(other)
	for _, id := range other {
		if i := seen.byID[id]; i.State != cloud.Terminating {
			s.orphans.request(i)
		}
	}
	return other
}
