package calls

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pulse"
)

// line is where the calls of one kind wait. Calls.mu guards its fields, but for its
// channels.
type line struct {
	kind cloud.Call
	// unpaid wait for the budget, paid only for a place: what the former lack may come
	// only when one of the latter has its answer.
	unpaid, paid queue

	requests, resources bucket
	scarce              bool // the cloud has a budget of requests
	waiting             int
	underWay            int
	// window is how many may be under way: most, but for the time after a throttled
	// call, when it begins anew with 1 and doubles with each that is not.
	window int
	// began is when the last one was sent, or let through for those that hang.
	began time.Time
	// No call is sent before until. throttled counts the pauses in a row; 0 after a
	// call that was not throttled.
	until     time.Time
	throttled int
	// pauses counts them: a call that was sent before one says nothing of the time
	// since.
	pauses int
}

// queue are those that wait in their order.
type queue struct {
	// head is held by the one that looks; behind it the others wait, so that a large call
	// does not starve.
	head chan struct{}
	// ended is sent to when a call has ended, for the head.
	ended chan struct{}
}

func newQueue() queue { return queue{head: make(chan struct{}, 1), ended: make(chan struct{}, 1)} }

// destroys are the kinds of calls that cannot be taken back. Where the cloud has no
// budget for one it has that of hasty: no bound for those who wait, since a call ends hundreds of
// instances, but one for whoever asks again and again.
var destroys = map[cloud.Call]bool{
	cloud.CallTerminate:   true,
	cloud.CallStop:        true,
	cloud.CallDetachDisk:  true,
	cloud.CallDeleteDisk:  true,
	cloud.CallDeleteParts: true,
}

var hasty = cloud.Bucket{Capacity: 50, Refill: 10}

func (c *Calls) line(kind cloud.Call) *line {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lines[kind]
	if l == nil {
		budget := c.cfg.Cloud.Traits().Budgets[kind]
		scarce := budget.Requests != cloud.Bucket{}
		if !scarce && destroys[kind] {
			budget.Requests = hasty
		}
		l = &line{
			kind:      kind,
			unpaid:    newQueue(),
			paid:      newQueue(),
			requests:  bucket{Bucket: budget.Requests},
			resources: bucket{Bucket: budget.Resources},
			scarce:    scarce,
			window:    most,
		}
		c.lines[kind] = l
	}
	return l
}

// Turn is the right to send one call, for which its request is paid. It ends with the
// call or with Cancel.
type Turn struct {
	c         *Calls
	line      *line
	pauses    int // of its line, before it
	resources int
	aside     bool // others send meanwhile
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

// Turn waits until a call of a kind may be sent that takes at least so many resources,
// of those that the bucket can hold. Those are not taken yet. The error is an *UnsentError.
func (c *Calls) Turn(ctx context.Context, kind cloud.Call, least int) (*Turn, error) {
	l := c.line(kind)
	began := c.cfg.Clock.Now()
	if c.cfg.Meter != nil {
		c.cfg.Meter.CallWaits(kind)
		defer func() { c.cfg.Meter.CallWaited(kind, c.cfg.Clock.Since(began)) }()
	}
	turn := &Turn{c: c, line: l}
	if err := c.await(ctx, l, l.unpaid, func() time.Duration { return turn.try(1, least) }); err != nil {
		return nil, err
	}
	return turn, nil
}

// await waits in a queue of a line until try succeeds, which says after how long to try
// again; 0 when it has.
func (c *Calls) await(ctx context.Context, l *line, q queue, try func() time.Duration) error {
	c.waits(l, 1)
	defer c.waits(l, -1)
	err := ctx.Err()
	if err == nil {
		over := pulse.Wait(ctx, pulse.Cloud) // those before wait for it too
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
		timer, over := c.cfg.Clock.NewTimer(wait), pulse.Wait(ctx, pulse.Cloud)
		select {
		case <-timer.C():
		case <-q.ended:
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		over()
	}
	return &UnsentError{Kind: l.kind, Err: err}
}

func (c *Calls) waits(l *line, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.waiting += n
}

// try takes the turn and pays for so many requests, or says after how long to try again. Its
// caller is the head.
func (t *Turn) try(requests, least int) time.Duration {
	l, now := t.line, t.c.cfg.Clock.Now()
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if l.underWay >= most {
		return Timeout // or when one has ended
	}
	if wait := hangAfter - now.Sub(l.began); l.underWay >= l.window && wait > 0 {
		return wait // so, too
	}
	if wait := max(l.until.Sub(now), l.requests.lacks(requests, now), l.resources.lacks(least, now)); wait > 0 {
		return wait
	}
	l.requests.take(requests, now)
	l.underWay++
	l.began = now
	t.pauses, t.aside = l.pauses, false
	return 0
}

// hangAfter is after how long those that have no answer keep no other from being sent: most calls are
// answered within a second, and one that hangs would hold up all of its kind for its whole Timeout.
const hangAfter = 5 * time.Second

// Aside has others send meanwhile: what is to be done before the call may take long. What
// the turn has paid stays paid.
func (t *Turn) Aside() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.aside = true
	t.leave()
}

// Again waits until the call of a turn that was set aside may be sent. With an error, an
// *UnsentError, the turn has ended.
func (t *Turn) Again(ctx context.Context) error {
	err := t.c.await(ctx, t.line, t.line.paid, func() time.Duration { return t.try(0, 0) })
	if err != nil {
		t.Cancel()
	}
	return err
}

// Resources takes up to n of the resources that a call may name, and returns how many
// it got.
func (t *Turn) Resources(n int) int {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	got := t.line.resources.take(n, t.c.cfg.Clock.Now())
	t.resources += got
	return got
}

// Gather waits a moment where calls of its kind have a budget, of which others have used
// some of late: what is about to come had better go along. It returns false when ctx
// has ended.
func (t *Turn) Gather(ctx context.Context) bool {
	t.c.mu.Lock()
	l := t.line
	alone := !l.scarce || l.requests.tokens >= l.requests.Capacity-1
	t.c.mu.Unlock()
	if alone {
		return true
	}
	defer pulse.Wait(ctx, pulse.Time)()
	select {
	case <-t.c.cfg.Clock.After(gatherFor):
		return true
	case <-ctx.Done():
		return false
	}
}

// Cancel ends a turn in which nothing was sent.
func (t *Turn) Cancel() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.line.requests.giveBack(1)
	t.line.resources.giveBack(t.resources)
	if t.aside { // it left then
		t.wake() // for what it gives back
	} else {
		t.leave()
	}
}

