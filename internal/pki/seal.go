package pki

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// sealKeySize is that of a key: AES-256.
const sealKeySize = 32

// sealMark begins what Seal returns, and no PEM: the format, so that another can
// follow.
var sealMark = []byte("kip-sealed-1\n")

// Sealer encrypts what is stored, with AES-256-GCM. Without keys it changes nothing.
type Sealer struct {
	keys []sealKey // the first encrypts
}

// sealKey is a key, and what names it in what it has encrypted.
type sealKey struct {
	id   []byte
	aead cipher.AEAD
}

// sealIDSize is enough to tell the keys of one Kip apart.
const sealIDSize = 8

// NewSealer returns a Sealer with keys in the form of their files: 32 bytes in base64.
// No error tells anything of a key but its place.
func NewSealer(files ...[]byte) (*Sealer, error) {
	s := &Sealer{}
	for i, file := range files {
		key, err := base64.StdEncoding.Strict().DecodeString(string(bytes.TrimSpace(file)))
		if err != nil || len(key) != sealKeySize {
			return nil, fmt.Errorf("encryption key %d: it is not %d bytes in base64, as openssl rand -base64 %d gives them", i, sealKeySize, sealKeySize)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("encryption key %d: %w", i, err)
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("encryption key %d: %w", i, err)
		}
		id := sha256.Sum256(append([]byte("kip-seal-key "), key...))
		s.keys = append(s.keys, sealKey{id: id[:sealIDSize], aead: aead})
	}
	return s, nil
}

// Encrypts says whether there is a key to encrypt with.
func (s *Sealer) Encrypts() bool { return len(s.keys) > 0 }

// Seal returns data encrypted with the first key, for what it is stored as: it opens
// as nothing else.
func (s *Sealer) Seal(data []byte, as string) []byte {
	if !s.Encrypts() {
		return data
	}
	k := s.keys[0]
	head := bytes.Join([][]byte{sealMark, k.id}, nil)
	return k.aead.Seal(head, nil, data, append(bytes.Clone(head), as...))
}

// IsSealed says whether data is encrypted, with whatever key.
func IsSealed(data []byte) bool { return bytes.HasPrefix(data, sealMark) }

// ErrSealed says that none of the keys opens what was sealed.
var ErrSealed = errors.New("it is encrypted with a key that is not among those given (etcd.encryptionKeyFiles)")

// Open returns what was given to Seal, and whether Seal would write it otherwise now:
// not encrypted, or with another key.
func (s *Sealer) Open(sealed []byte, as string) (data []byte, stale bool, err error) {
	rest, ok := bytes.CutPrefix(sealed, sealMark)
	if !ok {
		return sealed, s.Encrypts(), nil
	}
	if len(rest) < sealIDSize {
		return nil, false, errors.New("what is encrypted was cut off")
	}
	for i, k := range s.keys {
		if !bytes.Equal(rest[:sealIDSize], k.id) {
			continue
		}
		head := sealed[:len(sealMark)+sealIDSize]
		data, err = k.aead.Open(nil, nil, rest[sealIDSize:], append(bytes.Clone(head), as...))
		if err != nil {
			return nil, false, fmt.Errorf("decrypt with encryption key %d: it was changed, or belongs elsewhere", i)
		}
		return data, i > 0, nil
	}
	return nil, false, ErrSealed
}
