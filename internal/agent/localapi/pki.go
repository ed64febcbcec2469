package localapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/atomicfile"
)

// lifetime of the machine's certificates. A cell may run for months, and they
// end with the agent's process in any case.
const lifetime = 10 * 365 * 24 * time.Hour

// PKI is made anew by every start of the agent. The key of its CA is dropped
// once the four certificates are signed, so nobody can make a fifth.
type PKI struct {
	// Files are those that the kubelet reads.
	Files configs.Files

	roots   *x509.CertPool
	server  tls.Certificate // itzo's endpoint for the kubelet
	kubelet tls.Certificate // itzo as the kubelet server's client
	open    requests        // by which the two talk
	reports reports
}

// NewPKI makes the PKI and writes the kubelet's part of it into dir, which only
// root may read.
func NewPKI(dir string, now time.Time) (*PKI, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the machine's certificates: %w", err)
	}
	ca, err := newIssuer(now)
	if err != nil {
		return nil, fmt.Errorf("make the machine's CA: %w", err)
	}
	p := &PKI{
		roots: x509.NewCertPool(),
		Files: configs.Files{
			CA:          filepath.Join(dir, "ca.crt"),
			ClientCert:  filepath.Join(dir, "kubelet-client.crt"),
			ClientKey:   filepath.Join(dir, "kubelet-client.key"),
			ServingCert: filepath.Join(dir, "kubelet.crt"),
			ServingKey:  filepath.Join(dir, "kubelet.key"),
		},
	}
	p.roots.AddCert(ca.cert)
	if err := write(p.Files.CA, "CERTIFICATE", ca.cert.Raw); err != nil {
		return nil, err
	}
	for _, c := range []struct {
		name      string
		usage     x509.ExtKeyUsage
		into      *tls.Certificate
		cert, key string
	}{
		{name: "itzo", usage: x509.ExtKeyUsageServerAuth, into: &p.server},
		{name: "itzo", usage: x509.ExtKeyUsageClientAuth, into: &p.kubelet},
		{name: "kubelet", usage: x509.ExtKeyUsageClientAuth, cert: p.Files.ClientCert, key: p.Files.ClientKey},
		{name: "kubelet", usage: x509.ExtKeyUsageServerAuth, cert: p.Files.ServingCert, key: p.Files.ServingKey},
	} {
		cert, err := ca.issue(c.name, c.usage)
		if err != nil {
			return nil, fmt.Errorf("make the certificate of %s: %w", c.name, err)
		}
		if c.into != nil {
			*c.into = cert
			continue
		}
		key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
		if err != nil {
			return nil, fmt.Errorf("encode the key of %s: %w", c.name, err)
		}
		if err := write(c.cert, "CERTIFICATE", cert.Certificate[0]); err != nil {
			return nil, err
		}
		if err := write(c.key, "PRIVATE KEY", key); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// serverTLS is for the endpoint that the kubelet asks: no client certificate, no
// answer, so that a pod on the host network gets none.
func (p *PKI) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{p.server},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    p.roots,
	}
}

func (p *PKI) clientTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.kubelet},
		RootCAs: p.roots,
	}
}

type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
}

func newIssuer(now time.Time) (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "this machine"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(lifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &issuer{cert: cert, key: key, now: now}, err
}

func (i *issuer) issue(name string, usage x509.ExtKeyUsage) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    i.now.Add(-time.Hour),
		NotAfter:     i.now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
	}
	if usage == x509.ExtKeyUsageServerAuth {
		t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, i.cert, key.Public(), i.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// write replaces a file that only root may read.
func write(path, kind string, der []byte) error {
	if err := atomicfile.Write(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	return nil
}
