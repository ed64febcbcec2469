package cells

import (
	"context"
	"errors"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

// generationChecks compares what the store knows of with what there is.
type generationChecks struct {
	loop       *loop
	store      *store.Store
	generation *StoreGeneration
	inventory  *inventory
}

var _ loader = (*generationChecks)(nil)

// load reads which launches the store knows of. After a take-over it first
// makes the records fit to start from, as after a restore.
func (s *generationChecks) load(ctx context.Context) error {
	if err := s.generation.open(ctx); err != nil {
		return err
	}
	s.generation.noteAwayUntil(s.loop.clock.Now()) // what comes next may end it before a cell is checked
	if !s.generation.current().Distrusted {
		return nil
	}
	dropped, err := Restored(ctx, s.store, s.loop.clock.Now())
	if err != nil {
		return err
	}
	s.loop.log.Warn("the store has taken over: instances that no cell has are ended from now on, as ever",
		"generation", s.generation.current().tag(), "forgotten", dropped)
	return s.generation.trust(ctx)
}

// compare sees whether the store knows of the instances that no cell has. It returns true when
// what the store knows has become certain just now: cells may be waiting for that.
func (s *generationChecks) compare(ctx context.Context, seen snapshot, orphans []cloud.Instance) (changed bool) {
	was, sure := s.generation.whyBehind()
	news, err := s.generation.noteList(ctx, seen, orphans, s.loop.clock.Now())
	if news {
		s.loop.log.Error(behind, "instances", len(s.now().Unknown), "store", s.generation.current().Store)
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case refusedWrite(err):
		s.loop.fail(err)
	default:
		s.loop.log.Warn("store that the store is behind, retrying", "err", err)
	}
	is, _ := s.generation.whyBehind()
	return !sure && is != was
}

// Generation is what the store knows of.
type Generation struct {
	// Store is the store's own name.
	Store string
	// Number is that of the last launch.
	Number uint64
	// Behind is as the method.
	Behind string
	// Unknown are the instances of the cloud's last list that the store does not know of.
	Unknown []cloud.Instance
	// Shown names them, for TakeOver.
	Shown string
	// Incomplete is why there may be others, which no person has seen; "" if there are none.
	Incomplete string
}

// now is Controller.Generation.
func (s *generationChecks) now() Generation { return s.generation.shown(s.inventory.last().complete()) }

// takeOver is Controller.TakeOver.
func (s *generationChecks) takeOver(ctx context.Context, shown string) error {
	if !s.inventory.last().complete() {
		return ErrNotAllSeen
	}
	err := s.generation.takeOver(ctx, shown)
	if err != nil && !errors.Is(err, ErrNotBehind) && !errors.Is(err, ErrNotAllSeen) && !errors.Is(err, ErrShownOther) {
		s.loop.fail(errors.Join(ErrTakenOver, err)) // whether it is so shows when the record is read again
	}
	return err
}
