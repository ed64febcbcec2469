package pipe

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/watchdog"
)

// leastNamed is how many instances one call names at least that is made in smaller ones since the cloud has
// throttled it: each costs a request.
const leastNamed = 5

// batchers are those of the kinds of calls that name instances.
type batchers map[cloud.Call]*batcher

func newBatchers(l *limiter) batchers {
	all := batchers{}
	for _, kind := range []cloud.Call{cloud.CallTerminate, cloud.CallStop, cloud.CallStart, cloud.CallDescribe} {
		all[kind] = &batcher{limiter: l, kind: kind}
	}
	return all
}

// intercept has a call go together with others of its kind.
func (all batchers) intercept(ctx context.Context, call Call, next Send) []Answer {
	if b := all[call.Kind]; b != nil {
		return b.do(ctx, call.IDs, next)
	}
	return next(ctx, call)
}

// batcher makes calls that name instances, and whose outcome is by instance: what waits
// at the same time goes in one call. A call ends early when nobody waits for it.
type batcher struct {
	limiter *limiter
	kind    cloud.Call

	mu    sync.Mutex
	queue []*request
	wait  *work // for the turn of the queue; nil while nothing waits
}

// request is one instance that one caller requests for.
type request struct {
	id     string
	send   Send // the same for all of a kind
	caller *caller
	n      int    // its place among the caller's
	in     *batch // nil while it is in the queue
	over   bool   // it is answered, or its caller is gone
	said   error  // why it was not answered yet
	// most is how many may be asked for in the same call.
	most int
}

