package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/events"
)

const (
	// countPoll is how often Kip checks what a cell's kubelet counts.
	countPoll = 200 * time.Millisecond
	// countSilence is how long it may take before the pod is told: a driver finds eight GPUs within some ten seconds, and a kubelet that
	// starts counts huge pages within some seconds.
	countSilence = 30 * time.Second
)

// kubeletCounts waits until the kubelets of ready cells count a kind of resource that their pods ask for.
type kubeletCounts struct {
	loop  *loop
	waits *bindWaits
	ends  *cellEnds
	cells perCell[kubeletCount] // of their workers
}

// kubeletCount is how far that is.
type kubeletCount struct {
	since   time.Time // when this process began to wait; zero before
	counted bool      // the kubelet counts all
}

func newKubeletCounts(l *loop, w *bindWaits, e *cellEnds) *kubeletCounts {
	return &kubeletCounts{loop: l, waits: w, ends: e}
}

// has reports whether the kubelet of a cell has counted all.
func (s *kubeletCounts) has(e *entry) bool { return s.cells.of(e).counted }

// counted notes that it has.
func (s *kubeletCounts) counted(ctx context.Context, e *entry) progress {
	s.cells.of(e).counted = true
	s.waits.clear(ctx, e)
	return done
}

// restart begins the time of the wait anew.
func (s *kubeletCounts) restart(e *entry) { s.cells.of(e).since = time.Time{} }

// shortage is what a kubelet does not count.
type shortage struct {
	text    string       // what the cell waits for
	event   events.Event // for the pod
	timeout time.Duration
	late    string // why the cell ends after the timeout
}

// wait waits for what a kubelet does not count, reports it if that takes long, and ends the cell after the timeout.
func (s *kubeletCounts) wait(ctx context.Context, e *entry, lacks shortage) progress {
	now, state := s.loop.clock.Now(), s.cells.of(e)
	if state.since.IsZero() {
		state.since = now
	}
	if s.loop.leftTo(e, state.since, lacks.timeout) <= 0 {
		s.ends.begin(e, cellEnd{CauseNotReady, lacks.late, events.NewCellGivenUp(e.id, lacks.late)})
		return leave
	}
	if now.Sub(state.since) >= countSilence {
		s.waits.report(ctx, e, lacks.event)
	}
	return waitFor(lacks.text, countPoll)
}
