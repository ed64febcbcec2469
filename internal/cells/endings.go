package cells

import (
	"sync"
	"time"

	"github.com/elotl/kip/internal/guard"
	"k8s.io/utils/clock"
)

// terminateAgain is how long an instance may still be shown after the cloud has
// accepted its end; EC2 takes under a minute, with a hung shutdown some more.
const terminateAgain = 3 * time.Minute

// termination is the way of one instance to its end. But for what never changes it is
// under the lock of endings.
type termination struct {
	end  guard.End
	cell *entry // nil for an instance without one

	sending  bool      // a call is being made, or waited for
	accepted time.Time // when the cloud accepted it; zero before
	tries    int       // that failed
	next     time.Time // no call is made before
	told     dedup
}

// endings are the ends of instances that are under way, by these.
type endings struct {
	guard  *guard.Guard
	clock  clock.PassiveClock
	queued *gather[*termination] // those that are due

	mu         sync.Mutex // after the table's
	byInstance map[string]*termination
}

func newEndings(cfg Config) *endings {
	return &endings{guard: cfg.Guard, clock: cfg.Clock, queued: newGather[*termination](), byInstance: map[string]*termination{}}
}

// want has an instance ended: of a cell, or, where that is nil, of none. It queues the end when it
// is due. It returns how far it is, and after how long to ask again.
func (s *endings) want(end guard.End, cell *entry, shown snapshot) (way termination, again time.Duration) {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byInstance[end.Instance]
	if t == nil {
		t = &termination{end: end, cell: cell}
		s.byInstance[end.Instance] = t
	}
	if t.due(now, shown) {
		t.sending = true
		s.queued.add(t)
	}
	return *t, max(t.next.Sub(now), time.Second)
}

// due says that the instance is to be ended now. The caller holds the lock of endings.
func (t *termination) due(now time.Time, shown snapshot) bool {
	if t.sending || now.Before(t.next) {
		return false
	}
	_, there := shown.byID[t.end.Instance]
	// The first time, or when it was accepted and the instance is there yet.
	return t.accepted.IsZero() || there && shown.began.After(t.accepted.Add(terminateAgain))
}

// forget forgets the end of an instance.
func (s *endings) forget(instance string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byInstance, instance)
	s.guard.Forget(instance)
}

// accepted is when the cloud accepted the end of an instance; zero before.
func (s *endings) accepted(instance string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.byInstance[instance]; t != nil {
		return t.accepted
	}
	return time.Time{}
}

// sending reports whether a call that ends an instance is being made, or waited for.
func (s *endings) sending(instance string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byInstance[instance]
	return t != nil && t.sending
}

// forgetOrphans forgets the ends of instances without a cell that a snapshot does not show.
func (s *endings) forgetOrphans(seen snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.byInstance {
		if _, there := seen.byID[id]; !there && t.cell == nil && !t.sending {
			delete(s.byInstance, id)
			s.guard.Forget(id)
		}
	}
}
