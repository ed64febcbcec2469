package cellapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/sanitize"
	"github.com/elotl/kip/internal/watches"
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

// Cell is the API of one cell: an [http.Handler] whose every request is taken to
// come from that cell.
type Cell struct {
	server *Server
	id     string
	as     *identity // of the virtual node that its kubelet believes to be
	node   *cellNode
	lease  *owned
	csi    *owned
	pods   *watches.Collection // the bound pod, if any
	slices *watches.Collection // the EndpointSlices that it is shown

	passed     *rate.Limiter
	final      *rate.Limiter
	events     *rate.Limiter
	written    *rate.Limiter // bytes
	eventBytes *rate.Limiter
	// credentials limits asking for what pulls images, told the Events about it.
	credentials, told *rate.Limiter

	budget   *budget
	refusals *rate.Limiter

	lifetime context.Context // until the cell is removed
	end      context.CancelFunc

	mu       sync.Mutex
	pod      *binding
	reported []string // names of events that this cell made, newest last
	trouble  string   // the last warning about a plugin
	unstored string   // what is wrong with the last status of the pod
}

var _ http.Handler = (*Cell)(nil)

func newCell(s *Server, id string, as *identity, info CellInfo) *Cell {
	c := &Cell{
		server:     s,
		id:         id,
		as:         as,
		node:       newCellNode(s, as, info),
		lease:      newOwned(s, as.name, leaseKind, corev1.NamespaceNodeLease),
		csi:        newOwned(s, as.name, csiNodeKind, ""),
		pods:       watches.NewCollection(podKind, podHistory),
		slices:     s.endpoints.acquire(id),
		passed:     rate.NewLimiter(passedRate, passedBurst),
		final:      rate.NewLimiter(finalRate, finalBurst),
		events:     rate.NewLimiter(eventRate, eventBurst),
		refusals:   rate.NewLimiter(refusalRate, refusalBurst),
		written:    rate.NewLimiter(writtenRate, writtenBurst),
		eventBytes: rate.NewLimiter(eventBytesRate, eventBytesBurst),

		credentials: rate.NewLimiter(credentialsRate, credentialsBurst),
		told:        rate.NewLimiter(toldRate, 1),

		budget: newBudget(s.observer),
	}
	c.lifetime, c.end = context.WithCancel(s.lifetime)
	c.pods.StartEmpty(unboundVersion)
	return c
}

// NodeReady is closed when the cell's kubelet has reported, to this process, that
// its node is ready.
func (c *Cell) NodeReady() <-chan struct{} { return c.node.ready }

// LastHeartbeat returns when the kubelet last renewed its lease or reported its
// node's status; the zero time when it has done neither since Kip started.
func (c *Cell) LastHeartbeat() time.Time { return c.node.lastHeartbeat() }

// Node returns the cell's own Node, its conditions and images as its kubelet
// reported them. It is nil as long as the real virtual node is not known.
func (c *Cell) Node() *corev1.Node { return c.node.node() }

// Usage returns what the cell has asked since this process began.
func (c *Cell) Usage() Usage { return c.budget.used() }

// remove ends all that the cell has.
func (c *Cell) remove() {
	c.end()
	c.unbind()
	c.server.endpoints.release(c.id)
}

// ask is a request that was understood.
type ask struct {
	*request.RequestInfo
	resource schema.GroupVersionResource
}

func (a *ask) String() string {
	what := a.Resource
	if a.Subresource != "" {
		what += "/" + a.Subresource
	}
	if a.APIGroup != "" {
		what += "." + a.APIGroup
	}
	if a.Name != "" {
		what += " " + watches.Key(a.Namespace, a.Name)
	} else if a.Namespace != "" {
		what += " in namespace " + a.Namespace
	}
	return sanitize.Printable(cut(a.Verb+" "+what, maxLogged))
}

// isPodStatus reports whether it is what a kubelet says of its pod.
func (a *ask) isPodStatus() bool {
	return a.resource == podKind.Resource && a.Subresource == "status"
}

// apiPaths knows the form of the API's paths.
var apiPaths = request.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

