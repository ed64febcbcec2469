package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// DefaultPort is the kubelet's.
const DefaultPort = 10250

// StatsPaths are where metrics-server, Prometheus and others ask a kubelet what
// the pods of its node use.
var StatsPaths = []string{"/stats/summary", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes"}

// MetricsPaths are where Prometheus asks a kubelet about itself.
var MetricsPaths = []string{"/metrics", "/metrics/slis"}

// Cells finds the cell of a pod.
type Cells interface {
	// Conn leads to the agent on the pod's cell; the requests
	// that it takes have a path of package agentapi, and any host. uid may be
	// empty; if it is not, it must be the pod's. The errors that the port
	// distinguishes are ErrPodNotFound, *WaitingError, *NoMachineError and *EndedError; any
	// other means that the cell cannot be reached now.
	Conn(namespace, name string, uid types.UID) (agentapi.Conn, error)
	// Machine leads to the agent of a cell, by the cell's name. The error is ErrCellNotFound for one
	// that Kip does not have; any other means that the cell cannot be reached now.
	Machine(cell string) (agentapi.Conn, error)
}

// ErrPodNotFound says that no such pod is on this node.
var ErrPodNotFound = errors.New("pod not found on this node")

// WaitingError says that a pod has no cell that could answer yet.
type WaitingError struct {
	// Why is what the pod waits for, in words for its owner.
	Why string
}

func (e *WaitingError) Error() string { return "waiting to start: " + e.Why }

// NoMachineError says that a pod has no cell, and gets none.
type NoMachineError struct {
	// Why is for the pod's owner.
	Why string
}

func (e *NoMachineError) Error() string { return "it has no machine: " + e.Why }

// EndedError says that a pod has ended and its cell has gone. Its logs may be
// saved.
type EndedError struct {
	UID   types.UID
	Phase corev1.PodPhase
}

func (e *EndedError) Error() string { return fmt.Sprintf("the pod has ended: %s", e.Phase) }

// SavedLogs answers a containerLogs request for a pod whose cell has gone. It
// reads the options from the request's query, and answers 400 for what it does
// not have.
type SavedLogs interface {
	Serve(w http.ResponseWriter, r *http.Request, uid types.UID, container string)
}

// PortConfig says what the kubelet port needs. All fields are required, unless
// stated otherwise.
type PortConfig struct {
	NodeName string
	// Reviews may create token reviews and subject access reviews.
	Reviews kubernetes.Interface
	// ClientCA is whose client certificates are accepted; see the function
	// ClientCA, and FollowClientCA, which its owner runs. Optional: only tokens are.
	ClientCA dynamiccertificates.CAContentProvider
	// Certificate is the one to serve with, as in a tls.Config.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Cells       Cells
	Logs        SavedLogs
	// Stats answers for StatsPaths.
	Stats http.Handler
	// Metrics answers for MetricsPaths.
	Metrics http.Handler
	// MaxPods is how many pods the node takes now.
	MaxPods func() int64
	// Version of Kip.
	Version string
	// Pods are those bound to the node.
	Pods func() []*corev1.Pod
	// Healthy says why Kip cannot do its work now, or nil.
	Healthy func(context.Context) error
	Log     *slog.Logger
}

// Port is what the API server, and those who collect metrics, ask as a kubelet.
type Port struct {
	c    PortConfig
	gate *gate
	mux  *http.ServeMux
}

// NewPort checks the configuration. It has no effect outside.
func NewPort(c PortConfig) (*Port, error) {
	if c.NodeName == "" || c.Reviews == nil || c.Certificate == nil || c.Cells == nil || c.Logs == nil ||
		c.Stats == nil || c.Metrics == nil || c.MaxPods == nil || c.Pods == nil || c.Healthy == nil || c.Log == nil {
		return nil, errors.New("kubelet port: NodeName, Reviews, Certificate, Cells, Logs, Stats, Metrics, MaxPods, Pods, Healthy and Log must be set")
	}
	gate, err := newGate(c.NodeName, c.Reviews, c.ClientCA)
	if err != nil {
		return nil, err
	}
	p := &Port{c: c, gate: gate, mux: http.NewServeMux()}

	p.mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", p.toCell("containerLogs"))
	for _, method := range []string{"GET", "POST"} {
		for _, what := range []string{"exec", "attach"} {
			p.mux.HandleFunc(method+" /"+what+"/{namespace}/{pod}/{container}", p.toCell(what))
			p.mux.HandleFunc(method+" /"+what+"/{namespace}/{pod}/{uid}/{container}", p.toCell(what))
		}
		p.mux.HandleFunc(method+" /portForward/{namespace}/{pod}", p.toCell("portForward"))
		p.mux.HandleFunc(method+" /portForward/{namespace}/{pod}/{uid}", p.toCell("portForward"))
	}
	p.mux.HandleFunc("POST /run/{namespace}/{pod}/{container}", p.toCell("run"))
	p.mux.HandleFunc("POST /run/{namespace}/{pod}/{uid}/{container}", p.toCell("run"))
	p.mux.HandleFunc("POST /checkpoint/{namespace}/{pod}/{container}", p.toCell("checkpoint"))

	p.mux.HandleFunc("GET /pods", p.pods(func(*corev1.Pod) bool { return true }))
	p.mux.HandleFunc("GET /pods/{$}", p.pods(func(*corev1.Pod) bool { return true }))
	running := p.pods(func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning && apiv1.WithoutMachine(pod) == nil
	})
	p.mux.HandleFunc("GET /runningpods", running)
	p.mux.HandleFunc("GET /runningpods/{$}", running)
	for _, path := range StatsPaths {
		p.mux.Handle("GET "+path, c.Stats)
	}
	for _, path := range MetricsPaths {
		p.mux.Handle("GET "+path, c.Metrics)
	}
	p.aboutNode()
	p.ofMachines()
	return p, nil
}

