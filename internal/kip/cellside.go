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
	clusterSide
	cells     *cells.Controller
	cloudInit *cloudinitfile.Loop
	rotation  *cellca.Rotation
	mirror    *cells.Mirror
	meter     *stats.Meter
}

// keepCells makes what launches cells, keeps them and ends them.
func (c clusterSide) keepCells(ctx context.Context) (l cellSide, err error) {
	l.clusterSide = c
	cloudInit, err := cloudinitfile.Open(ctx, cloudinitfile.Config{
		Source:  cloudInitSource(l.cfg),
		AtStart: l.setUp,
		Store:   l.store,
		Sealer:  l.sealer,
		Events:  l.ofNode,
		Clock:   l.clock,
		Log:     l.Log,
	})
	if err != nil {
		return l, err
	}
	uses := stats.NewUses()
	cfg, err := c.cellsConfig(ctx, cloudInit, uses)
	if err != nil {
		return l, err
	}
	l.cells = cells.New(cfg)
	l.atEnd(l.cells.Close)
	l.cloudInit = cloudinitfile.NewLoop(cloudInit, l.cells, l.watchdog)
	l.rotation = cellca.New(cellca.Config{
		CA:       l.ca,
		Sealer:   l.sealer,
		Overlap:  l.cfg.Cells.CAOverlap,
		Store:    l.store,
		Cells:    l.cells,
		Events:   l.ofNode,
		Watchdog: l.watchdog,
		Clock:    l.clock,
		Log:      l.Log,
	})
	l.mirror = cells.NewMirror(l.cells, l.cellAPI, l.api.ownDynamic, cells.MirrorConfig{
		Node: l.NodeName, ControllerID: l.controllerID, Version: version.String(), Image: launchOptions(l.cfg).Image, Log: l.Log,
	})
	l.atEnd(l.mirror.Close)
	l.meter = stats.NewMeter(stats.Config{
		Cells: func() []stats.Cell { return statsCells(l.cells.Endpoints(), "") },
		Clock: l.clock,
		Log:   l.Log,
	}, uses)
	return l, nil
}

// cellsConfig is what cells are kept by.
func (l *clusterSide) cellsConfig(ctx context.Context, cloudInit cells.CloudInit, uses *stats.Uses) (cells.Config, error) {
	tunnels, err := tunnel.NewDialer(tunnel.DialerConfig{
		Authority: l.ca.Signing,
		Before:    l.ca.Before,
		Term:      l.hold.Term(),
		Log:       l.Log,
		Late:      l.late,
		Dial:      l.dial,
	})
	if err != nil {
		return cells.Config{}, err
	}
	dns, err := l.api.clusterDNS(ctx, l.ClusterDNS, l.cellAPI.Watches(), l.store, l.Log)
	if err != nil {
		return cells.Config{}, err
	}
	registries, err := readRegistries(l.cfg.Cells.Registries)
	if err != nil {
		return cells.Config{}, err
	}
	pools, err := l.standbyPools()
	if err != nil {
		return cells.Config{}, err
	}
	capabilities := l.machines.Capabilities()
	return cells.Config{
		NodeName:     l.NodeName,
		Nodes:        l.nodes,
		ControllerID: l.controllerID,
		TermBegan:    l.termBegan,
		NameTag:      l.nameTag(),
		Budgets:      budgets(l.cfg),
		Calls:        l.machines,
		Guard:        l.guard,
		Store:        l.store,
		Generation:   l.generation,
		Tunnels:      cells.OverTunnels(tunnels),
		APIs:         cells.ServedBy(l.cellAPI),
		CAHash:       l.ca.Signing.Hash(),
		OldCAHash:    l.ca.OldHash(),
		Template:     template(l.cfg, l.ca.Signing.Hash()),
		CloudInit:    cloudInit,
		NodeEvents:   l.nodes,
		Agent:        agentOf(l.cfg),
		Version:      version.String(),

		Pools:     pools,
		MaxAge:    l.cfg.Cells.MaxAge,
		Options:   standbyOptions(l.cfg),
		Shortages: seenShortages{storedShortages: l.shortages, nodes: l.nodes, catalogue: l.instanceTypes},

		Meter:     useOfCells{uses: uses},
		Events:    l.events,
		Observers: []cells.Observer{l.metrics}, // what is counted and shown comes first, then what acts
		Logs:      l.savedLogs(),
		Watchdog:  l.watchdog,
		Queues:    l.metrics.WorkqueueProvider(),

		ClusterDNS:          dns,
		ClusterDomain:       l.ClusterDomain,
		ReservedMemoryBytes: l.cfg.Cells.ReservedMemory.Value(),
		RegistryMirrors:     l.cfg.Cells.RegistryMirrors,
		Registries:          registries,
		ImagesOfCloud:       l.imagesOfCloud(),
		HasPlugins:          len(l.cfg.Cells.CSIDrivers) > 0,

		Health:      health(l.cfg),
		ListLag:     capabilities.ListLag,
		SoonPoll:    capabilities.Poll,
		RefillDelay: capabilities.RefillDelay,
		Late:        l.late,
		Clock:       l.clock,
		Log:         l.Log,
	}, nil
}
