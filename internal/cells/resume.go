package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

// resuming sends launches again that are stored, and that nobody in this process is sending.
type resuming struct {
	table    *table
	loop     *loop
	records  *records
	store    *store.Store
	lineage  *Lineage
	sending  *sending
	outcomes *outcomes
}

// Step sends a stored launch that nobody in this process is sending: an earlier
// Kip may have sent it, or not.
func (s *resuming) Step(ctx context.Context, e *entry) (time.Duration, error) {
	intent := e.cell().Launch
	if intent == nil {
		return 0, fmt.Errorf("cell %s is %s and its record has no launch", e.id, e.cell().Phase)
	}
	// The cloud may have forgotten the token by now, and launch it a second time.
	if why, _ := s.lineage.behind(); why != "" {
		return time.Second, nil
	}
	l := &launch{id: intent.ID, group: make([]*entry, intent.Cells)}
	var stored launchRecord
	var unknown error
	revision, err := s.store.Get(ctx, launchesPrefix+intent.ID, &stored)
	if err != nil {
		return 0, err
	}
	switch {
	case revision == 0:
		if err := s.records.checkOutcomeUnknown(ctx, e, intent.ID); err != nil {
			return 0, err
		}
		unknown = fmt.Errorf("the call of launch %s is lost", intent.ID)
	case stored.Version < 1 || stored.Version > launchVersion || len(stored.Request.Machines) != intent.Cells:
		unknown = fmt.Errorf("the stored launch %s has version %d and %d machines: this Kip knows versions up to %d, and its cells are %d",
			intent.ID, stored.Version, len(stored.Request.Machines), launchVersion, intent.Cells)
		// The Kip that knows it may lead again soon.
		if now := s.loop.clock.Now(); e.resolving.failed == 0 || now.Sub(e.resolving.began) < giveUpUnknown {
			e.resolving.fail(now, unknown, s.loop.random)
			return 0, unknown
		}
		l.revision = revision
	default:
		l.request, l.until, l.revision = stored.Request, stored.Until, revision
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, other := range s.table.byID {
		cell := other.cell()
		if cell.Launch == nil || cell.Launch.ID != intent.ID || cell.Phase != apiv1.Launching {
			if other.launch == intent.ID {
				// It was stored with this one, and does not know that yet: without it
				// the outcome of its machine would be nobody's.
				return time.Second, nil
			}
			continue
		}
		if other.launching {
			return 0, nil // being sent
		}
		l.group[cell.Launch.Index] = other
	}
	if l.group[intent.Index] == nil {
		return 0, errMoved // its outcome was stored meanwhile
	}
	if l.group[intent.Index] != e {
		return 0, fmt.Errorf("two cells have place %d of launch %s", intent.Index, intent.ID)
	}
	for _, n := range l.open() {
		l.group[n].launching = true
	}
	if unknown != nil {
		s.loop.inTurn(ctx, "launch", func(ctx context.Context) { s.abandon(ctx, l, unknown) })
		return 0, nil
	}
	s.loop.inTurn(ctx, "launch", func(ctx context.Context) { s.sending.send(ctx, l, nil) })
	return 0, nil
}

// abandon gives up a launch that cannot be sent again, for those of its cells that are open.
func (s *resuming) abandon(ctx context.Context, l *launch, why error) {
	defer func() { s.loop.landed(l.entries(l.open())...) }()
	verdicts := map[int]verdict{}
	for _, n := range l.open() {
		verdicts[n] = isAbandoned
	}
	s.outcomes.resolve(ctx, l, l.open(), verdicts, cloud.NotLaunched(len(l.group), why))
}
