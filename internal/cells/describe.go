package cells

import (
	"context"
	"log/slog"
	"slices"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// describing asks the cloud of instances that its list does not show.
type describing struct {
	calls *pipe.Pipe
	log   *slog.Logger
}

// describeMost is how many instances one call describes.
const describeMost = 500

// describe asks the cloud of each instance that a snapshot does not show, and returns
// their states, and why the cloud has ended them where it says; those of which it got no
// answer are left out.
func (s *describing) describe(ctx context.Context, asked []absent) (states map[string]cloud.State, faults map[string]error) {
	states, faults = make(map[string]cloud.State, len(asked)), map[string]error{}
	for group := range slices.Chunk(asked, describeMost) {
		ids := make([]string, len(group))
		for n, a := range group {
			ids[n] = a.instance()
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		described := s.calls.DescribeEach(call, ids...)
		cancel()
		var failed error // one of them: a call that fails does so for all that it names
		unanswered := 0
		for n, d := range described {
			if d.Err != nil {
				failed = d.Err
				unanswered++
				continue
			}
			states[ids[n]], faults[ids[n]] = d.Instance.State, d.Instance.Fault
		}
		if failed != nil && ctx.Err() == nil {
			s.log.Warn("describe instances that the cloud's list does not show", "cloud", s.calls.Name(),
				"instances", len(ids), "unanswered", unanswered, "err", failed)
		}
	}
	return states, faults
}
