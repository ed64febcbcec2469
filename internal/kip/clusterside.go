package kip

import (
	"context"
	"path/filepath"

	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/egress"
	"github.com/elotl/kip/internal/networkpolicy"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/tunnel"
)

// clusterSide follows the cluster and shows it to cells.
type clusterSide struct {
	nodeSide
	egress  *egress.Egress // nil where no cell masquerades
	logs    *podlogs.Saver
	cellAPI *cellapi.Server
	// daemonSets are those that run beside pods; nil for none.
	daemonSets *daemonsets.Rules
	firewalls  *networkpolicy.Controller
}

// followCluster makes what follows the cluster and shows it to cells.
func (n nodeSide) followCluster(ctx context.Context) (l clusterSide, err error) {
	l.nodeSide = n
	if l.egress, err = l.openEgress(ctx); err != nil {
		return l, err
	}
	if l.logs, err = podlogs.Open(podlogs.Config{Dir: filepath.Join(l.cfg.Etcd.Internal.DataDir, "podlogs"), Log: l.Log}); err != nil {
		return l, err
	}
	l.daemonSets = daemonSets(l.cfg)
	l.cellAPI, err = cellapi.New(cellapi.Config{
		NodeName:  l.NodeName,
		Node:      l.api.nodeConfig,
		Own:       l.api.ownConfig,
		Pods:      l.nodes.Pods(),
		IPv6:      l.machines.Capabilities().IPv6,
		Images:    l.imageCredentials(),
		Events:    l.events,
		Observer:  l.metrics,
		Overdrawn: tunnel.Hold,
		Log:       l.Log,

		CloudDriver: l.cloudDriver(),
		DaemonSets:  l.daemonSets,
	})
	if err != nil {
		return l, err
	}
	many, err := l.api.protobuf()
	if err != nil {
		return l, err
	}
	l.firewalls = networkpolicy.New(networkpolicy.Config{
		Pods:           l.nodes.Pods(),
		Client:         many,
		Shared:         l.cellAPI.Watches(),
		AllowsMetadata: allowsMetadata(grants(l.cfg)),
		Masquerade:     l.masquerade(),
		Beside:         l.beside(),
		Events:         l.events,
		Watchdog:       l.watchdog,
		Queues:         l.metrics.WorkqueueProvider(),
		Clock:          l.clock,
		Log:            l.Log,
	})
	l.cellAPI.ObservePorts(l.firewalls)
	l.atEnd(l.firewalls.Close)
	return l, nil
}
