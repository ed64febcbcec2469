package cells

import (
	"context"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// batching takes groups of cells from the queue of launches.
type batching struct {
	table *table
	calls *pipe.Pipe
	queue *launchQueue
	sizes *batchSizes
}

// wait returns when something waits for a launch; false when ctx has ended.
func (s *batching) wait(ctx context.Context) bool { return s.queue.wait(ctx) }

// next takes cells of the same offering, to be launched in one call, and the call's turn; nil when ctx has ended. The turn is
// waited for before the call is stored: until then others may come along.
func (s *batching) next(ctx context.Context) ([]*entry, *pipe.Turn) {
	turn, err := s.calls.Turn(ctx, cloud.CallLaunch, 1)
	if err != nil {
		return nil, nil // ctx has ended
	}
	if !s.queue.full(s.sizes.atMost()) && !turn.Gather(ctx) {
		turn.Cancel()
		return nil, nil
	}
	return s.queue.next(s.sizes.atMost(), func(n int) int { return max(1, turn.Resources(n)) }), turn
}

// part parts the cells of a group into those that are wanted yet, and those that are to end.
func (s *batching) part(group []*entry) (wanted, ending []*entry) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, e := range group {
		if e.ending == "" {
			wanted = append(wanted, e)
		} else {
			ending = append(ending, e)
		}
	}
	return wanted, ending
}