// mostHeader bounds the header of a request, in bytes, with the command of an exec in its path: what a kubelet takes
// (MaxHeaderBytes in pkg/kubelet/server/server.go), and the API server. mostStrangers bounds how many callers may hold as
// much before they have proven who they are.
const mostHeader = http.DefaultMaxHeaderBytes

// Serve answers on l, by TLS, until ctx ends; then every request is cancelled.
// It closes l.
func (p *Port) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f, ok := p.c.ClientCA.(*followedCA); ok {
		p.awaitClientCA(ctx, f)
	}
	var protocols http.Protocols // exec needs this one, and by HTTP/2 a few bytes can stand for many of a header
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler:   p,
		Protocols: &protocols,
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: p.c.Certificate,
			// The certificate is judged by the gate, beside the token.
			ClientAuth: tls.RequestClientCert,
		},
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    mostHeader,
		ConnContext:       withStranger,
		ErrorLog:          slog.NewLogLogger(p.c.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.ServeTLS(strangers(l), "", "")
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("kubelet port %s: %w", l.Addr(), err)
}

// FollowClientCA keeps up with a client CA that is followed, for all ports that have it,
// until ctx ends.
func FollowClientCA(ctx context.Context, ca dynamiccertificates.CAContentProvider) error {
	if f, ok := ca.(*followedCA); ok {
		f.runner.Run(ctx, 1)
	}
	<-ctx.Done()
	return nil
}

// followedCA is a client CA that may change, or not be there yet.
type followedCA struct {
	dynamiccertificates.CAContentProvider
	runner dynamiccertificates.ControllerRunner
	once   sync.Once
	read   chan struct{} // closed when it has been read
}

// followed hears of ca before anybody runs it: the library takes listeners without a lock.
func followed[CA interface {
	dynamiccertificates.CAContentProvider
	dynamiccertificates.ControllerRunner
}](ca CA) *followedCA {
	f := &followedCA{CAContentProvider: ca, runner: ca, read: make(chan struct{})}
	ca.AddListener(f)
	if ca.CurrentCABundleContent() != nil {
		f.Enqueue()
	}
	return f
}

// Enqueue is told that the CA was read.
func (f *followedCA) Enqueue() { f.once.Do(func() { close(f.read) }) }

// clientCATimeout is how long the port waits for its client CA before it opens.
const clientCATimeout = 10 * time.Second

// awaitClientCA waits until a CA that is followed has been read, or the API
// server's first requests would be refused. Without it tokens are still known.
func (p *Port) awaitClientCA(ctx context.Context, ca *followedCA) {
	select {
	case <-ca.read:
	case <-ctx.Done():
	case <-time.After(clientCATimeout):
		p.c.Log.Warn("client CA is not there yet: client certificates are refused until it is", "ca", p.c.ClientCA.Name())
	}
}

// ServeHTTP admits a request and routes it.
func (p *Port) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.isOfMachine(r) {
		p.mux.ServeHTTP(w, r) // which asks about the cell
		return
	}
	who, refused := p.gate.admit(r)
	if refused != nil {
		p.refuse(w, r, refused)
		return
	}
	proven(r.Context())
	p.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, who)))
}

// refuse says why a request goes no further.
func (p *Port) refuse(w http.ResponseWriter, r *http.Request, refused *refusal) {
	p.c.Log.Debug("refused at the kubelet port", "code", refused.code, "method", r.Method, "path", r.URL.Path, "err", refused.err)
	text := refused.err.Error()
	if refused.code == http.StatusUnauthorized {
		text = "Unauthorized" // why not is not for who is not known
		w.Header().Set("Connection", "close")
	}
	http.Error(w, text, refused.code)
}

