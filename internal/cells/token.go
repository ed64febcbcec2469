package cells

import (
	"context"
	"fmt"
)

// Credentials are what a cell and Kip know each other by. tokens and trust write them.
type Credentials struct {
	// Token is the one-time join token until it is spent, then empty.
	Token string `json:"token,omitempty"`
	// KeyHash is the SHA-256 of the public key that spent the token.
	KeyHash string `json:"keyHash,omitempty"`
	// CA is the hash of the CA by which the cell surely knows Kip: that of its user data, or
	// one that it has proven since to trust. OldCA is another that it was told to trust with it, and may
	// trust as long as this says so.
	CA    string `json:"ca,omitempty"`
	OldCA string `json:"oldCA,omitempty"`
}

// tokens records which machines have spent the join tokens of cells.
type tokens struct {
	records   *records
	bootTimes *bootTimes
}

// spend records who spent the cell's token, before the certificate leaves Kip.
// The token is kept until the first session with that certificate: after a crash
// in between, the same machine proves once more that it has the token. A machine that
// comes too late is refused, whatever keeps the cell's worker from ending it.
func (s *tokens) spend(ctx context.Context, e *entry, keyHash string) error {
	session := e.session()
	return s.records.save(ctx, e, func(cell *Cell) error {
		if left, what := s.bootTimes.left(e, cell, session); cell.KeyHash == "" && left <= 0 {
			return fmt.Errorf("cell %s did not %s in time", cell.ID, what)
		}
		if cell.KeyHash != "" && cell.KeyHash != keyHash {
			return fmt.Errorf("the token of cell %s is spent on another key", cell.ID)
		}
		cell.KeyHash = keyHash
		return nil
	})
}
