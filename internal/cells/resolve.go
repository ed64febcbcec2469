package cells

import (
	"context"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// resolving has the cloud resolve what groups are launched with.
type resolving struct {
	loop        *loop
	calls       *pipe.Pipe
	launchCalls *launchCalls
	wanted      *wanted
	dispatching *dispatching
	unresolved  *unresolved
}

// launch launches a group in the turn of its call, resolved where the cloud resolves launches.
func (s *resolving) launch(ctx context.Context, group []*entry, turn *pipe.Turn) {
	resolver := s.calls.Features().Resolver
	if resolver == nil {
		s.dispatching.launch(ctx, group, nil, turn)
		return
	}
	// The cloud's answer holds up nobody else.
	s.loop.spawn(ctx, "launch", func(ctx context.Context) { s.resolve(ctx, resolver, group, turn) })
}

// resolve has the cloud resolve what a group is launched with, and launches it. Nothing is
// stored before, so that a Kip that dies here leaves cells that are to be launched. Others
// launch meanwhile, also where the cloud takes one call at a time.
func (s *resolving) resolve(ctx context.Context, resolver cloud.Resolver, group []*entry, turn *pipe.Turn) {
	turn.Yield()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	resolved, err := resolver.Resolve(call, s.launchCalls.launchSpec(*group[0].cell(), s.launchCalls.recipe.nameTag))
	cancel()
	group = s.wanted.giveBackEnding(group) // pods may have gone meanwhile
	switch {
	case ctx.Err() != nil || len(group) == 0:
		turn.Cancel()
	case err != nil:
		turn.Cancel()
		s.unresolved.handle(ctx, group, err)
	case turn.Resume(ctx) == nil: // else ctx has ended
		if group = s.wanted.giveBackEnding(group); len(group) == 0 {
			turn.Cancel()
			return
		}
		for _, e := range group {
			e.resolving = attempts{}
		}
		s.dispatching.launch(ctx, group, &resolved, turn)
	}
}
