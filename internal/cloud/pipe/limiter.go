package pipe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

const (
	// Timeout bounds one call, from when it is sent. A call that runs into it has an
	// unknown outcome. Catalogue, which is many calls on some clouds, has what its ctx gives.
	Timeout = time.Minute
	// most is how many calls of a kind are under way at the same time: it bounds what
	// a cloud that does not answer costs, and is not there to pace one that does.
	most = 128
	// gatherFor is how long a call waits for others to go along, where calls are scarce.
	gatherFor = 50 * time.Millisecond
	// mostNamed is how many instances one call names; EC2 takes 1,000.
	mostNamed = 500
	// After a call that the cloud has throttled no other of its kind is sent for
	// firstPause, and for twice as long each time that this was too short.
	firstPause, longestPause = time.Second, 30 * time.Second
	// LongestRetryAfter bounds what a cloud may ask for.
	LongestRetryAfter = time.Minute
)

// limiter has each call wait for the budget of its kind, and for the end of a back-off
// after one that was throttled.
type limiter struct {
	cfg Config

	mu    sync.Mutex
	kinds map[cloud.Call]*limit
}

// intercept sends a call in its turn. Without one it waits for turns: it sends as many of the IDs in one call as there are
// resources for, and sends again what was throttled.
func (l *limiter) intercept(ctx context.Context, call Call, next Send) []Answer {
	if call.turn != nil {
		return call.turn.send(ctx, call, next)
	}
	answers := make([]Answer, call.size())
	left := make([]int, len(answers)) // their places
	for n := range left {
		left[n] = n
	}
	for len(left) > 0 {
		turn, err := l.turn(ctx, call.Kind, 1)
		if err != nil {
			for _, place := range left {
				answers[place].Err = errors.Join(err, answers[place].Err)
			}
			return answers
		}
		n := max(1, turn.Resources(min(len(left), mostNamed)))
		places := left[:n:n]
		left = left[n:]
		for i, a := range turn.send(ctx, call.some(places), next) {
			answers[places[i]] = a
			if errors.Is(a.Err, cloud.ErrThrottled) {
				left = append(left, places[i])
			}
		}
	}
	return answers
}

// some returns the call about the IDs at some places.
func (c Call) some(places []int) Call {
	if len(c.IDs) > 0 {
		ids := make([]string, len(places))
		for n, place := range places {
			ids[n] = c.IDs[place]
		}
		c.IDs = ids
	}
	return c
}

// limit is what one kind of call has: its budget, its back-off, and who waits. limiter.mu guards its fields, but for its
// channels.
type limit struct {
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
	cloud.CallDeleteOwned: true,
}

var hasty = cloud.Bucket{Capacity: 50, Refill: 10}

func (l *limiter) of(kind cloud.Call) *limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[kind]
	if k == nil {
		budget := l.cfg.Cloud.Capabilities().Budgets[kind]
		scarce := budget.Requests != cloud.Bucket{}
		if !scarce && destroys[kind] {
			budget.Requests = hasty
		}
		k = &limit{
			kind:      kind,
			unpaid:    newQueue(),
			paid:      newQueue(),
			requests:  bucket{Bucket: budget.Requests},
			resources: bucket{Bucket: budget.Resources},
			scarce:    scarce,
			window:    most,
		}
		l.kinds[kind] = k
	}
	return k
}

// waits implements Pipe.Waits.
func (l *limiter) waits(kind cloud.Call) string {
	k, now := l.of(kind), l.cfg.Clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case k.waiting == 0:
		return ""
	case k.until.After(now):
		return fmt.Sprintf("the cloud has throttled calls of kind %s: the next is sent at %s", kind, k.until.UTC().Format(time.TimeOnly))
	case k.underWay >= k.window:
		return fmt.Sprintf("%d calls of kind %s have no answer yet, and no more are sent at the same time", k.underWay, kind)
	}
	return fmt.Sprintf("the budget of calls of kind %s is used up for the moment", kind)
}
