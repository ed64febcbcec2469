package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"

	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/sources"
)

// How long answers of the API server are kept, and how long it may take to
// answer: the defaults of the kubelet (authentication.webhook.cacheTTL,
// authorization.webhook.cache…TTL).
const (
	tokenTTL      = 2 * time.Minute
	allowedTTL    = 5 * time.Minute
	deniedTTL     = 30 * time.Second
	reviewTimeout = 10 * time.Second
)

// Each token that is not known yet is a question to the API server, and whoever reaches a port may send as many as they like. So
// reviewsAtOnce requests with a token are asked about at the same time, reviewsOfOne of one source. The others wait their
// turn, for reviewTurn.
const (
	reviewsAtOnce, reviewsOfOne = 64, 8
	reviewTurn                  = 20 * time.Second
)

// gate lets a request through if the API server knows who asks (token or client
// certificate) and allows it. There is no anonymous user.
type gate struct {
	node  string
	authn authenticator.Request
	authz authorizer.Authorizer
	// reviews asks about cells, of which no answer is kept.
	reviews kubernetes.Interface
	turns   *keyed.Places[sources.Source]
}

func newGate(node string, reviews kubernetes.Interface, ca dynamiccertificates.CAContentProvider) (*gate, error) {
	// It is of apimachinery, and not of package backoff, since the authenticator and the authorizer take no other. Steps is how often each
	// asks.
	retries := wait.Backoff{
		Duration: 500 * time.Millisecond,
		Factor:   1.5,
		Jitter:   0.2,
		Steps:    5,
	}
	authn, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient:            reviews.AuthenticationV1(),
		TokenAccessReviewTimeout:           reviewTimeout,
		WebhookRetryBackoff:                &retries,
		CacheTTL:                           tokenTTL,
		ClientCertificateCAContentProvider: ca,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("authentication at the kubelet port: %w", err)
	}
	authz, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: reviews.AuthorizationV1(),
		AllowCacheTTL:             allowedTTL,
		DenyCacheTTL:              deniedTTL,
		WebhookRetryBackoff:       &retries,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("authorization at the kubelet port: %w", err)
	}
	return &gate{
		node:    node,
		authn:   authn,
		authz:   authz,
		reviews: reviews,
		turns:   keyed.NewPlaces[sources.Source](reviewsAtOnce, reviewsOfOne),
	}, nil
}

// turn waits until a request may be reviewed. One with a certificate and no token, as an API server's, costs no question
// until it is known who sends it, and does not wait.
func (g *gate) turn(r *http.Request) (leave func(), refused *refusal) {
	if r.Header.Get("Authorization") == "" {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTurn)
	defer cancel()
	leave, err := g.turns.Take(ctx, sources.Of(r.RemoteAddr))
	if err != nil {
		return nil, &refusal{http.StatusTooManyRequests,
			fmt.Errorf("too many requests with a token from this address: no turn came in %s", reviewTurn)}
	}
	return leave, nil
}

// Guard passes a request on to next if the API server knows its bearer token, and
// allows who that is what it does on its path, which is none of a resource: for
// /metrics. It believes no client certificate, and no token that is not for the
// audience; "" is the API server's own, as it is for kubelets. reviews may create token
// reviews and subject access reviews.
func Guard(reviews kubernetes.Interface, audience string, next http.Handler) (http.Handler, error) {
	g, err := newGate("", reviews, nil)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r
		if audience != "" {
			asked = r.WithContext(authenticator.WithAudiences(r.Context(), authenticator.Audiences{audience}))
		}
		if refused := g.admitPath(asked); refused != nil {
			http.Error(w, refused.err.Error(), refused.code)
			return
		}
		next.ServeHTTP(w, r)
	}), nil
}

