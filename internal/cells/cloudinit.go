package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

// CloudInit returns the digest of the cloud-init file that the cell was launched with; "" for none.
func (c Cell) CloudInit() string {
	if c.Launch == nil {
		return ""
	}
	return c.Launch.CloudInit
}

// errNoCloudInit: the agent cannot carry the file out, and will not do so later.
var errNoCloudInit = errors.New("its cloud-init file cannot be carried out")

// cloudInits have agents carry out the cloud-init file of their cells' launch.
type cloudInits struct {
	agents   *asking
	blockers *blockers
	events   *reporter
	file     CloudInit // nil for none

	mu    sync.Mutex              // of those of all cells
	cells perCell[cloudInitState] // under mu
}

// cloudInitState is how far that is in a cell.
type cloudInitState struct {
	failures []string // what could not be done, to be told
	sent     bool     // the agent has the file
}

// setUp has the agent carry out the cloud-init file of the cell's launch: before it is joined,
// and so before its kubelet runs. The error is agentapi.ErrNotYet as long as that goes on.
func (s *cloudInits) setUp(ctx context.Context, e *entry, session agentSession) error {
	digest := e.cell().CloudInit()
	if digest == "" || !e.cell().StepTime(apiv1.StepJoined).IsZero() {
		return nil
	}
	if s.file == nil {
		return fmt.Errorf("%w: this Kip has none", errNoCloudInit)
	}
	state := s.cells.of(e)
	s.mu.Lock()
	sent := state.sent
	s.mu.Unlock()
	var failures []string
	var err error
	if sent {
		failures, err = s.askDone(ctx, e, session, digest)
	} else {
		failures, err = s.begin(ctx, e, session, digest)
	}
	s.mu.Lock()
	state.sent = sent || errors.Is(err, agentapi.ErrNotYet)
	if errors.Is(err, errNotBegun) {
		state.sent = false
	}
	if err == nil {
		state.failures = failures
	}
	s.mu.Unlock()
	if err == nil {
		s.blockers.noteCloudInitDone(e.cell())
	}
	return err
}

// begin gives the agent the file.
func (s *cloudInits) begin(ctx context.Context, e *entry, session agentSession, digest string) (failures []string, err error) {
	document, err := s.file.Document(ctx, digest)
	if err != nil {
		return nil, err
	}
	err = s.agents.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) (err error) {
		failures, err = agent.PutCloudInit(ctx, document)
		return err
	})
	if answered(err, http.StatusBadRequest, http.StatusNotFound) {
		err = fmt.Errorf("%w: %w", errNoCloudInit, err)
	}
	return failures, err
}

// errNotBegun: the agent knows nothing of the file, and is to be given it once more.
var errNotBegun = fmt.Errorf("the agent has not begun with the cloud-init file: %w", agentapi.ErrNotYet)

// askDone asks the agent, which has the file, whether it is done.
func (s *cloudInits) askDone(ctx context.Context, e *entry, session agentSession, digest string) (failures []string, err error) {
	err = s.agents.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) (err error) {
		failures, err = agent.CloudInitDone(ctx, digest)
		return err
	})
	if answered(err, http.StatusNotFound) {
		return nil, errNotBegun
	}
	return failures, err
}

// report tells, once, what of the file could not be done.
func (s *cloudInits) report(e *entry) {
	state := s.cells.of(e)
	s.mu.Lock()
	failures := state.failures
	state.failures = nil
	s.mu.Unlock()
	if len(failures) > 0 {
		s.events.report(e.cell(), events.NewCloudInitFailed(e.id, failures))
	}
}
