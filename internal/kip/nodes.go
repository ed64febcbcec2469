package kip

import (
	"context"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cleanup"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/provisioner"
)

// nodeSide is which virtual nodes there are.
type nodeSide struct {
	cloudSide
	nodes       *nodes.Nodes
	provisioner *provisioner.Provisioner // nil without disks
}

// openNodes finds out which virtual nodes there are, and makes what makes disks for their pods.
func (c cloudSide) openNodes(ctx context.Context) (l nodeSide, err error) {
	l.cloudSide = c
	l.nodes, err = nodes.Open(ctx, nodes.Config{
		Name:          l.NodeName,
		ControllerID:  l.controllerID,
		File:          l.ProviderConfig,
		Config:        l.cfg,
		Store:         l.store,
		InstanceTypes: l.instanceTypes,
		Shortages:     l.shortages.shortages,
		Bounder:       l.machines.Optional().Bounder,
		Region:        l.machines.Capabilities().Region,
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
	if err != nil {
		return l, err
	}
	l.provisioner, err = l.openProvisioner(ctx)
	return l, err
}

// openProvisioner makes what makes disks for claims; nil where the cloud has none.
func (l *nodeSide) openProvisioner(ctx context.Context) (*provisioner.Provisioner, error) {
	if l.disks == nil {
		return nil, nil
	}
	return provisioner.New(ctx, provisioner.Config{
		Node:         l.NodeName,
		ControllerID: l.controllerID,
		NodeLabel:    apiv1.LabelController,
		NameTag:      l.nameTag(),
		Disks:        l.disks,
		Checker:      l.machines.Optional().DiskChecker,
		Grower:       l.machines.Optional().DiskGrower,
		ListLag:      l.machines.Capabilities().ListLag,
		Nodes:        l.nodes,
		Client:       l.api.asProvisioner,
		Queues:       l.metrics.WorkqueueProvider(),
		Clock:        l.clock,
		Log:          l.Log,
	})
}

// serve makes what the API server sees of the virtual nodes and what answers it like their kubelets, and the local socket.
func (p podSide) serve(ctx context.Context) (l *leading, err error) {
	l = &leading{podSide: p, crdAnswered: make(chan struct{})}
	if l.clientCA, err = node.ClientCA(ctx, l.ClientCA, l.api.asKip, l.Log); err != nil {
		return nil, err
	}
	l.nodeController, err = nodes.New(ctx, l.nodes, nodes.Equipment{
		Cells:        l.cells,
		Endpoints:    endpoints{cells: l.cells, loop: l.pods, logs: l.logs, copies: l.cellAPI},
		Observer:     nodeObserver{Metrics: l.metrics, cellAPI: l.cellAPI},
		Logs:         l.logs,
		Certificates: l.certificates(),
		ClientCA:     l.clientCA,
	})
	if err != nil {
		return nil, err
	}
	l.atEnd(l.nodeController.Close)
	l.nodeLoop = newStoppable(l.nodeController.Keep)
	l.socket, err = l.openSocket()
	return l, err
}

// ofCleanup are the nodes for which a cleanup acts: those that are Kip's own.
func (l *leading) ofCleanup() (list []cleanup.Node) {
	for _, n := range l.nodes.Own() {
		list = append(list, cleanup.Node{Name: n.Name, Client: n.Client})
	}
	return list
}
