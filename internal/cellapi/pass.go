package cellapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/internal/backoff"
)

// passWithin limits one request that is passed to the API server.
const passWithin = 30 * time.Second

// passer sends requests of cells on to the API server, as the node.
type passer struct {
	client *http.Client
	base   *url.URL
}

func newPasser(cfg *rest.Config) (*passer, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make the HTTP client: %w", err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("read the API server's address %q: %w", cfg.Host, err)
	}
	return &passer{client: client, base: base}, nil
}

// passedOptions are the query parameters that are passed on.
var passedOptions = []string{"fieldManager", "fieldValidation"}

// body is what is sent upstream; always made anew from what was checked, never the
// bytes that came, so that nobody can read it differently.
type body struct {
	mediaType string
	bytes     []byte
	// final is the end of the pod: nothing that the cell has asked before delays it.
	final bool
	// cuts are the messages that were cut.
	cuts []string
}

// answered is what the API server answered, the whole of it.
type answered struct {
	code   int
	header http.Header
	body   []byte
}

// passing sends requests of a cell on to the API server, and answers with what that does.
type passing struct {
	*base
	pod    *boundPod
	status *statusTrouble
}

// askUpstream sends the request a of the cell on and returns the answer. Right after
// binding, a refusal is tried again: the API server's Node authorizer hears of a
// binding a little later than everyone else.
func (c *passing) askUpstream(r *http.Request, a *ask, f format, b body) (*answered, error) {
	s := c.server
	if err := c.mayPass(r.Context(), a, b); err != nil {
		return nil, err
	}
	u := *c.as.raw.base
	u.Path = path.Join(u.Path, r.URL.Path)
	query, sent := url.Values{}, r.URL.Query()
	if sent.Has("dryRun") { // which a kubelet never asks for: it would be told of what is not there
		return nil, apierrors.NewBadRequest("dryRun is not for cells: want none")
	}
	for _, option := range passedOptions {
		if v, ok := sent[option]; ok {
			query[option] = v
		}
	}
	u.RawQuery = query.Encode()

	for tries := 1; ; tries++ {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), bytes.NewReader(b.bytes))
		if err != nil {
			return nil, fmt.Errorf("pass on %s: %w", a, err)
		}
		req.Header.Set("Accept", f.mediaType())
		if b.mediaType != "" {
			req.Header.Set("Content-Type", b.mediaType)
		}
		answer, err := c.send(req)
		if err != nil {
			// Not where the cell gave up, which it does as often as it likes.
			if !errors.Is(r.Context().Err(), context.Canceled) && c.refusals.AllowN(s.clock.Now(), 1) {
				s.log.Warn("API server not reached for a cell", "cell", c.id, "request", a.String(), "err", err)
			}
			return nil, apierrors.NewServiceUnavailable("the API server cannot be reached")
		}
		if answer.code != http.StatusForbidden || !c.pod.settling() {
			if answer.code < http.StatusMultipleChoices {
				c.chargeStored(a, len(answer.body)-len(b.bytes))
			}
			return answer, nil
		}
		if backoff.Random(nil).Wait(r.Context(), s.clock, tries, 100*time.Millisecond, 2*time.Second) != nil {
			return nil, apierrors.NewTimeoutError("the client went away", 1)
		}
	}
}

// send waits for the cell's turn, and for the whole answer.
func (c *passing) send(req *http.Request) (*answered, error) {
	done, err := c.server.passing.Take(req.Context(), c.limits)
	if err != nil {
		return nil, err
	}
	defer done()
	resp, err := c.as.raw.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("the answer broke off: %w", err)
	}
	return &answered{code: resp.StatusCode, header: resp.Header, body: b}, nil
}

// pass answers with what the API server answers. check, when not nil, sees the
// whole of a successful answer before the cell does.
func (c *passing) pass(w http.ResponseWriter, r *http.Request, a *ask, b body, check func([]byte) error) error {
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	ctx, cancel := context.WithTimeout(r.Context(), passWithin)
	defer cancel()
	defer context.AfterFunc(c.lifetime, cancel)()
	rests(w)
	answer, err := c.askUpstream(r.WithContext(ctx), a, f, b)
	if err != nil {
		return err
	}
	if a.isPodStatus() {
		c.status.noteStored(answer, b.cuts)
	}
	if check != nil && answer.code < http.StatusMultipleChoices {
		if err := check(answer.body); err != nil {
			return err
		}
	}
	for _, h := range []string{"Content-Type", "Retry-After", "Warning"} {
		for _, v := range answer.header.Values(h) {
			w.Header().Add(h, v)
		}
	}
	w.WriteHeader(answer.code)
	defer deadline(w)()
	_, _ = w.Write(answer.body) // a client that is gone needs no answer
	return nil
}
