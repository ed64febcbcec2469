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

// certificateFiles are those of the environment; nil for none.
func (o Options) certificateFiles() (*node.FileCertificate, error) {
	certFile, keyFile := os.Getenv(node.CertFileEnv), os.Getenv(node.KeyFileEnv)
	if certFile == "" && keyFile == "" {
		return nil, nil
	}
	return node.NewFileCertificate(node.OfKubeletPort, certFile, keyFile, o.Log)
}

// servingCertificate is the operator's of the kubelet port, or one of the authority.
func (o Options) servingCertificate(
	authority *pki.Authority, name string, addresses []netip.Addr,
) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	files, err := o.certificateFiles()
	if err != nil {
		return nil, err
	}
	if files != nil {
		return files.GetCertificate, nil
	}
	own, err := authority.Server([]string{name}, addresses)
	if err != nil {
		return nil, err
	}
	return own.GetCertificate, nil
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
