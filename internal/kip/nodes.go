package kip

import (
	"context"
	"crypto/tls"
	"net/netip"

	"github.com/elotl/kip/internal/cleanup"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/stats"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// wireNodes finds out which virtual nodes there are.
func (l *leading) wireNodes(ctx context.Context) (err error) {
	l.nodes, err = nodes.Open(ctx, nodes.Config{
		Name:         l.NodeName,
		ControllerID: l.controllerID,
		File:         l.ProviderConfig,
		Config:       l.cfg,
		Store:        l.store,
		Shop:         l.shop,
		Unavailable:  l.shortages.shortages.Unavailable,
		Region:       l.machines.Traits().Region,
		HasDisks:     l.disks != nil,
		Client:       l.api.asKip,
		As:           func(node string) (kubernetes.Interface, error) { return l.api.nodeNamed(node, l.NodeName) },
		Addresses:    l.addresses,
		KubeletPort:  l.KubeletPort,
		Taint:        l.taint,
		Pulse:        l.pulse,
		Clock:        l.clock,
		Log:          l.Log,
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
		Cells:    l.cells,
		Ways:     func(pods cache.Store) node.Cells { return wayToCells{pods: pods, cells: l.cells, loop: l.pods} },
		Running:  func(node string) func() []stats.Cell { return statsCells(l.cells.Ways, node) },
		Gathered: l.metrics.StatsGathered,
		Logs:     l.logs,
		Certificate: func(node string, addresses []netip.Addr) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
			return l.servingCertificate(l.rotation.is.authorities.Signing, node, addresses)
		},
		ClientCA: l.clientCA,
		Recorder: l.recorder,
		Forget:   l.cellAPI.ForgetNode,
	})
}

// ofCleanup are the nodes for which a cleanup acts: those that are Kip's own.
func (l *leading) ofCleanup() (list []cleanup.Node) {
	for _, n := range l.nodes.Own() {
		list = append(list, cleanup.Node{Name: n.Name, Client: n.Client})
	}
	return list
}
