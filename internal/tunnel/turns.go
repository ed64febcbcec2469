package tunnel

import (
	"cmp"
	"container/heap"
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/elotl/kip/internal/stall"
)

const (
	// turnsPerCPU is how many connections begin in a second, for each processor. A
	// connection costs Kip about a millisecond for its handshake, and as much again
	// for what a cell asks on it at first.
	turnsPerCPU = 100
	// handshakesPerCPU bounds how many connections are in TLS at once, so that a Kip
	// that has just started and dials thousands of cells finishes some, instead of
	// having all of them time out.
	handshakesPerCPU = 16
	// stallingShare is the part of the handshakes that machines have together which
	// answered and let the last one fail: each of them may keep one for as long as it
	// may last.
	stallingShare = 4
	// lateCost is how many turns one takes while Kip is late: each new connection
	// makes it later.
	lateCost = 20
	// heldAfter is what a session may wait for its turn before that counts as being
	// held back by Kip.
	heldAfter = 5 * time.Second
	// urgentAfter without a byte, a session's cell is about to count as silent.
	urgentAfter = 20 * time.Second
)

// place orders those who wait for their turn.
type place struct {
	rank     int
	failing  bool      // its last attempt failed
	stalling bool      // the machine had answered in that
	heard    time.Time // when it was last heard
	number   uint64    // of its coming
}

func (p place) before(o place) int {
	failing := 0
	switch {
	case p.failing && !o.failing:
		failing = 1
	case o.failing && !p.failing:
		failing = -1
	}
	return cmp.Or(cmp.Compare(p.rank, o.rank), failing, p.heard.Compare(o.heard), cmp.Compare(p.number, o.number))
}

// ranks of connections, the first first. Those of sessions come from Target.Rank.
const (
	rankRequest = -2 // somebody waits for its answer
	rankUrgent  = -1
)

// turns lets connections begin at a bounded rate, those first that matter most. Package keyed has no such order: there all keys count the
// same.
type turns struct {
	limiter *rate.Limiter
	late    *stall.Meter

	mu      sync.Mutex
	waiting queue
	came    uint64
	timer   *time.Timer // set while somebody waits for the limiter
}

func newTurns(late *stall.Meter) *turns {
	n := turnsPerCPU * runtime.GOMAXPROCS(0)
	return &turns{limiter: rate.NewLimiter(rate.Limit(n), max(n/4, lateCost)), late: late}
}

// wait returns when it is the turn of who stands at p, or with ctx's error.
func (t *turns) wait(ctx context.Context, p place) error {
	w := &waiter{place: p, turn: make(chan struct{})}
	t.mu.Lock()
	t.came++
	w.number = t.came
	heap.Push(&t.waiting, w)
	if t.timer == nil {
		t.give()
	}
	t.mu.Unlock()
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.index >= 0 {
		heap.Remove(&t.waiting, w.index)
	}
	if len(t.waiting) == 0 && t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	return context.Cause(ctx)
}

// give gives those their turn who may have it now, and sets a timer for the next.
// t.mu is held.
func (t *turns) give() {
	for len(t.waiting) > 0 {
		cost := 1
		if t.late.IsLate() {
			cost = lateCost
		}
		now := time.Now()
		r := t.limiter.ReserveN(now, cost)
		if left := r.DelayFrom(now); left > 0 {
			r.CancelAt(now)
			t.timer = time.AfterFunc(left, t.giveNext)
			return
		}
		w := heap.Pop(&t.waiting).(*waiter)
		close(w.turn)
	}
}

func (t *turns) giveNext() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = nil
	t.give()
}

// waiter is one who waits for its turn.
type waiter struct {
	place
	turn  chan struct{}
	index int // in the queue, -1 when it is not in it any more
}

// queue is a heap of who waits.
type queue []*waiter

var _ heap.Interface = (*queue)(nil)

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].before(q[j].place) < 0 }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	w := x.(*waiter)
	w.index = len(*q)
	*q = append(*q, w)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	w.index = -1
	(*q)[last] = nil
	*q = (*q)[:last]
	return w
}