// understand reads what a request asks, and refuses forms that no Kubernetes
// client produces.
func (c *Cell) understand(r *http.Request) (*ask, error) {
	switch {
	case len(r.URL.Path) > maxPath:
		return nil, apierrors.NewBadRequest("the path is longer than any of the Kubernetes API")
	case len(r.URL.RawQuery) > maxQuery:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the options are longer than %d bytes", maxQuery))
	case !slices.Contains([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, r.Method):
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: r.URL.Path}, r.Method)
	case r.Header.Get("Upgrade") != "":
		return nil, apierrors.NewBadRequest("connections are not upgraded here")
	case r.URL.RawPath != "" || path.Clean(r.URL.Path) != r.URL.Path:
		return nil, apierrors.NewBadRequest("the path is not in its plain form")
	}
	if _, err := decodeListOptions(r); err != nil { // before the API server's own code, which logs it
		return nil, err
	}
	info, err := apiPaths.NewRequestInfo(r)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !info.IsResourceRequest {
		return nil, c.refused(schema.GroupResource{}, "",
			fmt.Sprintf("cell %s may not %s %s: only the resources that a kubelet needs are served", c.id, strings.ToLower(r.Method), r.URL.Path))
	}
	for _, segment := range []string{info.Namespace, info.Name} {
		if problems := content.IsPathSegmentName(segment); len(problems) > 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("name %q %s", segment, strings.Join(problems, ", ")))
		}
	}
	a := &ask{
		RequestInfo: info,
		resource:    schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource},
	}
	nameless := info.Verb == "create" || info.Verb == "list" || info.Verb == "watch" || info.Verb == "deletecollection"
	if !nameless && info.Name == "" || info.Verb == "create" && info.Name != "" && info.Subresource == "" {
		return nil, apierrors.NewMethodNotSupported(a.resource.GroupResource(), info.Verb)
	}
	// The old forms /api/v1/watch/… and /api/v1/proxy/… are no longer used.
	resourceAt := 2
	if info.APIGroup != "" {
		resourceAt = 3
	}
	segments := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if len(info.Parts) > 3 || segments[resourceAt] == "watch" || segments[resourceAt] == "proxy" {
		return nil, c.forbidden(a, "")
	}
	return a, nil
}

// forbidden refuses what was asked; why, when not empty, says what is allowed.
func (c *Cell) forbidden(a *ask, why string) error {
	message := fmt.Sprintf("cell %s may not %s", c.id, a)
	if why != "" {
		message += ": " + why
	}
	return c.refused(a.resource.GroupResource(), a.Name, message)
}

func (c *Cell) refused(resource schema.GroupResource, name, message string) error {
	c.noteRefusal(Forbidden, "", message)
	return apierrors.NewForbidden(resource, name, fmt.Errorf("%s", message))
}

// ServeHTTP answers one request of the cell.
func (c *Cell) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &counted{ResponseWriter: w, cell: c, rest: func() {}}
	defer func() {
		out.rest()
		out.charge()
	}()
	var err error
	if r.Method == http.MethodPut && r.URL.Path == c.as.renewal.Path {
		err = c.renew(out, r)
	} else if err = c.budget.begin(c.server.clock.Now()); err == nil {
		err = c.serve(out, r)
	}
	if err != nil {
		status := statusOf(err)
		if refusals[status.Code] != "" {
			var limit string
			if over, is := errors.AsType[*overLimit](err); is {
				limit = over.limit
			}
			c.noteRefusal(refusals[status.Code], limit, strings.ToLower(r.Method)+" "+r.URL.Path+": "+status.Message)
		}
		if status.Code == http.StatusTooManyRequests && c.served() == nil {
			out.rest() // nobody waits for the turn of who is held
			c.overdrawn(r.Context())
		}
		writeError(out, r, err)
	}
}

// renew answers the renewal of the lease, which says that the cell lives. It has a
// budget of its own, and is understood by its path alone: nothing else that the cell
// asks holds it up, and it costs little when there is much to do.
func (c *Cell) renew(w *counted, r *http.Request) error {
	if err := c.served(); err != nil {
		return err
	}
	done, err := c.budget.renew(c.server.clock.Now(), r.ContentLength)
	if err != nil {
		return err
	}
	defer done()
	c.node.heartbeat() // also where what is sent conflicts with what is stored
	r.Body = http.MaxBytesReader(w, r.Body, leaseBody)
	if err := c.await(w, r); err != nil {
		return err
	}
	return c.serveOwned(w, r, c.as.renewal, c.lease)
}

// served says why nothing is answered; nil when it is.
func (c *Cell) served() error {
	switch {
	case c.server.lifetime.Err() != nil:
		return apierrors.NewTooManyRequests("Kip is stopping", 1)
	case c.lifetime.Err() != nil:
		return c.refused(schema.GroupResource{}, "", fmt.Sprintf("cell %s has been removed", c.id))
	}
	return nil
}

