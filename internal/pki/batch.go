package pki

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// batchLabel keeps the tokens of a batch apart from all else that is made with
// HMAC-SHA-256 under a Token.
const batchLabel = "kip batch token 1"

// BatchSecret is what the machines of one launch share. From it each machine's
// token follows, so whoever has it has the tokens of all. The zero BatchSecret is
// none. However it is printed, it prints as ***, as a Token does.
type BatchSecret struct{ root Token }

// NewBatchSecret makes a secret.
func NewBatchSecret() BatchSecret { return BatchSecret{NewToken()} }

// ParseBatchSecret reads what Reveal returned. Its error does not repeat the text.
func ParseBatchSecret(s string) (BatchSecret, error) {
	root, err := ParseToken(s)
	if err != nil {
		return BatchSecret{}, fmt.Errorf("secret of a batch: %w", err)
	}
	return BatchSecret{root}, nil
}

// Reveal is the secret itself, for user data: base64url without padding. It is ""
// for the zero BatchSecret.
func (s BatchSecret) Reveal() string { return s.root.Reveal() }

// IsZero says whether there is no secret.
func (s BatchSecret) IsZero() bool { return s.root.IsZero() }

// Token is the join token of one machine of the batch, by the cell ID under which
// it joins (agentapi.BatchCell):
//
//	HMAC-SHA-256(secret, len(label) ‖ label ‖ len(cellID) ‖ cellID)
//
// with the label "kip batch token 1", and each length in eight bytes, big-endian.
// The zero BatchSecret has the zero Token.
func (s BatchSecret) Token(cellID string) Token {
	if s.IsZero() {
		return Token{}
	}
	return newToken(s.root.MAC([]byte(batchLabel), []byte(cellID)))
}

// Format hides the secret from every verb of fmt.
func (s BatchSecret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "***") }

// LogValue hides the secret from slog.
func (s BatchSecret) LogValue() slog.Value { return slog.StringValue("***") }

// MarshalJSON refuses, as that of Token does.
func (s BatchSecret) MarshalJSON() ([]byte, error) {
	return nil, errors.New("the secret of a batch is not marshalled; use Reveal where it must be kept")
}