type callerKey struct{}

func caller(r *http.Request) string {
	if u, ok := r.Context().Value(callerKey{}).(user.Info); ok {
		return u.GetName()
	}
	return ""
}

// target is what a request is about.
type target struct {
	what, namespace, pod, container string
	uid                             types.UID
}

func targetOf(what string, r *http.Request) (target, error) {
	t := target{
		what:      what,
		namespace: r.PathValue("namespace"),
		pod:       r.PathValue("pod"),
		container: r.PathValue("container"),
		uid:       types.UID(r.PathValue("uid")),
	}
	for name, v := range map[string]string{"namespace": t.namespace, "pod": t.pod, "container": t.container, "uid": string(t.uid)} {
		if problems := content.IsPathSegmentName(v); len(problems) > 0 {
			return t, fmt.Errorf("%s %q in the path: %s", name, v, problems[0])
		}
	}
	return t, nil
}

// url leads to the cell's kubelet. A uid has been checked by then, but the kubelet
// may check it again.
func (t target) url(query string) *url.URL {
	segments := []string{t.what, t.namespace, t.pod}
	for _, s := range []string{string(t.uid), t.container} {
		if s != "" {
			segments = append(segments, s)
		}
	}
	u := agentapi.KubeletURL(segments...)
	u.RawQuery = query
	return u
}

// toCell passes a request on to the kubelet of the pod's cell, as it is: what
// follows, upgrades and exit codes are between that kubelet and the caller.
func (p *Port) toCell(what string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t, err := targetOf(what, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if what != "containerLogs" {
			// Never the query: it holds the command.
			p.c.Log.Info("into a pod", "what", what, "pod", t.namespace+"/"+t.pod, "container", t.container, "user", caller(r))
		}
		conn, err := p.conn(r.Context(), t)
		if err != nil {
			p.noCell(w, r, t, err)
			return
		}
		proxy := httputil.ReverseProxy{
			Transport:     conn,
			FlushInterval: -1,
			Rewrite: func(out *httputil.ProxyRequest) {
				out.Out.URL = t.url(out.In.URL.RawQuery)
				out.Out.Host = out.Out.URL.Host
				for _, h := range []string{"Authorization", "Cookie", "X-Forwarded-For", "Forwarded"} {
					out.Out.Header.Del(h)
				}
				withoutBearer(out.Out.Header)
			},
			ModifyResponse: func(resp *http.Response) error {
				// A kubelet redirects nobody. A cell that does would make
				// the API server, or who else asks, call an address of its
				// choice.
				if resp.StatusCode >= 300 && resp.StatusCode < 400 {
					return fmt.Errorf("the cell answered with a redirect (%d)", resp.StatusCode)
				}
				if resp.StatusCode == http.StatusNotFound {
					return p.known(resp, t)
				}
				return nil
			},
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				p.lost(w, r, t, err)
			},
			ErrorLog: slog.NewLogLogger(p.c.Log.Handler(), slog.LevelDebug),
		}
		proxy.ServeHTTP(w, r)
	}
}

// withoutBearer removes a token from the protocols of a WebSocket, where browsers
// put it.
func withoutBearer(h http.Header) {
	const header, prefix = "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io."
	var keep []string
	for _, line := range h.Values(header) {
		for protocol := range strings.SplitSeq(line, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.HasPrefix(protocol, prefix) {
				keep = append(keep, protocol)
			}
		}
	}
	h.Del(header)
	if len(keep) > 0 {
		h.Set(header, strings.Join(keep, ", "))
	}
}

// A pod that the API server has just bound may come to the watch of its node a moment after somebody asks for it.
const (
	bindingTimeout = time.Second
	bindingPoll    = 20 * time.Millisecond
)

// conn leads to the cell of a pod. It waits a moment for a pod that is not there, and answers nothing for one while the
// pods are not listed.
func (p *Port) conn(ctx context.Context, t target) (conn agentapi.Conn, err error) {
	_ = wait.PollUntilContextTimeout(ctx, bindingPoll, bindingTimeout, true, func(context.Context) (bool, error) {
		conn, err = p.c.Cells.Conn(t.namespace, t.pod, t.uid)
		return !errors.Is(err, ErrPodNotFound), nil
	})
	if errors.Is(err, ErrPodNotFound) {
		if cause := p.c.Healthy(ctx); cause != nil {
			return nil, fmt.Errorf("which pods there are is not known: %w", cause)
		}
	}
	return conn, err
}

