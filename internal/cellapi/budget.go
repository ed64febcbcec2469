package cellapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// What a cell may ask whatever its pod; see allowance for what a larger pod adds. A kubelet
// and a kube-proxy that start anew ask some fifty requests and thirty watches, an idle one a
// request in ten seconds. Beyond a rate of bytes or of work a request waits; see paced.
const (
	// askedRate is what the clients of a kubelet and a kube-proxy hold themselves to: 50 and 5
	// a second (KubeAPIQPS of k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1/defaults.go,
	// QPS of pkg/proxy/apis/config/v1alpha1/defaults.go), and some events.
	askedRate, askedBurst = 60, 400
	// sentRate and sentBurst limit the bytes of bodies, charged before they are read.
	sentRate, sentBurst = 32 << 10, 2 << 20
	// answeredRate and answeredBurst limit the bytes of answers. A list may be as
	// large as the cluster makes it: what it takes beyond the burst is owed.
	answeredRate, answeredBurst = 1 << 20, 64 << 20
	// chargedAtOnce are the bytes of an answer after which they are charged.
	chargedAtOnce = 64 << 10
	// openRequests are answered at the same time, openWatches beside them, and of both
	// one more for each object that the pod names.
	openRequests, openWatches = 32, 128
	// renewRate, renewBurst and openRenewals are for renewals of the lease, which
	// count for none of the others. A kubelet renews it every 10 s, and tries five
	// times at once.
	renewRate, renewBurst, openRenewals = 1, 10, 4
	// leaseBody is the largest body of a lease.
	leaseBody = 8 << 10
	// bodiesHeld are the bytes of bodies that are in memory at the same time, beside what a
	// status of the pod may take more than one of a small pod.
	bodiesHeld = 512 << 10
	// readWithin is how long a body may take to come. An API server gives the whole request
	// a minute (k8s.io/apiserver/pkg/server/config.go, RequestTimeout).
	readWithin = 60 * time.Second
	// workRate and workBurst limit, in microseconds, the time that Kip works on what
	// a cell sends. An idle kubelet's node and lease take a millisecond in ten seconds.
	workRate, workBurst = 100_000, 5_000_000
	// refusalCosts is the work of a request that is refused since the cell asks too
	// much, as measured with the HTTP/2 around it.
	refusalCosts = 100 * time.Microsecond
	// maxLogged is how much of a cell's text is in a line of the log, in bytes.
	maxLogged = 300
)

// budget is what a cell may still ask. Each request is charged before anything of it
// is read, whatever its answer.
type budget struct {
	observer                               Observer
	asked, sent, answered, worked, renewed *rate.Limiter

	mu                       sync.Mutex
	open, watching, renewing int
	bodies                   int64
	more                     allowance // for the pod
	usage                    Usage
}

// Usage is what a cell has asked of this process.
type Usage struct {
	Requests, Refused uint64
	// Sent are the bytes of its bodies, Answered those of its answers.
	Sent, Answered uint64
	// Worked is how long Kip has worked on what the cell sent.
	Worked time.Duration
	// RefusedBy counts what was refused by the limit that the cell was beyond; where it
	// was none, by the Refusal.
	RefusedBy map[string]uint64
}

// Limits of a cell, by name.
const (
	limitRequests   = "requests"
	limitRenewals   = "renewals"
	limitWatches    = "watches"
	limitOpen       = "open_requests"
	limitBodies     = "open_bodies"
	limitSent       = "sent_bytes"
	limitAnswered   = "answered_bytes"
	limitWork       = "work_time"
	limitSlow       = "body_time"
	limitPassed     = "passed_requests"
	limitWritten    = "stored_bytes"
	limitEvents     = "events"
	limitEventBytes = "event_bytes"

	limitCredentials = "image_credentials"
)

// overLimit is the refusal of a cell that is beyond a limit.
type overLimit struct {
	*apierrors.StatusError
	limit string
}

func (e *overLimit) Unwrap() error { return e.StatusError }

