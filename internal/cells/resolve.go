package cells

import (
	"context"
	"fmt"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// resolving has the cloud resolve what groups are launched with.
type resolving struct {
	calls      *pipe.Pipe
	builder    *callBuilder
	retries    *resolveRetries
	unresolved *unresolved
}

// asks reports whether the cloud resolves launches.
func (s *resolving) asks() bool { return s.calls.Optional().Resolver != nil }

// resolve has the cloud resolve what a group is launched with. Nothing is stored before, so that a Kip that dies here
// leaves cells that are to be launched.
func (s *resolving) resolve(ctx context.Context, l *launch) error {
	group := l.open()
	resolved, err := s.ask(ctx, *group[0].cell())
	if err != nil {
		return err
	}
	for _, e := range group {
		s.retries.restart(e)
	}
	l.resolved = &resolved
	return nil
}

// outcomesOfFailure returns what has become of a group that could not be resolved.
func (s *resolving) outcomesOfFailure(l *launch, failure error) []*outcome {
	return s.unresolved.outcomes(l.open(), failure)
}

// ask has the cloud resolve what a cell is launched with. The caller knows that it asks.
func (s *resolving) ask(ctx context.Context, cell Cell) (cloud.Resolved, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.calls.Optional().Resolver.Resolve(ctx, s.builder.spec(cell, s.builder.recipe.nameTag))
}

// image returns what a cell would boot if it were launched now; "" of a cloud that does not say.
func (s *resolving) image(ctx context.Context, cell Cell) (string, error) {
	if !s.asks() {
		return "", nil
	}
	resolved, err := s.ask(ctx, cell)
	if err != nil {
		return "", fmt.Errorf("look up the image that cells like %s boot now: %w", cell.ID, err)
	}
	return resolved.Image, nil
}
