package cells

import (
	"context"
	"encoding/json"
	"fmt"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/store"
)

const keyPrefix = "cells/"

// Load reads the stored cells and takes up their lives again. A bound cell shows
// its pod before its tunnel is dialled: its kubelet must never be told that the pod
// is gone. Call Load once, before Run.
func (c *Controller) Load(ctx context.Context) error {
	c.began = c.cfg.Clock.Now()
	if c.cfg.TermBegan.IsZero() {
		c.cfg.TermBegan = c.began
	}
	if err := c.loadGeneration(ctx); err != nil {
		return err
	}
	if err := c.loadBorn(ctx); err != nil {
		return err
	}
	if err := c.ledger.load(ctx); err != nil {
		return err
	}
	err := c.cfg.Store.List(ctx, keyPrefix, func(key string, data []byte, revision int64) error {
		var cell Cell
		if err := json.Unmarshal(data, &cell); err != nil {
			return fmt.Errorf("read the stored cell %s: %w", key, err)
		}
		e := newEntry(cell, revision)
		e.loaded = true
		c.index(e, cell.Instance)
		if other := c.cells[c.byPod[cell.Pod.UID]]; other != nil {
			// A write whose answer was lost came through late. The cell of that
			// write is the one that got less far.
			if order(other.cell().Phase) >= order(cell.Phase) {
				other, e = e, other
			}
			c.uncount(other)
			c.count(e)
			other.pod, other.ending = apiv1.PodReference{}, "another cell has its pod"
			c.enter(other)
			c.enter(e)
			c.byPod[cell.Pod.UID] = e.id
			c.claim(e)
			return nil
		}
		c.reserve(e)
		c.enter(e)
		return nil
	})
	if err != nil {
		return err
	}
	for id, e := range c.cells {
		c.queue.Add(id)
		// What an earlier process has decided stays so.
		if cell := e.cell(); !cell.Live() && cell.Instance != nil {
			c.cfg.Gate.Resume(cell.Instance.ID)
		}
	}
	return c.sweepLaunches(ctx)
}

// sweepLaunches removes stored calls that no cell waits for: a backup that was
// restored may hold such.
func (c *Controller) sweepLaunches(ctx context.Context) error {
	waited := map[string]bool{}
	for _, e := range c.cells {
		if cell := e.cell(); cell.Phase == apiv1.Launching && cell.Launch != nil {
			waited[launchesPrefix+cell.Launch.ID] = true
		}
	}
	left := map[string]int64{}
	err := c.cfg.Store.List(ctx, launchesPrefix, func(key string, _ []byte, revision int64) error {
		if !waited[key] {
			left[key] = revision
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key, revision := range left {
		if err := c.cfg.Store.Delete(ctx, key, revision); err != nil {
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
func (c *Controller) loadBorn(ctx context.Context) error {
	revision, err := c.cfg.Store.Get(ctx, bornKey, &c.born)
	if err != nil || revision != 0 {
		return err
	}
	c.born = c.cfg.Clock.Now()
	_, err = c.cfg.Store.Put(ctx, bornKey, c.born, 0)
	return err
}
