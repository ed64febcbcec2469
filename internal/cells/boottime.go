package cells

import (
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// cloudInitTimeout is how long a cell may take to carry out the operator's cloud-init
// file: an image's package manager takes minutes.
const cloudInitTimeout = 10 * time.Minute

// bootTimes say how long booting cells still have.
type bootTimes struct {
	generation *StoreGeneration
	loop       *loop
}

// left returns how much time a booting cell has left, and what it is to do in it. What Kip was late, or
// kept the cell waiting, is not taken off.
func (s *bootTimes) left(e *entry, cell *Cell, session agentSession) (left time.Duration, what string) {
	from, what := cell.StepTime(apiv1.StepJoined), "become ready"
	limit := max(readyTimeout, min(from.Sub(cell.launched()), cell.Offering().BootTimeout))
	if begun := cell.StepTime(apiv1.StepCloudInit); from.IsZero() && !begun.IsZero() {
		from, limit, what = begun, cloudInitTimeout, "finish its cloud-init file"
	}
	if from.IsZero() || cell.launched().After(from) { // or started anew
		from, limit, what = cell.launched(), cell.Offering().BootTimeout, "join"
	}
	if held := session.heldBack(); held.After(from) {
		from = held
	}
	if e.loaded {
		limit += s.generation.awayAfter(from)
	}
	return s.loop.left(from, limit), what
}
