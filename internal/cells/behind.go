package cells

import (
	"errors"
	"time"

	"github.com/elotl/kip/internal/events"
)

// errBehind: nothing is launched.
var errBehind = errors.New(behind)

// What Behind and EndDuplicates say.
const (
	behind   = events.StoreIsBehind
	unread   = events.InstancesUnread
	unlisted = events.ZonesUnlisted
)

// whyBehind is Controller.Behind.
func (s *StoreGeneration) whyBehind() (why string, sure bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.now.isBehind():
		return behind, true
	case !s.compared && s.now.mayBeLost() && !s.first.IsZero():
		return events.StoreUnproven(s.first.Add(s.proofAge())), false
	case !s.compared:
		return unread, false
	case s.blind:
		return unlisted, false
	}
	return "", true
}

// Behind returns why no instance may end whose end nobody has asked for; "" if it may.
func (s *StoreGeneration) Behind() string {
	why, _ := s.whyBehind()
	return why
}

// isBehind reports whether the store is known to be behind.
func (s *StoreGeneration) isBehind() bool {
	why, sure := s.whyBehind()
	return why != "" && sure
}

// mayRunMore reports whether a loaded cell may run a pod that is missing in its record. Kip must not answer its kubelet then: the kubelet
// would kill the pod.
func (s *StoreGeneration) mayRunMore(e *entry) bool {
	why, _ := s.whyBehind()
	return why != "" && e.loaded && !e.session().opened()
}

// noteAway notes that a cell of an earlier process is not connected to now.
func (s *StoreGeneration) noteAway(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awayUntil = now
	if s.awaySince.IsZero() {
		s.awaySince = now
	}
}

// awayAfter returns how long after a time cells of earlier processes were not connected to, since they may run
// more than their records say.
func (s *StoreGeneration) awayAfter(from time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaySince.After(from) {
		from = s.awaySince
	}
	return max(0, s.awayUntil.Sub(from))
}
