package podlogs

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// errSlow is why something ended that took too long.
var errSlow = errors.New("the log comes too slowly")

// patience ends a context when its time is over, which is longer by a second for each leastRate bytes that come, or when
// nothing has come for as long as it had at first. So a long log may take long, and a sender that falls silent holds up
// nobody.
type patience struct {
	mu    sync.Mutex
	first time.Duration
	ends  time.Time
	timer *time.Timer
	bytes int64 // that were not counted yet
	left  int64 // that count
}

// withPatience returns a context that ends after d, or later while bytes come, of which so many count.
func withPatience(ctx context.Context, d time.Duration, most int64) (context.Context, *patience, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &patience{first: d, ends: time.Now().Add(d), left: most}
	p.timer = time.AfterFunc(d, func() { cancel(errSlow) })
	return ctx, p, func() {
		p.timer.Stop()
		cancel(nil)
	}
}

func (p *patience) came(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(n, p.left)
	if n == 0 {
		return
	}
	p.left -= n
	p.bytes += n
	p.ends = p.ends.Add(time.Duration(p.bytes/leastRate) * time.Second)
	p.bytes %= leastRate
	p.timer.Reset(min(time.Until(p.ends), p.first))
}

// reader notes what is read.
func (p *patience) reader(r io.Reader) io.Reader { return patient{r, p} }

type patient struct {
	io.Reader
	patience *patience
}

func (r patient) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.patience.came(int64(n))
	return n, err
}
