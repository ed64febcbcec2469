package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

const (
	// authorityLife outlasts a cluster's.
	authorityLife = 10 * 365 * 24 * time.Hour
	// ClockSkew is how far behind Kip's clock a new machine's may be, until
	// something sets it, and still accept a certificate of this moment.
	ClockSkew = time.Hour

	blockCertificate = "CERTIFICATE"
	blockPrivateKey  = "PRIVATE KEY"
)

// Authority is Kip's certificate authority: ECDSA on P-256. It is safe for
// concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  func() time.Time
}

// New makes an authority with a key of its own, valid for ten years from now().
func New(now func() time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the CA's key: %w", err)
	}
	t := now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "kip-ca"},
		NotBefore:             t.Add(-ClockSkew),
		NotAfter:              t.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // it signs leaves only
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the CA's new certificate: %w", err)
	}
	return &Authority{cert: cert, key: key, now: now}, nil
}

// Encode returns the certificate and the private key as PEM, for the store and
// nobody else.
func (a *Authority) Encode() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("encode the CA's key: %w", err)
	}
	return append(a.CertificatePEM(),
		pem.EncodeToMemory(&pem.Block{Type: blockPrivateKey, Bytes: der})...), nil
}

// decode reads what Encode wrote, and returns what comes after it. No error tells anything of the key.
func decode(data []byte, now func() time.Time) (*Authority, []byte, error) {
	certBlock, rest := pem.Decode(data)
	if certBlock == nil || certBlock.Type != blockCertificate {
		return nil, nil, fmt.Errorf("decode the CA: the first PEM block must be a %s", blockCertificate)
	}
	keyBlock, rest := pem.Decode(rest)
	if keyBlock == nil || keyBlock.Type != blockPrivateKey {
		return nil, nil, fmt.Errorf("decode the CA: the second PEM block must be a %s", blockPrivateKey)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("decode the CA's certificate: %w", err)
	}
	if !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, nil, fmt.Errorf("decode the CA's certificate: %q is not a certificate of an authority", cert.Subject.CommonName)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, errors.New("decode the CA's key: it is not a PKCS #8 private key")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, nil, errors.New("decode the CA's key: it is not an ECDSA key on P-256")
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("decode the CA: the key does not belong to the certificate")
	}
	return &Authority{cert: cert, key: key, now: now}, rest, nil
}

// Certificate is the authority's own certificate. The caller does not modify it.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// CertificatePEM is the authority's own certificate, for those who verify Kip's
// server certificate.
func (a *Authority) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: a.cert.Raw})
}

// Hash is the CAHash of the authority's certificate: what user data carries.
func (a *Authority) Hash() string { return CAHash(a.cert.Raw) }

// Now is the authority's clock, which those who verify its certificates use too.
func (a *Authority) Now() time.Time { return a.now() }

// CAHash is the lower-case hex SHA-256 of a certificate (DER).
func CAHash(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// KeyHash names a public key: the lower-case hex SHA-256 of its
// SubjectPublicKeyInfo (DER).
func KeyHash(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("hash a public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// sign issues a leaf for key. The template says who it is and what for; its
// life is cut where the authority's ends; its serial number is random.
func (a *Authority) sign(template *x509.Certificate, key crypto.PublicKey, life time.Duration) ([]byte, error) {
	t := a.now()
	if t.After(a.cert.NotAfter) {
		return nil, fmt.Errorf("the CA ended at %s", a.cert.NotAfter.Format(time.RFC3339))
	}
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.NotBefore = t.Add(-ClockSkew)
	if template.NotBefore.Before(a.cert.NotBefore) {
		template.NotBefore = a.cert.NotBefore
	}
	template.NotAfter = t.Add(life)
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	return x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
}
