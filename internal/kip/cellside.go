package kip

import (
	"context"

	"github.com/elotl/kip/internal/cellca"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloudinitfile"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/internal/version"
)

// cellSide launches cells, keeps them and ends them.
type cellSide struct {
	controller *cells.Controller
	cloudInit  *cloudinitfile.Loop
	rotation   *cellca.Rotation
	mirror     *cells.Mirror
	meter      *stats.Meter
}

// keepCells makes what launches cells, keeps them and ends them.
func (t *term) keepCells(ctx context.Context, c cloudSide, n nodeSide, f clusterSide) (cellSide, error) {
	cloudInit, err := cloudinitfile.Open(ctx, cloudinitfile.Config{
		Source:  cloudInitSource(t.cfg),
		AtStart: t.setUp,
		Store:   t.store,
		Sealer:  c.sealer,
		Events:  t.ofNode,
		Clock:   t.clock,
		Log:     t.Log,
	})
	if err != nil {
		return cellSide{}, err
	}
	uses := stats.NewUses()
	cfg, err := t.cellsConfig(ctx, c, n, f, cloudInit, uses)
	if err != nil {
		return cellSide{}, err
	}
	controller := cells.New(cfg)
	t.atEnd(controller.Close)
	mirror := cells.NewMirror(controller, f.cellAPI, t.api.ownDynamic, cells.MirrorConfig{
		Node:         t.NodeName,
		ControllerID: t.controllerID,
		Version:      version.String(),
		Image:        launchOptions(t.cfg).Image,
		Clock:        t.clock,
		Log:          t.Log,
	})
	t.atEnd(mirror.Close)
	return cellSide{
		controller: controller,
		cloudInit:  cloudinitfile.NewLoop(cloudInit, controller, t.watchdog),
		rotation: cellca.New(cellca.Config{
			CA:       c.ca,
			Sealer:   c.sealer,
			Overlap:  t.cfg.Cells.CAOverlap,
			Store:    t.store,
			Cells:    controller,
			Events:   t.ofNode,
			Watchdog: t.watchdog,
			Clock:    t.clock,
			Log:      t.Log,
		}),
		mirror: mirror,
		meter: stats.NewMeter(stats.Config{
			Cells: func() []stats.Cell { return statsCells(controller.Endpoints(), "") },
			Clock: t.clock,
			Log:   t.Log,
		}, uses),
	}, nil
}

// cellsConfig is what cells are kept by.
func (t *term) cellsConfig(
	ctx context.Context, c cloudSide, n nodeSide, f clusterSide, cloudInit cells.CloudInit, uses *stats.Uses,
) (cells.Config, error) {
	tunnels, err := tunnel.NewDialer(tunnel.DialerConfig{
		Authority: c.ca.Signing,
		Before:    c.ca.Before,
		Term:      t.hold.Term(),
		Log:       t.Log,
		Late:      t.late,
		Dial:      t.dial,
	})
	if err != nil {
		return cells.Config{}, err
	}
	dns, err := t.api.clusterDNS(ctx, t.ClusterDNS, f.cellAPI.Watches(), t.store, t.Log)
	if err != nil {
		return cells.Config{}, err
	}
	registries, err := readRegistries(t.cfg.Cells.Registries)
	if err != nil {
		return cells.Config{}, err
	}
	pools, err := t.standbyPools(c, n.all)
	if err != nil {
		return cells.Config{}, err
	}
	capabilities := c.machines.Capabilities()
	return cells.Config{
		NodeName:     t.NodeName,
		Nodes:        n.all,
		ControllerID: t.controllerID,
		TermBegan:    t.began,
		NameTag:      t.nameTag(),
		Budgets:      budgets(t.cfg),
		Calls:        c.machines,
		Guard:        c.guard,
		Store:        t.store,
		Generation:   c.generation,
		Tunnels:      cells.OverTunnels(tunnels),
		APIs:         cells.ServedBy(f.cellAPI),
		CAHash:       c.ca.Signing.Hash(),
		OldCAHash:    c.ca.OldHash(),
		Template:     template(t.cfg, c.ca.Signing.Hash()),
		CloudInit:    cloudInit,
		NodeEvents:   n.all,
		Agent:        agentOf(t.cfg),
		Version:      version.String(),

		Pools:     pools,
		MaxAge:    t.cfg.Cells.MaxAge,
		Options:   standbyOptions(t.cfg),
		Shortages: seenShortages{storedShortages: c.shortages, nodes: n.all, catalogue: c.instanceTypes},

		Meter:    useOfCells{uses: uses},
		Events:   t.events,
		Logs:     f.logs,
		Watchdog: t.watchdog,
		Queues:   t.metrics.WorkqueueProvider(),

		ClusterDNS:          dns,
		ClusterDomain:       t.ClusterDomain,
		ReservedMemoryBytes: t.cfg.Cells.ReservedMemory.Value(),
		RegistryMirrors:     t.cfg.Cells.RegistryMirrors,
		Registries:          registries,
		ImagesOfCloud:       imagesOfCloud(c.machines),
		CredentialProviders: credentialProviders(t.cfg),
		HasPlugins:          len(t.cfg.Cells.CSIDrivers) > 0,

		Health:      health(t.cfg),
		ListLag:     capabilities.ListLag,
		SoonPoll:    capabilities.Poll,
		RefillDelay: capabilities.RefillDelay,
		Late:        t.late,
		Clock:       t.clock,
		Log:         t.Log,
	}, nil
}
