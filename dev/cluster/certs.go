package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The certificates of the development cluster are of two authorities that live as
// long as one run. Kip does not use them: its own authority is package pki.

// validity of everything that is made here. A run is thrown away long before.
const validity = 365 * 24 * time.Hour

// skew is how far the clocks of a cell and of this machine may differ: they are
// one clock, so this only covers a clock that is set back after boot.
const skew = time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
}

// NewAuthority makes a self-signed authority that is valid from now on.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of authority %s: %w", name, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse authority %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key, now: now}, nil
}

// Subject says for whom, and for what, a certificate is.
type Subject struct {
	// Name and Groups are the user and groups that the API server sees in a
	// client certificate.
	Name   string
	Groups []string
	// Hosts are the names and addresses of a server. A subject with hosts is a
	// server, one without is a client.
	Hosts []string
}

// Pair is a certificate and its key, in PEM.
type Pair struct{ Cert, Key []byte }

// Issue makes a key and signs a certificate for s.
func (a *Authority) Issue(s Subject) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make the key of %s: %w", s.Name, err)
	}
	serial, err := newSerial()
	if err != nil {
		return Pair{}, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.Name, Organization: s.Groups},
		NotBefore:    a.now.Add(-skew),
		NotAfter:     a.now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(s.Hosts) > 0 {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, h := range s.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %s: %w", s.Name, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key of %s: %w", s.Name, err)
	}
	return Pair{Cert: encodeCert(der), Key: keyPEM}, nil
}

// Pair returns the authority's own certificate and key.
func (a *Authority) Pair() (Pair, error) {
	key, err := encodeKey(a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key of authority %s: %w", a.cert.Subject.CommonName, err)
	}
	return Pair{Cert: encodeCert(a.cert.Raw), Key: key}, nil
}

// Write writes the pair to dir as NAME.crt and NAME.key, which only the owner
// may read.
func (p Pair) Write(dir, name string) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), p.Cert, 0o644); err != nil {
		return fmt.Errorf("write the certificate of %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".key"), p.Key, 0o600); err != nil {
		return fmt.Errorf("write the key of %s: %w", name, err)
	}
	return nil
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	return n, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
