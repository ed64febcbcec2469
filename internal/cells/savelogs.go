package cells

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

// logsSaved is how many cells are asked for their pods' logs at the same time, logsOfOne how many of one namespace.
const logsSaved, logsOfOne = 256, 192

// savingLogs saves the logs of pods that ran to their end.
type savingLogs struct {
	clock       clock.PassiveClock
	records     *records
	connections *connections
	logs        Logs
	events      *reporter
	places      *keyed.Places[string] // of cells that save logs, by namespace
}

// saveOfEnded saves the logs of a pod that ran to its end, of a cell that was dialled, if with an error. It returns an
// error only when ctx has ended.
func (s *savingLogs) saveOfEnded(ctx context.Context, e *entry, err error) error {
	if e.cell().PodEnded {
		if err == nil {
			err = s.connections.connectNow(ctx, e)
		}
		if e.session().opened() { // an agent that takes no configuration may still have the logs
			err = s.save(ctx, e)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.events.report(e.cell(), events.NewLogsNotSaved(e.cell().ID, err))
		}
	}
	return nil
}

// save has the logs of a cell saved, and stores that they are.
func (s *savingLogs) save(ctx context.Context, e *entry) error {
	leave, err := e.waitForPlace(ctx, s.places)
	if err != nil {
		return err
	}
	defer leave()
	defer watchdog.Wait(ctx, watchdog.Cell)()
	dialling, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	session := e.session()
	if !session.ready(dialling) { // after a restart of Kip it may still be dialling
		return ErrNotConnected
	}
	if err := s.logs.SaveLogs(ctx, *e.cell(), session.conn()); err != nil {
		return err
	}
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.step(apiv1.StepLogsSaved, s.clock.Now())
		return nil
	})
}
