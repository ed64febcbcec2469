package registries

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

const (
	// askTimeout bounds a call of the cloud, with the wait for its turn. A kubelet gives up
	// after a minute.
	askTimeout = 30 * time.Second
	// margin is how long before their end credentials are given to nobody any more: a pull
	// that begins with them is to end with them. AWS' last an hour.
	margin = 10 * time.Minute
	// leastKept is for how long credentials are kept at least, however short their life: so
	// that a cloud is not asked for each pull.
	leastKept = time.Minute
	// After a failure the cloud is not asked again for the same for refusedFor where it said
	// no, and for failedFor where it did not answer. A kubelet pulls again after 10 s at first.
	refusedFor, failedFor = 30 * time.Second, 5 * time.Second
	// mostKept bounds what is remembered, in sets of repositories: some kilobytes each.
	mostKept = 4096
	// mostAsked bounds the calls that are under way at the same time.
	mostAsked = 32
	// mostOfOne bounds those for one asker: calls that hang, as to a region that cannot be
	// reached, are to leave room for others.
	mostOfOne = 2
	// patience is for how long a call goes on when all mostAsked are under way and somebody
	// waits who has fewer of them: AWS answers in less than a second.
	patience = 5 * time.Second
	// failuresEvery and failuresAtOnce bound the lines of the log about loans that fail: which
	// images a pod names is its owner's choice.
	failuresEvery, failuresAtOnce = 10 * time.Second, 20
)

// Config of Credentials. All fields are required unless they say otherwise.
type Config struct {
	Cloud cloud.Registries
	Clock clock.Clock
	// Log takes what happens; nil drops it. It is given no password.
	Log *slog.Logger
}

// Credentials are those that are lent now. They are safe for concurrent use. Close ends them.
type Credentials struct {
	cfg Config

	lifetime context.Context // until Close
	end      context.CancelFunc
	tasks    sync.WaitGroup // calls that are under way

	failures *rate.Limiter // of the log

	mu     sync.Mutex
	closed bool
	untold int               // failures since the last one that was logged
	kept   map[string]*loan  // by registry and set of repositories
	turns  map[string]*turns // of each who waits or is asked for
	under  []*call           // at most mostAsked, the oldest first
	queue  []*call           // who comes next, as they came
}

// turns are those of one asker.
type turns struct {
	slots chan struct{} // of its calls that are under way
	users int           // loans that it waits for, or is asked for
	under int           // its calls in Credentials.under
	last  time.Time     // when the last one of these ended
}

// call is one that is under way, or waits for its turn.
type call struct {
	of    *turns
	given chan struct{} // closed when it is under way
	came  time.Time     // to wait for its turn
	began time.Time
	cut   context.CancelCauseFunc
	isCut bool
}

// loan is what the cloud said, or is going to.
type loan struct {
	of    string        // who asked first
	said  chan struct{} // closed when it has
	begun chan struct{} // closed when it is asked, or nobody waits for a turn any more

	// What follows is guarded by Credentials.mu.

	isBegun bool
	askers  map[string]bool // who has waited for a turn, or waits
	waiting int             // of them

	// What follows is written before that, once.

	credentials cloud.PullCredentials
	until       time.Time // of both: given to nobody from then on
	err         error
}

// ErrClosed is what is answered after Close.
var ErrClosed = errors.New("nothing is lent any more: this process stops")

// New returns credentials of which none is lent.
func New(cfg Config) *Credentials {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Credentials{
		cfg:   cfg,
		kept:  map[string]*loan{},
		turns: map[string]*turns{},

		failures: rate.NewLimiter(rate.Every(failuresEvery), failuresAtOnce),
	}
	c.lifetime, c.end = context.WithCancel(context.Background())
	return c
}

// Close ends what is under way, and forgets what was lent.
func (c *Credentials) Close() {
	c.mu.Lock()
	c.closed = true
	clear(c.kept)
	c.mu.Unlock()
	c.end()
	c.tasks.Wait()
}

