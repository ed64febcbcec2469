package calls

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pulse"
)

// merged makes calls that name instances, and whose outcome is by instance: what waits
// at the same time goes in one call. A call ends early when nobody waits for it.
type merged struct {
	calls *Calls
	kind  cloud.Call
	send  func(ctx context.Context, ids ...string) []answer // one for each ID

	mu    sync.Mutex
	queue []*ask
	wait  *work // for the turn of the queue; nil while nothing waits
}

// answer is what the cloud says of one instance.
type answer struct {
	instance cloud.Instance // of a description
	err      error
}

// ask is one instance that one caller asks for.
type ask struct {
	id     string
	caller *caller
	n      int   // its place among the caller's
	in     *call // nil while it is in the queue
	over   bool  // it is answered, or its caller is gone
	said   error // why it was not answered yet
	// most is how many may be asked for in the same call.
	most int
}

// caller waits for its answers.
type caller struct {
	answers []answer
	open    int
	done    chan struct{}
}

// work is a goroutine. Whoever cancels it waits for its end.
type work struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

func newWork() (context.Context, *work) {
	ctx, cancel := context.WithCancel(context.Background())
	return ctx, &work{cancel: cancel, ended: make(chan struct{})}
}

// call is one that is under way.
type call struct {
	*work
	asks []*ask
	open int // those whose callers wait
}

func newMerged(c *Calls, kind cloud.Call, send func(context.Context, ...string) []answer) *merged {
	return &merged{calls: c, kind: kind, send: send}
}

// do asks for each ID, and returns the answers in their order. What has none when ctx
// ends has its error.
func (m *merged) do(ctx context.Context, ids []string) []answer {
	c := &caller{answers: make([]answer, len(ids)), open: len(ids), done: make(chan struct{})}
	if len(ids) == 0 {
		return nil
	}
	asks := make([]*ask, len(ids))
	for n, id := range ids {
		asks[n] = &ask{
			id:     id,
			caller: c,
			n:      n,
			most:   mostNamed,
		}
	}
	m.mu.Lock()
	m.queue = append(m.queue, asks...)
	m.start()
	m.mu.Unlock()
	over := pulse.Wait(ctx, pulse.Cloud)
	select {
	case <-c.done:
		over()
	case <-ctx.Done():
		over()
		m.leave(asks, ctx.Err())
	}
	return c.answers
}

// leave takes back what has no answer yet, and ends what nobody waits for any more.
func (m *merged) leave(asks []*ask, why error) {
	var idle []*work
	m.mu.Lock()
	for _, a := range asks {
		if a.over {
			continue
		}
		a.over = true
		a.caller.answers[a.n].err = errors.Join(why, a.said)
		if a.in == nil {
			continue
		}
		if a.in.open--; a.in.open == 0 {
			idle = append(idle, a.in.work)
		}
	}
	m.queue = slices.DeleteFunc(m.queue, func(a *ask) bool { return a.over })
	if len(m.queue) == 0 && m.wait != nil {
		idle = append(idle, m.wait)
		m.wait = nil
	}
	m.mu.Unlock()
	for _, w := range idle {
		w.cancel()
		<-w.ended
	}
}

// errTakenBack: it was not sent.
var errTakenBack = errors.New("taken back before it was sent")

// takeBack answers those who ask for an instance that is in no call yet.
func (m *merged) takeBack(id string) {
	m.mu.Lock()
	m.queue = slices.DeleteFunc(m.queue, func(a *ask) bool {
		if a.id != id {
			return false
		}
		a.over = true
		a.caller.answers[a.n].err = errors.Join(errTakenBack, a.said)
		if a.caller.open--; a.caller.open == 0 {
			close(a.caller.done)
		}
		return true
	})
	var idle *work
	if len(m.queue) == 0 && m.wait != nil {
		idle, m.wait = m.wait, nil
	}
	m.mu.Unlock()
	if idle != nil {
		idle.cancel()
		<-idle.ended
	}
}

// start sees to it that what is in the queue is sent. The caller holds mu.
func (m *merged) start() {
	if m.wait != nil || len(m.queue) == 0 {
		return
	}
	ctx, w := newWork()
	m.wait = w
	go m.inTurn(ctx, w, func(ctx context.Context) { m.dispatch(ctx, w) })
}

// inTurn does work in a turn of its own, as a goroutine.
func (m *merged) inTurn(ctx context.Context, w *work, do func(context.Context)) {
	defer close(w.ended)
	defer w.cancel()
	m.calls.cfg.Pulse.Turn(ctx, "calls of kind "+string(m.kind), do)
}

