package kip

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/stats"
)

// wireNodeObjects makes what the API server sees of the virtual nodes, and what answers
// it like their kubelets.
func (l *leading) wireNodeObjects(ctx context.Context) (err error) {
	if l.clientCA, err = node.ClientCA(ctx, l.ClientCA, l.api.asKip, l.Log); err != nil {
		return err
	}
	for _, s := range l.nodes.all() {
		if err := l.nodes.equip(ctx, s); err != nil {
			return err
		}
		l.atEnd(func() { l.closeListener(s.listener) })
		cfg := l.nodes.cfg // of the file as it is: this process may have begun with another
		if s.node, err = l.nodes.object(cfg, s, s.entry); err != nil {
			return cfg.Problem(keyOf(cfg, s.entry), "%v", err)
		}
	}
	l.nodeLoop = newStoppable(l.nodes.keep)
	return nil
}

// servingCertificate is the operator's of the kubelet port, or one of the authority.
func (o Options) servingCertificate(
	authority *pki.Authority, name string, addresses []netip.Addr,
) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if certFile, keyFile := os.Getenv(node.CertFileEnv), os.Getenv(node.KeyFileEnv); certFile != "" || keyFile != "" {
		files, err := node.NewFileCertificate(node.OfKubeletPort, certFile, keyFile, o.Log)
		if err != nil {
			return nil, err
		}
		return files.GetCertificate, nil
	}
	own, err := authority.Server([]string{name}, addresses)
	if err != nil {
		return nil, err
	}
	return own.GetCertificate, nil
}

// statsCells are the cells that are asked what the pods of a node use.
func statsCells(ways func() []cells.Way, node string) func() []stats.Cell {
	return func() []stats.Cell {
		var list []stats.Cell
		for _, w := range ways() {
			if w.Node != node {
				continue
			}
			list = append(list, stats.Cell{
				ID: w.Cell, Namespace: w.Pod.Namespace, Pod: w.Pod.Name, UID: w.Pod.UID, Conn: w.Conn,
				Machine: stats.Machine{MilliCPU: w.Offer.MilliCPU, MemoryBytes: w.Offer.MemoryBytes, Since: w.Since},
			})
		}
		return list
	}
}

// addresses are where the API server reaches this Kip: one, or one of each family.
func (o Options) addresses() ([]netip.Addr, error) {
	if len(o.NodeIPs) > 0 {
		return o.NodeIPs, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("find this host's address: %w", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			return []netip.Addr{p.Addr()}, nil
		}
	}
	return nil, errors.New("this host has no address but the loopback's: give --node-ip")
}

// second is the second of addresses, the zero one where there is none.
func second(addresses []netip.Addr) netip.Addr {
	if len(addresses) > 1 {
		return addresses[1]
	}
	return netip.Addr{}
}
