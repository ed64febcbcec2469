package cells

import (
	"context"
	"fmt"

	"github.com/elotl/kip/internal/store"
)

// storedCalls reads the stored calls of launches.
type storedCalls struct {
	loop    *loop
	records *records
	store   *store.Store
	tries   perCell[attempts] // to read calls; of the cells' workers
}

// read returns the launch of a cell, with its stored call. unknown is why it cannot be sent: there is no such call, or
// for minutes there was only one of a later Kip. The error is errMoved where its outcome is stored.
func (s *storedCalls) read(ctx context.Context, e *entry, intent *Launch) (l *launch, unknown, err error) {
	l = &launch{id: intent.ID, group: make([]*entry, intent.Cells), sentBefore: true}
	var stored storedCall
	revision, err := s.store.Get(ctx, launchesPrefix+intent.ID, &stored)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case revision == 0:
		if err := s.records.checkOutcomeUnknown(ctx, e, intent.ID); err != nil {
			return nil, nil, err
		}
		unknown = fmt.Errorf("the call of launch %s is lost", intent.ID)
	case stored.Version < 1 || stored.Version > callVersion || len(stored.Request.Machines) != intent.Cells:
		unknown = fmt.Errorf("the stored launch %s has version %d and %d machines: this Kip knows versions up to %d, and its cells are %d",
			intent.ID, stored.Version, len(stored.Request.Machines), callVersion, intent.Cells)
		// The Kip that knows it may lead again soon.
		if now, tries := s.loop.clock.Now(), s.tries.of(e); tries.failed == 0 || now.Sub(tries.began) < giveUpUnknown {
			tries.fail(now, unknown, s.loop.random)
			return nil, nil, unknown
		}
		l.revision = revision
	default:
		l.request, l.until, l.revision = stored.Request, stored.Until, revision
	}
	return l, unknown, nil
}
