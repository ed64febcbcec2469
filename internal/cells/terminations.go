package cells

import (
	"errors"
	"sync"
	"time"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/guard"
	"k8s.io/utils/clock"
)

// terminateAgain is how long an instance may still be shown after the cloud has
// accepted its end; EC2 takes under a minute, with a hung shutdown some more.
const terminateAgain = 3 * time.Minute

// termination is the end of one instance, from the first request until it is gone. But for what never changes it is
// under the lock of terminations.
type termination struct {
	end  guard.End
	cell *entry // nil for an instance without one

	sending  bool      // a call is being made, or waited for
	accepted time.Time // when the cloud accepted it; zero before
	tries    int       // that failed
	next     time.Time // no call is made before
	reported dedup
}

// terminations are those of instances that are under way, by these.
type terminations struct {
	guard  *guard.Guard
	calls  *pipe.Pipe
	clock  clock.PassiveClock
	random backoff.Random
	queued *gather[*termination] // those that are due

	mu         sync.Mutex
	byInstance map[string]*termination
}

func newTerminations(cfg Config) *terminations {
	return &terminations{guard: cfg.Guard, calls: cfg.Calls, clock: cfg.Clock, random: cfg.Random,
		queued: newGather[*termination](), byInstance: map[string]*termination{}}
}

// terminate has an instance terminated: that of a cell, or, where the cell is nil, of none. It queues the termination when
// that is due. It returns how far it is, and after how long to ask again.
func (s *terminations) terminate(end guard.End, cell *entry, shown snapshot) (way termination, again time.Duration) {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byInstance[end.Instance]
	if t == nil {
		t = &termination{end: end, cell: cell}
		s.byInstance[end.Instance] = t
	}
	if t.dueLocked(now, shown) {
		t.sending = true
		s.queued.add(t)
	}
	return *t, max(t.next.Sub(now), time.Second)
}

// dueLocked reports whether a call is to be made now. The caller holds the lock of terminations.
func (t *termination) dueLocked(now time.Time, shown snapshot) bool {
	if t.sending || now.Before(t.next) {
		return false
	}
	_, there := shown.byID[t.end.Instance]
	// The first time, or when it was accepted and the instance is there yet.
	return t.accepted.IsZero() || there && shown.began.After(t.accepted.Add(terminateAgain))
}

// Between two tries to terminate one instance.
const firstEndRetry, longestEndRetry = time.Second, time.Minute

// note notes the answer of the cloud, or of the guard, to a call that terminates an instance. It reports whether that is to be told.
func (s *terminations) note(t *termination, err error) (isNews bool) {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	t.sending = false
	held, isHeld := errors.AsType[*guard.HeldError](err)
	switch {
	case err == nil:
		t.accepted, t.tries = now, 0
		return false
	case isHeld:
		t.next = now.Add(min(held.After, idlePoll))
		return t.reported.note(string(held.Reason), now)
	}
	t.tries++
	t.next = now.Add(max(retryAfter(err), s.random.After(t.tries, firstEndRetry, longestEndRetry)))
	return t.reported.note("failed "+string(cloud.CauseOf(err)), now)
}

// forget forgets the termination of an instance.
func (s *terminations) forget(instance string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byInstance, instance)
	s.guard.Forget(instance)
}

// accepted returns when the cloud accepted the termination of an instance; zero before.
func (s *terminations) accepted(instance string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.byInstance[instance]; t != nil {
		return t.accepted
	}
	return time.Time{}
}

// waitsFor returns what keeps the call from being sent that terminates an instance; "" for nothing.
func (s *terminations) waitsFor(instance string) string {
	if !s.sending(instance) {
		return ""
	}
	return s.calls.Waits(cloud.CallTerminate)
}

// sending reports whether a call that terminates an instance is being made, or waited for.
func (s *terminations) sending(instance string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byInstance[instance]
	return t != nil && t.sending
}

// forgetOrphans forgets the terminations of instances without a cell that a snapshot does not show.
func (s *terminations) forgetOrphans(seen snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.byInstance {
		if _, there := seen.byID[id]; !there && t.cell == nil && !t.sending {
			delete(s.byInstance, id)
			s.guard.Forget(id)
		}
	}
}
