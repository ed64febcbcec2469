package cells

import (
	"context"
	"encoding/json"
	"fmt"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/store"
)

const keyPrefix = "cells/"

// loading takes up the lives of the cells that are stored.
type loading struct {
	table       *table
	loop        *loop
	store       *store.Store
	ledger      *ledger
	guard       *guard.Guard
	generations *generations
	listening   *listening
	inventory   *inventory
}

// load reads the stored cells and takes up their lives again. A bound cell shows
// its pod before its tunnel is dialled: its kubelet must never be told that the pod
// is gone. Call it once, before Run.
func (s *loading) load(ctx context.Context) error {
	s.listening.began = s.loop.clock.Now()
	if s.listening.termBegan.IsZero() {
		s.listening.termBegan = s.listening.began
	}
	if err := s.generations.load(ctx); err != nil {
		return err
	}
	if err := s.loadBorn(ctx); err != nil {
		return err
	}
	if err := s.ledger.load(ctx); err != nil {
		return err
	}
	err := s.store.List(ctx, keyPrefix, func(key string, data []byte, revision int64) error {
		var cell Cell
		if err := json.Unmarshal(data, &cell); err != nil {
			return fmt.Errorf("read the stored cell %s: %w", key, err)
		}
		e := newEntry(cell, revision)
		e.loaded = true
		s.table.index(e, cell.Instance)
		if other := s.table.byID[s.table.byPod[cell.Pod.UID]]; other != nil {
			// A write whose answer was lost came through late. The cell of that
			// write is the one that got less far.
			if order(other.cell().Phase) >= order(cell.Phase) {
				other, e = e, other
			}
			s.table.uncount(other)
			s.table.count(e)
			other.pod, other.ending = apiv1.PodReference{}, "another cell has its pod"
			s.table.enter(other)
			s.table.enter(e)
			s.table.byPod[cell.Pod.UID] = e.id
			s.table.claim(e)
			return nil
		}
		s.table.reserve(e)
		s.table.enter(e)
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
	return s.sweepLaunches(ctx)
}

// sweepLaunches removes stored calls that no cell waits for: a backup that was
// restored may hold such.
func (s *loading) sweepLaunches(ctx context.Context) error {
	waited := map[string]bool{}
	for _, e := range s.table.byID {
		if cell := e.cell(); cell.Phase == apiv1.Launching && cell.Launch != nil {
			waited[launchesPrefix+cell.Launch.ID] = true
		}
	}
	left := map[string]int64{}
	err := s.store.List(ctx, launchesPrefix, func(key string, _ []byte, revision int64) error {
		if !waited[key] {
			left[key] = revision
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key, revision := range left {
		if err := s.store.Delete(ctx, key, revision); err != nil {
			return err
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

const bornKey = "born"

// loadBorn reads when the store was new. Instances that are older were launched
// by a Kip whose store was lost.
func (s *loading) loadBorn(ctx context.Context) error {
	revision, err := s.store.Get(ctx, bornKey, &s.inventory.born)
	if err != nil || revision != 0 {
		return err
	}
	s.inventory.born = s.loop.clock.Now()
	_, err = s.store.Put(ctx, bornKey, s.inventory.born, 0)
	return err
}
