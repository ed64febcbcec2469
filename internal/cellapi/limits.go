package cellapi

import (
	"context"
	"net/http"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/elotl/kip/internal/sanitize"
)

const (
	// passedRate and passedBurst limit what a cell may have passed to the API
	// server beside Events, in requests a second; what is more waits. A pod's whole life takes about
	// a dozen, a large pod's a get and a patch of each status. A kubelet asks 100 at once
	// (KubeAPIBurst of k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1/defaults.go).
	passedRate, passedBurst = 10, 100
	// finalRate and finalBurst limit what waits for neither this nor what may be stored: the
	// end of the pod, and its deletion. A kubelet says both once, and again each 10 s.
	finalRate, finalBurst = 1. / 5, 10
	// eventRate and eventBurst limit a cell's events; what is more waits. A kubelet sends at
	// most 100 at once (EventBurst of k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1/defaults.go), of one
	// object 25, and then one in five minutes (k8s.io/client-go/tools/record/events_cache.go,
	// defaultSpamBurst and defaultSpamQPS).
	eventRate, eventBurst = 1, 100
	// refusalRate and refusalBurst limit the log lines that a cell can cause.
	refusalRate, refusalBurst = 1. / 60, 1
	// writtenRate and writtenBurst limit the bytes that a cell may have stored of the status of
	// a small pod, and of its claims; see rewrites for a larger pod. What is more waits.
	writtenRate, writtenBurst = 16 << 10, 512 << 10
	// eventBytesRate and eventBytesBurst limit those of its events, which the API
	// server keeps for an hour. The burst has as many events as are sent at once, of
	// some 2.5 KiB.
	eventBytesRate, eventBytesBurst = 1 << 10, 256 << 10
	// credentialsRate and credentialsBurst limit how often a cell asks for what pulls an
	// image. A kubelet asks once for each repository, and again when a pull has failed; of a
	// pod of many images that is more.
	credentialsRate, credentialsBurst = 1, 50
	// maxPath bounds the path of a request, in bytes: a group, a namespace and a name
	// of 253 each, and a few words.
	maxPath = 1 << 10
	// maxQuery bounds the options of a request, in bytes. The longest of a kubelet are
	// those of a watch by name: 253 of the name, and 200 of other options.
	maxQuery = 2 << 10
)

// limits are what a cell may ask: see allowance for what a larger pod adds.
type limits struct {
	server   *Server
	id       string          // of the cell
	lifetime context.Context // until the cell is removed
	budget   *budget
	refusals *rate.Limiter

	passed      *rate.Limiter
	final       *rate.Limiter
	events      *rate.Limiter
	written     *rate.Limiter // bytes
	eventBytes  *rate.Limiter
	credentials *rate.Limiter // asking for what pulls images
}

func newLimits(s *Server, id string, lifetime context.Context) *limits {
	return &limits{
		server:      s,
		id:          id,
		lifetime:    lifetime,
		budget:      newBudget(s.observer),
		refusals:    rate.NewLimiter(refusalRate, refusalBurst),
		passed:      rate.NewLimiter(passedRate, passedBurst),
		final:       rate.NewLimiter(finalRate, finalBurst),
		events:      rate.NewLimiter(eventRate, eventBurst),
		written:     rate.NewLimiter(writtenRate, writtenBurst),
		eventBytes:  rate.NewLimiter(eventBytesRate, eventBytesBurst),
		credentials: rate.NewLimiter(credentialsRate, credentialsBurst),
	}
}

// overdrawn charges a request beyond the budget, and holds up its answer.
func (c *limits) overdrawn(ctx context.Context) {
	c.budget.workedFor(c.server.clock.Now(), refusalCosts)
	if c.server.overdraw != nil {
		c.server.overdraw(ctx)
	}
}

// noteRefusal counts a refusal, by a limit if there is one, and tells of them once a
// minute.
func (c *limits) noteRefusal(r Refusal, limit, why string) {
	c.budget.refused(r, limit)
	if c.refusals.AllowN(c.server.clock.Now(), 1) {
		used := c.budget.used()
		c.server.log.Warn("cell was refused what it may not have", "cell", c.id, "message", sanitize.Printable(cut(why, maxLogged)),
			"refused", used.Refused, "requests", used.Requests, "sent", used.Sent, "answered", used.Answered, "worked", used.Worked)
	}
}

