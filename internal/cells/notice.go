package cells

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

const (
	// maxNotice bounds a notice in bytes, and noticeTimeout how long one may take to come.
	maxNotice     = 1 << 10
	noticeTimeout = 10 * time.Second
	// shortestNotice and longestNotice bound what a cell says is left to it. EC2 gives two minutes.
	shortestNotice, longestNotice = time.Second, 5 * time.Minute
)

// noticeAPI is a cell's API, over which the cell's agent also tells Kip what the cloud says on the
// machine. It is sooner than what the cloud tells Kip. A cell may lie, about itself alone: its
// own pod moves, or runs where it is until the cloud says more.
type noticeAPI struct {
	API
	notices *notices
	e       *entry
}

// Unwrap returns the API itself.
func (h noticeAPI) Unwrap() http.Handler { return h.API }

// ServeHTTP takes notices now and then, and leaves the rest to the API, which charges the cell for
// what it refuses, a notice too soon among it.
func (h noticeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !agentapi.IsNotice(r) || !h.notices.allow(h.e) {
		h.API.ServeHTTP(w, r)
		return
	}
	var n agentapi.Notice
	_ = http.NewResponseController(w).SetReadDeadline(h.notices.loop.clock.Now().Add(noticeTimeout)) // what has none is no connection
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxNotice)).Decode(&n); err != nil {
		http.Error(w, "the notice is no valid JSON of at most 1 KiB", http.StatusBadRequest)
		return
	}
	switch n.Kind {
	case agentapi.NoticeTakenBack, agentapi.NoticeAtRisk:
		var err error
		h.notices.loop.watchdog.Track(r.Context(), "notices", func(ctx context.Context) { err = h.notices.accept(ctx, h.e, n) })
		if err != nil {
			http.Error(w, "the notice could not be stored", http.StatusServiceUnavailable)
		}
	default:
		http.Error(w, "the kind of the notice is not known: want taken-back or at-risk", http.StatusBadRequest)
	}
}

// notices are what cells say of themselves.
type notices struct {
	loop          *loop
	interruptions *interruptions
	events        *reporter

	mu  sync.Mutex // of what all cells said of themselves
	own perCell[ownNotice]
}

// ownNotice is what a cell said of itself.
type ownNotice struct {
	at     time.Time // when its agent last gave notice
	atRisk bool      // its agent says that it is
}

// allow reports whether Kip takes a notice of a cell now, and from then on takes no other for a while.
func (s *notices) allow(e *entry) bool {
	now := s.loop.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.own.of(e)
	if !own.at.IsZero() && now.Sub(own.at) < agentapi.NoticePause {
		return false
	}
	own.at = now
	return true
}

// accept takes what a cell says of itself. Only what was bought as spot is taken back so.
// It returns an error if the cell is to say it again.
func (s *notices) accept(ctx context.Context, e *entry, n agentapi.Notice) error {
	cell := e.cell()
	if cell.Instance == nil || !cell.Offering().Spot {
		return nil
	}
	if n.Kind == agentapi.NoticeAtRisk {
		s.reportRisk(e)
		return nil
	}
	return s.interruptions.recordNotice(ctx, e, cloud.Interruption{
		InstanceID: cell.Instance.ID,
		Left:       min(max(n.Left, shortestNotice), longestNotice),
		Reason:     "it was told so itself",
	}, true)
}

// reportRisk tells once that a spot cell is more likely than usual to be taken back. It moves nothing.
func (s *notices) reportRisk(e *entry) {
	cell := e.cell()
	s.mu.Lock()
	own := s.own.of(e)
	reported := own.atRisk
	own.atRisk = true
	s.mu.Unlock()
	if !reported && cell.Pod.UID != "" {
		s.events.report(cell, events.NewRebalanceRecommended(e.id))
	}
}