// Get returns what pulls from one repository of a registry, and at most from the others that
// are named besides, as all that one pod names of it: they share credentials where the cloud
// takes so many. However often it is called for the same set, the cloud is asked once, also
// if whoever asked is gone. Few calls are under way for one asker: what it asks for besides
// waits, but for what another one asks for as well. Where too many are under way for all, one
// without an answer for patience is cut off for who has fewer.
func (c *Credentials) Get(ctx context.Context, asker, registry, repository string, named []string) (agentapi.ImageCredentials, error) {
	some := together(repository, named)
	key := registry + " " + strings.Join(some, " ")
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return agentapi.ImageCredentials{}, ErrClosed
	}
	now := c.cfg.Clock.Now()
	l := c.kept[key]
	if l == nil || l.over(now) {
		l = &loan{
			of:     asker,
			said:   make(chan struct{}),
			begun:  make(chan struct{}),
			askers: map[string]bool{},
		}
		c.makeRoom(now)
		c.kept[key] = l
	}
	if !l.isBegun && !l.askers[asker] {
		l.askers[asker] = true
		l.waiting++
		own := c.turns[asker]
		if own == nil {
			own = &turns{slots: make(chan struct{}, mostOfOne)}
			c.turns[asker] = own
		}
		own.users++
		c.tasks.Go(func() {
			c.inTurn(l, own, registry, some)
			c.mu.Lock()
			defer c.mu.Unlock()
			if own.users--; own.users == 0 {
				delete(c.turns, asker)
			}
		})
	}
	c.mu.Unlock()
	select {
	case <-l.said:
	case <-ctx.Done():
		return agentapi.ImageCredentials{}, ctx.Err()
	}
	if l.err != nil {
		return agentapi.ImageCredentials{}, l.err
	}
	return agentapi.ImageCredentials{
		Username: l.credentials.Username,
		Password: l.credentials.Reveal(),
		KeepFor:  max(0, l.until.Sub(c.cfg.Clock.Now())),
	}, nil
}

// together are the repositories that are asked for with one, sorted: of all that are named,
// in their order, those whose call it is in.
func together(repository string, named []string) []string {
	all := append(slices.Clone(named), repository)
	slices.Sort(all)
	all = slices.Compact(all)
	n, _ := slices.BinarySearch(all, repository)
	first := n - n%cloud.MaxPulled
	return all[first:min(first+cloud.MaxPulled, len(all))]
}

// over says that what the cloud said is not to be given any more.
func (l *loan) over(now time.Time) bool {
	select {
	case <-l.said:
		return !now.Before(l.until)
	default:
		return false
	}
}

// makeRoom forgets what is over and, if that is not enough, what ends next of whoever has most.
// c.mu is held.
func (c *Credentials) makeRoom(now time.Time) {
	if len(c.kept) < mostKept {
		return
	}
	maps.DeleteFunc(c.kept, func(_ string, l *loan) bool { return l.over(now) })
	if len(c.kept) < mostKept {
		return
	}
	count := map[string]int{}
	for _, l := range c.kept {
		count[l.of]++
	}
	next := ""
	sooner := func(l, than *loan) bool {
		return cmp.Or(cmp.Compare(count[than.of], count[l.of]), l.until.Compare(than.until)) < 0
	}
	for key, l := range c.kept {
		select {
		case <-l.said:
			if next == "" || sooner(l, c.kept[next]) {
				next = key
			}
		default: // others wait for it
		}
	}
	delete(c.kept, next)
}

// errCut is why a call has ended that another one's took the turn of.
var errCut = fmt.Errorf("it had no answer in %s, and others waited for their turn", patience)

// inTurn asks the cloud when it is the turn of one of those who wait, whose own turns these
// are, unless it is another's before. The last one to give up says so.
func (c *Credentials) inTurn(l *loan, own *turns, registry string, repositories []string) {
	timed, end := context.WithTimeout(c.lifetime, askTimeout)
	defer end()
	ctx, cut := context.WithCancelCause(timed)
	defer cut(nil)
	giveUp := func() {
		if c.begin(l, true) {
			l.err, l.until = fmt.Errorf("wait for other credentials: %w", ctx.Err()), c.cfg.Clock.Now().Add(failedFor)
			close(l.said)
		}
	}
	select {
	case own.slots <- struct{}{}:
		defer func() { <-own.slots }()
	case <-l.begun:
		return
	case <-ctx.Done():
		giveUp()
		return
	}
	next := &call{
		of:    own,
		given: make(chan struct{}),
		cut:   cut,
	}
	c.lineUp(next)
	defer c.leave(next)
	for waits := true; waits; {
		look := c.cfg.Clock.NewTimer(c.press(next))
		select {
		case <-next.given:
			waits = false
		case <-look.C():
		case <-l.begun:
			look.Stop()
			return
		case <-ctx.Done():
			look.Stop()
			giveUp()
			return
		}
		look.Stop()
	}
	if c.begin(l, false) {
		c.ask(ctx, l, registry, repositories)
	}
}

