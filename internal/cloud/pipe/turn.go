package pipe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/watchdog"
)

// Turn is the right to send one call, for which its request is paid. It ends with the
// call or with Cancel.
type Turn struct {
	limiter   *limiter
	limit     *limit
	pipe      *Pipe // by which a launch is sent
	pauses    int   // of its kind, before it
	resources int
	yielded   bool // others send meanwhile
	sent      bool
	cancelled bool
}

// UnsentError is that of a call which was not sent before its caller's time was over.
type UnsentError struct {
	Kind cloud.Call
	Err  error // that of the caller's context
}

func (e *UnsentError) Error() string {
	return fmt.Sprintf("wait to send a call of kind %s: %v", e.Kind, e.Err)
}

func (e *UnsentError) Unwrap() error { return e.Err }

// turn implements Pipe.Turn.
func (l *limiter) turn(ctx context.Context, kind cloud.Call, least int) (*Turn, error) {
	k := l.of(kind)
	began := l.cfg.Clock.Now()
	if l.cfg.Meter != nil {
		l.cfg.Meter.CallWaits(kind)
		defer func() { l.cfg.Meter.CallWaited(kind, l.cfg.Clock.Since(began)) }()
	}
	turn := &Turn{limiter: l, limit: k}
	if err := l.await(ctx, k, k.unpaid, func() time.Duration { return turn.try(1, least) }); err != nil {
		return nil, err
	}
	return turn, nil
}

// await waits in a queue of a kind of call until try succeeds. try returns after how long to try
// again; 0 when it has succeeded.
func (l *limiter) await(ctx context.Context, k *limit, q queue, try func() time.Duration) error {
	l.waiting(k, 1)
	defer l.waiting(k, -1)
	err := ctx.Err()
	if err == nil {
		over := watchdog.Wait(ctx, watchdog.Cloud) // those before wait for it too
		select {
		case q.head <- struct{}{}:
			defer func() { <-q.head }()
		case <-ctx.Done():
			err = ctx.Err()
		}
		over()
	}
	for err == nil {
		wait := try()
		if wait <= 0 {
			return nil
		}
		timer, over := l.cfg.Clock.NewTimer(wait), watchdog.Wait(ctx, watchdog.Cloud)
		select {
		case <-timer.C():
		case <-q.ended:
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		over()
	}
	return &UnsentError{Kind: k.kind, Err: err}
}

func (l *limiter) waiting(k *limit, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.waiting += n
}

// try takes the turn and pays for so many requests, or says after how long to try again. Its
// caller is the head.
func (t *Turn) try(requests, least int) time.Duration {
	k, now := t.limit, t.limiter.cfg.Clock.Now()
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	if k.underWay >= most {
		return Timeout // or when one has ended
	}
	if wait := hangAfter - now.Sub(k.began); k.underWay >= k.window && wait > 0 {
		return wait // so, too
	}
	if wait := max(k.until.Sub(now), k.requests.lacks(requests, now), k.resources.lacks(least, now)); wait > 0 {
		return wait
	}
	k.requests.take(requests, now)
	k.underWay++
	k.began = now
	t.pauses, t.yielded = k.pauses, false
	return 0
}

// hangAfter is after how long those that have no answer keep no other from being sent: most calls are
// answered within a second, and one that hangs would hold up all of its kind for its whole Timeout.
const hangAfter = 5 * time.Second

// Yield lets others send meanwhile: what is to be done before the call may take long. What
// the turn has paid stays paid.
func (t *Turn) Yield() {
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	t.yielded = true
	t.leave()
}

// Resume waits until the call of a turn that has yielded may be sent. With an error, an
// *UnsentError, the turn has ended.
func (t *Turn) Resume(ctx context.Context) error {
	err := t.limiter.await(ctx, t.limit, t.limit.paid, func() time.Duration { return t.try(0, 0) })
	if err != nil {
		t.Cancel()
	}
	return err
}

// Resources takes up to n of the resources that a call may name, and returns how many
// it got.
func (t *Turn) Resources(n int) int {
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	got := t.limit.resources.take(n, t.limiter.cfg.Clock.Now())
	t.resources += got
	return got
}

// Gather waits a moment where calls of its kind have a budget, of which others have used
// some of late: what is about to come had better go along. It returns false when ctx
// has ended.
func (t *Turn) Gather(ctx context.Context) bool {
	t.limiter.mu.Lock()
	k := t.limit
	alone := !k.scarce || k.requests.tokens >= k.requests.Capacity-1
	t.limiter.mu.Unlock()
	if alone {
		return true
	}
	defer watchdog.Wait(ctx, watchdog.Time)()
	select {
	case <-t.limiter.cfg.Clock.After(gatherFor):
		return true
	case <-ctx.Done():
		return false
	}
}

// Cancel ends a turn in which nothing was sent. It does nothing once the turn has ended.
func (t *Turn) Cancel() {
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	if t.sent || t.cancelled {
		return
	}
	t.cancelled = true
	t.limit.requests.giveBack(1)
	t.limit.resources.giveBack(t.resources)
	if t.yielded { // it left then
		t.wake() // for what it gives back
	} else {
		t.leave()
	}
}

// leave makes room for the next ones. The caller holds mu.
func (t *Turn) leave() {
	t.limit.underWay--
	t.wake()
}

// wake has the next ones look. The caller holds mu.
func (t *Turn) wake() {
	for _, q := range []queue{t.limit.unpaid, t.limit.paid} {
		select {
		case q.ended <- struct{}{}:
		default:
		}
	}
}

// end learns from the answer to a call.
func (t *Turn) end(err error) {
	now := t.limiter.cfg.Clock.Now()
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	k := t.limit
	defer t.leave()
	k.requests.answer(now)
	k.resources.answer(now)
	if !errors.Is(err, cloud.ErrThrottled) {
		if t.pauses == k.pauses {
			k.throttled, k.window = 0, min(2*k.window, most)
		}
		return
	}
	var after time.Duration
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		after = min(e.RetryAfter, LongestRetryAfter)
	}
	// Of the calls that were under way together one counts.
	if t.pauses == k.pauses {
		k.throttled++
		k.pauses++
		k.window = 1
		k.requests.drain(now)
		k.resources.giveBack(t.resources)
		after = max(after, t.limiter.cfg.Random.After(k.throttled, firstPause, longestPause))
	}
	if until := now.Add(after); until.After(k.until) {
		k.until = until
	}
}

// send makes the call, and ends the turn.
func (t *Turn) send(ctx context.Context, call Call, next Send) []Answer {
	t.sent = true
	if call.Kind != cloud.CallCatalogue {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Timeout)
		defer cancel()
	}
	over := watchdog.Wait(ctx, watchdog.Cloud)
	answers := next(ctx, call)
	over()
	t.end(throttledOf(answers))
	return answers
}

// throttledOf returns the error of some answers that says that the call was throttled; nil where
// none does.
func throttledOf(all []Answer) error {
	for _, a := range all {
		if errors.Is(a.Err, cloud.ErrThrottled) {
			return a.Err
		}
	}
	return nil
}
