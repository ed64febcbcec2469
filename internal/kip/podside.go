package kip

import (
	"k8s.io/client-go/tools/cache"

	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/volumes"
)

// podSide matches pods to cells.
type podSide struct {
	cellSide
	claims cache.SharedIndexInformer
	pods   *pods.Controller
}

// matchPods makes the loop that matches pods to cells.
func (c cellSide) matchPods() (l podSide, err error) {
	l.cellSide = c
	resolver := volumes.Resolver{Client: l.api.asKip.CoreV1(), Drivers: l.api.csiDrivers(l.cfg)}
	if l.provisioner != nil {
		resolver.Owned, resolver.Others, resolver.CloudDriver = l.provisioner.Owned, l.provisioner.Others, l.cloudDriver()
		resolver.Attachable, resolver.OurInstance = l.provisioner.Attachable, l.cells.HasInstance
	}
	if l.claims, err = volumes.WatchClaims(l.api.asKip); err != nil {
		return l, err
	}
	l.pods, err = pods.New(pods.Config{
		Pods:        l.nodes.Pods(),
		Nodes:       l.nodes,
		Cells:       l.cells,
		Volumes:     resolver,
		Claims:      l.claims,
		Options:     launchOptions(l.cfg),
		Grants:      grants(l.cfg),
		DaemonSets:  l.daemonSets,
		Copies:      l.cellAPI,
		CostLabels:  l.cfg.Costs.Labels,
		Events:      l.events,
		Observer:    podObserver{metrics: l.metrics, logs: l.savedLogs(), cells: l.cells},
		MaxAttempts: l.cfg.Cells.MaxAttempts,
		MaxAge:      l.cfg.Cells.MaxAge,
		Leadership:  l.store,
		Watchdog:    l.watchdog,
		Queues:      l.metrics.WorkqueueProvider(),
		Clock:       l.clock,
		Log:         l.Log,

		SharedKernel: l.machines.Capabilities().SharedKernel,
	})
	if err != nil {
		return l, err
	}
	l.cells.Observe(isolated{firewalls: l.firewalls})
	l.cells.Observe(learning{types: l.instanceTypes})
	l.atEnd(l.pods.Close)
	return l, nil
}
