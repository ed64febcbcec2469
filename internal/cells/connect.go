package cells

import (
	"context"
	"errors"

	apiv1 "github.com/elotl/kip/api/v1"
)

// connections are those of this process to the agents of cells, and the APIs that cells see.
type connections struct {
	table       *table
	loop        *loop
	apis        *cellAPIs
	dialling    *dialling
	configuring *configuring
	reports     *connectionReports
}

// kubeletNotReady is the wait of a cell for its kubelet.
const kubeletNotReady = "its kubelet is not ready"

// connect brings up the cell's API and its tunnel in this process, and has the agent
// given its configuration. It is done when the agent has that, or is not connected. It waits while the agent goes over to that of its
// launch.
func (s *connections) connect(ctx context.Context, e *entry) (progress, error) {
	for {
		configure, err := s.bringUp(ctx, e)
		if err != nil {
			return progress{}, err
		}
		if configure == nil {
			return done, s.reports.reportConfigured(ctx, e)
		}
		switch got, err := s.loop.async(ctx, e, configures, configure); {
		case errors.Is(err, errAgentFetched):
			return waitFor(errAgentFetched.Error(), agentPoll), nil
		case err != nil || !got.isDone():
			return got, err
		}
	}
}

// connectNow does the same, and waits for the answer.
func (s *connections) connectNow(ctx context.Context, e *entry) error {
	configure, err := s.bringUp(ctx, e)
	if err != nil || configure == nil {
		return err
	}
	return configure(ctx)
}

// bringUp brings up the cell's API and its tunnel in this process. It returns what
// gives the agent its configuration, where that is to be done and can be.
func (s *connections) bringUp(ctx context.Context, e *entry) (configure func(context.Context) error, err error) {
	if !e.session().opened() {
		api := s.apis.serve(e)
		// Before the tunnel: a kubelet that hears that its pod is not there kills
		// the pod.
		if err := e.show(); err != nil {
			return nil, err
		}
		session, err := s.dialling.dial(ctx, e, api)
		if err != nil {
			return nil, err
		}
		wait, stop := context.WithCancel(ctx)
		s.loop.running.Go(func() {
			select {
			case <-api.NodeReady():
				s.loop.queue.Add(e.id)
			case <-wait.Done():
			}
		})
		e.open(session, stop, s.loop.clock.Now())
	}
	if err := e.show(); err != nil {
		return nil, err
	}
	s.reports.reportUnanswered(ctx, e)
	return s.configuring.due(e), nil
}

// disconnect closes what this process holds for a cell.
func (s *connections) disconnect(e *entry) {
	was := e.close()
	if was.stopWait != nil {
		was.stopWait()
	}
	was.session.close()
	if was.api != nil {
		s.apis.remove(e)
	}
}

// kubeletReady reports whether the kubelet of a cell is ready, with the configuration that the
// agent has from this process: one that an earlier process gave it may be of another node.
func (s *connections) kubeletReady(e *entry) bool {
	now := e.connection()
	select {
	case <-now.api.NodeReady():
		return now.configured
	default:
		return false
	}
}

// reach waits until a cell that is being drained is connected, if that is worth a
// wait.
func (s *connections) reach(ctx context.Context, e *entry) error {
	if err := s.connectNow(ctx, e); err != nil && !e.session().opened() {
		return err
	}
	// After a restart, Kip may still be dialling. A lost cell is not waited for.
	if session := e.session(); !session.connected() && (!patient(e) || !session.ready(ctx)) {
		return ErrNotConnected
	}
	return nil
}

// waitsFor returns what the agent and the kubelet of a cell have not done yet.
func (s *connections) waitsFor(e *entry) string {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.waitsForLocked(e)
}

// waitsForLocked is waitsFor. The caller holds table.mu.
func (s *connections) waitsForLocked(e *entry) string {
	session, goesOver := e.session(), !s.configuring.upgrades.sinceLocked(e).IsZero()
	switch {
	case !session.opened():
		return noAddress
	case !session.connected():
		who := "its agent"
		if goesOver {
			who = "the agent of cells.itzo"
		}
		if err := session.lastError(); err != nil {
			return who + " has not joined: " + err.Error()
		}
		return who + " has not joined"
	case goesOver:
		return errAgentFetched.Error()
	case e.cell().StepTime(apiv1.StepJoined).IsZero() && !e.cell().StepTime(apiv1.StepCloudInit).IsZero():
		return cloudInitRuns
	}
	return kubeletNotReady
}
