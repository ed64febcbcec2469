package holder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/store"
)

const (
	// RenewEvery is how often the holder writes its mark anew.
	RenewEvery = 10 * time.Second
	// Lapse is how long a mark is seen unchanged before its Kip counts as gone: as long as
	// a node's lease holds. It is measured by the one clock of who looks.
	Lapse = leaseSeconds * time.Second
	// lookEvery is how often one that waits looks, askEvery how often one that gets no
	// answer asks.
	lookEvery, askEvery = 5 * time.Second, time.Second
	// unansweredFor is how long one that begins asks an API server that does not answer:
	// longer than another takes to lead, or a load balancer to leave it out. Nothing that
	// anybody would see of Kip in this time works without the API server.
	unansweredFor = 15 * time.Second
	// refusedFor is how long one that begins asks an API server that knows or allows it not: an
	// API server that has just begun has not read all roles yet, and one whose webhook for
	// tokens is away knows nobody.
	refusedFor = time.Minute
	// crossedPause is how long one waits, and up to twice that, when somebody else has
	// written the lease that it read.
	crossedPause = time.Second
	// askTimeout bounds each question to the API server.
	askTimeout = 5 * time.Second
	// mostBetween is the longest between two looks of one that did not stand still itself.
	mostBetween = 2 * RenewEvery
	// settled is how often a mark was renewed when whoever had the node before must have
	// seen it, if it lived.
	settled = uint64(Lapse / RenewEvery)
	// remembered is how many of its own marks a store knows: those of beginnings while the
	// API server was away, of which the last that it had is one.
	remembered = 8
)

// Key is where the store has the IDs of its own marks.
const Key = "holder"

// record is what the store has of marks: the IDs of its own, the newest first. Each is
// there before it is on the lease.
type record struct {
	IDs []string `json:"ids"`
	// Followed is the ID of a hold that a Kip with a copy of the store has ended: that is
	// to give way. It is "" when the node was taken back, and the copy must have seen it.
	Followed string `json:"followed,omitempty"`
}

// Why a hold ends.
var (
	// ErrOther: another Kip has come to hold the node.
	ErrOther = errors.New("another Kip holds the node")
	// ErrFollowed: a Kip with a copy of the store took this one for dead. It is taken back.
	ErrFollowed = errors.New("a Kip with a copy of this store has begun to hold the node, and is to give way")
)

// Config of a hold. All is required.
type Config struct {
	Leases coordinationv1client.LeaseInterface // of nodes, as the node
	Node   string
	// Who is this process, for people.
	Who string
	// Store is the leader's: it is fenced.
	Store *store.Store
	// Begin returns the term of this process, which is stored, and above another.
	Begin func(ctx context.Context, above uint64) (uint64, error)
	// Say is told why this Kip waits, and "" when it does no more.
	Say   func(why string)
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Hold is a node that this process has to itself.
type Hold struct {
	c     Config
	id    string
	term  uint64
	known []string // IDs of the store's own marks
	// followed is the record's, which is of another hold than this one.
	followed string
	last     mark // what the lease has taken of this hold last; the zero one before
	// other is the mark of another that was seen last, the zero one for a lease that has
	// none any more, and since when it is unchanged; a zero time while none was seen.
	other mark
	since time.Time
	// blind says that the API server has not answered since, or taken no write: who is
	// watched could not renew its mark.
	blind bool
	// looked is when a mark was watched last.
	looked time.Time
	// refused says that the API server took no mark, since when the other's is unchanged.
	refused bool
	met     bool   // the lease had the mark of another, since when this one's was not taken
	said    string // why it waits
	// crossings counts how often somebody else has written the lease that was read.
	crossings int
}

// Take waits until no other Kip holds the node, and holds it. Where the API server does
// not answer for 15 s it is held, unless another was seen: cells wait for their Kip. The
// error is ctx's, the store's, or the API server's refusal, once it has not let this Kip look
// for a minute.
func Take(ctx context.Context, c Config) (*Hold, error) {
	h := &Hold{c: c, id: newID()}
	var stored record
	if _, err := c.Store.Get(ctx, Key, &stored); err != nil {
		return nil, err
	}
	h.known, h.followed = stored.IDs, stored.Followed
	var failing, unanswered, refusing time.Time // since when
	for refused := false; ; {
		asked, pause := c.Clock.Now(), lookEvery
		lease, m, err := h.look(ctx)
		was := refused
		refused = apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) // no outage
		if err == nil {
			failing = time.Time{}
		} else if h.blind = true; failing.IsZero() || refused != was {
			c.Log.Warn("whether another Kip holds the node is not known, retrying", "node", c.Node, "err", err)
		}
		if err != nil && failing.IsZero() {
			failing = asked
		}
		if refused && refusing.IsZero() {
			refusing = asked
		} else if err == nil {
			refusing = time.Time{}
		}
		if err == nil || refused {
			unanswered = time.Time{}
		} else if unanswered.IsZero() {
			unanswered = asked
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case refused && c.Clock.Since(refusing) >= refusedFor:
			return nil, fmt.Errorf("the API server does not let this Kip look who holds node %s, for %s: %w", c.Node, refusedFor, err)
		case refused:
			pause = askEvery - min(askEvery, c.Clock.Since(asked))
		case err != nil && !h.met && c.Clock.Since(unanswered) >= unansweredFor:
			c.Log.Warn("whether another Kip holds the node is not known: the work begins, and it is looked on", "node", c.Node, "err", err)
			return h, h.begin(ctx, 0)
		case err != nil: // a look that has taken its time is part of the pause
			pause = askEvery - min(askEvery, c.Clock.Since(asked))
		case err == nil && h.mayTake(m):
			if pause, err = h.take(ctx, lease, m); err != nil {
				return nil, err
			}
			if pause == 0 {
				if h.said != "" {
					c.Log.Info("no other Kip holds the node any more, and the work begins", "node", c.Node)
					c.Say("")
				}
				return h, nil
			}
		case m != nil && !h.refused:
			h.say(events.HeldByAnother(c.Node, m.Who, Lapse))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.Clock.After(pause):
		}
	}
}

