package cells

import (
	"context"
	"errors"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/store"
)

// dispatching stores the launches of groups, and has them sent.
type dispatching struct {
	table   *table
	loop    *loop
	calls   *pipe.Pipe
	intents *intents
	sending *sending
}

// launch stores the intent to launch a group, in as many calls as the store
// takes at a time, and sends them, the first in the turn that it is given. resolved is
// what the cloud has resolved it to; nil where it resolves nothing.
func (s *dispatching) launch(ctx context.Context, group []*entry, resolved *cloud.Resolved, turn *pipe.Turn) {
	l, err := s.intents.store(ctx, group, resolved)
	if errors.Is(err, store.ErrTooBig) && len(group) > 1 {
		s.launch(ctx, group[:len(group)/2], resolved, turn)
		rest := group[len(group)/2:]
		if turn, err = s.calls.Turn(ctx, cloud.CallLaunch, len(rest)); err != nil {
			return // ctx has ended
		}
		turn.Resources(len(rest))
		s.launch(ctx, rest, resolved, turn)
		return
	}
	if err != nil {
		turn.Cancel()
		for _, e := range group {
			s.table.mu.Lock()
			e.giveBack()
			s.table.mu.Unlock()
			s.loop.again(e, err)
		}
		return
	}
	s.loop.spawn(ctx, "launch", func(ctx context.Context) { s.sending.send(ctx, l, turn) })
}
