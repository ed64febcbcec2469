package stats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/elotl/kip/internal/agentapi"
)

// gather asks all cells. What one of them does not answer is not in the answer.
func (src *source) gather(ctx context.Context) (*answer, map[Miss]int, error) {
	s := src.s
	bounded, cancel := context.WithTimeout(ctx, gatherTimeout)
	defer cancel()
	cells := src.cells()
	// The others are in nobody's way.
	slices.SortStableFunc(cells, func(a, b Cell) int {
		switch was, is := src.late[a.ID], src.late[b.ID]; {
		case was == is:
			return 0
		case is:
			return -1
		}
		return 1
	})
	m := src.merging.begin(s.c.Clock.Now())
	counts := map[Miss]int{}
	late := map[string]bool{}
	var mu sync.Mutex
	delay := func(c *Cell) {
		mu.Lock()
		defer mu.Unlock()
		late[c.ID] = true
	}
	miss := func(c *Cell, why Miss, err error) {
		mu.Lock()
		counts[why]++
		mu.Unlock()
		if !errors.Is(err, errNothingLeft) {
			delay(c)
		}
		s.c.Log.Debug("a cell did not tell what its pod uses", "cell", c.ID, "pod", c.Namespace+"/"+c.Pod, "path", src.path, "why", string(why),
			"err", err)
	}
	var asked errgroup.Group
	asked.SetLimit(maxInFlight)
	for i := range cells {
		c := &cells[i]
		if c.Conn == nil {
			miss(c, NotConnected, nil)
			continue
		}
		asked.Go(func() error {
			large, err := src.ask(bounded, c, m)
			if large {
				delay(c)
			}
			if err != nil {
				miss(c, whyOf(err), err)
			}
			return nil
		})
	}
	_ = asked.Wait() // no cell's error is one of the gathering
	src.late = late
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	a, err := m.end(cells)
	return a, counts, err
}

var (
	errInvalid  = errors.New("the answer cannot be parsed")
	errTooLarge = errors.New("the answer is too large")
	// errNothingLeft is of a cell that has done its part: others took the time or the room.
	errNothingLeft = errors.New("the others left nothing for it")
)

func whyOf(err error) Miss {
	switch {
	case errors.Is(err, errInvalid):
		return Invalid
	case errors.Is(err, errTooLarge):
		return TooLarge
	case errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	}
	return Failed
}

// ask asks one cell's kubelet, and has its answer merged. It says whether that is large.
func (src *source) ask(all context.Context, c *Cell, m merger) (large bool, err error) {
	if all.Err() != nil {
		return false, fmt.Errorf("%w: %w", errNothingLeft, all.Err())
	}
	ctx, cancel := context.WithTimeout(all, cellTimeout)
	defer cancel()
	answer, err := agentapi.Client{Conn: c.Conn}.Kubelet(ctx, src.path)
	if err != nil {
		return false, within(all, ctx, err)
	}
	defer answer.Close()
	body, release, err := src.s.reading.readAll(answer)
	defer release()
	if err != nil {
		return false, within(all, ctx, err)
	}
	large = len(body) > largeBody
	// The cell has done its part in time: what is missing from here on is the others'.
	most, lanes := src.s.held, []chan struct{}{src.s.parsing}
	if large {
		most, lanes = most/2, []chan struct{}{src.s.largest, src.s.parsing}
	}
	for _, lane := range lanes {
		select {
		case lane <- struct{}{}:
			defer func() { <-lane }()
		case <-all.Done():
			return large, fmt.Errorf("%w: %w", errNothingLeft, all.Err())
		}
	}
	if m.held() > most {
		return large, fmt.Errorf("%w: %w: all cells together", errNothingLeft, errTooLarge)
	}
	return large, m.add(c, body)
}

// within says of an error that time was up, where that is the cause: not every
// transport's error does. It may have been the time of all.
func within(all, ctx context.Context, err error) error {
	switch {
	case all.Err() != nil:
		return fmt.Errorf("%w: %w: %w", errNothingLeft, all.Err(), err)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// budget bounds the memory of what is being read. Large answers have half of it.
type budget struct {
	most    int64
	used    atomic.Int64
	buffers sync.Pool // of *[]byte
}

// firstBuffer holds most answers but those of cAdvisor, and keptBuffer most of
// those.
const firstBuffer, keptBuffer = 16 << 10, largeBody

// take adds nothing where it refuses, not for a moment: another would be refused for that.
func (b *budget) take(n int, most int64) bool {
	for {
		used := b.used.Load()
		if used+int64(n) > most {
			return false
		}
		if b.used.CompareAndSwap(used, used+int64(n)) {
			return true
		}
	}
}

// readAll reads r to its end, if it is not too large. What it returns is valid
// until release, which must be called in any case.
func (b *budget) readAll(r io.Reader) (body []byte, release func(), err error) {
	buf, _ := b.buffers.Get().(*[]byte)
	if buf == nil {
		first := make([]byte, firstBuffer)
		buf = &first
	}
	if !b.take(len(*buf), b.most) {
		b.buffers.Put(buf)
		return nil, func() {}, fmt.Errorf("%w: %w: %d bytes of all cells are being read", errNothingLeft, errTooLarge, b.most)
	}
	release = func() {
		b.used.Add(-int64(len(*buf)))
		if len(*buf) <= keptBuffer {
			b.buffers.Put(buf)
		}
	}
	n := 0
	for {
		if n == len(*buf) {
			if n >= maxBody {
				return nil, release, fmt.Errorf("%w: it has more than %d bytes", errTooLarge, maxBody)
			}
			switch {
			case 2*n <= largeBody && !b.take(n, b.most):
				return nil, release, fmt.Errorf("%w: %w: %d bytes of all cells are being read", errNothingLeft, errTooLarge, b.most)
			case 2*n > largeBody && !b.take(n, b.most/2):
				return nil, release, fmt.Errorf("%w: %d bytes of all cells are being read, and it is large", errTooLarge, b.most/2)
			}
			*buf = append(*buf, make([]byte, n)...)[:2*n]
		}
		m, err := r.Read((*buf)[n:])
		n += m
		if err == io.EOF {
			return (*buf)[:n], release, nil
		}
		if err != nil {
			return nil, release, err
		}
	}
}