// leave makes room for the next ones. The caller holds mu.
func (t *Turn) leave() {
	t.line.underWay--
	t.wake()
}

// wake has the next ones look. The caller holds mu.
func (t *Turn) wake() {
	for _, q := range []queue{t.line.unpaid, t.line.paid} {
		select {
		case q.ended <- struct{}{}:
		default:
		}
	}
}

// end learns from the answer to a call.
func (t *Turn) end(err error) {
	now := t.c.cfg.Clock.Now()
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	l := t.line
	defer t.leave()
	l.requests.answer(now)
	l.resources.answer(now)
	if !errors.Is(err, cloud.ErrThrottled) {
		if t.pauses == l.pauses {
			l.throttled, l.window = 0, min(2*l.window, most)
		}
		return
	}
	var after time.Duration
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		after = min(e.RetryAfter, longestRetryAfter)
	}
	// Of the calls that were under way together one counts.
	if t.pauses == l.pauses {
		l.throttled++
		l.pauses++
		l.window = 1
		l.requests.drain(now)
		l.resources.giveBack(t.resources)
		after = max(after, t.c.cfg.Random.After(l.throttled, firstPause, longestPause))
	}
	if until := now.Add(after); until.After(l.until) {
		l.until = until
	}
}

// send makes the call, within a timeout if that is not 0, and ends the turn.
func (t *Turn) send(ctx context.Context, timeout time.Duration, do func(context.Context) error) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	over := pulse.Wait(ctx, pulse.Cloud)
	err := do(ctx)
	over()
	t.end(err)
	return err
}

// throttledOf is the one of some answers that says that the call was throttled; nil where
// none does.
func throttledOf(all []answer) error {
	for _, a := range all {
		if errors.Is(a.err, cloud.ErrThrottled) {
			return a.err
		}
	}
	return nil
}

// ask makes a call that has several answers, and ends the turn.
func (t *Turn) ask(ctx context.Context, do func(context.Context) []answer) (all []answer) {
	_ = t.send(ctx, Timeout, func(ctx context.Context) error { // each error is in its answer
		all = do(ctx)
		return throttledOf(all)
	})
	return all
}

// Launch sends a launch in its turn, which ends.
func (t *Turn) Launch(ctx context.Context, r cloud.LaunchRequest) (results cloud.LaunchResults) {
	t.ask(ctx, func(ctx context.Context) []answer {
		results = t.c.cfg.Cloud.Launch(ctx, r)
		all := make([]answer, len(results))
		for n := range all {
			all[n].err = results[n].Err
		}
		return all
	})
	return results
}

// Waits says what the calls of a kind wait for; "" while none does.
func (c *Calls) Waits(kind cloud.Call) string {
	l, now := c.line(kind), c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case l.waiting == 0:
		return ""
	case l.until.After(now):
		return fmt.Sprintf("the cloud has throttled calls of kind %s: the next is sent at %s", kind, l.until.UTC().Format(time.TimeOnly))
	case l.underWay >= l.window:
		return fmt.Sprintf("%d calls of kind %s have no answer yet, and no more are sent at the same time", l.underWay, kind)
	}
	return fmt.Sprintf("the budget of calls of kind %s is used up for the moment", kind)
}
