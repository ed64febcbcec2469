package cells

import (
	"context"
	"fmt"
)

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
