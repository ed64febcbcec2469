package cells

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// connection is what this process has of a cell's agent and kubelet. It is under table.mu, unless it says otherwise; only
// the cell's worker replaces api and session, and reads them without the lock.
type connection struct {
	api        API
	node       string // the virtual node that api is of
	session    Session
	lacks      string              // the address that the instance has not got, as a look showed it
	connecting time.Time           // when this process began to connect
	away       string              // why its agent does not answer, as observers know; of its worker
	awayTold   time.Time           // when they were told so; of its worker
	stopWait   context.CancelFunc  // of the goroutine that waits for the kubelet
	shown      bool                // api shows the pod
	configured bool                // the agent has its configuration, on this connection
	untold     bool                // observers do not know of that
	dns        []netip.Addr        // of that configuration
	said       agentapi.Configured // by the agent, with it
	goesOver   time.Time           // since when it was told of another agent, which has not answered yet
	breaks     int                 // how often the session has not been connected
}

// connections are those of this process to the agents of cells, and the APIs that cells see.
type connections struct {
	table     *table
	loop      *loop
	records   *records
	calls     *pipe.Pipe
	tunnels   Tunnels
	apis      APIs
	agents    *asking
	dns       ClusterDNS      // nil for none
	config    agentapi.Config // of agents, but for what is a cell's own
	nodeNames *nodeNames
	lineage   *lineage
	notices   *notices
	blockers  *blockers
	upgrades  *upgrades
	setups    *setups
	versions  *versions
	observers *observers
}

// configTimeout bounds the handing over of the agent's configuration, in which
// it starts the kubelet's process.
const configTimeout = 10 * time.Second

// connect brings up the cell's API and its tunnel in this process, and has the agent
// given its configuration: errUnderWay until that has its answer.
func (s *connections) connect(ctx context.Context, e *entry) error {
	for {
		configure, err := s.dialled(ctx, e)
		if err != nil {
			return err
		}
		if configure == nil {
			return s.connected(ctx, e)
		}
		if err := s.loop.aside(ctx, e, "configure", configure); err != nil {
			return err
		}
	}
}

// connectNow does the same, and waits for the answer.
func (s *connections) connectNow(ctx context.Context, e *entry) error {
	configure, err := s.dialled(ctx, e)
	if err != nil || configure == nil {
		return err
	}
	return configure(ctx)
}

// configure hands the agent its configuration on a session that has had so many
// breaks.
func (s *connections) configure(ctx context.Context, e *entry, session Session, config agentapi.Config, breaks int) error {
	if e.cell().StepTime(apiv1.StepJoined).IsZero() {
		s.blockers.heardStarted(e.cell())
	}
	if err := s.upgrades.goOver(ctx, e, session); err != nil {
		return fmt.Errorf("go over to the agent of cell %s: %w", e.id, err)
	}
	if err := s.setups.setUp(ctx, e, session); err != nil {
		return fmt.Errorf("set up cell %s: %w", e.id, err)
	}
	var told agentapi.Configured
	put := func(ctx context.Context, agent agentapi.Client) (err error) {
		told, err = agent.PutConfig(ctx, config)
		return err
	}
	if err := s.agents.ask(ctx, e, session, put); err != nil {
		return fmt.Errorf("configure cell %s: %w", e.id, err)
	}
	if cell := e.cell(); cell.Phase == apiv1.Bound && len(cell.Disks) > 0 {
		// A machine that was started anew has its devices, not their paths.
		if err := s.agents.putDisks(ctx, e, session, diskIDs(cell.Disks)); err != nil {
			return fmt.Errorf("hand cell %s its disks: %w", e.id, err)
		}
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if e.breaks == breaks { // else the break has queued the cell again
		e.configured, e.untold, e.dns, e.said = true, true, config.ClusterDNS, told
	}
	return nil
}

// connected says, and stores, that the agent has its configuration, where it does.
func (s *connections) connected(ctx context.Context, e *entry) error {
	s.table.mu.Lock()
	configured, tell, told := e.configured, e.configured && e.untold, e.said
	e.untold = false
	s.table.mu.Unlock()
	if tell {
		s.observers.CellConnected(*e.cell(), e.session.Conn())
	}
	if !configured || !e.cell().StepTime(apiv1.StepJoined).IsZero() && !e.cell().bootIsNews(told.Boot) && !e.cell().agentIsNews(told.Agent) {
		return nil
	}
	defer s.setups.tell(e)
	defer s.versions.tell(e)
	return s.records.save(ctx, e, func(cell *Cell) error {
		cell.Token = ""
		now := s.loop.clock.Now()
		cell.step(apiv1.StepJoined, now)
		if cell.bootIsNews(told.Boot) {
			cell.Boot = Boot{Boot: told.Boot, Told: now}
		}
		if cell.agentIsNews(told.Agent) {
			cell.AgentRuns = told.Agent
		}
		return nil
	})
}

// clusterDNS is where pods ask for names.
func (s *connections) clusterDNS() []netip.Addr {
	if s.dns == nil {
		return nil
	}
	return s.dns.Addresses()
}

// agentConfig is what a cell is told after it has joined.
func (s *connections) agentConfig(cell *Cell, node string, dns []netip.Addr) agentapi.Config {
	config := s.config
	config.NodeName, config.ClusterDNS, config.Routes = node, dns, s.routesOf(cell)
	config.NodeIP, config.PodIP = cell.Instance.ManagementIP, cell.Instance.PodIP
	config.NodeIPv6, config.PodIPv6 = cell.Instance.ManagementIPv6, cell.Instance.PodIPv6
	config.Plugins = config.Plugins || len(cell.Plugins) > 0
	return config
}

// routesOf are the networks that a cell's pod is to get what is for them.
func (s *connections) routesOf(cell *Cell) []netip.Prefix {
	if !routed(s.calls, cell) {
		return nil
	}
	return cell.Options.CloudRoutes
}

// agentConfigOf is what all cells are told after they have joined.
func agentConfigOf(cfg Config) agentapi.Config {
	return agentapi.Config{
		ClusterDomain:       cfg.ClusterDomain,
		ReservedMemoryBytes: cfg.ReservedMemoryBytes,
		RegistryMirrors:     cfg.RegistryMirrors,
		ImagesOfCloud:       cfg.ImagesOfCloud,
		Plugins:             cfg.HasPlugins,
	}
}
