package cells

import (
	"context"
	"errors"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
)

// interruptionRetry is the wait after an error before Kip listens for interruptions
// again. Of a notice of two minutes little is lost.
const interruptionRetry = 5 * time.Second

// noticeOver is how long after its time a notice is of no more worth, if the cell is
// heard then: EC2 takes an instance within seconds, and a hung shutdown some more.
const noticeOver = 2 * time.Minute

// certainOver is the same for an instance whose end was agreed on: EC2 ends those of a Capacity Block
// within half an hour.
const certainOver = 35 * time.Minute

// interruptions are those that the cloud announces of cells.
type interruptions struct {
	table     *table
	loop      *loop
	records   *records
	calls     *pipe.Pipe
	guard     *guard.Guard
	events    *reporter
	observers *observers
	inventory *inventory
	listening *listening
	ends      *ends
	holds     *holds
	losses    *losses

	mu sync.Mutex // of the notices of all cells
}

// notice is who was told of a cell's interruption, by its time.
type notice struct {
	told time.Time // to observers; of the cell's worker
	// warned and counted are that which the pod's owner was told of, and that which CellTakenBack
	// was told of. Those of an earlier process count as told.
	warned, counted time.Time
}

// run takes the cloud's notices until ctx ends.
func (s *interruptions) run(ctx context.Context) {
	source := s.calls.Features().Interrupter
	if source == nil {
		return
	}
	for ctx.Err() == nil {
		err := source.Interruptions(ctx, cloud.Listener{
			Notify: func(i cloud.Interruption) {
				s.loop.watchdog.Track(ctx, "interruptions", func(ctx context.Context) { s.interrupt(ctx, i) })
			},
			Mine:    func(instance string) bool { return s.table.havingInstance(instance) != nil },
			Planned: s.planned,
		})
		if ctx.Err() != nil {
			return
		}
		s.loop.log.Warn("listen for interruptions, retrying", "cloud", s.calls.Name(), "err", err)
		s.loop.sleep(ctx, s.loop.random.Jittered(interruptionRetry))
	}
}

// interrupt notes that the cloud takes an instance back. A cell without a pod is
// replaced at once. A bound cell ends with the notice, and its pod moves before.
func (s *interruptions) interrupt(ctx context.Context, i cloud.Interruption) {
	found := s.table.havingInstance(i.InstanceID)
	if found != nil && i.CalledOff {
		if cell := found.cell(); cell.Planned && !cell.Interrupted.IsZero() {
			s.forget(ctx, found)
			s.loop.queue.Add(found.id)
		}
		return
	}
	if found != nil {
		_ = s.recordNotice(ctx, found, i, false) // a write that was refused has ended Kip
	}
}

// planned are the instances that the cloud is to take for what it has planned.
func (s *interruptions) planned() (instances []string) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, e := range s.table.byID {
		if cell := e.cell(); cell.Planned && !cell.Interrupted.IsZero() && cell.Instance != nil {
			instances = append(instances, cell.Instance.ID)
		}
	}
	return instances
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
			s.tellNotice(e, i)
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

// tellNotice tells of the stored notice what was not told yet, and wakes the cell. It is called
// wherever one is found stored: the answer of the write that stored it may have been lost.
func (s *interruptions) tellNotice(e *entry, i cloud.Interruption) {
	cell := e.cell()
	at := cell.Interrupted
	if at.IsZero() {
		return // it was forgotten meanwhile
	}
	s.mu.Lock()
	warn := !e.notice.warned.Equal(at)
	e.notice.warned = at
	count := !cell.Unconfirmed && !cell.Planned && !e.notice.counted.Equal(at)
	if count {
		e.notice.counted = at
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

// actOnNotice does what a notice of interruption asks for: it ends the cell, or has its pod moved. It returns how long is left until
// the instance is lost, 0 where no notice was given, and whether the cell ends now.
func (s *interruptions) actOnNotice(ctx context.Context, e *entry) (left time.Duration, ends bool) {
	cell := e.cell()
	if cell.Interrupted.IsZero() {
		if !e.notice.told.IsZero() { // it was called off, or did not come
			e.notice.told = time.Time{}
			s.observers.CellInterrupted(*cell)
		}
		return 0, false
	}
	left = cell.Interrupted.Sub(s.loop.clock.Now())
	const taken = "the cloud took its instance back"
	if cell.Phase != apiv1.Bound {
		s.ends.begin(e, CauseInterrupted, taken)
		return 0, true
	}
	if left <= 0 {
		i := s.inventory.last().byID[cell.Instance.ID]
		lost := sign{
			cause: CauseInterrupted,
			why:   taken,
			sure:  i.State == cloud.Stopped, // of one that is gone the inventory says so
		}
		lost.heard = s.listening.hearing(s.table, e, lost.sure)
		s.table.mu.Lock()
		isHeard := s.loop.clock.Since(e.lastSign()) < guard.Fresh
		s.table.mu.Unlock()
		over := noticeOver
		if cell.Certain {
			over = certainOver
		}
		switch {
		case !isHeard || left > -over:
			s.losses.lose(ctx, e, s.holds.population(), lost)
		case s.forget(ctx, e):
			return 0, false
		}
		return silentPoll, true
	}
	if !e.notice.told.Equal(cell.Interrupted) {
		if !s.admitMove(ctx, e) {
			return min(left, idlePoll), true
		}
		e.notice.told = cell.Interrupted
		s.observers.CellInterrupted(*cell)
	}
	return left, true
}

// admitMove reports whether the pod may be moved away before the instance is taken: it asks the guard. That a
// spot instance is taken is what it was bought for, hundreds at a time: the notice is
// worth most then, and an eviction leaves no pod without another. So it is with what was bought
// for a time that ends. That others are taken is rare: they count as those do whose end may be a mistake.
func (s *interruptions) admitMove(ctx context.Context, e *entry) bool {
	cell := e.cell()
	if cell.Offering().CapacityType() == cloud.Spot || cell.Certain {
		return true
	}
	end := unrequested(cell, "the cloud is about to take its instance back")
	return s.holds.admit(ctx, e, end, s.holds.population())
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
