package cells

import (
	"context"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

// stopping stops the instances of idle standby cells.
type stopping struct {
	loop      *loop
	records   *records
	inventory *inventory
	tries     perCell[attempts] // to stop instances; of their workers
}

// begin stores that the instance of an idle standby cell is to be stopped. From then on it is not paid for.
func (s *stopping) begin(ctx context.Context, e *entry) error {
	now := s.loop.clock.Now()
	return s.records.save(ctx, e, func(cell *Cell) error {
		if cell.Pod.UID != types.UID("") {
			return fmt.Errorf("standby cell %s was taken", cell.ID)
		}
		cell.BilledSeconds = cell.cost(now).Seconds
		cell.Stopped = true
		return nil
	})
}

// stop stops the instance of a cell, until the cloud shows that it is stopped.
func (s *stopping) stop(ctx context.Context, e *entry, machines cloud.Stopper) (progress, error) {
	id, now := e.cell().Instance.ID, s.loop.clock.Now()
	if i, there := s.inventory.last().byID[id]; there && i.State == cloud.Stopped {
		if e.cell().Instance.State != cloud.Stopped {
			return done, s.records.save(ctx, e, func(cell *Cell) error { cell.Instance.State = cloud.Stopped; return nil })
		}
		return await(notTaken), nil
	}
	s.inventory.pollSoon()
	if s.tries.of(e).wait(now) > 0 {
		return waitFor(waitsOfOps[stopsInstance], time.Second), nil
	}
	got, err := s.loop.async(ctx, e, stopsInstance, func(ctx context.Context) error { return machines.Stop(ctx, id).Err() })
	if !got.isDone() {
		return got.atMost(time.Second), nil
	}
	return waitFor(waitsOfOps[stopsInstance], time.Second), s.noteStopAnswer(e, err)
}

// stopAgain is how long an instance may still run after the cloud has accepted its
// stop.
const stopAgain = time.Minute

// noteStopAnswer notes the answer to a call that stops an instance. The error is one for
// which nothing can go on.
func (s *stopping) noteStopAnswer(e *entry, err error) error {
	now, tries := s.loop.clock.Now(), s.tries.of(e)
	switch {
	case err == nil:
		*tries = attempts{next: now.Add(stopAgain)}
	case refusedWrite(err):
		return err
	default:
		tries.fail(now, err, s.loop.random)
		s.loop.log.Warn("stop a standby cell, retrying", "cell", e.id, "try", tries.failed, "err", err)
	}
	return nil
}
