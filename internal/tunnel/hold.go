package tunnel

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// maxHeld is how many answers to requests of one connection are held back at once: a
// kubelet has a few dozen requests open, and hardly all refused.
const maxHeld = 32

// errFlood is why a connection to a cell was closed, and the next one waits.
var errFlood = errors.New("the cell goes on asking while it is refused")

// holder holds back answers of one connection.
type holder struct {
	conn  *conn
	lasts time.Duration
	held  atomic.Int32
	flood atomic.Bool
}

type holderKey struct{}

// Hold holds the answer to a request of a cell back for a second, so that who is
// refused asks less. ctx is the request's. A connection that has too many answers held
// is closed, and the cell is dialled again some seconds later.
func Hold(ctx context.Context) {
	h, ok := ctx.Value(holderKey{}).(*holder)
	if !ok {
		return // not of a cell
	}
	defer h.held.Add(-1)
	if h.held.Add(1) > maxHeld {
		h.flood.Store(true)
		_ = h.conn.Close()
		return
	}
	t := time.NewTimer(h.lasts)
	defer t.Stop()
	// The end of the request does not matter: a cell ends its own as it likes.
	select {
	case <-t.C:
	case <-h.conn.closed:
	}
}
