package cells

import (
	"context"
	"errors"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// firstSetUpPoll and longestSetUpPoll are how long a cell with a cloud-init file is left alone before it is asked
// whether that is done, twice as long each time: a file without scripts is written within
// milliseconds.
const firstSetUpPoll, longestSetUpPoll = 25 * time.Millisecond, 5 * time.Second

// cloudInitRuns is the wait of a cell for its cloud-init file.
const cloudInitRuns = "its cloud-init file is being carried out"

// contacting connects to the machines of booting cells, and has their agents and kubelets set up.
type contacting struct {
	loop        *loop
	records     *records
	connections *connections
	failures    *bootFailures
	polls       perCell[int] // how often a cell was asked whether its file is done; of its worker
}

var _ preparation = (*contacting)(nil)

// prepare connects to a cell, and waits until its kubelet is ready.
func (s *contacting) prepare(ctx context.Context, e *entry) (progress, error) {
	got, err := s.connections.connect(ctx, e)
	switch {
	case err != nil:
		return s.handleFailure(ctx, e, err)
	case got.isDone() && !s.connections.kubeletReady(e):
		return await(kubeletNotReady), nil // the tunnel and the kubelet wake the cell
	}
	return got, nil
}

// waitsForLocked returns what its agent and its kubelet have not done yet. The caller holds table.mu.
func (s *contacting) waitsForLocked(e *entry) string { return s.connections.waitsForLocked(e) }

// handleFailure checks again soon while the cloud-init file runs. It ends the cell if the file or the agent fails. After a failed file,
// Kip launches no similar cell for a while. It returns any other error.
func (s *contacting) handleFailure(ctx context.Context, e *entry, err error) (progress, error) {
	switch {
	case errors.Is(err, errNoAgent):
		return leave, s.failures.endWithoutAgent(ctx, e, err)
	case errors.Is(err, errNoCloudInit):
		return leave, s.failures.endWithoutCloudInit(ctx, e, err)
	case errors.Is(err, agentapi.ErrNotYet) && e.cell().CloudInit() != "" && e.cell().StepTime(apiv1.StepJoined).IsZero():
		if e.cell().StepTime(apiv1.StepCloudInit).IsZero() {
			// Stored, since a Kip that begins anew is not to take it for one that does not join.
			if err := s.records.save(ctx, e, func(cell *Cell) error {
				cell.step(apiv1.StepCloudInit, s.loop.clock.Now())
				return nil
			}); err != nil {
				return progress{}, err
			}
		}
		polls := s.polls.of(e)
		*polls++
		return waitFor(cloudInitRuns, s.loop.random.After(*polls, firstSetUpPoll, longestSetUpPoll)), nil
	}
	return progress{}, err
}
