package localapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
)

// Address is where the kubelet finds its API server.
var Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(agentapi.Port+1))

// shutdownGrace is for requests in flight when the agent stops; watches never
// end by themselves.
const shutdownGrace = 200 * time.Millisecond

// Endpoint serves the kubelet's API requests on loopback and passes them on to
// Kip's cell API.
type Endpoint struct {
	server *http.Server
	lis    net.Listener
}

// Listen opens the endpoint at address, which is one of 127.0.0.1. Requests go
// to kip, the way to the cell API.
func (p *PKI) Listen(address string, kip http.RoundTripper, log *slog.Logger) (*Endpoint, error) {
	lis, err := net.Listen("tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("open the kubelet's API endpoint: %w", err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// The host is for form's sake: the tunnel has one peer.
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "https", "kip", "kip"
		},
		Transport:     resumable{whole{kip, &p.reports}},
		FlushInterval: -1, // a watch event is not held back
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			// With this status a reflector watches on from where it was. With any
			// other it lists anew.
			unavailable(w, r, err, http.StatusTooManyRequests, "TooManyRequests", "Kip is not connected to this cell", log)
		},
	}
	return &Endpoint{
		lis: tls.NewListener(lis, withALPN(p.serverTLS())),
		server: &http.Server{
			Handler:           p.open.count(proxy, func(r *http.Request) bool { return !isWatch(r.URL.Query().Get("watch")) }),
			ReadHeaderTimeout: 10 * time.Second,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	}, nil
}

// requests counts those that are under way.
type requests struct {
	mu    sync.Mutex
	n     int
	ended chan struct{} // of those that are under way, the last; made by who waits for it
}

// count counts those that end.
func (o *requests) count(next http.Handler, ends func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ends(r) {
			o.add(1)
			defer o.add(-1)
		}
		next.ServeHTTP(w, r)
	})
}

func (o *requests) add(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n += n; o.n == 0 && o.ended != nil {
		close(o.ended)
		o.ended = nil
	}
}

// Answered waits until each request of the kubelet's has its answer, but for watches, and so has each to it
// for a log; or until ctx ends.
func (p *PKI) Answered(ctx context.Context) error {
	o := &p.open
	o.mu.Lock()
	ended := o.ended
	switch {
	case o.n == 0:
		ended = nil
	case ended == nil:
		ended = make(chan struct{})
		o.ended = ended
	}
	o.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for what the kubelet asks, and is asked for: %w", ctx.Err())
	}
}

// maxBody bounds what the kubelet sends in one request: what the cell API takes,
// and some room for that to say so.
const maxBody = 4 << 20

// whole reads a request's body to its end before it sends it. Kip may refuse a
// request before it has read all of it. The kubelet, when it hears of that, no
// longer sends the rest and waits for the end of the answer; the proxy, to end
// the answer, waits for the rest: golang.org/issue/80085. What comes of it is reported.
type whole struct {
	kip     http.RoundTripper
	reports *reports // what comes of requests; optional
}

func (t whole) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	out := req
	if req.Body != nil && req.Body != http.NoBody {
		var err error
		body, err = io.ReadAll(io.LimitReader(req.Body, maxBody+1))
		_ = req.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
		if len(body) > maxBody {
			return nil, fmt.Errorf("the request is larger than %d bytes", maxBody)
		}
		out = req.Clone(req.Context())
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	resp, err := t.kip.RoundTrip(out)
	if err == nil && t.reports != nil {
		t.reports.take(req.Method, req.URL.Path, resp.StatusCode, body)
	}
	return resp, err
}

// resumable ends a watch that broke off as one whose time is over. A reflector then
// watches on from where it was; when it hears of an error it lists all objects anew.
type resumable struct{ kip http.RoundTripper }

func (t resumable) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.kip.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusOK && isWatch(req.URL.Query().Get("watch")) {
		resp.Body = endedBody{resp.Body}
	}
	return resp, err
}

func isWatch(asked string) bool {
	yes, err := strconv.ParseBool(asked)
	return err == nil && yes
}

// endedBody ends where reading it fails.
type endedBody struct{ io.ReadCloser }

func (b endedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

func withALPN(c *tls.Config) *tls.Config {
	// HTTP/2: one connection for all of the kubelet's watches.
	c.NextProtos = []string{"h2", "http/1.1"}
	return c
}

// URL is the endpoint's base URL.
func (e *Endpoint) URL() string { return "https://" + e.lis.Addr().String() }

// Serve serves until ctx ends.
func (e *Endpoint) Serve(ctx context.Context) error {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if e.server.Shutdown(grace) != nil {
			_ = e.server.Close()
		}
	})
	err := e.server.Serve(e.lis)
	if !stop() {
		<-done
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the kubelet's API endpoint: %w", err)
}

// KubeletAddress is where the kubelet serves, for itzo.
var KubeletAddress = net.JoinHostPort("127.0.0.1", strconv.Itoa(configs.KubeletPort))

// KubeletProxy is the handler that passes requests into the kubelet's server:
// logs as they come, and upgraded connections (SPDY, WebSocket) for exec,
// attach and port-forward. It listens at addr; prefix is cut off the path.
func (p *PKI) KubeletProxy(prefix, addr string, log *slog.Logger) http.Handler {
	target := &url.URL{Scheme: "https", Host: addr}
	isLog := func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, prefix+"/containerLogs/") }
	return p.open.count(http.StripPrefix(prefix, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{
			// HTTP/1.1 only: HTTP/2 has no upgrades.
			TLSClientConfig:     p.clientTLS(),
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConns:        2,
			IdleConnTimeout:     30 * time.Second,
		},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			unavailable(w, r, err, http.StatusServiceUnavailable, "ServiceUnavailable", "the cell's kubelet does not answer", log)
		},
	}), isLog)
}

// unavailable answers as an API server would: with a Status, which clients show
// and on which they try again.
func unavailable(w http.ResponseWriter, r *http.Request, err error, code int, reason, why string, log *slog.Logger) {
	if r.Context().Err() != nil {
		return // the client has gone
	}
	log.Debug("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
		"reason": reason, "message": fmt.Sprintf("%s: %v", why, err),
	})
}
