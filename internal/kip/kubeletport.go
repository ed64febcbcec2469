package kip

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/stats"
	corev1 "k8s.io/api/core/v1"
)

// wireKubeletPort makes what answers the API server like a kubelet.
func (l *leading) wireKubeletPort(ctx context.Context) error {
	addresses, err := l.addresses()
	if err != nil {
		return err
	}
	certificate, err := l.servingCertificate(l.authority, addresses)
	if err != nil {
		return err
	}
	clientCA, err := node.ClientCA(ctx, l.ClientCA, l.api.asKip, l.Log)
	if err != nil {
		return err
	}
	l.stats = stats.New(stats.Config{
		NodeName: l.NodeName,
		Cells:    statsCells(l.cells),
		Gathered: l.metrics.StatsGathered,
		Clock:    l.clock,
		Log:      l.Log,
	})
	l.port, err = node.NewPort(node.PortConfig{
		NodeName:    l.NodeName,
		Reviews:     l.api.asKip,
		ClientCA:    clientCA,
		Certificate: certificate,
		Cells:       wayToCells{pods: l.informer, cells: l.cells, loop: l.pods},
		Logs:        l.logs,
		Stats:       l.stats,
		Pods:        func() []*corev1.Pod { return podsOf(l.informer) },
		Healthy:     l.healthy,
		Log:         l.Log,
	})
	if err != nil {
		return err
	}
	// Before anything runs: a port that is taken ends Kip before it has done anything.
	l.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(addresses[0].String(), strconv.Itoa(l.KubeletPort)))
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	l.atEnd(l.closeListener)
	return nil
}

// servingCertificate is the operator's of the kubelet port, or one of the authority.
func (o Options) servingCertificate(
	authority *pki.Authority, addresses []netip.Addr,
) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if certFile, keyFile := os.Getenv(node.CertFileEnv), os.Getenv(node.KeyFileEnv); certFile != "" || keyFile != "" {
		files, err := node.NewFileCertificate(certFile, keyFile, o.Log)
		if err != nil {
			return nil, err
		}
		return files.GetCertificate, nil
	}
	own, err := authority.Server([]string{o.NodeName}, addresses)
	if err != nil {
		return nil, err
	}
	return own.GetCertificate, nil
}

// statsCells are the cells that are asked what their pods use.
func statsCells(c *cells.Controller) func() []stats.Cell {
	return func() []stats.Cell {
		ways := c.Ways()
		list := make([]stats.Cell, len(ways))
		for i, w := range ways {
			list[i] = stats.Cell{
				ID: w.Cell, Namespace: w.Pod.Namespace, Pod: w.Pod.Name, UID: w.Pod.UID, Conn: w.Conn,
				Machine: stats.Machine{MilliCPU: w.Offer.MilliCPU, MemoryBytes: w.Offer.MemoryBytes, Since: w.Since},
			}
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
