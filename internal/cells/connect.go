package cells

import (
	"context"
	"errors"
	"time"

	"github.com/elotl/kip/internal/agentapi"
)

// connection is what this process has of a cell's agent and kubelet. It is under table.mu, unless it says otherwise. Only the cell's worker
// replaces api and session, and reads them without the lock; while draining has logs saved, only that does, and the worker waits for it.
type connection struct {
	api        API
	node       string // the virtual node that api is of
	session    agentSession
	lacks      string              // the address that the instance has not got, as a snapshot showed it
	connecting time.Time           // when this process began to connect
	stopWait   context.CancelFunc  // of the goroutine that waits for the kubelet
	shown      bool                // api shows the pod
	configured bool                // the agent has its configuration, on this connection
	unreported bool                // observers do not know of that
	said       agentapi.Configured // by the agent, with it
	goesOver   time.Time           // since when it was told of another agent, which has not answered yet
	breaks     int                 // how often the session has not been connected
}

// connections are those of this process to the agents of cells, and the APIs that cells see.
type connections struct {
	table       *table
	loop        *loop
	apis        *cellAPIs
	dialling    *dialling
	configuring *configuring
	reports     *connectionReports
}

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
		switch got, err := s.loop.async(ctx, e, "configure", configure); {
		case errors.Is(err, errAgentFetched):
			return waitFor("the agent of its launch", agentPoll), nil
		case err != nil || got != done:
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
	if !e.session.opened() {
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
		s.table.mu.Lock()
		e.session, e.stopWait, e.connecting = agentSession{session}, stop, s.loop.clock.Now()
		s.table.mu.Unlock()
	}
	if err := e.show(); err != nil {
		return nil, err
	}
	s.reports.reportUnanswered(ctx, e)
	return s.configuring.due(e), nil
}

// disconnect closes what this process holds for a cell.
func (s *connections) disconnect(e *entry) {
	s.table.mu.Lock()
	session, stopWait, api := e.session, e.stopWait, e.api
	e.session, e.stopWait, e.api, e.shown, e.configured = agentSession{}, nil, nil, false, false
	e.breaks++ // what is asked on this session yet says nothing of the next one
	s.table.mu.Unlock()
	if stopWait != nil {
		stopWait()
	}
	session.close()
	if api != nil {
		s.apis.remove(e)
	}
}

// kubeletReady says that the kubelet of a cell is ready, with the configuration that the
// agent has from this process: one that an earlier process gave it may be of another node.
func (s *connections) kubeletReady(e *entry) bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	select {
	case <-e.api.NodeReady():
		return e.configured
	default:
		return false
	}
}

// reach waits until a cell that is being drained is connected, if that is worth a
// wait.
func (s *connections) reach(ctx context.Context, e *entry) error {
	if err := s.connectNow(ctx, e); err != nil && !e.session.opened() {
		return err
	}
	if !e.session.connected() {
		// After a restart, Kip may still be dialling. A lost cell is not waited for.
		if !patient(e) {
			return ErrNotConnected
		}
		if !e.session.ready(ctx) {
			return ErrNotConnected
		}
	}
	return nil
}
