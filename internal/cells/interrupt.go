package cells

import (
	"context"
	"errors"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
)

// noticeOver is how long after its time a notice is of no more worth, if the cell is
// heard then: EC2 takes an instance within seconds, and a hung shutdown some more.
const noticeOver = 2 * time.Minute

// certainOver is the same for an instance whose end was agreed on: EC2 ends those of a Capacity Block
// within half an hour.
const certainOver = 35 * time.Minute

// noticeOver returns how long after its time Kip drops the notice of a cell that is still heard.
func (cell *Cell) noticeOver() time.Duration {
	if cell.Certain {
		return certainOver
	}
	return noticeOver
}

// Notice is what is known of the cloud's notice that it takes the cell's instance back.
type Notice struct {
	// Interrupted is when the cloud takes the instance back, by Kip's clock; zero if it
	// has not said so.
	Interrupted time.Time `json:"interrupted,omitzero"`
	// Planned reports whether it does so for scheduled maintenance, which may be set for another time.
	Planned bool `json:"planned,omitempty"`
	// Certain reports whether it does so as was agreed on, if slowly.
	Certain bool `json:"certain,omitempty"`
	// Unconfirmed reports whether only the cell itself, while it was bound, has said so.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// interruptions stores the cloud's notices that it takes instances back, and tells of them.
type interruptions struct {
	loop      *loop
	records   *records
	guard     *guard.Guard
	events    *reporter
	observers *observers

	mu       sync.Mutex
	reported perCell[reportedNotice] // under mu
}

// reportedNotice is who was told of a cell's interruption, by its time: the pod's owner, and by CellTakenBack.
type reportedNotice struct{ warned, counted time.Time }

// storedNotices takes up what was told of the notices of stored cells.
type storedNotices struct {
	table         *table
	interruptions *interruptions
}

var _ loader = (*storedNotices)(nil)

// load has who was told in an earlier process count as told. The cells are loaded.
func (s *storedNotices) load(context.Context) error {
	for _, e := range s.table.all() {
		s.interruptions.countAsReported(e)
	}
	return nil
}

// countAsReported marks a stored notice as reported, so that Kip does not report it again after a restart.
func (s *interruptions) countAsReported(e *entry) {
	cell := e.cell()
	s.mu.Lock()
	defer s.mu.Unlock()
	reported := s.reported.of(e)
	if reported.warned = cell.Interrupted; !cell.Unconfirmed {
		reported.counted = cell.Interrupted
	}
}

var (
	// errKnown: the notice is stored already.
	errKnown = errors.New("it is known that the cloud takes the instance back")
	// errMoot: the notice is of no worth, so that nothing is stored.
	errMoot = errors.New("the cell ends, or the time of the notice is over")
)

// recordNotice stores an interruption of a cell, and reports it. It returns an error if it may not be
// stored. byCell says that the cell tells it of itself, which is believed, but not counted against
// what it was bought as: whoever is root there may make it up. It counts when the cloud says so
// too, or when no pod has run there.
func (s *interruptions) recordNotice(ctx context.Context, e *entry, i cloud.Interruption, byCell bool) error {
	at := i.At
	if i.Left != 0 {
		at = s.loop.clock.Now().Add(i.Left)
	}
	for {
		err := s.records.save(ctx, e, func(cell *Cell) error { return cell.interrupt(at, i, byCell, s.loop.clock.Now()) })
		switch {
		case err == nil, errors.Is(err, errKnown):
			s.reportNotice(e, i)
			return nil
		case errors.Is(err, errGone), errors.Is(err, errMoot):
			return nil
		case errors.Is(err, errMoved):
			continue // it may be this notice that was stored
		}
		s.loop.log.Warn("store an interruption, retrying", "cell", e.id, "instance", i.InstanceID, "err", err)
		if refusedWrite(err) {
			s.loop.fail(err)
			return err
		}
		if !s.loop.sleep(ctx, s.loop.random.Jittered(time.Second)) {
			return err
		}
	}
}

// interrupt notes in a record that the cloud takes the instance back.
func (cell *Cell) interrupt(at time.Time, i cloud.Interruption, byCell bool, now time.Time) error {
	// The notice of maintenance is an hour, and that of spot two minutes: the sooner one counts. A cell's
	// own word, and a clock that is some seconds off, make none sooner.
	sooner := !byCell && at.Before(cell.Interrupted.Add(-noticeOver)) && now.Sub(at) < noticeOver && cell.Live()
	putOff := i.Planned && cell.Planned && at.After(cell.Interrupted) && cell.Live()
	switch {
	case sooner, putOff:
		cell.Interrupted, cell.Planned, cell.Certain, cell.Unconfirmed = at, i.Planned, i.Certain, false
	case !cell.Interrupted.IsZero() && (byCell || !cell.Unconfirmed):
		return errKnown
	case !cell.Interrupted.IsZero():
		cell.Unconfirmed = false
	case !cell.Live() || now.Sub(at) >= noticeOver: // it comes a second time
		return errMoot
	default:
		cell.Interrupted, cell.Planned, cell.Certain = at, i.Planned, i.Certain
		cell.Unconfirmed = byCell && cell.Phase == apiv1.Bound
	}
	return nil
}

// reportNotice tells of the stored notice what was not told yet, and wakes the cell. It is called
// wherever one is found stored: the answer of the write that stored it may have been lost.
func (s *interruptions) reportNotice(e *entry, i cloud.Interruption) {
	cell := e.cell()
	at := cell.Interrupted
	if at.IsZero() {
		return // it was forgotten meanwhile
	}
	s.mu.Lock()
	reported := s.reported.of(e)
	warn := !reported.warned.Equal(at)
	reported.warned = at
	count := !cell.Unconfirmed && !cell.Planned && !reported.counted.Equal(at)
	if count {
		reported.counted = at
	}
	s.mu.Unlock()
	if count && cell.Offering().Spot {
		s.observers.CellTakenBack(*cell)
	}
	if warn {
		s.events.report(cell, events.NewInterrupted(e.id, i.InstanceID, at, i.Reason))
	}
	s.loop.queue.Add(e.id)
}

// forget takes a notice back that was not true: the cell is heard long after its
// time. It returns false if that could not be stored.
func (s *interruptions) forget(ctx context.Context, e *entry) bool {
	err := s.records.save(ctx, e, func(cell *Cell) error {
		cell.Interrupted, cell.Planned, cell.Certain, cell.Unconfirmed = time.Time{}, false, false, false
		return nil
	})
	switch {
	case err == nil:
	case errors.Is(err, errMoved) && e.cell().Interrupted.IsZero(): // by a write whose answer was lost
	case refusedWrite(err):
		s.loop.fail(err)
		return false
	default:
		s.loop.log.Warn("forget an interruption that did not come, retrying", "cell", e.id, "err", err)
		return false
	}
	id := e.cell().Instance.ID
	s.guard.Forget(id)
	s.loop.log.Warn("the cloud has not taken an instance back as it had announced", "cell", e.id, "instance", id)
	return true
}