func newBudget(o Observer) *budget {
	return &budget{
		observer: o,
		asked:    rate.NewLimiter(askedRate, askedBurst),
		sent:     rate.NewLimiter(sentRate, sentBurst),
		answered: rate.NewLimiter(answeredRate, answeredBurst),
		renewed:  rate.NewLimiter(renewRate, renewBurst),
		worked:   rate.NewLimiter(workRate, workBurst),
		more:     allowance{status: statusBody},
	}
}

// allowed is what the cell may ask more for its pod's sake.
func (b *budget) allowed() allowance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.more
}

// overBudget asks a cell to ask less.
func overBudget(limit, format string, args ...any) error {
	return &overLimit{apierrors.NewTooManyRequests(fmt.Sprintf(format, args...), 1), limit}
}

// begin charges a request of which nothing is known yet.
func (b *budget) begin(now time.Time) error {
	b.mu.Lock()
	b.usage.Requests++
	b.mu.Unlock()
	b.observer.CellAsked()
	if !b.asked.AllowN(now, 1) {
		return overBudget(limitRequests, "a cell may ask %d times a second", int(b.asked.Limit()))
	}
	return nil
}

// renew charges a renewal of the lease, and returns what gives back what it holds.
func (b *budget) renew(now time.Time, bytes int64) (done func(), refusal error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.usage.Requests++
	b.observer.CellAsked()
	if bytes > leaseBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the limit is %d bytes", leaseBody))
	}
	if b.renewing >= openRenewals || !b.renewed.AllowN(now, 1) {
		return nil, overBudget(limitRenewals, "a cell renews its lease %d times a second", renewRate)
	}
	b.renewing++
	b.usage.Sent += uint64(max(bytes, 0))
	b.observer.CellSent(max(bytes, 0))
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.renewing--
	}, nil
}

// take charges what a request is going to hold, and returns what gives that back.
func (b *budget) take(watch bool, bytes int64, watches int) (done func(), refusal error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := bodiesHeld + int64(b.more.status-statusBody)
	switch {
	case watch && b.watching >= watches:
		return nil, overBudget(limitWatches, "a cell has at most %d watches", watches)
	case !watch && b.open >= openRequests+b.more.objects:
		return nil, overBudget(limitOpen, "a cell has at most %d requests open", openRequests+b.more.objects)
	case b.bodies+bytes > held:
		return nil, overBudget(limitBodies, "a cell's requests are at most %d bytes at the same time", held)
	}
	n := &b.open
	if watch {
		n = &b.watching
	}
	*n++
	b.bodies += bytes
	b.usage.Sent += uint64(bytes)
	b.observer.CellSent(bytes)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		*n--
		b.bodies -= bytes
	}, nil
}

// workedFor charges time.
func (b *budget) workedFor(now time.Time, d time.Duration) {
	b.worked.ReserveN(now, int(min(max(d.Microseconds(), 0), workBurst)))
	b.observer.CellWorked(max(d, 0))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.usage.Worked += max(d, 0)
}

// wrote charges bytes of an answer.
func (b *budget) wrote(now time.Time, bytes int) {
	b.answered.ReserveN(now, min(bytes, answeredBurst))
	b.observer.CellAnswered(bytes)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.usage.Answered += uint64(bytes)
}

func (b *budget) refused(r Refusal, limit string) {
	b.observer.CellRefused(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.usage.Refused++
	if b.usage.RefusedBy == nil {
		b.usage.RefusedBy = map[string]uint64{}
	}
	b.usage.RefusedBy[cmp.Or(limit, r)]++
}

func (b *budget) used() Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.usage
	u.RefusedBy = maps.Clone(u.RefusedBy)
	return u
}

// counted charges what is written, in parts, and what is left at its end.
type counted struct {
	http.ResponseWriter
	cell  *limits
	bytes int    // not charged yet
	rest  func() // ends the work on the request
	works bool   // a turn was taken for it: what is only read needs none
}

func (c *counted) Write(p []byte) (int, error) {
	c.rest()
	n, err := c.ResponseWriter.Write(p)
	if c.bytes += n; c.bytes >= chargedAtOnce {
		c.charge()
	}
	return n, err
}

func (c *counted) charge() {
	c.cell.budget.wrote(c.cell.server.clock.Now(), c.bytes)
	c.bytes = 0
}

// Unwrap lets [http.ResponseController] reach what is written to.
func (c *counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }
