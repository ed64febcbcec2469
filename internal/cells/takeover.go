package cells

import (
	"context"
	"errors"
	"slices"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

// generations compares what the store knows of with what there is.
type generations struct {
	loop      *loop
	store     *store.Store
	lineage   *Lineage
	inventory *inventory
}

// load reads which launches the store knows of. After a take-over it first
// makes the records fit to start from, as after a restore.
func (s *generations) load(ctx context.Context) error {
	if err := s.lineage.open(ctx); err != nil {
		return err
	}
	if g := s.lineage.current(); g.behind() {
		s.lineage.unsureSince, s.lineage.unsure = g.Since, s.loop.clock.Now() // until now: what comes next may end it before a cell is checked
	}
	if !s.lineage.current().Distrusted {
		return nil
	}
	dropped, err := Restored(ctx, s.store, s.loop.clock.Now())
	if err != nil {
		return err
	}
	s.loop.log.Warn("the store has taken over: instances that no cell has are ended from now on, as ever",
		"generation", s.lineage.current().tag(), "forgotten", dropped)
	return s.lineage.trust(ctx)
}

// compare sees whether the store knows of the instances that no cell has. It returns true when
// that has changed what is certain, for which cells may wait.
func (s *generations) compare(ctx context.Context, seen snapshot, orphans []cloud.Instance) (changed bool) {
	was, sure := s.lineage.behind()
	news, err := s.lineage.saw(ctx, seen, orphans, s.loop.clock.Now())
	if news {
		s.loop.log.Error(behind, "instances", len(s.now().Unknown), "store", s.lineage.current().Store)
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case refusedWrite(err):
		s.loop.fail(err)
	default:
		s.loop.log.Warn("store that the store is behind, retrying", "err", err)
	}
	is, _ := s.lineage.behind()
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
	// Incomplete says why there may be others, which no person has seen; "" if there are none.
	Incomplete string
}

// now returns what the store knows of now.
func (s *generations) now() Generation {
	why, _ := s.lineage.behind()
	complete := s.inventory.last().complete()
	l := s.lineage
	l.mu.Lock()
	defer l.mu.Unlock()
	g := Generation{
		Store:   l.now.Store,
		Number:  l.now.Number,
		Behind:  why,
		Unknown: slices.Clone(l.unknown),
		Shown:   l.shown(),
	}
	if !complete || !l.looked {
		g.Incomplete = ErrNotAllSeen.Error()
	}
	return g
}

// takeOver has the store take over the instances that it does not know of, as a person
// has decided who was shown those: from then on they are instances without a cell, which
// end. The caller reloads then. Where nothing is done the error is ErrNotBehind,
// ErrNotAllSeen or ErrShownOther.
func (s *generations) takeOver(ctx context.Context, shown string) error {
	if !s.inventory.last().complete() {
		return ErrNotAllSeen
	}
	err := s.lineage.takeOver(ctx, shown)
	if err != nil && !errors.Is(err, ErrNotBehind) && !errors.Is(err, ErrNotAllSeen) && !errors.Is(err, ErrShownOther) {
		s.loop.fail(errors.Join(ErrTakenOver, err)) // whether it is so shows when the record is read again
	}
	return err
}