// dispatch sends what is in the queue, each call in its turn, until it is empty.
func (m *merged) dispatch(ctx context.Context, w *work) {
	for {
		turn, err := m.calls.Turn(ctx, m.kind, 1)
		if err != nil {
			return // nobody waits any more
		}
		if !turn.Gather(ctx) {
			turn.Cancel()
			return
		}
		if !m.next(w, turn) {
			return
		}
	}
}

// next sends one call; false when that was the last.
func (m *merged) next(w *work, turn *Turn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wait != w {
		turn.Cancel()
		return false
	}
	n, together := 0, mostNamed
	for n < len(m.queue) && n < min(together, m.queue[n].most) {
		together = min(together, m.queue[n].most)
		n++
	}
	n = max(1, turn.Resources(n))
	ctx, one := newWork()
	c := &call{work: one, asks: slices.Clone(m.queue[:n]), open: n}
	m.queue = slices.Delete(m.queue, 0, n)
	for _, a := range c.asks {
		a.in = c
	}
	go m.inTurn(ctx, one, func(ctx context.Context) { m.make(ctx, c, turn) })
	if len(m.queue) > 0 {
		return true
	}
	m.wait = nil
	return false
}

// make makes a call. What the cloud has throttled goes to the head of the queue, and so
// does a call that was refused as a whole, to be made in two. So is one that was throttled as
// a whole: the cloud may have tokens for few things only, since others take them as they come,
// and a call for many would wait for ever.
func (m *merged) make(ctx context.Context, c *call, turn *Turn) {
	var ids []string
	place := map[string]int{} // several may ask for the same
	for _, a := range c.asks {
		if _, there := place[a.id]; !there {
			place[a.id] = len(ids)
			ids = append(ids, a.id)
		}
	}
	answers := turn.ask(ctx, func(ctx context.Context) []answer { return m.send(ctx, ids...) })
	split := len(ids) > 1 && refusedAsOne(answers)
	most := (len(ids) + 1) / 2
	if len(ids) > leastFailed && failedAsOne(answers) {
		split, most = true, max(leastFailed, most)
	}
	// Where requests alone are bounded, more of them would be throttled the more.
	bounded := m.calls.cfg.Cloud.Traits().Budgets[m.kind].Resources != cloud.Bucket{}
	if bounded && len(ids) > leastNamed && throttledAsOne(answers) {
		split, most = true, max(leastNamed, most)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var again []*ask
	for _, a := range c.asks {
		said := answers[place[a.id]]
		switch {
		case a.over:
		case errors.Is(said.err, cloud.ErrThrottled), split:
			if split {
				a.most = most
			}
			a.in, a.said = nil, said.err
			again = append(again, a)
		default:
			a.over = true
			a.caller.answers[a.n] = said
			if a.caller.open--; a.caller.open == 0 {
				close(a.caller.done)
			}
		}
	}
	m.queue = append(again, m.queue...)
	m.start()
}

// throttledAsOne says that nothing of a call was done.
func throttledAsOne(answers []answer) bool {
	return !slices.ContainsFunc(answers, func(a answer) bool { return !errors.Is(a.err, cloud.ErrThrottled) })
}

// refusedAsOne says that a call was refused as a whole, perhaps for one instance that
// it names: in smaller calls the cloud says for which. What is about all instances of an
// account, a zone or a type says so.
func refusedAsOne(answers []answer) bool {
	first := answers[0].err
	if first == nil || !cloud.Refused(first) || cloud.ScopeOf(first).Says() {
		return false
	}
	said := saidOf(first)
	return !slices.ContainsFunc(answers, func(a answer) bool { return a.err == nil || saidOf(a.err) != said })
}

// leastFailed is how many instances one call names at least after the cloud itself has failed: more
// calls for fewer would be a load on a cloud that has trouble with all.
const leastFailed = 50

// failedAsOne says that the cloud has failed for all of a call, perhaps for what is wrong with one of
// them. What has no answer in time is not meant: who asks has no more.
func failedAsOne(answers []answer) bool {
	return !slices.ContainsFunc(answers, func(a answer) bool {
		return a.err == nil || cloud.CauseOf(a.err) != "" || errors.Is(a.err, errUnseen) ||
			errors.Is(a.err, context.Canceled) || errors.Is(a.err, context.DeadlineExceeded)
	})
}

// saidOf is what the cloud said, without the names that a driver has put before it for each thing.
func saidOf(err error) string {
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		return e.Error()
	}
	return err.Error()
}
