package kip

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/crd"
	"github.com/elotl/kip/internal/events"
)

// crdRetry is the pause between two checks of the definition of cells.
const crdRetry = 5 * time.Second

// mirrorCells waits until the cluster has the definition of the Cell resource, and writes the cells to it until ctx ends.
// Pods run without it.
func (l *leading) mirrorCells(ctx context.Context, known []cells.Cell) error {
	if !awaitCRD(ctx, crdWait{
		check:    l.api.checkCRD,
		clock:    l.clock,
		answered: sync.OnceFunc(func() { close(l.crdAnswered) }),
		say:      l.ofNode.Report,
		log:      l.Log,
	}) {
		return nil
	}
	return l.cells.mirror.Run(ctx, known)
}

// crdWait is what awaitCRD needs.
type crdWait struct {
	check    func(context.Context) error // crd.Check
	clock    clock.Clock
	answered func() // called once the API server has answered
	say      func(events.Event)
	log      *slog.Logger
}

// awaitCRD waits until cells can be written. It reports whether they can before ctx ends.
func awaitCRD(ctx context.Context, w crdWait) bool {
	var said string
	for {
		err := w.check(ctx)
		if ctx.Err() != nil {
			return false
		}
		var older *crd.OlderError
		switch {
		case err == nil:
			w.answered()
			return true
		case errors.As(err, &older), apierrors.IsForbidden(err):
			// Then the mirror itself shows whether cells can be written.
			w.answered()
			w.say(events.NewCellDefinitionUnfit(err))
			return true
		case errors.Is(err, crd.ErrNotServed):
			w.answered()
			w.log.Info("waiting until the API server serves the Cell resource")
		case unanswered(err):
			w.log.Warn("check the definition of the Cell resource, retrying", "err", err)
		default:
			w.answered()
			if said != err.Error() {
				said = err.Error()
				w.say(events.NewCellDefinitionUnfit(err))
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.clock.After(crdRetry):
		}
	}
}