// refusals are the answers that a kubelet is not given, by code. Forbidden is noted
// where that is said.
var refusals = map[int32]Refusal{
	http.StatusRequestEntityTooLarge: TooLarge,
	http.StatusUnsupportedMediaType:  MediaType,
	http.StatusUnprocessableEntity:   Invalid,
	http.StatusTooManyRequests:       TooMany,
}

// paced charges n to a limiter and waits until the cell may have it, in the order of
// coming: a client that is refused asks again late. It refuses what would wait for longer
// than patience, for the limit and with the text that are given. A request that has a turn to be worked on gives it
// up meanwhile.
func (c *limits) paced(ctx context.Context, w http.ResponseWriter, l *rate.Limiter, n int, limit, format string, args ...any) error {
	clk := c.server.clock
	now := clk.Now()
	r := l.ReserveN(now, min(n, l.Burst()))
	delay := r.DelayFrom(now)
	switch {
	case delay <= 0:
		return nil
	case delay > patience:
		r.CancelAt(now)
		return overBudget(limit, format, args...)
	}
	rests(w)
	timer := clk.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C():
		return c.worksAgain(ctx, w)
	case <-ctx.Done():
	case <-c.lifetime.Done():
	}
	r.CancelAt(clk.Now())
	return apierrors.NewTimeoutError("the client went away", 1)
}

// mayAsk counts a request to the API server for the cell, and waits until it may be sent.
func (c *limits) mayAsk(ctx context.Context) error {
	return c.paced(ctx, nil, c.passed, 1, limitPassed, "cell %s asks more than %d times a second", c.id, int(c.passed.Limit()))
}

// mayPass is mayAsk for a request with a body, and charges what it has stored.
func (c *limits) mayPass(ctx context.Context, a *ask, b body) error {
	if isEvent(a) {
		return nil // which has a budget of its own
	}
	size := 0
	if storesStatus(a) {
		size = len(b.bytes)
	}
	if now := c.server.clock.Now(); b.final && c.final.AllowN(now, 1) {
		c.passed.ReserveN(now, 1)
		c.written.ReserveN(now, min(size, c.written.Burst()))
		return nil
	}
	if err := c.mayAsk(ctx); err != nil || size == 0 {
		return err
	}
	return c.paced(ctx, nil, c.written, size, limitWritten, "a cell may have %d bytes a second stored", int(c.written.Limit()))
}

// mayKeep charges the status of a copy, which Kip keeps itself, as mayPass charges that of the pod. It waits until Kip may keep it.
func (c *limits) mayKeep(ctx context.Context, w http.ResponseWriter, size int) error {
	if err := c.paced(ctx, w, c.passed, 1, limitPassed, "cell %s asks more than %d times a second", c.id, int(c.passed.Limit())); err != nil {
		return err
	}
	return c.paced(ctx, w, c.written, size, limitWritten, "a cell may have %d bytes a second stored", int(c.written.Limit()))
}

// storesStatus reports whether a request stores the status of the pod, or of a claim.
func storesStatus(a *ask) bool { return a.Subresource == "status" && a.Verb == "patch" }

func isEvent(a *ask) bool { return a.resource == coreEvents || a.resource == groupEvents }

// turn is mayAsk, and then waits for the cell's turn at the API server.
func (c *limits) turn(ctx context.Context) (done func(), err error) {
	if err := c.mayAsk(ctx); err != nil {
		return nil, err
	}
	if done, err = c.server.passing.Take(ctx, c); err != nil {
		return nil, apierrors.NewTimeoutError("the client went away", 1)
	}
	return done, nil
}

// chargeStored charges what the API server stored beyond the bytes that it was sent:
// a patch, however small, has the whole object written anew. What comes next waits for it.
func (c *limits) chargeStored(a *ask, beyond int) {
	var l *rate.Limiter
	switch {
	case isEvent(a):
		l = c.eventBytes
	case storesStatus(a):
		// The answer may be in JSON, which is larger than what is stored.
		l, beyond = c.written, min(beyond, max(c.budget.allowed().size, writtenRate))
	default:
		return
	}
	l.ReserveN(c.server.clock.Now(), min(max(beyond, 0), l.Burst()))
}

// chargeEvent charges the bytes of an event to the cell, and waits until it may be stored.
func (c *limits) chargeEvent(w http.ResponseWriter, r *http.Request, encoded []byte) error {
	return c.paced(r.Context(), w, c.eventBytes, len(encoded), limitEventBytes,
		"a cell reports %d bytes of events a second", int(c.eventBytes.Limit()))
}
