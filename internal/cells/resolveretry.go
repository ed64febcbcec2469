package cells

import (
	"cmp"
	"context"
	"fmt"

	"github.com/elotl/kip/internal/backoff"
	"k8s.io/utils/clock"
)

// resolveRetries have cells wait whose launch could not be resolved, until the next try.
type resolveRetries struct {
	clock  clock.PassiveClock
	random backoff.Random
	tries  perCell[resolveTries]
}

var _ preparation = (*resolveRetries)(nil)

// resolveTries are those of one cell.
type resolveTries struct {
	attempts
	why string // the last has failed
}

// prepare has a cell wait until its launch may be resolved again.
func (s *resolveRetries) prepare(_ context.Context, e *entry) (progress, error) {
	if wait := s.tries.of(e).wait(s.clock.Now()); wait > 0 {
		return waitFor(s.tries.of(e).why, wait), nil
	}
	return done, nil
}

// fail notes that the launch of a cell could not be resolved. It returns how often in a row that was so.
func (s *resolveRetries) fail(e *entry, failure error) int {
	tries := s.tries.of(e)
	tries.fail(s.clock.Now(), failure, s.random)
	tries.why = cmp.Or(whyUnfit(failure), fmt.Sprintf("Kip could not look up what to launch it with, and tries again: %v", failure))
	return tries.failed
}

// due reports whether the launch of a cell could not be resolved, and is to be once more.
func (s *resolveRetries) due(e *entry) bool { return s.tries.of(e).failed > 0 }

// restart forgets the tries of a cell: its launch is resolved, or the next one asks something else.
func (s *resolveRetries) restart(e *entry) { *s.tries.of(e) = resolveTries{} }
