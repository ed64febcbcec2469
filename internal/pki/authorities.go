package pki

import (
	"bytes"
	"errors"
	"time"
)

// Authorities are those that Kip goes by: one, or two while its CA is being rotated.
type Authorities struct {
	// Signing is what all is signed with from now on.
	Signing *Authority
	// Before is the one that signed before, by which cells know Kip that have not been
	// moved yet; nil when none does.
	Before *Authority
}

// ErrRotating says that there are two authorities already.
var ErrRotating = errors.New("the CA is being rotated already")

// Rotated returns the authorities with which a rotation begins: a new one, and the one
// that signed until now.
func (a Authorities) Rotated() (Authorities, error) {
	if a.Before != nil {
		return Authorities{}, ErrRotating
	}
	made, err := New(a.Signing.now)
	return Authorities{Signing: made, Before: a.Signing}, err
}

// All are the authorities, the one that signs first.
func (a Authorities) All() []*Authority {
	if a.Before == nil {
		return []*Authority{a.Signing}
	}
	return []*Authority{a.Signing, a.Before}
}

// Hashes are the CAHashes of All.
func (a Authorities) Hashes() (hashes []string) {
	for _, one := range a.All() {
		hashes = append(hashes, one.Hash())
	}
	return hashes
}

// CertificatesPEM are the certificates of All, for those who verify a server certificate
// of Kip's.
func (a Authorities) CertificatesPEM() (bundle []byte) {
	for _, one := range a.All() {
		bundle = append(bundle, one.CertificatePEM()...)
	}
	return bundle
}

// Of returns the authority with a CAHash. What was written when there was one authority
// says none, and means the oldest. A CAHash of neither is that of the one that signs: a
// backup may name one that has been dropped.
func (a Authorities) Of(hash string) *Authority {
	if a.Before != nil && (hash == "" || hash == a.Before.Hash()) {
		return a.Before
	}
	return a.Signing
}

// Encode returns what DecodeAuthorities reads, for the store and nobody else. Without a
// rotation it is that of the one authority.
func (a Authorities) Encode() ([]byte, error) {
	var all []byte
	for _, one := range a.All() {
		data, err := one.Encode()
		if err != nil {
			return nil, err
		}
		all = append(all, data...)
	}
	return all, nil
}

// DecodeAuthorities reads what Encode wrote. No error tells anything of a key.
func DecodeAuthorities(data []byte, now func() time.Time) (a Authorities, err error) {
	rest := data
	if a.Signing, rest, err = decode(rest, now); err != nil || len(bytes.TrimSpace(rest)) == 0 {
		return a, err
	}
	if a.Before, rest, err = decode(rest, now); err == nil && len(bytes.TrimSpace(rest)) != 0 {
		err = errors.New("decode the CA: there is more after the two that there may be")
	}
	return a, err
}

// Made is when the authority was made.
func (a *Authority) Made() time.Time { return a.cert.NotBefore.Add(ClockSkew) }
