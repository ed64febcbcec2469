package kip

import (
	"context"

	"github.com/elotl/kip/internal/cleanup"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
)

// wireNodes finds out which virtual nodes there are.
func (l *leading) wireNodes(ctx context.Context) (err error) {
	l.nodes, err = nodes.Open(ctx, nodes.Config{
		Name:          l.NodeName,
		ControllerID:  l.controllerID,
		File:          l.ProviderConfig,
		Config:        l.cfg,
		Store:         l.store,
		InstanceTypes: l.instanceTypes,
		Shortages:     l.shortages.shortages,
		Bounder:       l.machines.Features().Bounder,
		Region:        l.machines.Traits().Region,
		HasDisks:      l.disks != nil,
		CloudDriver:   l.cloudDriver(),
		Client:        l.api.asKip,
		Reviews:       l.api.reviews,
		Clients:       l.api,
		Recorder:      l.recorder,
		Flags:         l.Options,
		KubeletPort:   l.KubeletPort,
		Watchdog:      l.watchdog,
		Clock:         l.clock,
		Log:           l.Log,
	})
	return err
}

// wireNodeObjects makes what the API server sees of the virtual nodes, and what answers
// it like their kubelets.
func (l *leading) wireNodeObjects(ctx context.Context) (err error) {
	if l.clientCA, err = node.ClientCA(ctx, l.ClientCA, l.api.asKip, l.Log); err != nil {
		return err
	}
	l.nodeLoop = newStoppable(l.nodes.Keep)
	l.atEnd(l.nodes.Close)
	return l.nodes.Equip(ctx, nodes.Equipment{
		Cells:        l.cells,
		Endpoints:    endpoints{cells: l.cells, loop: l.pods, logs: l.logs},
		Observer:     nodeObserver{Metrics: l.metrics, cellAPI: l.cellAPI},
		Logs:         l.logs,
		Certificates: l.certificates(),
		ClientCA:     l.clientCA,
	})
}

// ofCleanup are the nodes for which a cleanup acts: those that are Kip's own.
func (l *leading) ofCleanup() (list []cleanup.Node) {
	for _, n := range l.nodes.Own() {
		list = append(list, cleanup.Node{Name: n.Name, Client: n.Client})
	}
	return list
}
