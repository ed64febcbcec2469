package shop

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/store"
)

// Learn notes what a machine of a type has, that booted an image, as its kernel says. It
// does not block. Whoever may be on a cell must not have been there before that was said:
// all pods are placed by it.
func (s *Shop) Learn(instanceType, image string, has catalog.Room) {
	s.learntMu.Lock()
	next, is := s.learnt.With(instanceType, image, has)
	s.learnt = next
	s.learntMu.Unlock()
	if !is {
		return
	}
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// known is what was learnt until now.
func (s *Shop) known() catalog.Learnt {
	s.learntMu.Lock()
	defer s.learntMu.Unlock()
	return s.learnt
}

// takeInUntil takes in what is learnt, until due or the end of ctx.
func (s *Shop) takeInUntil(ctx context.Context, due <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-due:
			return
		case <-s.news:
		}
		last := s.stock.Load().record
		if err := s.adopt(last); err != nil {
			s.cfg.Log.Warn("place pods by what machines have turned out to have", "err", err)
		}
		s.keepLearnt(ctx)
	}
}

// loadLearnt reads what is stored. What cannot be read is learnt anew.
func (s *Shop) loadLearnt(ctx context.Context) (err error) {
	var all catalog.Learnt
	s.learntRevision, err = s.cfg.Store.Get(ctx, learntKey, &all)
	if errors.Is(err, store.ErrUnreadable) {
		s.cfg.Log.Warn("what was learnt of machines cannot be read", "err", err)
		all, err = nil, nil
	}
	s.learnt = slices.Clip(all)
	return err
}

// keepLearnt stores it. What is not stored now is stored with what is learnt next.
func (s *Shop) keepLearnt(ctx context.Context) {
	revision, err := s.cfg.Store.Put(ctx, learntKey, s.known(), s.learntRevision)
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		s.cfg.Log.Warn("store what was learnt of machines", "err", err)
		// Perhaps it was written: the next is put on top of what is there.
		var there json.RawMessage
		if revision, err = s.cfg.Store.Get(ctx, learntKey, &there); err != nil {
			return
		}
	}
	s.learntRevision = revision
}
