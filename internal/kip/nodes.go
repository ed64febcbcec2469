package kip

import (
	"context"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cleanup"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/provisioner"
)

// nodeSide is which virtual nodes there are.
type nodeSide struct {
	all         *nodes.Nodes
	provisioner *provisioner.Provisioner // nil without disks
}

// openNodes finds out which virtual nodes there are, and makes what makes disks for their pods.
func (t *term) openNodes(ctx context.Context, c cloudSide) (nodeSide, error) {
	all, err := nodes.Open(ctx, nodes.Config{
		Name:          t.NodeName,
		ControllerID:  t.controllerID,
		File:          t.ProviderConfig,
		Config:        t.cfg,
		Store:         t.store,
		InstanceTypes: c.instanceTypes,
		Shortages:     c.shortages.shortages,
		Bounder:       c.machines.Optional().Bounder,
		Region:        c.machines.Capabilities().Region,
		HasDisks:      c.disks != nil,
		CloudDriver:   c.cloudDriver(),
		Client:        t.api.asKip,
		Reviews:       t.api.reviews,
		Clients:       t.api,
		Recorder:      t.recorder,
		Flags:         t.Options,
		KubeletPort:   t.KubeletPort,
		Watchdog:      t.watchdog,
		Clock:         t.clock,
		Log:           t.Log,
	})
	if err != nil {
		return nodeSide{}, err
	}
	disks, err := t.openProvisioner(ctx, c, all)
	return nodeSide{all: all, provisioner: disks}, err
}

// openProvisioner makes what makes disks for claims; nil where the cloud has none.
func (t *term) openProvisioner(ctx context.Context, c cloudSide, all *nodes.Nodes) (*provisioner.Provisioner, error) {
	if c.disks == nil {
		return nil, nil
	}
	return provisioner.New(ctx, provisioner.Config{
		Node:         t.NodeName,
		ControllerID: t.controllerID,
		NodeLabel:    apiv1.LabelController,
		NameTag:      t.nameTag(),
		Disks:        c.disks,
		Checker:      c.machines.Optional().DiskChecker,
		Grower:       c.machines.Optional().DiskGrower,
		ListLag:      c.machines.Capabilities().ListLag,
		Nodes:        all,
		Client:       t.api.asProvisioner,
		Queues:       t.metrics.WorkqueueProvider(),
		Clock:        t.clock,
		Log:          t.Log,
	})
}

// kubeletSide is what the API server sees of the virtual nodes, and what answers it like their kubelets.
type kubeletSide struct {
	clientCA   dynamiccertificates.CAContentProvider // of those who call the kubelet ports
	controller *nodes.Controller                     // serves them
	loop       *stoppable                            // keeps the nodes
}

// serveNodes makes what the API server sees of the virtual nodes, and what answers it like their kubelets.
func (t *term) serveNodes(ctx context.Context, c cloudSide, n nodeSide, f clusterSide, k cellSide, p podSide) (kubeletSide, error) {
	clientCA, err := node.ClientCA(ctx, t.ClientCA, t.api.asKip, t.Log)
	if err != nil {
		return kubeletSide{}, err
	}
	controller, err := nodes.New(ctx, n.all, nodes.Equipment{
		Cells:        k.controller,
		Endpoints:    endpoints{cells: k.controller, loop: p.controller, logs: f.logs.saver, copies: f.cellAPI},
		Observer:     nodeObserver{Metrics: t.metrics, cellAPI: f.cellAPI},
		Logs:         f.logs.saver,
		Certificates: t.certificates(c, n.all),
		ClientCA:     clientCA,
	})
	if err != nil {
		return kubeletSide{}, err
	}
	t.atEnd(controller.Close)
	return kubeletSide{clientCA: clientCA, controller: controller, loop: newStoppable(controller.Keep)}, nil
}

// ofCleanup are the nodes for which a cleanup acts: those that are Kip's own.
func (l *leading) ofCleanup() (list []cleanup.Node) {
	for _, n := range l.nodes.all.Own() {
		list = append(list, cleanup.Node{Name: n.Name, Client: n.Client})
	}
	return list
}
