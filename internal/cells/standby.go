package cells

import (
	"context"
	"fmt"

	apiv1 "github.com/elotl/kip/api/v1"
)

// OfPool is what a cell has of its standby pool. recipe makes it with the cell; stopping and starting write Stopped.
type OfPool struct {
	// Standby is the pool that the cell was made for, and Template what it was
	// made of; empty for a cell that was made for a pod.
	Standby  string `json:"standby,omitempty"`
	Template string `json:"template,omitempty"`
	// Stopped is true while the instance of a standby cell is, or is being,
	// stopped.
	Stopped bool `json:"stopped,omitempty"`
}

// standbys gives standby cells to pods.
type standbys struct {
	table    *table
	loop     *loop
	records  *records
	matching *matching
	tagging  *tagging
	ends     *cellEnds
}

// wouldTake is Controller.WouldTake.
func (s *standbys) wouldTake(r Request) (Cell, bool) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e, _ := s.matching.findLocked(r)
	if e == nil {
		return Cell{}, false
	}
	return *e.cell(), true
}

// takeLocked promises a standby cell that fits to a pod; nil where there is none. Its only
// error is ErrConnecting. The caller holds table.mu.
func (s *standbys) takeLocked(r Request) (*entry, error) {
	best, connecting := s.matching.findLocked(r)
	switch {
	case connecting:
		return nil, ErrConnecting
	case best == nil:
		return nil, nil
	}
	delete(s.table.standby, best.id)
	best.pod, best.disks, best.noEarlierCell = r.Pod, r.Disks, r.NoEarlierCell
	s.table.reserveLocked(best)
	s.matching.pools.noteTaken(best.cell().Standby)
	return best, nil
}

// give stores that a standby cell is a pod's.
func (s *standbys) give(ctx context.Context, e *entry, r Request) (Cell, error) {
	err := s.records.save(ctx, e, func(cell *Cell) error {
		if cell.Phase != apiv1.Ready {
			return fmt.Errorf("standby cell %s is %s", cell.ID, cell.Phase)
		}
		cell.give(r)
		cell.Reason = "a standby cell of " + cell.Standby + ": " + r.Offerings[0].Reason
		cell.step(apiv1.StepGiven, s.loop.clock.Now())
		return nil
	})
	if err != nil {
		// Whatever is stored, the cell ends. Where that is not known, it is the
		// pod's until it is gone.
		lockWriting(ctx, e)
		s.table.mu.Lock()
		if e.unsure == nil {
			s.table.unreserveLocked(e)
			e.pod = apiv1.PodReference{}
		}
		s.ends.beginLocked(e, cellEnd{cause: CauseOther, evidence: "it could not be given to pod " + r.Pod.String()})
		s.table.mu.Unlock()
		e.writing.Unlock()
		if refusedWrite(err) {
			s.loop.fail(err)
		}
		return Cell{}, fmt.Errorf("give standby cell %s to pod %s: %w", e.id, r.Pod, err)
	}
	s.tagging.tagGiven(e)
	s.loop.queue.Add(e.id)
	return *e.cell(), nil
}
