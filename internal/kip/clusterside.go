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
	egress  *egress.Egress // nil where no cell masquerades
	logs    savedLogs
	cellAPI *cellapi.Server
	// daemonSets are those that run beside pods; nil for none.
	daemonSets *daemonsets.Rules
	firewalls  *networkpolicy.Controller
	dueSets    *dueSets // nil for none
}

// followCluster makes what follows the cluster and shows it to cells.
func (t *term) followCluster(ctx context.Context, c cloudSide, n nodeSide) (clusterSide, error) {
	out, err := t.openEgress(ctx, c.machines)
	if err != nil {
		return clusterSide{}, err
	}
	saver, err := podlogs.Open(podlogs.Config{Dir: filepath.Join(t.cfg.Etcd.Internal.DataDir, "podlogs"), Log: t.Log})
	if err != nil {
		return clusterSide{}, err
	}
	sets := daemonSets(t.cfg)
	cellAPI, err := cellapi.New(cellapi.Config{
		NodeName:  t.NodeName,
		Node:      t.api.nodeConfig,
		Own:       t.api.ownConfig,
		Pods:      n.all.Pods(),
		IPv6:      c.machines.Capabilities().IPv6,
		Images:    t.imageCredentials(c.machines),
		Events:    t.events,
		Observer:  t.metrics,
		Overdrawn: tunnel.Hold,
		Log:       t.Log,

		CloudDriver:         c.cloudDriver(),
		DaemonSets:          sets,
		CredentialProviders: credentialProviders(t.cfg),
	})
	if err != nil {
		return clusterSide{}, err
	}
	many, err := t.api.protobuf()
	if err != nil {
		return clusterSide{}, err
	}
	firewalls := networkpolicy.New(networkpolicy.Config{
		Pods:           n.all.Pods(),
		Client:         many,
		Shared:         cellAPI.Watches(),
		AllowsMetadata: allowsMetadata(grants(t.cfg)),
		Masquerade:     masquerade(out),
		Beside:         beside(sets, cellAPI),
		Events:         t.events,
		Watchdog:       t.watchdog,
		Queues:         t.metrics.WorkqueueProvider(),
		Clock:          t.clock,
		Log:            t.Log,
	})
	t.atEnd(firewalls.Close)
	return clusterSide{
		egress:     out,
		logs:       savedLogs{nodes: n.all, saver: saver, log: t.Log},
		cellAPI:    cellAPI,
		daemonSets: sets,
		firewalls:  firewalls,
		dueSets:    t.followSets(sets, n.all, cellAPI),
	}, nil
}