// serve answers the request or returns the error to answer with.
func (c *Cell) serve(w *counted, r *http.Request) (err error) {
	if err := c.served(); err != nil {
		return err
	}
	if agentapi.IsNotice(r) { // others are taken before
		return apierrors.NewTooManyRequests("a notice came less than "+agentapi.NoticePause.String()+" ago", int(agentapi.NoticePause.Seconds()))
	}
	a, err := c.understand(r)
	if err != nil {
		return err
	}
	if a.isPodStatus() {
		defer func() { c.noteUnstored(err) }()
	}
	done, err := c.admit(w, r, a)
	if err != nil {
		return err
	}
	defer done()
	if r.Method != http.MethodGet && c.bodyLimit(a) > 0 {
		if err := c.receive(w, r); err != nil {
			return err
		}
	}
	if src := c.server.watches.Of(a.resource); src != nil {
		return c.serveShared(w, r, a, src)
	}
	switch a.resource {
	case nodeKind.Resource:
		return c.serveNode(w, r, a)
	case leaseKind.Resource:
		return c.serveOwned(w, r, a, c.lease)
	case csiNodeKind.Resource:
		return c.serveOwned(w, r, a, c.csi)
	case podKind.Resource:
		return c.servePod(w, r, a)
	case secretKind.Resource:
		return c.serveReference(w, r, a, secretKind)
	case configMapKind.Resource:
		return c.serveReference(w, r, a, configMapKind)
	case claims:
		return c.serveClaim(w, r, a)
	case persistentVolumes:
		return c.serveVolume(w, r, a)
	case serviceAccounts:
		return c.serveToken(w, r, a)
	case coreEvents, groupEvents:
		return c.serveEvent(w, r, a)
	case imageCredentials:
		return c.serveImageCredentials(w, r, a)
	}
	if a.APIGroup == "resource.k8s.io" && a.Resource == "resourceslices" && a.Verb == "deletecollection" {
		return apierrors.NewNotFound(a.resource.GroupResource(), "")
	}
	return c.forbidden(a, "")
}

var (
	claims            = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	persistentVolumes = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	serviceAccounts   = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	coreEvents        = corev1.SchemeGroupVersion.WithResource("events")
	groupEvents       = schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
)

// read answers get, list and watch with rd.
func (c *Cell) read(w http.ResponseWriter, r *http.Request, rd *reader, a *ask) error {
	rd.worked = func(began time.Time) {
		now := c.server.clock.Now()
		c.budget.workedFor(now, now.Sub(began))
	}
	switch a.Verb {
	case "get":
		return rd.get(w, r, a.Name)
	case "list":
		return rd.list(w, r)
	default:
		return rd.watch(w, r)
	}
}

// serveShared answers from what all cells see.
func (c *Cell) serveShared(w http.ResponseWriter, r *http.Request, a *ask, src *watches.Source) error {
	if a.Subresource != "" || (a.Verb != "get" && a.Verb != "list" && a.Verb != "watch") {
		return c.forbidden(a, a.Resource+" can only be read, whole")
	}
	rd := &reader{
		collection: src.Collection,
		clock:      c.server.clock,
		namespace:  a.Namespace,
		missed:     src.Refusal,
		lifetime:   c.lifetime,
	}
	if a.resource == watches.EndpointSlices {
		rd.collection = c.slices
	}
	if src.Kind.Name == "Namespace" {
		// The request's namespace is the object itself.
		rd.namespace = ""
	}
	return c.read(w, r, rd, a)
}

// serveReference answers from the Secrets or ConfigMaps that the cell's pod names.
func (c *Cell) serveReference(w http.ResponseWriter, r *http.Request, a *ask, k *watches.Kind) error {
	if a.Subresource != "" || (a.Verb != "get" && a.Verb != "list" && a.Verb != "watch") {
		return c.forbidden(a, a.Resource+" can only be read")
	}
	if a.Name == "" || a.Namespace == "" {
		return c.forbidden(a, "only by name, those that its pod names")
	}
	if err := c.knowsPod(w, r); err != nil {
		return err
	}
	ref := c.reference(watches.Ref{
		Node:      c.as.name,
		Kind:      k,
		Namespace: a.Namespace,
		Name:      a.Name,
	})
	if ref == nil && k == secretKind && a.Verb == "get" {
		return c.serveVolumeSecret(w, r, a)
	}
	if ref == nil {
		return c.forbidden(a, "its pod does not name it")
	}
	rd := &reader{
		collection: ref.shared.Collection,
		clock:      c.server.clock,
		namespace:  a.Namespace,
		missed:     ref.shared.Refusal,
		lifetime:   ref.lifetime,
	}
	return c.read(w, r, rd, a)
}

// bindingID names a pod for logs and messages.
func bindingID(namespace, name string, uid types.UID) string {
	return fmt.Sprintf("%s/%s (%s)", namespace, name, uid)
}
