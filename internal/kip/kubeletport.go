package kip

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/pki"
)

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

// certificates are those of the kubelet ports of nodes.
type certificates struct {
	Options
	authority *pki.Authority
}

var _ nodes.Certificates = certificates{}

func (c certificates) Certificate(
	node string, addresses []netip.Addr,
) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	return c.servingCertificate(c.authority, node, addresses)
}

var _ nodes.Flags = Options{}

// Addresses are where the API server reaches this Kip: one, or one of each family.
func (o Options) Addresses() ([]netip.Addr, error) {
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
