package cells

import (
	"cmp"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"k8s.io/apimachinery/pkg/types"
)

// duplicates ends whatever else may run the pod of a cell. A pod runs on one cell at a time.
type duplicates struct {
	table      *table
	generation *StoreGeneration
	inventory  *inventory
	orphans    *orphanTerminations
}

// whyUnsureLocked returns why an instance that this Kip does not know of may run the pod of a cell; "" where
// the lists of the cloud do not have to say more. The caller holds table.mu.
func (s *duplicates) whyUnsureLocked(e *entry) string {
	why, sure := s.generation.whyBehind()
	seen := s.inventory.last()
	switch {
	case why != "" && sure:
		return why
	case seen.began.IsZero():
		return unread // whether the store is behind
	case why == "" && !seen.blind, e.noEarlierCell:
		return ""
	case e.pod.UID == "" && (why == "" || why == unlisted):
		return "" // nothing is run twice before the cell is given to a pod, which asks again
	}
	return cmp.Or(why, unlisted)
}

// endAll is Controller.EndDuplicates.
func (s *duplicates) endAll(pod types.UID, created time.Time, noEarlierCell bool) (why string, sure bool) {
	seen := s.inventory.last()
	why, sure = s.generation.whyBehind()
	switch {
	case why != "":
		sure = sure || why == unlisted
	case seen.began.IsZero(): // it was compared with the store, and is shown next
		why, sure = unread, false
	case seen.blind:
		why = unlisted
	}
	if why != "" && (s.generation.isBehind() || !noEarlierCell) {
		return why, sure
	}
	own, _ := s.table.forPod(pod)
	if others := s.endExcept(pod, created, own.JoinID(), noEarlierCell); len(others) > 0 {
		return events.InstancesMayRun(others), true
	}
	return "", true
}

// clockSkew is how far the API server's clock may be from Kip's, and be believed.
const clockSkew = 5 * time.Minute

// check returns why it is not certain that nothing else runs the pod of a cell: a doubt, or the instances that may run it,
// which it ends. A Kip whose store was lost launched those, and they would go on running it. An instance without a pod's tag may
// run any pod that was there before the store was lost, and holds up no other.
func (s *duplicates) check(e *entry) (doubt string, others []string) {
	cell := e.cell()
	s.table.mu.Lock()
	doubt, noEarlierCell := s.whyUnsureLocked(e), e.noEarlierCell
	s.table.mu.Unlock()
	if doubt != "" || cell.Pod.UID == "" {
		return doubt, nil
	}
	return "", s.endExcept(cell.Pod.UID, cell.PodCreated, cell.JoinID(), noEarlierCell)
}

// endExcept ends the instances of the last snapshot that may run a pod, but for that of the cell
// with a JoinID, and returns them. No lost orphan can run a pod for which no earlier Kip can have launched a cell.
func (s *duplicates) endExcept(pod types.UID, created time.Time, joinID string, noEarlierCell bool) (other []string) {
	seen := s.inventory.last()
	if !noEarlierCell && (created.IsZero() || created.Before(s.inventory.born.Add(clockSkew))) {
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
			s.orphans.terminate(i)
		}
	}
	return other
}
