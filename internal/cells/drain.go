package cells

import (
	"context"
	"errors"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/watchdog"
)

// drainTimeout bounds how long Kip waits for a cell to answer before it terminates it. A
// longer wait for a machine that does not answer costs more than it saves. Logs that
// come take longer: podlogs bounds that.
const drainTimeout = 30 * time.Second

// draining saves what must outlive cells.
type draining struct {
	loop        *loop
	connections *connections
	logs        Logs
	saving      *savingLogs
	volumes     *freeingVolumes
	keeping     *keeping
	ends        *cellEnds
	drained     perCell[bool] // what must outlive it is saved, as far as that could be done; of its worker
}

// Step saves what must outlive the cell: the logs of a pod that ran to its end,
// what the cell has yet to say to slow readers, and what is on its disks. A cell that cannot be reached is terminated
// without that. An event of its pod says so. The cell of a failed pod may stay for a while then.
func (s *draining) Step(ctx context.Context, e *entry) (progress, error) {
	if got, err := s.drain(ctx, e); err != nil || !got.isDone() {
		return got, err
	}
	if got, err := s.keeping.prepare(ctx, e); err != nil || !got.isDone() {
		return got, err
	}
	return done, s.ends.startTerminating(ctx, e, cellEnd{cause: e.cell().Cause, evidence: e.cell().Reason})
}

// drain saves what must outlive a cell, once: of one that is kept an earlier process has.
func (s *draining) drain(ctx context.Context, e *entry) (progress, error) {
	cell := e.cell()
	if *s.drained.of(e) || !cell.StepTime(apiv1.StepKept).IsZero() {
		return done, nil
	}
	e.async.drop(drains)
	if cell.PodEnded || s.logs.HasStreams(cell.Pod.UID) || s.volumes.has(cell) || e.lingers() {
		got, err := s.loop.async(ctx, e, drains, func(drain context.Context) error {
			_, err := s.connections.bringUp(ctx, e) // a session outlives what it was dialled for
			return s.saveAll(drain, e, err)
		})
		switch {
		case !got.isDone():
			return got, nil
		case errors.Is(err, errNotFreed):
			s.keeping.giveUp(e, err)
		case err != nil:
			return progress{}, err
		}
	}
	*s.drained.of(e) = true
	return done, nil
}

// saveAll saves what it can of a cell that was dialled, if with an error. Meanwhile
// nothing else is done with the cell. It returns errNotFreed, or an error when ctx has ended.
func (s *draining) saveAll(ctx context.Context, e *entry, err error) error {
	var finishing sync.WaitGroup
	pod := e.cell().Pod.UID
	finishing.Go(func() { s.logs.Finish(ctx, pod) })
	finishing.Go(func() { e.endCopies(ctx) })
	err = s.saving.saveOfEnded(ctx, e, err)
	if err == nil {
		err = s.volumes.free(ctx, e) // other pods may wait for them
	}
	defer watchdog.Wait(ctx, watchdog.Cell)()
	finishing.Wait()
	s.logs.Finish(ctx, pod) // for who has begun to read meanwhile
	return err
}

// waitForPlace waits for one of the places of a cell's namespace, before the time of what is done there runs: those
// who have them may wait for cells that do not answer.
func (e *entry) waitForPlace(ctx context.Context, places *keyed.Places[string]) (leave func(), err error) {
	defer watchdog.Wait(ctx, watchdog.Cell)()
	return places.Take(ctx, e.cell().Pod.Namespace)
}

// patient reports whether a cell's containers have ended, or soon will have. What is on
// its volumes is then worth a wait.
func patient(e *entry) bool {
	cause := e.cell().Cause
	return cause == CausePodEnded || cause == CausePodDeleted
}

// waitsForLocked returns what keeps the routes of a cell from being removed. The caller holds table.mu.
func (s *draining) waitsForLocked(e *entry) string { return s.keeping.routes.waitsForLocked(e) }
