package registries

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

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
	cfg   Config
	slots chan struct{} // of calls that are under way

	lifetime context.Context // until Close
	end      context.CancelFunc
	tasks    sync.WaitGroup // calls that are under way

	mu     sync.Mutex
	closed bool
	kept   map[string]*loan  // by registry and set of repositories
	turns  map[string]*turns // of each who waits or is asked for
}

// turns are those of one asker.
type turns struct {
	slots chan struct{} // of its calls that are under way
	users int           // loans that it waits for, or is asked for
}

// loan is what the cloud said, or is going to.
type loan struct {
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
		slots: make(chan struct{}, mostAsked),
		kept:  map[string]*loan{},
		turns: map[string]*turns{},
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
// waits, but for what another one asks for as well.
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
		l = &loan{said: make(chan struct{}), begun: make(chan struct{}), askers: map[string]bool{}}
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
			c.inTurn(l, own.slots, registry, some)
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

// makeRoom forgets what is over and, if that is not enough, what ends next. c.mu is held.
func (c *Credentials) makeRoom(now time.Time) {
	if len(c.kept) < mostKept {
		return
	}
	maps.DeleteFunc(c.kept, func(_ string, l *loan) bool { return l.over(now) })
	if len(c.kept) < mostKept {
		return
	}
	next := ""
	for key, l := range c.kept {
		select {
		case <-l.said:
			if next == "" || l.until.Before(c.kept[next].until) {
				next = key
			}
		default: // others wait for it
		}
	}
	delete(c.kept, next)
}

// inTurn asks the cloud when it is the turn of one of those who wait, whose own slots these
// are, unless it is another's before. The last one to give up says so.
func (c *Credentials) inTurn(l *loan, own chan struct{}, registry string, repositories []string) {
	ctx, cancel := context.WithTimeout(c.lifetime, askTimeout)
	defer cancel()
	for _, slots := range []chan struct{}{own, c.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-l.begun:
			return
		case <-ctx.Done():
			if c.begin(l, true) {
				l.err, l.until = fmt.Errorf("wait for other credentials: %w", ctx.Err()), c.cfg.Clock.Now().Add(failedFor)
				close(l.said)
			}
			return
		}
	}
	if c.begin(l, false) {
		c.ask(ctx, l, registry, repositories)
	}
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
		c.cfg.Log.Warn("credentials for images not lent", "registry", registry, "repositories", repositories, "err", l.err)
	}
}
