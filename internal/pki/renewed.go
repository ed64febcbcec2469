package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

const (
	// clientLife is short, since Kip renews its certificate by itself and a
	// cell that never hears of a revocation needs none.
	clientLife = 24 * time.Hour
	// serverLife is long enough for a client that keeps a copy for a while.
	serverLife = 30 * 24 * time.Hour
)

// Renewed is a certificate whose key is in memory only, and which is issued
// anew, with a new key, when a third of its life is left. It is safe for
// concurrent use.
type Renewed struct {
	authority *Authority
	life      time.Duration
	template  func() *x509.Certificate

	mu      sync.Mutex
	cert    *tls.Certificate
	renewAt time.Time
}

// Client is Kip's own certificate, with which it dials cells. It says the term for
// which this Kip leads; 0 for none.
func (a *Authority) Client(term uint64) *Renewed {
	name := pkix.Name{CommonName: kipName}
	if term != 0 {
		name.SerialNumber = strconv.FormatUint(term, 10)
	}
	return &Renewed{authority: a, life: clientLife, template: func() *x509.Certificate {
		return &x509.Certificate{
			Subject:     name,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
	}}
}

// Server is a certificate for a port of Kip's own: Kubernetes' API server dials
// it by one of these names and addresses.
func (a *Authority) Server(names []string, addrs []netip.Addr) (*Renewed, error) {
	if len(names)+len(addrs) == 0 {
		return nil, errors.New("a server certificate needs at least one name or address")
	}
	ips := make([]net.IP, 0, len(addrs))
	for _, addr := range addrs {
		if !addr.IsValid() {
			return nil, fmt.Errorf("a server certificate's addresses %v: one is not set", addrs)
		}
		ips = append(ips, addr.Unmap().AsSlice())
	}
	return &Renewed{authority: a, life: serverLife, template: func() *x509.Certificate {
		return &x509.Certificate{
			Subject:     pkix.Name{CommonName: "kip-server"},
			DNSNames:    names,
			IPAddresses: ips,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
	}}, nil
}

// Certificate is the certificate and the authority's behind it, with at least a
// third of its life left.
func (r *Renewed) Certificate() (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.authority.now()
	if r.cert != nil && t.Before(r.renewAt) {
		return r.cert, nil
	}
	template := r.template()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", template.Subject.CommonName, err)
	}
	der, err := r.authority.sign(template, key.Public(), r.life)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of %s: %w", template.Subject.CommonName, err)
	}
	r.cert = &tls.Certificate{
		Certificate: [][]byte{der, r.authority.cert.Raw},
		PrivateKey:  key,
		Leaf:        leaf,
	}
	r.renewAt = t.Add(leaf.NotAfter.Sub(t) * 2 / 3)
	return r.cert, nil
}

// GetCertificate is for a server's tls.Config.
func (r *Renewed) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return r.Certificate()
}

// GetClientCertificate is for a client's tls.Config.
func (r *Renewed) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return r.Certificate()
}
