package kip

import (
	"context"
	"errors"
	"log/slog"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// shortagesKey is where unavailable capacity is stored.
const shortagesKey = "unavailable"

// storedShortages are kept over restarts, so that a Kip that starts again does not
// ask for all that it knows to be missing.
type storedShortages struct {
	shortages *capacity.Shortages
	record    *kept[[]capacity.Shortage]
}

// reader is who reads the cloud's catalogue.
type reader interface {
	// ReadSoon asks for another reading, and does not block.
	ReadSoon()
}

// looker are the virtual nodes, which tell by their taints what is short.
type looker interface {
	// LookSoon asks for a look at them, and does not block.
	LookSoon()
}

// loadShortages returns those that are stored.
func loadShortages(ctx context.Context, st *store.Store, c clock.PassiveClock, log *slog.Logger) (*storedShortages, error) {
	s := &storedShortages{shortages: capacity.New(c)}
	var stored []capacity.Shortage
	var err error
	s.record, err = loadKept(ctx, st, shortagesKey, "unavailable capacity", &stored, log)
	s.shortages.Load(stored)
	return s, err
}

// seenShortages takes in the shortages that cells meet.
type seenShortages struct {
	*storedShortages
	nodes     looker // told of each one
	catalogue reader // told where it has changed
}

var _ cells.Shortages = seenShortages{}

// Mark notes that an offering was not served: for all that the cloud said is missing,
// for that offering where it said nothing of the kind.
func (s seenShortages) Mark(o offering.Offering, err error) {
	s.shortages.Mark(instancetypes.Shortage(o, err))
	s.nodes.LookSoon()
	if said, ok := errors.AsType[*cloud.Error](err); ok && said.Catalogue {
		s.catalogue.ReadSoon()
	}
	s.record.change()
}

// Unavailable reports whether an offering is known not to be served now.
func (s *storedShortages) Unavailable(o offering.Offering) bool {
	return s.shortages.Unavailable(o.Key())
}

// keep stores the shortages until ctx ends.
func (s *storedShortages) keep(ctx context.Context) error { return s.record.run(ctx, s.shortages.List) }
