package cellapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/watches"
)

// Cell is the API of one cell: an [http.Handler] whose every request is taken to
// come from that cell. It wires the parts that answer, and chooses between them.
type Cell struct {
	*base
	end  context.CancelFunc
	node *cellNode

	// What other packages ask of a cell.
	*boundPod
	*nodeAPI
	*ownedAPI
	*eventAPI
	*statusTrouble

	admission *admission
	podAPI    *podAPI
	shared    *sharedAPI
	volumes   *volumeAPI
	tokens    *tokenAPI
	images    *imageAPI
}

var _ http.Handler = (*Cell)(nil)

func newCell(s *Server, id string, as *identity, info CellInfo) *Cell {
	lifetime, end := context.WithCancel(s.tasks.Lifetime())
	b := &base{limits: newLimits(s, id, lifetime), as: as}
	c := &Cell{base: b, end: end, node: newCellNode(s, as, info)}
	c.statusTrouble = &statusTrouble{}
	c.boundPod = &boundPod{base: b, node: c.node, pods: watches.NewCollection(podKind, podHistory), copies: newCopies()}
	c.pods.StartEmpty(unboundVersion)
	c.admission = &admission{base: b, pod: c.boundPod}
	pass := &passing{base: b, pod: c.boundPod, status: c.statusTrouble}
	c.nodeAPI = &nodeAPI{base: b, node: c.node, pod: c.boundPod}
	c.ownedAPI = &ownedAPI{
		base:  b,
		node:  c.node,
		lease: newOwned(s, as.name, leaseKind, corev1.NamespaceNodeLease),
		csi:   newOwned(s, as.name, csiNodeKind, ""),
	}
	c.podAPI = &podAPI{base: b, pod: c.boundPod, passing: pass, node: c.node}
	c.volumes = &volumeAPI{base: b, pod: c.boundPod, passing: pass}
	c.shared = &sharedAPI{base: b, pod: c.boundPod, volumes: c.volumes, slices: s.endpoints.acquire(id)}
	c.tokens = &tokenAPI{base: b, pod: c.boundPod, passing: pass, volumes: c.volumes}
	c.eventAPI = &eventAPI{base: b, pod: c.boundPod, passing: pass}
	c.images = &imageAPI{base: b, pod: c.boundPod, told: rate.NewLimiter(toldRate, 1)}
	return c
}

// Usage returns what the cell has asked since this process began.
func (c *Cell) Usage() Usage { return c.budget.used() }

// remove ends all that the cell has.
func (c *Cell) remove() {
	c.end()
	c.boundPod.unbind()
	c.server.endpoints.release(c.id)
}

// ServeHTTP answers one request of the cell.
func (c *Cell) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &counted{ResponseWriter: w, cell: c.limits, rest: func() {}}
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
	if err := c.admission.await(w, r); err != nil {
		return err
	}
	return c.ownedAPI.serveOwned(w, r, c.as.renewal, c.ownedAPI.lease)
}

// serve answers the request or returns the error to answer with.
func (c *Cell) serve(w *counted, r *http.Request) (err error) {
	if err := c.served(); err != nil {
		return err
	}
	if agentapi.IsNotice(r) { // others are taken before
		return apierrors.NewTooManyRequests("a notice came less than "+agentapi.NoticePause.String()+" ago", int(agentapi.NoticePause.Seconds()))
	}
	if isTrustBundleDiscovery(r) {
		return c.shared.serveTrustBundleDiscovery(w, r)
	}
	a, err := c.understand(r)
	if err != nil {
		return err
	}
	if a.isPodStatus() && c.copyOf(a.Namespace, a.Name) == nil {
		defer func() { c.statusTrouble.noteUnstored(err) }()
	}
	done, err := c.admission.admit(w, r, a)
	if err != nil {
		return err
	}
	defer done()
	if r.Method != http.MethodGet && c.admission.bodyLimit(a) > 0 {
		if err := c.admission.receive(w, r); err != nil {
			return err
		}
	}
	if src := c.server.watches.Of(a.resource); src != nil {
		return c.shared.serveShared(w, r, a, src)
	}
	switch a.resource {
	case nodeKind.Resource:
		return c.nodeAPI.serveNode(w, r, a)
	case leaseKind.Resource:
		return c.ownedAPI.serveOwned(w, r, a, c.ownedAPI.lease)
	case csiNodeKind.Resource:
		return c.ownedAPI.serveOwned(w, r, a, c.ownedAPI.csi)
	case podKind.Resource:
		return c.podAPI.servePod(w, r, a)
	case secretKind.Resource:
		return c.shared.serveReference(w, r, a, secretKind)
	case configMapKind.Resource:
		return c.shared.serveReference(w, r, a, configMapKind)
	case trustBundleKind.Resource:
		return c.shared.serveTrustBundles(w, r, a)
	case claims:
		return c.volumes.serveClaim(w, r, a)
	case persistentVolumes:
		return c.volumes.serveVolume(w, r, a)
	case serviceAccounts:
		return c.tokens.serveToken(w, r, a)
	case coreEvents, groupEvents:
		return c.eventAPI.serveEvent(w, r, a)
	case imageCredentials:
		return c.images.serveImageCredentials(w, r, a)
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