// since is from when on a call waits: its asker had a turn at most then.
func (c *call) since() time.Time {
	if c.of.last.After(c.came) {
		return c.of.last
	}
	return c.came
}

// lineUp has a call wait for its turn.
func (c *Credentials) lineUp(next *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next.came = c.cfg.Clock.Now()
	c.queue = append(c.queue, next)
	c.give()
}

// leave ends a call, or its wait.
func (c *Credentials) leave(old *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := func(other *call) bool { return other == old }
	if i := slices.IndexFunc(c.under, is); i >= 0 {
		c.under = slices.Delete(c.under, i, i+1)
		old.of.under--
		old.of.last = c.cfg.Clock.Now()
	}
	c.queue = slices.DeleteFunc(c.queue, is)
	c.give()
}

// give gives free turns to those who wait: first to who has fewest calls under way, of those
// to whose asker waits longest. c.mu is held.
func (c *Credentials) give() {
	for len(c.under) < mostAsked && len(c.queue) > 0 {
		next := slices.MinFunc(c.queue, func(a, b *call) int {
			return cmp.Or(cmp.Compare(a.of.under, b.of.under), a.since().Compare(b.since()))
		})
		i := slices.Index(c.queue, next)
		c.queue = slices.Delete(c.queue, i, i+1)
		c.under = append(c.under, next)
		next.of.under++
		next.began = c.cfg.Clock.Now()
		close(next.given)
	}
}

// press cuts off, for a call that waits, one that has been under way for longer than patience,
// of who has most of them, and more than the one who waits. It returns after which time to look
// again. One is cut off for each that waits: whose turn is free then, give says.
func (c *Credentials) press(next *call) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Index(c.queue, next) < 0 {
		return patience // it is under way
	}
	again, cut := patience, 0
	var longest *call
	now := c.cfg.Clock.Now()
	for _, other := range c.under {
		left := other.began.Add(patience).Sub(now)
		switch {
		case other.isCut:
			cut++
		case other.of.under <= next.of.under:
		case left > 0:
			again = min(again, left)
		case longest == nil || other.of.under > longest.of.under:
			longest = other
		}
	}
	if longest != nil && cut < len(c.queue) {
		longest.isCut = true
		longest.cut(errCut)
	}
	return again
}

// begin says that it is for this one, who waits no more, to say what the loan is: if nobody
// has begun, and, where it gives up, if nobody else waits.
func (c *Credentials) begin(l *loan, givesUp bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.waiting--
	if l.isBegun || givesUp && l.waiting > 0 {
		return false
	}
	l.isBegun = true
	close(l.begun)
	return true
}

// ask asks the cloud.
func (c *Credentials) ask(ctx context.Context, l *loan, registry string, repositories []string) {
	defer close(l.said)
	began := c.cfg.Clock.Now()
	l.credentials, l.err = c.cfg.Cloud.PullCredentials(ctx, registry, repositories...)
	if l.err != nil && errors.Is(context.Cause(ctx), errCut) {
		l.err = fmt.Errorf("%w: %w", l.err, errCut)
	}
	now := c.cfg.Clock.Now()
	switch {
	case l.err == nil && l.credentials.Lifetime <= 0:
		l.err = fmt.Errorf("the cloud lent credentials for %s that end at once", registry)
		l.until = now.Add(failedFor)
	case l.err == nil:
		l.until = began.Add(max(l.credentials.Lifetime-margin, min(l.credentials.Lifetime, leastKept)))
		c.cfg.Log.Debug("credentials lent", "registry", registry, "repositories", repositories, "for", l.credentials.Lifetime)
	default:
		kept := failedFor
		if cloud.Refused(l.err) {
			kept = refusedFor
		}
		l.until = now.Add(kept)
		c.tellFailure(now, registry, repositories, l.err)
	}
}

// tellFailure logs one of the loans that failed, if not too many were just now.
func (c *Credentials) tellFailure(now time.Time, registry string, repositories []string, err error) {
	c.mu.Lock()
	untold := c.untold
	if c.untold++; !c.failures.AllowN(now, 1) {
		c.mu.Unlock()
		return
	}
	c.untold = 0
	c.mu.Unlock()
	c.cfg.Log.Warn("credentials for images not lent", "registry", registry, "repositories", repositories, "untold", untold, "err", err)
}
