package hollow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/tunnel"
)

// retryAfter is the pause after what failed and may work later.
const retryAfter = time.Second

// errRestarted is why the life of an agent ends that is started again.
var errRestarted = errors.New("the agent is restarted")

// machine is one instance that is up: what outlives its agent's restarts.
type machine struct {
	fleet      *Fleet
	log        *slog.Logger
	instanceID string
	user       agentapi.UserData
	addr       netip.AddrPort
	dir        string // the agent's state
	faults     Faults
	bootedAt   time.Time

	at int // in fleet.running, or -1; guarded by the fleet's mutex

	mu      sync.Mutex
	reach   reach
	port    *port                   // of this life, nil between two
	kubelet *kubelet                // of this life, nil between two
	end     context.CancelCauseFunc // ends this life
	forget  bool                    // before the next life
	config  *agentapi.Config        // from Kip, nil before
	// firewall is the digest of the rules in force, "" before.
	firewall string
	arrived  chan struct{} // closed when config is set
	pod      *workload     // nil without one
	gone     types.UID     // of the pod that was here and is deleted
}

// run lives one agent's life after another until ctx ends, or nothing can be
// done about an error.
func (m *machine) run(ctx context.Context) error {
	defer m.fleet.pods(m, false)
	if !m.fleet.cfg.KeepDisks {
		defer func() { _ = os.RemoveAll(m.dir) }()
	}
	if m.faults.NeverJoins {
		<-ctx.Done()
		return nil
	}
	for {
		err := m.live(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errRestarted):
		default:
			return err
		}
	}
}

// live is one life of the agent and its kubelet.
func (m *machine) live(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if err := m.begin(end); err != nil {
		return err
	}
	// Before the port opens: the key is there when Kip comes.
	agent, err := tunnel.NewCell(tunnel.CellConfig{
		UserData: m.user,
		StateDir: m.dir,
		Handler:  m,
		Log:      m.log,
	})
	if err != nil {
		return fmt.Errorf("make the agent's identity: %w", err)
	}
	p, err := m.listen(ctx)
	if err != nil {
		return err
	}
	k := newKubelet(ctx, m, agent.RoundTripper())
	m.mu.Lock()
	m.port, m.kubelet = p, k
	err = p.set(m.reach) // it may have changed since listen
	m.mu.Unlock()
	if err != nil {
		_ = p.Close()
		return fmt.Errorf("open the agent's port: %w", err)
	}
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := agent.Serve(ctx, p); ctx.Err() == nil {
			end(fmt.Errorf("serve the agent's port: %w", err))
		}
	})
	k.run()
	parts.Wait()
	m.mu.Lock()
	m.port, m.kubelet = nil, nil
	m.mu.Unlock()
	return context.Cause(ctx)
}

// begin starts a life, after what the machine has forgotten.
func (m *machine) begin(end context.CancelCauseFunc) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end = end
	if m.forget {
		m.forget, m.config, m.firewall, m.pod = false, nil, "", nil
		m.gone = ""
		m.fleet.pods(m, false)
		if err := os.RemoveAll(m.dir); err != nil {
			return fmt.Errorf("forget the agent's identity: %w", err)
		}
	}
	m.arrived = make(chan struct{})
	if m.config != nil {
		close(m.arrived)
	}
	return nil
}

// listen opens the port. It is patient: a machine that had the same address may
// just be closing its own.
func (m *machine) listen(ctx context.Context) (*port, error) {
	for {
		m.mu.Lock()
		to := m.reach
		m.mu.Unlock()
		p, err := newPort(func() (net.Listener, error) { return m.fleet.cfg.Listen(m.addr) }, to)
		if err == nil {
			return p, nil
		}
		m.log.Warn("hollow cell cannot listen, retrying", "addr", m.addr.String(), "err", err)
		if !sleep(ctx, m.fleet.cfg.Clock, retryAfter) {
			return nil, context.Cause(ctx)
		}
	}
}

func (m *machine) setReach(to reach) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reach = to
	if m.port == nil {
		return nil
	}
	if err := m.port.set(to); err != nil {
		return fmt.Errorf("open the port of instance %s again: %w", m.instanceID, err)
	}
	return nil
}

func (m *machine) restart(forget bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget = m.forget || forget
	if m.end != nil {
		m.end(errRestarted)
	}
}

// configure takes Kip's configuration. Another one than before restarts the
// kubelet, which is of no consequence here.
func (m *machine) configure(c agentapi.Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := m.config == nil
	m.config = &c
	if first {
		close(m.arrived)
	}
	if !m.fleet.cfg.KeepDisks {
		// The agent has joined, and reads them only when it starts.
		if err := os.RemoveAll(m.dir); err != nil {
			m.log.Warn("key of a hollow cell not removed", "err", err)
		}
	}
}

// statusChange turns the readiness of the machine's pod.
func (m *machine) statusChange(ctx context.Context) (Change, error) {
	m.mu.Lock()
	k, w := m.kubelet, m.pod
	if k == nil || w == nil || w.phase != running {
		m.mu.Unlock()
		return Change{}, fmt.Errorf("change the status of the pod on instance %s: %w", m.instanceID, ErrNothingRuns)
	}
	w.ready = !w.ready
	w.readyAt = m.fleet.cfg.Clock.Now()
	w.changes++
	c := Change{Namespace: w.namespace, Name: w.name, Ready: w.ready}
	m.mu.Unlock()
	rv, err := k.reportPod(ctx)
	if err != nil {
		k.later(retrying, retryAfter, k.settle)
		return c, fmt.Errorf("change the status of pod %s/%s: %w", c.Namespace, c.Name, err)
	}
	c.ResourceVersion = rv
	return c, nil
}
