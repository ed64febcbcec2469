package cells

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// configuring hands agents their configuration, and before that what their machines need for it.
type configuring struct {
	table      *table
	agents     *asking
	upgrades   *upgrades
	cloudInits *cloudInits
	blockers   *blockers
	configs    *agentConfigs
	reports    *connectionReports
	dns        perCell[[]netip.Addr] // of the configuration that an agent has; under table.mu
	sysctls    perCell[[]string]     // of that configuration, which the kubelet allows; under table.mu
	pages      perCell[[]HugePages]  // of that configuration, which the kubelet counts; under table.mu
	swap       perCell[int64]        // of that configuration, which the kubelet counts, too; under table.mu
}

// due returns what gives the agent of a cell its configuration; nil where the agent has it, or is not connected.
func (s *configuring) due(e *entry) func(context.Context) error {
	dns, connected, bound := s.configs.clusterDNS(), e.session().connected(), e.cell().Pod.UID != ""
	wants := e.cell().Wants // a standby cell has them with its pod, and another kubelet then
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	now := e.noteConnected(connected)
	same := slices.Equal(*s.sysctls.of(e), wants.UnsafeSysctls) && slices.Equal(*s.pages.of(e), wants.HugePages) &&
		*s.swap.of(e) == wants.SwapBytes && (bound || slices.Equal(*s.dns.of(e), dns))
	if !connected || now.configured && same {
		return nil
	}
	config := s.configs.of(e.cell(), now.node, dns)
	return func(ctx context.Context) error { return s.configure(ctx, e, now.session, config, now.breaks) }
}

// configure hands the agent its configuration on a session that has had so many
// breaks.
func (s *configuring) configure(ctx context.Context, e *entry, session agentSession, config agentapi.Config, breaks int) error {
	if e.cell().StepTime(apiv1.StepJoined).IsZero() {
		s.blockers.noteStarted(e.cell())
	}
	if err := s.upgrades.goOver(ctx, e, session); err != nil {
		return fmt.Errorf("go over to the agent of cell %s: %w", e.id, err)
	}
	if err := s.cloudInits.setUp(ctx, e, session); err != nil {
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
	if e.noteConfigured(breaks) {
		s.reports.noteConfiguredLocked(e, told)
		*s.dns.of(e), *s.sysctls.of(e) = config.ClusterDNS, config.UnsafeSysctls
		*s.pages.of(e), *s.swap.of(e) = config.HugePages, config.SwapBytes
	}
	return nil
}

// agentConfigs are what cells are told after they have joined.
type agentConfigs struct {
	all   agentapi.Config // but for what is a cell's own
	dns   ClusterDNS      // nil for none
	calls *pipe.Pipe
}

func newAgentConfigs(cfg Config) *agentConfigs {
	return &agentConfigs{dns: cfg.ClusterDNS, calls: cfg.Calls, all: agentapi.Config{
		ClusterDomain:       cfg.ClusterDomain,
		ReservedMemoryBytes: cfg.ReservedMemoryBytes,
		RegistryMirrors:     cfg.RegistryMirrors,
		Registries:          cfg.Registries,
		ImagesOfCloud:       cfg.ImagesOfCloud,
		CredentialProviders: cfg.CredentialProviders,
		Plugins:             cfg.HasPlugins,
	}}
}

// clusterDNS returns where pods ask for names.
func (s *agentConfigs) clusterDNS() []netip.Addr {
	if s.dns == nil {
		return nil
	}
	return s.dns.Addresses()
}

// of returns what a cell is told after it has joined.
func (s *agentConfigs) of(cell *Cell, node string, dns []netip.Addr) agentapi.Config {
	config := s.all
	config.NodeName, config.ClusterDNS, config.Routes = node, dns, s.routesOf(cell)
	config.NodeIP, config.PodIP = cell.Instance.ManagementIP, cell.Instance.PodIP
	config.NodeIPv6, config.PodIPv6 = cell.Instance.ManagementIPv6, cell.Instance.PodIPv6
	config.Plugins = config.Plugins || len(cell.Plugins) > 0
	config.UnsafeSysctls, config.HugePages, config.SwapBytes = cell.UnsafeSysctls, cell.HugePages, cell.SwapBytes
	return config
}

// routesOf returns the networks that a cell's pod is to get what is for them.
func (s *agentConfigs) routesOf(cell *Cell) []netip.Prefix {
	if !routed(s.calls, cell) {
		return nil
	}
	return cell.Options.CloudRoutes
}
