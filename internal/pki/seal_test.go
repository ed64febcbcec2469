package pki

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

// keyFile is a file with a key of one repeated byte.
func keyFile(b byte) []byte {
	return []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, sealKeySize)) + "\n")
}

func newSealer(t *testing.T, files ...[]byte) *Sealer {
	t.Helper()
	s, err := NewSealer(files...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheFirstKeyEncryptsAndAllDecrypt(t *testing.T) {
	secret := []byte("-----BEGIN PRIVATE KEY-----")
	none, first, both, second := newSealer(t), newSealer(t, keyFile(1)), newSealer(t, keyFile(2), keyFile(1)), newSealer(t, keyFile(2))
	plain := none.Seal(secret, "ca")
	old := first.Seal(secret, "ca")
	fresh := both.Seal(secret, "ca")
	for name, c := range map[string]struct {
		s      *Sealer
		sealed []byte
		stale  bool
		err    error
	}{
		"plain, without a key":              {none, plain, false, nil},
		"plain, with a key":                 {first, plain, true, nil},
		"encrypted, its key":                {first, old, false, nil},
		"encrypted, another key before":     {both, old, true, nil},
		"encrypted anew":                    {both, fresh, false, nil},
		"encrypted anew, the new key alone": {second, fresh, false, nil},
		"encrypted, another key":            {second, old, false, ErrSealed},
		"encrypted, no key":                 {none, old, false, ErrSealed},
	} {
		data, stale, err := c.s.Open(c.sealed, "ca")
		if !errors.Is(err, c.err) || stale != c.stale || c.err == nil && !bytes.Equal(data, secret) {
			t.Errorf("%s: %q, stale %t, %v", name, data, stale, err)
		}
	}
	if bytes.Contains(old, secret) || bytes.Equal(old, first.Seal(secret, "ca")) {
		t.Error("what is sealed shows what it holds, or is the same twice")
	}
}

func TestWhatIsSealedOpensOnlyWholeAndInItsPlace(t *testing.T) {
	s := newSealer(t, keyFile(1))
	sealed := s.Seal([]byte("secret"), "ca")
	if _, _, err := s.Open(sealed, "other"); err == nil {
		t.Error("it opens as another record")
	}
	for n := len(sealMark); n < len(sealed); n++ {
		if _, _, err := s.Open(sealed[:n], "ca"); err == nil {
			t.Errorf("cut off after %d bytes it opens", n)
		}
		changed := bytes.Clone(sealed)
		changed[n] ^= 1
		if _, _, err := s.Open(changed, "ca"); err == nil {
			t.Errorf("with byte %d changed it opens", n)
		}
	}
}

func TestAnEncryptionKeyThatIsNoneIsRefusedAndNotRepeated(t *testing.T) {
	for name, file := range map[string]string{
		"nothing":   "",
		"too short": base64.StdEncoding.EncodeToString([]byte("secretsecretsecret")),
		"too long":  base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("secret"), 6)),
		"no base64": strings.Repeat("secret!!", 4),
	} {
		_, err := NewSealer(keyFile(1), []byte(file))
		if err == nil || !strings.Contains(err.Error(), "encryption key 1") || strings.Contains(err.Error(), "secret") ||
			file != "" && strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
