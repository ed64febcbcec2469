package kip

import (
	"k8s.io/client-go/tools/cache"

	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/volumes"
)

// podSide matches pods to cells.
type podSide struct {
	claims     cache.SharedIndexInformer
	controller *pods.Controller
}

// matchPods makes the loop that matches pods to cells.
func (t *term) matchPods(c cloudSide, n nodeSide, f clusterSide, k cellSide) (podSide, error) {
	resolver := volumes.Resolver{Client: t.api.asKip.CoreV1(), Drivers: t.api.csiDrivers(t.cfg)}
	if p := n.provisioner; p != nil {
		resolver.Owned, resolver.Others, resolver.CloudDriver = p.Owned, p.Others, c.cloudDriver()
		resolver.Attachable, resolver.OurInstance = p.Attachable, k.controller.HasInstance
	}
	claims, err := volumes.WatchClaims(t.api.asKip)
	if err != nil {
		return podSide{}, err
	}
	controller, err := pods.New(pods.Config{
		Pods:        n.all.Pods(),
		Nodes:       n.all,
		Cells:       k.controller,
		Volumes:     resolver,
		Claims:      claims,
		Options:     launchOptions(t.cfg),
		Grants:      grants(t.cfg),
		DaemonSets:  f.daemonSets,
		Copies:      f.cellAPI,
		CostLabels:  t.cfg.Costs.Labels,
		Events:      t.events,
		Observer:    podObserver{metrics: t.metrics, logs: f.logs, cells: k.controller},
		MaxAttempts: t.cfg.Cells.MaxAttempts,
		MaxAge:      t.cfg.Cells.MaxAge,
		Leadership:  t.store,
		Watchdog:    t.watchdog,
		Queues:      t.metrics.WorkqueueProvider(),
		Clock:       t.clock,
		Log:         t.Log,

		SharedKernel: c.machines.Capabilities().SharedKernel,
	})
	if err != nil {
		return podSide{}, err
	}
	t.atEnd(controller.Close)
	return podSide{claims: claims, controller: controller}, nil
}
