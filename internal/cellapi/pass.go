package cellapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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

// mayAsk counts a request to the API server for the cell, and waits until it may be sent.
func (c *Cell) mayAsk(ctx context.Context) error {
	return c.paced(ctx, nil, c.passed, 1, limitPassed, "cell %s asks more than %d times a second", c.id, int(c.passed.Limit()))
}

// mayPass is mayAsk for a request with a body, and charges what it has stored.
func (c *Cell) mayPass(ctx context.Context, a *ask, b body) error {
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

// storesStatus reports whether a request stores the status of the pod, or of a claim.
func storesStatus(a *ask) bool { return a.Subresource == "status" && a.Verb == "patch" }

func isEvent(a *ask) bool { return a.resource == coreEvents || a.resource == groupEvents }

// turn is mayAsk, and then waits for the cell's turn at the API server.
func (c *Cell) turn(ctx context.Context) (done func(), err error) {
	if err := c.mayAsk(ctx); err != nil {
		return nil, err
	}
	if done, err = c.server.passing.Take(ctx, c); err != nil {
		return nil, apierrors.NewTimeoutError("the client went away", 1)
	}
	return done, nil
}

// answered is what the API server answered, the whole of it.
type answered struct {
	code   int
	header http.Header
	body   []byte
}

// askUpstream sends the request a of the cell on and returns the answer. Right after
// binding, a refusal is tried again: the API server's Node authorizer hears of a
// binding a little later than everyone else.
func (c *Cell) askUpstream(r *http.Request, a *ask, f format, b body) (*answered, error) {
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
		if answer.code != http.StatusForbidden || !c.settling() {
			if answer.code < http.StatusMultipleChoices {
				c.chargeStored(a, len(answer.body)-len(b.bytes))
			}
			return answer, nil
		}
		select {
		case <-s.clock.After(backoff.Random(nil).After(tries, 100*time.Millisecond, 2*time.Second)):
		case <-r.Context().Done():
			return nil, apierrors.NewTimeoutError("the client went away", 1)
		}
	}
}

// chargeStored charges what the API server stored beyond the bytes that it was sent:
// a patch, however small, has the whole object written anew. What comes next waits for it.
func (c *Cell) chargeStored(a *ask, beyond int) {
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

// send waits for the cell's turn, and for the whole answer.
func (c *Cell) send(req *http.Request) (*answered, error) {
	done, err := c.server.passing.Take(req.Context(), c)
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

// settling says that the API server's Node authorizer may not know of the binding.
func (c *Cell) settling() bool {
	b := c.bound()
	return b != nil && c.server.clock.Since(b.at) < bindingSettles
}

// pass answers with what the API server answers. check, when not nil, sees the
// whole of a successful answer before the cell does.
func (c *Cell) pass(w http.ResponseWriter, r *http.Request, a *ask, b body, check func([]byte) error) error {
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
		c.noteStored(answer, b.cuts)
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

// ownPod checks that a is about the cell's pod, and that the pod is not gone.
func (c *Cell) ownPod(a *ask) (*binding, error) {
	b := c.bound()
	if b == nil || a.Namespace != b.namespace || a.Name != b.name {
		return nil, c.forbidden(a, "it sees only its own pod")
	}
	if _, gone := c.lastPod(); gone {
		return nil, apierrors.NewNotFound(podKind.GroupResource(), a.Name)
	}
	return b, nil
}

func (c *Cell) passPodGet(w http.ResponseWriter, r *http.Request, a *ask) error {
	b, err := c.ownPod(a)
	if err != nil {
		return err
	}
	return c.pass(w, r, a, body{}, func(answer []byte) error {
		pod, err := decode[*corev1.Pod](answer)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("read the API server's answer: %w", err))
		}
		if pod.UID != b.uid {
			// Another pod of the same name: the cell's own is gone.
			return apierrors.NewNotFound(podKind.GroupResource(), a.Name)
		}
		return nil
	})
}

func podConflict(name string, got string, want types.UID) error {
	return apierrors.NewConflict(podKind.GroupResource(), name, fmt.Errorf("the pod's UID is %q here, the cell's pod is %q", got, want))
}

// passPodDelete passes the deletion of the cell's pod, bound to its UID.
func (c *Cell) passPodDelete(w http.ResponseWriter, r *http.Request, a *ask) error {
	b, err := c.ownPod(a)
	if err != nil {
		return err
	}
	if len(r.URL.Query()) > 0 {
		return apierrors.NewBadRequest("options of a deletion belong into the body")
	}
	sent, err := readBody(r)
	if err != nil {
		return err
	}
	options := &metav1.DeleteOptions{}
	if len(sent) > 0 {
		if options, err = decodeOptions(sent); err != nil {
			return err
		}
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if uid := options.Preconditions.UID; uid != nil && *uid != b.uid {
		return podConflict(a.Name, string(*uid), b.uid)
	}
	options.Preconditions.UID = &b.uid
	options.TypeMeta = metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"}
	remade, err := json.Marshal(options)
	if err != nil {
		return fmt.Errorf("encode the deletion of pod %s/%s: %w", b.namespace, b.name, err)
	}
	return c.pass(w, r, a, body{mediaType: runtime.ContentTypeJSON, bytes: remade, final: true}, nil)
}

// decodeOptions decodes the options of a deletion, and nothing else.
func decodeOptions(b []byte) (*metav1.DeleteOptions, error) {
	gvk, err := kindOfBody(b)
	if err != nil {
		return nil, err
	}
	if gvk.Kind != "DeleteOptions" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %q, it must be DeleteOptions", cut(gvk.Kind, 64)))
	}
	return decode[*metav1.DeleteOptions](b)
}

// serveToken passes the request for a token of the pod's service account that is
// bound to the pod.
func (c *Cell) serveToken(w http.ResponseWriter, r *http.Request, a *ask) error {
	if a.Subresource != "token" || a.Verb != "create" {
		return c.forbidden(a, "it may only have tokens made")
	}
	if err := c.knowsPod(w, r); err != nil {
		return err
	}
	pod, gone := c.lastPod()
	if pod == nil || gone || a.Namespace != pod.Namespace || a.Name != pod.Spec.ServiceAccountName {
		return c.forbidden(a, "only its pod's service account")
	}
	request, err := decodeBody[*authenticationv1.TokenRequest](r, authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	if err != nil {
		return err
	}
	want := authenticationv1.BoundObjectReference{
		Kind:       "Pod",
		APIVersion: "v1",
		Name:       pod.Name,
		UID:        pod.UID,
	}
	if ref := request.Spec.BoundObjectRef; ref == nil || *ref != want {
		return c.forbidden(a, fmt.Sprintf("spec.boundObjectRef must be the pod %s", bindingID(pod.Namespace, pod.Name, pod.UID)))
	}
	rests(w) // while others are asked
	may, err := c.mayHaveToken(r.Context(), pod, &request.Spec)
	if err != nil {
		return err
	}
	if !may {
		return c.forbidden(a, fmt.Sprintf("no volume of its pod asks for a token for %q of %d seconds", request.Spec.Audiences,
			lifetimeOf(request.Spec.ExpirationSeconds)))
	}
	b, err := encode(formatJSON, &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: authenticationv1.SchemeGroupVersion.String()},
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: request.Spec.Audiences, ExpirationSeconds: request.Spec.ExpirationSeconds, BoundObjectRef: &want,
		},
	})
	if err != nil {
		return err
	}
	return c.pass(w, r, a, body{mediaType: runtime.ContentTypeJSON, bytes: b}, nil)
}
