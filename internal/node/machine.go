package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// ErrCellNotFound says that Kip has no such cell.
var ErrCellNotFound = errors.New("no such cell")

// cellPaths is the root of what operators ask of machines.
const cellPaths = "/cells"

// Subresources of the Cell by which RBAC says who may: create exec, and get log.
const (
	subExec = "exec"
	subLogs = "log"
)

// ofMachines routes what operators ask of machines.
func (p *Port) ofMachines() {
	p.mux.HandleFunc("POST "+cellPaths+"/{cell}/exec", p.toMachine("create", subExec, func(r *http.Request) *url.URL {
		return agentapi.ExecURL(r.URL.RawQuery)
	}))
	p.mux.HandleFunc("GET "+cellPaths+"/{cell}/logs/{log}", p.toMachine("get", subLogs, func(r *http.Request) *url.URL {
		return agentapi.LogURL(r.PathValue("log"), r.URL.RawQuery)
	}))
}

// isOfMachine reports whether a request is one that ofMachines routes.
func (p *Port) isOfMachine(r *http.Request) bool {
	if path.Clean(r.URL.Path) != r.URL.Path { // it would be redirected
		return false
	}
	_, pattern := p.mux.Handler(r)
	_, to, _ := strings.Cut(pattern, " ")
	return under(to, cellPaths)
}

// toMachine passes a request of who may on to the agent of a cell.
func (p *Port) toMachine(verb, sub string, to func(*http.Request) *url.URL) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		cell := r.PathValue("cell")
		who, refused := p.gate.admitToCell(r, verb, cell, sub)
		if refused != nil {
			p.refuse(w, r, refused)
			return
		}
		proven(r.Context())
		conn, err := p.c.Cells.Machine(cell)
		switch {
		case errors.Is(err, ErrCellNotFound):
			http.Error(w, fmt.Sprintf("cell %q does not exist", cell), http.StatusNotFound)
			return
		case err != nil:
			http.Error(w, fmt.Sprintf("cell %s cannot be reached: %v", cell, err), http.StatusBadGateway)
			return
		}
		// Never the query: it holds the command.
		log := p.c.Log.With("what", sub, "cell", cell, "user", who.GetName())
		log.Info("onto a cell's machine")
		began := time.Now()
		defer func() { log.Info("off a cell's machine", "after", time.Since(began).Round(time.Second)) }()
		(&httputil.ReverseProxy{
			Transport:     conn,
			FlushInterval: -1,
			Rewrite: func(out *httputil.ProxyRequest) {
				out.Out.URL = to(out.In)
				out.Out.Host = out.Out.URL.Host
				for _, h := range []string{"Authorization", "Cookie"} {
					out.Out.Header.Del(h)
				}
			},
			ModifyResponse: func(resp *http.Response) error {
				switch {
				case resp.StatusCode >= 300 && resp.StatusCode < 400: // as at toCell
					return fmt.Errorf("the cell answered with a redirect (%d)", resp.StatusCode)
				case resp.StatusCode == http.StatusSwitchingProtocols && sub != subExec:
					return errors.New("the cell changed the protocol")
				}
				return nil
			},
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				http.Error(w, fmt.Sprintf("cell %s did not answer: %v", cell, err), http.StatusBadGateway)
			},
			ErrorLog: slog.NewLogLogger(p.c.Log.Handler(), slog.LevelDebug),
		}).ServeHTTP(w, r)
	}
}

// admitToCell returns who asks, or why they may not do so with a cell. Each time it asks the API server, whose audit log then
// has it. It does not believe a request that comes through the API server's proxy to nodes: that is the API server's own.
func (g *gate) admitToCell(r *http.Request, verb, cell, sub string) (user.Info, *refusal) {
	for _, h := range []string{"X-Forwarded-For", "Forwarded"} {
		if r.Header.Get(h) != "" {
			return nil, &refusal{http.StatusForbidden, errors.New(
				"who asks is not known behind a proxy: ask Kip's kubelet port itself, as kipctl exec and kipctl logs do")}
		}
	}
	who, leave, refused := g.enter(r)
	if refused != nil {
		return nil, refused
	}
	defer leave()
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range who.GetExtra() {
		extra[k] = v
	}
	review, err := g.reviews.AuthorizationV1().SubjectAccessReviews().Create(r.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   who.GetName(),
			UID:    who.GetUID(),
			Groups: who.GetGroups(),
			Extra:  extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb:        verb,
				Group:       apiv1.Resource.Group,
				Version:     apiv1.Resource.Version,
				Resource:    apiv1.Resource.Resource,
				Subresource: sub,
				Name:        cell,
			},
		},
	}, metav1.CreateOptions{})
	what := fmt.Sprintf("%s cells/%s (group %s) of cell %s", verb, sub, apiv1.Resource.Group, cell)
	switch {
	case err != nil:
		return nil, &refusal{http.StatusInternalServerError,
			fmt.Errorf("ask the API server whether user %q may %s: %w", who.GetName(), what, err)}
	case !review.Status.Allowed:
		return nil, &refusal{http.StatusForbidden, fmt.Errorf("user %q may not %s", who.GetName(), what)}
	}
	return who, nil
}