// say tells why this Kip waits, once.
func (h *Hold) say(why string, with ...any) {
	if why == h.said {
		return
	}
	h.said = why
	h.c.Log.Error(why, with...)
	h.c.Say(why)
}

// ID is that of the mark, and no secret.
func (h *Hold) ID() string { return h.id }

// Term is the one by which cells know this process.
func (h *Hold) Term() uint64 { return h.term }

// own says that a mark is of this Kip's store.
func (h *Hold) own(id string) bool { return id == h.id || slices.Contains(h.known, id) }

// mayTake says that nobody else holds the node, or is not to.
func (h *Hold) mayTake(m *mark) bool {
	if m != nil {
		h.met = h.met && m.ID != h.id || !h.own(m.ID)
	}
	switch {
	case m == nil && h.since.IsZero():
		return true
	case m != nil && (h.own(m.ID) || m.After != "" && m.After == h.followed):
		return true
	}
	_, lapsed := h.watch(m)
	return lapsed
}

// watch notes the mark of another, or that it is gone. renewed says that it is another
// than it was, lapsed that it is the same for as long as a lease holds, in which this one has
// looked all the time, and the API server has answered.
func (h *Hold) watch(m *mark) (renewed, lapsed bool) {
	if m == nil {
		m = &mark{}
	}
	now := h.c.Clock.Now()
	// The host may have stood still, and with it whoever is watched.
	slept := now.Sub(h.looked) > mostBetween
	h.looked = now
	if another := h.since.IsZero() || *m != h.other; another || h.blind || slept {
		renewed = another && !h.since.IsZero()
		h.other, h.since, h.blind, h.refused = *m, now, false, h.refused && !another
		return renewed, false
	}
	return false, now.Sub(h.since) >= Lapse
}

// take marks the lease as it was read, and returns 0, or after which pause to look again:
// somebody else has written it since, or it takes no mark, and had that of another. The
// store has the mark before.
func (h *Hold) take(ctx context.Context, lease *coordinationv1.Lease, m *mark) (time.Duration, error) {
	next := mark{ID: h.id, Who: h.c.Who}
	above := uint64(0)
	if m != nil {
		above = m.Term
		switch {
		case !h.own(m.ID): // it is gone, or to give way
		case m.ID == h.id: // the answer to its write was lost
			next.After, next.Renewed = m.After, m.Renewed+1
		case m.After != "" && m.Renewed < settled:
			next.After = m.After // who may not have seen yet that it was followed
		default:
			next.After = m.ID
		}
	}
	if err := h.begin(ctx, above); err != nil {
		return 0, err
	}
	next.Term = h.term
	err := h.write(ctx, lease, next)
	switch {
	case err == nil:
	case crossed(err, lease):
		if h.crossings++; h.crossings > 1 {
			h.c.Log.Warn("others write the node's lease each time that this Kip does, retrying", "node", h.c.Node, "times", h.crossings)
		}
		return wait.Jitter(crossedPause, 1), nil
	case h.met: // it may live, and would see nothing of this one
		h.blind, h.refused = true, true
		h.say(events.MarkNotTaken(h.c.Node), "err", err)
		return lookEvery, nil
	default: // Keep marks it
		h.c.Log.Warn("the node is held without a mark until the API server takes one", "node", h.c.Node, "err", err)
	}
	h.since = time.Time{}
	return 0, nil
}

