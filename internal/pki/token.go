package pki

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// tokenSize is 256 bits: a proof that uses it cannot be searched for.
const tokenSize = 32

// Token is the one-time secret by which a machine joins as the cell that it was
// launched for. The zero Token is none. However it is printed, it prints as
// ***; it cannot be compared with ==, which would leak where it differs.
type Token struct {
	// secret returns the bytes. It is a function because fmt ignores the
	// methods of unexported fields, and follows pointers for a verb that does
	// not suit: inside of somebody's struct, bytes would be printed. Functions
	// also forbid ==.
	secret func() []byte
}

func newToken(b []byte) Token { return Token{secret: func() []byte { return b }} }

// NewToken makes a token.
func NewToken() Token {
	b := make([]byte, tokenSize)
	_, _ = rand.Read(b) // never fails: it ends the process instead
	return newToken(b)
}

// ParseToken reads what Reveal returned. Its error does not repeat the text.
func ParseToken(s string) (Token, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	// The decoder skips line breaks.
	if err != nil || len(b) != tokenSize || len(s) != base64.RawURLEncoding.EncodedLen(tokenSize) {
		return Token{}, fmt.Errorf("join token (%d characters): it must be %d bytes in base64url without padding (%d characters)",
			len(s), tokenSize, base64.RawURLEncoding.EncodedLen(tokenSize))
	}
	return newToken(b), nil
}

// Reveal is the token itself, for user data and the store: base64url without
// padding. It is "" for the zero Token.
func (t Token) Reveal() string {
	if t.secret == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(t.secret())
}

// IsZero says whether there is no token.
func (t Token) IsZero() bool { return t.secret == nil }

// MAC is the HMAC-SHA-256 of parts under the token. Each part's length is
// authenticated with it, so that no two lists of parts are alike. The zero
// Token has no MAC: it returns nil, which VerifyMAC never accepts.
func (t Token) MAC(parts ...[]byte) []byte {
	if t.secret == nil {
		return nil
	}
	h := hmac.New(sha256.New, t.secret())
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	return h.Sum(nil)
}

// VerifyMAC says, in a time that does not depend on mac's content, whether mac
// is the MAC of parts.
func (t Token) VerifyMAC(mac []byte, parts ...[]byte) bool {
	return t.secret != nil && hmac.Equal(mac, t.MAC(parts...))
}

// Format hides the token from every verb of fmt.
func (t Token) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "***") }

// LogValue hides the token from slog.
func (t Token) LogValue() slog.Value { return slog.StringValue("***") }

// MarshalJSON refuses: a token in JSON is either a leak or, if it were hidden
// here, lost. Who means to keep it uses Reveal.
func (t Token) MarshalJSON() ([]byte, error) {
	return nil, errors.New("a join token is not marshalled; use Reveal where it must be kept")
}