// caller waits for its answers.
type caller struct {
	answers []Answer
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

// batch is a call that is under way.
type batch struct {
	*work
	requests []*request
	open     int // those whose callers wait
}

// do requests for each ID, and returns the answers in their order. What has none when ctx
// ends has its error.
func (b *batcher) do(ctx context.Context, ids []string, send Send) []Answer {
	if len(ids) == 0 {
		return nil
	}
	c := &caller{answers: make([]Answer, len(ids)), open: len(ids), done: make(chan struct{})}
	requests := make([]*request, len(ids))
	for n, id := range ids {
		requests[n] = &request{
			id:     id,
			send:   send,
			caller: c,
			n:      n,
			most:   mostNamed,
		}
	}
	b.mu.Lock()
	b.queue = append(b.queue, requests...)
	b.start()
	b.mu.Unlock()
	over := watchdog.Wait(ctx, watchdog.Cloud)
	select {
	case <-c.done:
		over()
	case <-ctx.Done():
		over()
		b.leave(requests, ctx.Err())
	}
	return c.answers
}

// leave takes back what has no answer yet, and ends what nobody waits for any more.
func (b *batcher) leave(requests []*request, why error) {
	var idle []*work
	b.mu.Lock()
	for _, r := range requests {
		if r.over {
			continue
		}
		r.over = true
		r.caller.answers[r.n].Err = errors.Join(why, r.said)
		if r.in == nil {
			continue
		}
		if r.in.open--; r.in.open == 0 {
			idle = append(idle, r.in.work)
		}
	}
	b.queue = slices.DeleteFunc(b.queue, func(r *request) bool { return r.over })
	if len(b.queue) == 0 && b.wait != nil {
		idle = append(idle, b.wait)
		b.wait = nil
	}
	b.mu.Unlock()
	for _, w := range idle {
		w.cancel()
		<-w.ended
	}
}

// errTakenBack: it was not sent.
var errTakenBack = errors.New("taken back before it was sent")

// takeBack answers those who ask for an instance that is in no call yet.
func (b *batcher) takeBack(id string) {
	b.mu.Lock()
	b.queue = slices.DeleteFunc(b.queue, func(r *request) bool {
		if r.id != id {
			return false
		}
		r.over = true
		r.caller.answers[r.n].Err = errors.Join(errTakenBack, r.said)
		if r.caller.open--; r.caller.open == 0 {
			close(r.caller.done)
		}
		return true
	})
	var idle *work
	if len(b.queue) == 0 && b.wait != nil {
		idle, b.wait = b.wait, nil
	}
	b.mu.Unlock()
	if idle != nil {
		idle.cancel()
		<-idle.ended
	}
}

// start sees to it that what is in the queue is sent. The caller holds mu.
func (b *batcher) start() {
	if b.wait != nil || len(b.queue) == 0 {
		return
	}
	ctx, w := newWork()
	b.wait = w
	go b.inTurn(ctx, w, func(ctx context.Context) { b.dispatch(ctx, w) })
}

// inTurn does work in a turn of its own, as a goroutine.
func (b *batcher) inTurn(ctx context.Context, w *work, do func(context.Context)) {
	defer close(w.ended)
	defer w.cancel()
	b.limiter.cfg.Watchdog.Track(ctx, "calls of kind "+string(b.kind), do)
}

// dispatch sends what is in the queue, each call in its turn, until it is empty.
func (b *batcher) dispatch(ctx context.Context, w *work) {
	for {
		turn, err := b.limiter.turn(ctx, b.kind, 1)
		if err != nil {
			return // nobody waits any more
		}
		if !turn.Gather(ctx) {
			turn.Cancel()
			return
		}
		if !b.next(w, turn) {
			return
		}
	}
}

// next sends one call; false when that was the last.
func (b *batcher) next(w *work, turn *Turn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait != w {
		turn.Cancel()
		return false
	}
	n, together := 0, mostNamed
	for n < len(b.queue) && n < min(together, b.queue[n].most) {
		together = min(together, b.queue[n].most)
		n++
	}
	n = max(1, turn.Resources(n))
	ctx, one := newWork()
	c := &batch{work: one, requests: slices.Clone(b.queue[:n]), open: n}
	b.queue = slices.Delete(b.queue, 0, n)
	for _, r := range c.requests {
		r.in = c
	}
	go b.inTurn(ctx, one, func(ctx context.Context) { b.make(ctx, c, turn) })
	if len(b.queue) > 0 {
		return true
	}
	b.wait = nil
	return false
}

// make makes a call. What the cloud has throttled goes to the head of the queue, and so
// does a call that was refused as a whole, to be made in two. So is one that was throttled as
// a whole: the cloud may have tokens for few things only, since others take them as they come,
// and a call for many would wait for ever.
func (b *batcher) make(ctx context.Context, c *batch, turn *Turn) {
	var ids []string
	place := map[string]int{} // several may ask for the same
	for _, r := range c.requests {
		if _, there := place[r.id]; !there {
			place[r.id] = len(ids)
			ids = append(ids, r.id)
		}
	}
	answers := c.requests[0].send(ctx, Call{Kind: b.kind, IDs: ids, turn: turn})
	split := len(ids) > 1 && refusedAsOne(answers)
	most := (len(ids) + 1) / 2
	if len(ids) > leastFailed && failedAsOne(answers) {
		split, most = true, max(leastFailed, most)
	}
	// Where requests alone are bounded, more of them would be throttled the more.
	bounded := b.limiter.cfg.Cloud.Capabilities().Budgets[b.kind].Resources != cloud.Bucket{}
	if bounded && len(ids) > leastNamed && throttledAsOne(answers) {
		split, most = true, max(leastNamed, most)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var again []*request
	for _, r := range c.requests {
		said := answers[place[r.id]]
		switch {
		case r.over:
		case errors.Is(said.Err, cloud.ErrThrottled), split:
			if split {
				r.most = most
			}
			r.in, r.said = nil, said.Err
			again = append(again, r)
		default:
			r.over = true
			r.caller.answers[r.n] = said
			if r.caller.open--; r.caller.open == 0 {
				close(r.caller.done)
			}
		}
	}
	b.queue = append(again, b.queue...)
	b.start()
}

// throttledAsOne says that nothing of a call was done.
func throttledAsOne(answers []Answer) bool {
	return !slices.ContainsFunc(answers, func(a Answer) bool { return !errors.Is(a.Err, cloud.ErrThrottled) })
}

// refusedAsOne says that a call was refused as a whole, perhaps for one instance that
// it names: in smaller calls the cloud says for which. What is about all instances of an
// account, a zone or a type says so.
func refusedAsOne(answers []Answer) bool {
	first := answers[0].Err
	if first == nil || !cloud.Refused(first) || cloud.ScopeOf(first).Says() {
		return false
	}
	said := saidOf(first)
	return !slices.ContainsFunc(answers, func(a Answer) bool { return a.Err == nil || saidOf(a.Err) != said })
}

// leastFailed is how many instances one call names at least after the cloud itself has failed: more
// calls for fewer would be a load on a cloud that has trouble with all.
const leastFailed = 50

// failedAsOne says that the cloud has failed for all of a call, perhaps for what is wrong with one of
// them. What has no answer in time is not meant: who asks has no more.
func failedAsOne(answers []Answer) bool {
	return !slices.ContainsFunc(answers, func(a Answer) bool {
		return a.Err == nil || cloud.CauseOf(a.Err) != "" || errors.Is(a.Err, context.Canceled) || errors.Is(a.Err, context.DeadlineExceeded)
	})
}

// saidOf is what the cloud said, without the names that a driver has put before it for each thing.
func saidOf(err error) string {
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		return e.Error()
	}
	return err.Error()
}