// known makes the answer of a kubelet that does not know its pod one that says why: the pod is on the node, and that
// kubelet has not seen it yet, or has just started. Of a 404 the API server would not hand the text on.
func (p *Port) known(resp *http.Response, t target) error {
	const most = 1 << 10 // of a kubelet's text: a name of 253, and a few words
	text, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return err
	}
	if !agentapi.IsUnknownPod(resp.StatusCode, string(text)) {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(text), resp.Body), resp.Body}
		return nil
	}
	pods := p.c.Pods()
	i := slices.IndexFunc(pods, func(pod *corev1.Pod) bool { return pod.Namespace == t.namespace && pod.Name == t.pod })
	if i >= 0 {
		text = []byte(t.unavailable(pods[i]) + "\n")
		resp.StatusCode, resp.Status = http.StatusBadRequest, ""
	}
	_ = resp.Body.Close()
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	resp.Header.Set("Content-Length", strconv.Itoa(len(text)))
	resp.Header.Del("Content-Encoding")
	return nil
}

// unavailable is what a kubelet says of a container that it has not started, or of which it knows nothing
// (validateContainerLogStatus in pkg/kubelet/kubelet_pods.go).
func (t target) unavailable(pod *corev1.Pod) string {
	what := fmt.Sprintf("pod %q", t.pod)
	if t.container != "" {
		what = fmt.Sprintf("container %q in pod %q", t.container, t.pod)
	}
	started := func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil || s.RestartCount > 0
	}
	switch {
	case pod.DeletionTimestamp != nil, slices.ContainsFunc(pod.Status.InitContainerStatuses, started),
		slices.ContainsFunc(pod.Status.ContainerStatuses, started):
		return what + " is not available: the kubelet of its cell has just started, or the pod is being deleted and that kubelet has removed it"
	case len(pod.Spec.InitContainers) > 0:
		return what + " is waiting to start: PodInitializing"
	}
	return what + " is waiting to start: ContainerCreating"
}

// lost answers for a cell that did not. It may have ended in the meantime: then
// the saved log is the answer.
func (p *Port) lost(w http.ResponseWriter, r *http.Request, t target, cause error) {
	if r.Context().Err() != nil { // the caller has gone, or Kip stops
		http.Error(w, "the request was cancelled", http.StatusServiceUnavailable)
		return
	}
	var ended *EndedError
	if _, err := p.c.Cells.Conn(t.namespace, t.pod, t.uid); errors.As(err, &ended) {
		p.noCell(w, r, t, err)
		return
	}
	p.c.Log.Warn("a pod's cell did not answer", "pod", t.namespace+"/"+t.pod, "what", t.what, "err", cause)
	http.Error(w, fmt.Sprintf("the cell of pod %s/%s did not answer: %v", t.namespace, t.pod, cause), http.StatusBadGateway)
}

// noCell answers when there is no cell to ask. The codes are those that the
// kubelet gives in the same case; API servers hand the text on to kubectl.
func (p *Port) noCell(w http.ResponseWriter, r *http.Request, t target, err error) {
	var waiting *WaitingError
	var none *NoMachineError
	var ended *EndedError
	switch {
	case errors.Is(err, ErrPodNotFound):
		http.Error(w, fmt.Sprintf("pod %q does not exist in namespace %q on node %s", t.pod, t.namespace, p.c.NodeName), http.StatusNotFound)
	case errors.As(err, &none):
		http.Error(w, fmt.Sprintf("pod %q has no machine: %s", t.pod, none.Why), http.StatusBadRequest)
	case errors.As(err, &waiting) && t.container != "":
		http.Error(w, fmt.Sprintf("container %q in pod %q is waiting to start: %s", t.container, t.pod, waiting.Why), http.StatusBadRequest)
	case errors.As(err, &waiting):
		http.Error(w, fmt.Sprintf("pod %q is waiting to start: %s", t.pod, waiting.Why), http.StatusBadRequest)
	case errors.As(err, &ended) && t.what == "containerLogs":
		p.c.Logs.Serve(w, r, ended.UID, t.container)
	case errors.As(err, &ended):
		http.Error(w, fmt.Sprintf("pod %q has ended (phase %s) and its cell is gone: %s is not possible", t.pod, ended.Phase, t.what),
			http.StatusBadRequest)
	default:
		p.c.Log.Warn("a pod's cell cannot be reached", "pod", t.namespace+"/"+t.pod, "what", t.what, "err", err)
		// Of a 503 the API server would not hand the text on.
		http.Error(w, fmt.Sprintf("the cell of pod %s/%s cannot be reached: %v", t.namespace, t.pod, err), http.StatusBadGateway)
	}
}

func (p *Port) pods(want func(*corev1.Pod) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		list := &corev1.PodList{Items: []corev1.Pod{}}
		for _, pod := range p.c.Pods() {
			if want(pod) {
				list.Items = append(list.Items, *pod)
			}
		}
		body, err := runtime.Encode(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), list)
		if err != nil {
			http.Error(w, "encode the pods: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		// A caller who has gone is no error of ours.
		_, _ = w.Write(body)
	}
}
