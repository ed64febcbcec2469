package cells

import (
	"context"

	"github.com/elotl/kip/internal/events"
)

// swaps waits until the machines of ready cells have the swap that their pods ask for. Their agents make it by their configuration,
// before they start the kubelet that shares it.
type swaps struct {
	table       *table
	ends        *cellEnds
	configuring *configuring
	reports     *connectionReports
}

var _ preparation = (*swaps)(nil)

// prepare waits until the machine of a ready cell has the swap of its pod: containers that start before have none. A cell whose machine
// cannot have it ends.
func (s *swaps) prepare(_ context.Context, e *entry) (progress, error) {
	want := e.cell().SwapBytes
	if want == 0 {
		return done, nil
	}
	s.table.mu.Lock()
	configured, asked, said := e.connection().configured, *s.configuring.swap.of(e), s.reports.answerLocked(e)
	s.table.mu.Unlock()
	why := said.NoSwap
	switch {
	case !configured:
		return await(notConnected), nil // the tunnel wakes the cell
	case asked != want:
		return anew, nil // a pod has just taken the cell: its agent was configured without the swap
	case why == "" && said.SwapBytes >= want:
		return done, nil
	case why == "":
		why = "its agent is older than this Kip and makes no swap"
	}
	s.ends.begin(e, cellEnd{CauseKernelRefused, why, events.NewSwapRefused(e.id, why)})
	return leave, nil
}
