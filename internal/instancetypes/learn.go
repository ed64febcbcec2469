package instancetypes

import (
	"context"
	"encoding/json"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

// Learn notes what a machine of a type has, that booted an image, as its kernel says. It
// does not block. Whoever may be on a cell must not have been there before that was said:
// all pods are placed by it.
func (s *Provider) Learn(instanceType, image string, has catalog.Resources) {
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

// TakenBack notes that the cloud takes a spot instance back. It does not block.
func (s *Provider) TakenBack(instanceType, zone string) {
	s.learntMu.Lock()
	s.interrupted = s.interrupted.With(catalog.Interruption{Type: instanceType, Zone: zone, At: s.cfg.Clock.Now()})
	s.learntMu.Unlock()
	select {
	case s.taken <- struct{}{}:
	default:
	}
}

// interruptions are those that were seen until now.
func (s *Provider) interruptions() catalog.Interruptions {
	s.learntMu.Lock()
	defer s.learntMu.Unlock()
	return s.interrupted
}

// forgetsEvery is how often it is looked which interruptions count no longer.
const forgetsEvery = time.Hour

// known is what was learnt until now.
func (s *Provider) known() catalog.Learnt {
	s.learntMu.Lock()
	defer s.learntMu.Unlock()
	return s.learnt
}

// ReadSoon has Run read the catalogue before it is due. It does not block.
func (s *Provider) ReadSoon() {
	select {
	case s.readSoon <- struct{}{}:
	default:
	}
}

// takeInUntil takes in what is learnt, until due, the end of ctx, or a ReadSoon, which it reports.
func (s *Provider) takeInUntil(ctx context.Context, due <-chan time.Time) (asked bool) {
	for {
		var forget <-chan time.Time
		stop := func() bool { return false }
		if len(s.interruptions()) > 0 {
			timer := s.cfg.Clock.NewTimer(forgetsEvery)
			forget, stop = timer.C(), timer.Stop
		}
		keep := func() {}
		select {
		case <-ctx.Done():
			stop()
			return false
		case <-due:
			stop()
			return false
		case <-s.readSoon:
			stop()
			return true
		case <-forget:
		case <-s.news:
			stop()
			keep = func() { s.put(ctx, learntKey, s.known(), &s.learntRevision) }
		case <-s.taken:
			stop()
			keep = func() { s.put(ctx, interruptionsKey, s.interruptions(), &s.interruptionsRevision) }
		}
		last := s.stock.Load().record
		if err := s.adopt(last); err != nil {
			s.cfg.Log.Warn("place pods by what machines have turned out to have", "err", err)
		}
		keep()
	}
}

// loadLearnt reads what is stored. What cannot be read is learnt anew.
func (s *Provider) loadLearnt(ctx context.Context) error {
	for key, to := range map[string]struct {
		revision *int64
		all      any
	}{
		learntKey:        {&s.learntRevision, &s.learnt},
		interruptionsKey: {&s.interruptionsRevision, &s.interrupted},
	} {
		var data json.RawMessage
		var err error
		if *to.revision, err = s.cfg.Store.Get(ctx, key, &data); err != nil {
			return err
		}
		if *to.revision == 0 {
			continue
		}
		if err := json.Unmarshal(data, to.all); err != nil {
			s.cfg.Log.Warn("what was learnt cannot be read", "record", key, "err", err)
		}
	}
	return nil
}

// put stores what was learnt. What is not stored now is stored with what is learnt next.
func (s *Provider) put(ctx context.Context, key string, what any, at *int64) {
	revision, err := s.cfg.Store.Put(ctx, key, what, *at)
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		s.cfg.Log.Warn("store what was learnt", "record", key, "err", err)
		// Perhaps it was written: the next is put on top of what is there.
		var there json.RawMessage
		if revision, err = s.cfg.Store.Get(ctx, key, &there); err != nil {
			return
		}
	}
	*at = revision
}
