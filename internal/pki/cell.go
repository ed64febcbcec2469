package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"time"
)

// kipName is the common name of Kip's client certificate.
const kipName = "kip"

// cellID is an RFC 1123 label, as the Cell resource's name is, too.
var cellID = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// CheckCellID refuses what cannot be a cell's ID.
func CheckCellID(id string) error {
	if !cellID.MatchString(id) {
		return fmt.Errorf("cell ID %q: it must be 1 to 63 lower-case letters, digits and '-', and begin and end with a letter or digit", id)
	}
	return nil
}

// CellURI is the name in a cell's certificate: kip://cell/ID.
func CellURI(id string) *url.URL {
	return &url.URL{Scheme: "kip", Host: "cell", Path: "/" + id}
}

// SignCell issues the certificate (DER) of a cell for the key in a certificate
// request (DER). All else that the request asks for is ignored. It is valid as
// long as the authority is.
func (a *Authority) SignCell(csr []byte, id string) ([]byte, error) {
	if err := CheckCellID(id); err != nil {
		return nil, fmt.Errorf("sign a cell's certificate: %w", err)
	}
	req, err := ParseCellRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of cell %s: %w", id, err)
	}
	return a.RenewCell(req.PublicKey, id)
}

// RenewCell issues the certificate (DER) of a cell for a key that it has proven to have.
// It is valid as long as the authority is.
func (a *Authority) RenewCell(key crypto.PublicKey, id string) ([]byte, error) {
	der, err := a.sign(&x509.Certificate{
		URIs:        []*url.URL{CellURI(id)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key, authorityLife)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of cell %s: %w", id, err)
	}
	return der, nil
}

// ParseCellRequest parses a cell's certificate request (DER), and verifies that
// who sent it has the key, and that the key is ECDSA on P-256.
func ParseCellRequest(csr []byte) (*x509.CertificateRequest, error) {
	req, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if key, ok := req.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("certificate request: its key must be ECDSA on P-256")
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return req, nil
}

// VerifyCell says whether chain, as the other end of a TLS connection showed
// it, is the certificate of this very cell, issued by this authority.
func (a *Authority) VerifyCell(chain []*x509.Certificate, id string) error {
	if len(chain) == 0 {
		return errors.New("the cell showed no certificate")
	}
	return verifyCell(chain[0], a.cert, id, a.now())
}

// VerifyOwn says whether a certificate (DER) that a cell was given is one for
// its ID and key, issued by ca.
func VerifyOwn(der []byte, ca *x509.Certificate, id string, key *ecdsa.PublicKey, now time.Time) (*x509.Certificate, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("the cell's certificate: %w", err)
	}
	if !key.Equal(cert.PublicKey) {
		return nil, errors.New("the cell's certificate is for another key")
	}
	if err := verifyCell(cert, ca, id, now); err != nil {
		return nil, err
	}
	return cert, nil
}

func verifyCell(leaf, ca *x509.Certificate, id string, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return fmt.Errorf("the certificate of cell %s: %w", id, err)
	}
	return NamesCell(leaf, id)
}

// NamesCell says whether a certificate is in the name of a cell, whoever signed it.
func NamesCell(leaf *x509.Certificate, id string) error {
	want := CellURI(id).String()
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != want {
		return fmt.Errorf("the certificate of cell %s: it is for %v, not for %s", id, leaf.URIs, want)
	}
	return nil
}

// Term is the one for which the Kip leads that shows a certificate, which VerifyKip has
// verified; 0 if that says none.
func Term(kip *x509.Certificate) (uint64, error) {
	text := kip.Subject.SerialNumber
	if text == "" {
		return 0, nil
	}
	term, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the caller's certificate: its term must be a number: %w", err)
	}
	return term, nil
}

// VerifyKip says whether chain, as the other end of a TLS connection showed it,
// is Kip: a client certificate named "kip", issued by an authority in the chain
// whose CAHash is one of caHashes. It returns that authority's certificate.
func VerifyKip(chain []*x509.Certificate, now time.Time, caHashes ...string) (*x509.Certificate, error) {
	if len(chain) == 0 {
		return nil, errors.New("the caller showed no certificate")
	}
	roots, trusted := x509.NewCertPool(), false
	for _, cert := range chain[1:] {
		for _, caHash := range caHashes {
			if subtle.ConstantTimeCompare([]byte(CAHash(cert.Raw)), []byte(caHash)) == 1 {
				roots.AddCert(cert)
				trusted = true
			}
		}
	}
	if !trusted {
		return nil, errors.New("the caller's certificate is not of a CA that this cell trusts")
	}
	verified, err := chain[0].Verify(x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("the caller's certificate: %w", err)
	}
	if name := chain[0].Subject.CommonName; name != kipName {
		return nil, fmt.Errorf("the caller's certificate is for %q, not for %q", name, kipName)
	}
	return verified[0][len(verified[0])-1], nil
}
