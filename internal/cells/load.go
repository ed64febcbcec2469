package cells

import (
	"context"
	"encoding/json"
	"fmt"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells/ledger"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// loading takes up what is stored, before anything else runs.
type loading struct {
	clock     clock.PassiveClock
	listening *listening
	parts     []loader // in their order
}

// loader reads what an earlier process has stored.
type loader interface {
	load(ctx context.Context) error
}

// storedCosts reads what cells that are gone have cost.
type storedCosts struct{ ledger *ledger.Ledger }

var _ loader = storedCosts{}

func (s storedCosts) load(ctx context.Context) error { return s.ledger.Load(ctx) }

// load has each part read what is stored. Call it once, before Run.
func (s *loading) load(ctx context.Context) error {
	s.listening.begin(s.clock.Now())
	for _, part := range s.parts {
		if err := part.load(ctx); err != nil {
			return err
		}
	}
	return nil
}

// storedCells takes up the lives of the cells that are stored.
type storedCells struct {
	table *table
	loop  *loop
	store *store.Store
	guard *guard.Guard
	ends  *cellEnds
}

var _ loader = (*storedCells)(nil)

// load reads the stored cells and takes up their lives again. A bound cell shows
// its pod before its tunnel is dialled: its kubelet must never be told that the pod
// is gone.
func (s *storedCells) load(ctx context.Context) error {
	err := s.store.List(ctx, keyPrefix, func(key string, data []byte, revision int64) error {
		var cell Cell
		if err := json.Unmarshal(data, &cell); err != nil {
			return fmt.Errorf("read the stored cell %s: %w", key, err)
		}
		e := newEntry(cell, revision)
		e.loaded = true
		s.table.indexLocked(e, cell.Instance)
		if other := s.table.byID[s.table.byPod[cell.Pod.UID]]; other != nil {
			// A write whose answer was lost came through late. The cell of that
			// write is the one that got less far.
			if order(other.cell().Phase) >= order(cell.Phase) {
				other, e = e, other
			}
			s.table.uncountLocked(other)
			s.table.countLocked(e)
			other.pod = apiv1.PodReference{}
			s.table.enterLocked(other)
			s.table.enterLocked(e)
			s.ends.beginLocked(other, cellEnd{cause: CauseOther, evidence: "another cell has its pod"})
			s.table.byPod[cell.Pod.UID] = e.id
			s.table.claimLocked(e)
			return nil
		}
		s.table.reserveLocked(e)
		s.table.enterLocked(e)
		return nil
	})
	if err != nil {
		return err
	}
	for id, e := range s.table.byID {
		s.loop.queue.Add(id)
		// What an earlier process has decided stays so.
		if cell := e.cell(); !cell.Live() && cell.Instance != nil {
			s.guard.Resume(cell.Instance.ID)
		}
	}
	return nil
}

// Stored calls each for every cell that is stored, for a process that has none of its own.
func Stored(ctx context.Context, st *store.Store, each func(Cell)) error {
	return st.List(ctx, keyPrefix, func(key string, data []byte, _ int64) error {
		var cell Cell
		if err := json.Unmarshal(data, &cell); err != nil {
			return fmt.Errorf("read the stored cell %s: %w", key, err)
		}
		each(cell)
		return nil
	})
}
