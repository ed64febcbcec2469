package cells

import (
	"context"
	"slices"

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

// next takes cells of the same offering from the queue, to be launched in one call, in the turn of that call. It waits for the turn before
// the call is stored: until then others may come along. It returns an error when ctx has ended.
func (s *batching) next(ctx context.Context) (*launch, error) {
	turn, err := s.calls.Turn(ctx, cloud.CallLaunch, 1)
	if err != nil {
		return nil, err
	}
	if !s.queue.full(s.sizes.atMost()) && !turn.Gather(ctx) {
		turn.Cancel()
		return nil, ctx.Err()
	}
	group := s.queue.next(s.sizes.atMost(), func(n int) int { return max(1, turn.Resources(n)) })
	return &launch{group: group, turn: turn}, nil
}

// unwanted returns the cells of a launch that are to end. Those that are stored with it are not asked: they may have an instance.
func (s *batching) unwanted(l *launch) []*outcome {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	ending := slices.DeleteFunc(l.open(), func(e *entry) bool { return e.ending == "" })
	return outcomesOf(ending, isUnwanted, nil)
}