// admitPath returns why a request goes no further whose path is none of a resource; nil if it does.
func (g *gate) admitPath(r *http.Request) *refusal {
	leave, refused := g.turn(r)
	if refused != nil {
		return refused
	}
	defer leave()
	response, ok, err := g.authn.AuthenticateRequest(r)
	if err != nil || !ok {
		return &refusal{http.StatusUnauthorized, errors.New("Unauthorized")}
	}
	verb := verbOf(r)
	decision, _, err := g.authz.Authorize(r.Context(), authorizer.AttributesRecord{User: response.User, Verb: verb, Path: r.URL.Path})
	switch {
	case err != nil:
		return &refusal{http.StatusInternalServerError, errors.New("the API server does not say whether that is allowed")}
	case decision != authorizer.DecisionAllow:
		return &refusal{http.StatusForbidden, fmt.Errorf("user %q may not %s %s", response.User.GetName(), verb, r.URL.Path)}
	}
	return nil
}

// refusal is why a request goes no further.
type refusal struct {
	code int
	err  error
}

// enter takes the turn of a request and returns who asks; leave gives the turn back. It removes the credentials from the request: a cell
// has no business with them.
func (g *gate) enter(r *http.Request) (who user.Info, leave func(), refused *refusal) {
	if leave, refused = g.turn(r); refused != nil {
		return nil, nil, refused
	}
	response, ok, err := g.authn.AuthenticateRequest(r)
	r.Header.Del("Authorization")
	if err != nil || !ok {
		if err == nil {
			err = errors.New("no credentials")
		}
		leave()
		return nil, nil, &refusal{http.StatusUnauthorized, err}
	}
	return response.User, leave, nil
}

// admit returns who asks, or why they may not.
func (g *gate) admit(r *http.Request) (user.Info, *refusal) {
	who, leave, refused := g.enter(r)
	if refused != nil {
		return nil, refused
	}
	defer leave()
	verb := verbOf(r)
	subresources := subresourcesOf(r.URL.Path)
	for _, sub := range subresources {
		decision, _, err := g.authz.Authorize(r.Context(), authorizer.AttributesRecord{
			User:            who,
			Verb:            verb,
			APIVersion:      "v1",
			Resource:        "nodes",
			Name:            g.node,
			Subresource:     sub,
			ResourceRequest: true,
			Path:            r.URL.Path,
		})
		if err != nil {
			return nil, &refusal{http.StatusInternalServerError, fmt.Errorf(
				"authorization error (user=%s, verb=%s, resource=nodes, subresource=%s): %w", who.GetName(), verb, sub, err)}
		}
		if decision == authorizer.DecisionAllow {
			return who, nil
		}
	}
	return nil, &refusal{http.StatusForbidden, fmt.Errorf("forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)",
		who.GetName(), verb, subresources)}
}

// verbOf is the verb to ask for. It is the kubelet's, but for what runs or
// reaches something in a pod: a WebSocket comes as a GET, and who may only read
// must not run commands by that, so those are "create" however they come. The
// roles that API servers use for kubelets have both.
func verbOf(r *http.Request) string {
	for _, p := range []string{"/exec", "/attach", "/portForward", "/run", "/checkpoint"} {
		if under(r.URL.Path, p) {
			return "create"
		}
	}
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// subresourcesOf are those of the node of which one suffices, as the kubelet
// has them, finest first.
func subresourcesOf(path string) []string {
	switch {
	case under(path, "/pods"), under(path, "/runningpods"):
		return []string{"pods", "proxy"}
	case under(path, "/healthz"):
		return []string{"healthz", "proxy"}
	case under(path, "/configz"):
		return []string{"configz", "proxy"}
	case under(path, "/stats"):
		return []string{"stats"}
	case under(path, "/metrics"):
		return []string{"metrics"}
	case under(path, "/logs"):
		return []string{"log"}
	case under(path, "/checkpoint"):
		return []string{"checkpoint"}
	case under(path, "/statusz"):
		return []string{"statusz"}
	case under(path, "/flagz"):
		return []string{"configz"}
	}
	return []string{"proxy"}
}

func under(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}
