package cells

import (
	"context"
	"encoding/json"
	"net/http"
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

// hearing is a cell's API, beside which the cell's agent tells Kip what the cloud says on the
// machine. It is sooner than what the cloud tells Kip. A cell may lie, about itself alone: its
// own pod moves, or runs where it is until the cloud says more.
type hearing struct {
	API
	c *Controller
	e *entry
}

// Unwrap returns the API itself.
func (h hearing) Unwrap() http.Handler { return h.API }

// ServeHTTP takes notices now and then, and leaves the rest to the API, which charges the cell for
// what it refuses, a notice too soon among it.
func (h hearing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !agentapi.IsNotice(r) || !h.c.mayNotify(h.e) {
		h.API.ServeHTTP(w, r)
		return
	}
	var n agentapi.Notice
	_ = http.NewResponseController(w).SetReadDeadline(h.c.cfg.Clock.Now().Add(noticeTimeout)) // what has none is no connection
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxNotice)).Decode(&n); err != nil {
		http.Error(w, "the notice is no valid JSON of at most 1 KiB", http.StatusBadRequest)
		return
	}
	switch n.Kind {
	case agentapi.NoticeTakenBack, agentapi.NoticeAtRisk:
		var err error
		h.c.cfg.Pulse.Turn(r.Context(), "notices", func(ctx context.Context) { err = h.c.notified(ctx, h.e, n) })
		if err != nil {
			http.Error(w, "the notice could not be stored", http.StatusServiceUnavailable)
		}
	default:
		http.Error(w, "the kind of the notice is not known: want taken-back or at-risk", http.StatusBadRequest)
	}
}

// mayNotify says whether a cell is listened to now.
func (c *Controller) mayNotify(e *entry) bool {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !e.notified.IsZero() && now.Sub(e.notified) < agentapi.NoticePause {
		return false
	}
	e.notified = now
	return true
}

// notified takes what a cell says of itself. Only what was bought as spot is taken back so.
// It returns an error if the cell is to say it again.
func (c *Controller) notified(ctx context.Context, e *entry, n agentapi.Notice) error {
	cell := e.cell()
	if cell.Instance == nil || !cell.Offer().Spot {
		return nil
	}
	if n.Kind == agentapi.NoticeAtRisk {
		c.tellRisk(e)
		return nil
	}
	return c.announced(ctx, e, cloud.Interruption{
		InstanceID: cell.Instance.ID,
		Left:       min(max(n.Left, shortestNotice), longestNotice),
		Reason:     "it was told so itself",
	}, true)
}

// tellRisk tells once that a spot cell is more likely than usual to be taken back. It moves nothing.
func (c *Controller) tellRisk(e *entry) {
	cell := e.cell()
	c.mu.Lock()
	told := e.atRisk
	e.atRisk = true
	c.mu.Unlock()
	if !told && cell.Pod.UID != "" {
		c.report(cell, events.NewRebalanceRecommended(e.id))
	}
}
