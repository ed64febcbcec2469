package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// giveUpUnknown is after how long a stored launch of a later Kip is given up.
const giveUpUnknown = 5 * time.Minute

// resuming sends launches again that are stored, and that nobody in this process is sending.
type resuming struct {
	table      *table
	generation *StoreGeneration
	calls      *storedCalls
	launching  *launching
}

// Step sends a stored launch that nobody in this process is sending: an earlier
// Kip may have sent it, or not.
func (s *resuming) Step(ctx context.Context, e *entry) (progress, error) {
	intent := e.cell().Launch
	if intent == nil {
		return progress{}, fmt.Errorf("cell %s is %s and its record has no launch", e.id, e.cell().Phase)
	}
	// The cloud may have forgotten the token by now, and launch it a second time.
	if why, _ := s.generation.whyBehind(); why != "" {
		return waitFor(why, time.Second), nil
	}
	l, unknown, err := s.calls.read(ctx, e, intent)
	if err != nil {
		return progress{}, err
	}
	if got, err := s.gather(l, e, intent.Index); err != nil || !got.isDone() {
		return got, err
	}
	s.launching.resume(ctx, l, unknown)
	return await(notAnswered), nil
}

// gather hands the cells of a stored launch over to it, of which e was one, at a place, when its record was read. It waits until all
// of them know that they are stored with it.
func (s *resuming) gather(l *launch, e *entry, place int) (progress, error) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, other := range s.table.byID {
		cell := other.cell()
		if cell.Launch == nil || cell.Launch.ID != l.id || cell.Phase != apiv1.Launching {
			if other.launchID == l.id {
				// It was stored with this one, and does not know that yet: without it
				// the outcome of its machine would be nobody's.
				return waitFor("another cell of its launch does not know yet that it is stored", time.Second), nil
			}
			continue
		}
		if other.launching {
			return await(notAnswered), nil // being sent
		}
		l.group[cell.Launch.Index] = other
	}
	if l.group[place] == nil {
		return anew, nil // its outcome was stored meanwhile
	}
	if l.group[place] != e {
		return progress{}, fmt.Errorf("two cells have place %d of launch %s", place, l.id)
	}
	for _, member := range l.open() {
		member.giveToLaunchLocked()
	}
	return done, nil
}

// waitsForLocked returns what a cell waits for that is being launched. A launch that an earlier Kip may have sent is held until the
// instances are listed. The caller holds table.mu.
func (s *resuming) waitsForLocked(e *entry) string {
	if why, _ := s.generation.whyBehind(); why != "" && (!e.launching || s.generation.isBehind()) {
		return why
	}
	return notAnswered
}