// begin stores the mark, and begins the term.
func (h *Hold) begin(ctx context.Context, above uint64) (err error) {
	var stored record
	revision, err := h.c.Store.Get(ctx, Key, &stored)
	if err != nil {
		return err
	}
	if !slices.Contains(stored.IDs, h.id) {
		stored.IDs = append([]string{h.id}, stored.IDs...)
		stored.IDs = stored.IDs[:min(len(stored.IDs), remembered)]
		if _, err := h.c.Store.Put(ctx, Key, stored, revision); err != nil {
			return err
		}
	}
	h.term, err = h.c.Begin(ctx, above)
	return err
}

// Keep renews the mark until ctx ends, or another Kip is seen that holds the node: the
// error is ErrOther or ErrFollowed then. An API server that does not answer ends no hold.
func (h *Hold) Keep(ctx context.Context) error {
	ticker := h.c.Clock.NewTicker(RenewEvery)
	defer ticker.Stop()
	h.since = time.Time{}
	for said := ""; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		err := h.renew(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrOther), errors.Is(err, ErrFollowed):
			return err
		case err != nil && err.Error() != said:
			said = err.Error()
			h.c.Log.Warn("whether another Kip holds the node is not known, retrying", "err", err)
		case err == nil:
			said = ""
		}
	}
}

// renew writes the mark anew, where it is this Kip's to write. The node renews the lease
// as often: who was crossed by that tries once more, at once.
func (h *Hold) renew(ctx context.Context) error {
	again, err := h.renewOnce(ctx)
	if again {
		_, err = h.renewOnce(ctx)
	}
	return err
}

// renewOnce is renew. again says that somebody else has written the lease meanwhile.
func (h *Hold) renewOnce(ctx context.Context) (again bool, err error) {
	lease, m, err := h.look(ctx)
	if err != nil {
		h.blind = true
		return false, err
	}
	next := mark{
		ID:    h.id,
		After: h.last.After,
		Term:  h.term,
		Who:   h.c.Who,
	}
	if h.last.ID != "" { // also on a lease made anew: others tell by the count that this Kip lives
		next.Renewed = h.last.Renewed + 1
	}
	switch {
	case m == nil && h.since.IsZero(), m != nil && h.own(m.ID):
		h.since = time.Time{}
		switch {
		case m == nil, m.ID != h.id && m.ID == next.After:
		case m.ID == h.id:
			next.After, next.Renewed = m.After, max(m.Renewed+1, next.Renewed)
		default: // the work had begun while the API server was away
			next.After, next.Renewed = m.ID, 0
		}
	case m != nil && m.After == h.id:
		// By right of this store: by another process of this Kip, if that leads now.
		if err := h.c.Store.Leads(ctx); err != nil {
			return false, err
		}
		if err := h.record(ctx, h.id); err != nil { // the next may be another process
			return false, err
		}
		return false, fmt.Errorf("%w: %q", ErrFollowed, m.Who)
	default:
		renewed, lapsed := h.watch(m)
		switch {
		case renewed && m != nil: // not by one look: who wrote it may be gone
			return false, fmt.Errorf("%w: %q", ErrOther, m.Who)
		case !lapsed:
			return false, nil
		}
		h.since = time.Time{}
	}
	if err := h.write(ctx, lease, next); err != nil {
		if crossed(err, lease) {
			return true, nil
		}
		h.blind = true
		return false, err
	}
	if h.followed == "" || next.Renewed < settled {
		return false, nil
	}
	if err := h.record(ctx, ""); err != nil {
		return false, err
	}
	h.followed = ""
	return false, nil
}

// record stores which hold a Kip with a copy of the store has ended.
func (h *Hold) record(ctx context.Context, followed string) error {
	var stored record
	revision, err := h.c.Store.Get(ctx, Key, &stored)
	if err != nil || stored.Followed == followed {
		return err
	}
	stored.Followed = followed
	_, err = h.c.Store.Put(ctx, Key, stored, revision)
	return err
}

// Forget removes the lease, of a node that is no more. Keep must have ended.
func (h *Hold) Forget(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := h.c.Leases.Delete(ctx, h.c.Node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the lease of node %s: %w", h.c.Node, err)
	}
	return nil
}
