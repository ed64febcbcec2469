package cellapi

import (
	"fmt"
	"net/http"
	"path"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/elotl/kip/internal/watches"
)

// ownedHistory is how many changes of a cell's lease or CSINode are kept; nobody
// but the cell watches them.
const ownedHistory = 2

// owned is an object that a cell's kubelet makes, reads and renews, and that lives
// only here: its lease or its CSINode, named like the node.
type owned struct {
	server     *Server
	name       string // the node's
	kind       *watches.Kind
	namespace  string // "" for cluster scope
	collection *watches.Collection

	mu sync.Mutex // orders changes
}

func newOwned(s *Server, name string, k *watches.Kind, namespace string) *owned {
	o := &owned{
		server:     s,
		name:       name,
		kind:       k,
		namespace:  namespace,
		collection: watches.NewCollection(k, ownedHistory),
	}
	o.collection.StartEmpty(s.nextVersion())
	return o
}

// renewalOf is what a kubelet asks each 10 s.
func renewalOf(nodeName string) *ask {
	kind := leaseKind.Resource
	return &ask{resource: kind, RequestInfo: &request.RequestInfo{
		IsResourceRequest: true,
		Path:              path.Join("/apis", kind.Group, kind.Version, "namespaces", corev1.NamespaceNodeLease, kind.Resource, nodeName),
		Verb:              "update",
		APIPrefix:         "apis",
		APIGroup:          kind.Group,
		APIVersion:        kind.Version,
		Namespace:         corev1.NamespaceNodeLease,
		Resource:          kind.Resource,
		Name:              nodeName,
	}}
}

func (o *owned) current() *watches.Object {
	return o.collection.Get(watches.Key(o.namespace, o.name))
}

// store stores next, which the caller gives away, in the place of old. It is false
// when old is not the object any more. Nothing is computed under the lock.
func (o *owned) store(old *watches.Object, next watches.APIObject) (bool, error) {
	if next.GetName() != o.name || next.GetNamespace() != o.namespace {
		return false, apierrors.NewBadRequest(fmt.Sprintf("the object is %q, it must be %q", watches.Key(next.GetNamespace(), next.GetName()),
			watches.Key(o.namespace, o.name)))
	}
	if old == nil {
		next.SetUID(uuid.NewUUID())
		next.SetCreationTimestamp(metav1.NewTime(o.server.clock.Now().Truncate(1e9)))
	} else {
		conflict := ""
		switch {
		case next.GetUID() != "" && next.GetUID() != old.GetUID():
			conflict = fmt.Sprintf("metadata.uid is %q, the object's is %q", next.GetUID(), old.GetUID())
		case next.GetResourceVersion() != "" && next.GetResourceVersion() != old.GetResourceVersion():
			conflict = "the object has been modified; please apply your changes to the latest version and try again"
		}
		if conflict != "" {
			return false, apierrors.NewConflict(o.kind.GroupResource(), o.name, fmt.Errorf("%s", conflict))
		}
		next.SetUID(old.GetUID())
		next.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	next.SetManagedFields(nil)
	if err := boundedOwned(next); err != nil {
		return false, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current() != old {
		return false, nil
	}
	next.SetResourceVersion(strconv.FormatUint(o.server.nextVersion(), 10))
	stored, err := watches.NewObject(o.kind, next)
	if err != nil {
		return false, err
	}
	o.collection.Put(stored)
	return true, nil
}

// change makes of the object, nil when there is none, what edit says. edit is called
// again, without a lock, when the object has changed meanwhile.
func (o *owned) change(edit func(old *watches.Object) (watches.APIObject, error)) error {
	for range changeAttempts {
		old := o.current()
		next, err := edit(old)
		if err != nil {
			return err
		}
		if stored, err := o.store(old, next); err != nil || stored {
			return err
		}
	}
	return apierrors.NewConflict(o.kind.GroupResource(), o.name, fmt.Errorf("the object has changed %d times meanwhile", changeAttempts))
}

// ownedAPI answers what is asked about the lease and the CSINode of a cell.
type ownedAPI struct {
	*base
	node       *cellNode
	lease, csi *owned
}

// serveOwned answers all that is asked about a lease or a CSINode.
func (c *ownedAPI) serveOwned(w http.ResponseWriter, r *http.Request, a *ask, o *owned) error {
	what := o.kind.Resource.Resource
	switch {
	case a.Subresource != "":
		return c.forbidden(a, what+" have no subresources here")
	case a.Namespace != o.namespace && o.namespace != "":
		return c.forbidden(a, fmt.Sprintf("its %s is in namespace %s", what, o.namespace))
	case a.Name != "" && a.Name != c.as.name:
		return c.forbidden(a, fmt.Sprintf("its %s is named %s", what, c.as.name))
	}
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	switch a.Verb {
	case "get", "list", "watch":
		rd := &reader{
			collection: o.collection,
			clock:      c.server.clock,
			namespace:  o.namespace,
			lifetime:   c.lifetime,
		}
		return c.read(w, r, rd, a)
	case "create":
		return c.writeOwned(w, r, f, o, true)
	case "update":
		return c.writeOwned(w, r, f, o, false)
	case "patch":
		return c.patchOwned(w, r, f, o)
	case "delete":
		return c.deleteOwned(w, f, o)
	}
	return c.forbidden(a, "")
}

// writeOwned creates or updates the object. An update of what does not exist makes it: a
// kubelet that outlived a restart of Kip renews the lease it had.
func (c *ownedAPI) writeOwned(w http.ResponseWriter, r *http.Request, f format, o *owned, create bool) error {
	sent, err := decodeBody[watches.APIObject](r, o.kind.GVK())
	if err != nil {
		return err
	}
	code := http.StatusOK
	if create {
		code = http.StatusCreated
		if sent.GetNamespace() == "" {
			sent.SetNamespace(o.namespace)
		}
	}
	if err := o.change(func(old *watches.Object) (watches.APIObject, error) {
		if create && old != nil {
			return nil, apierrors.NewAlreadyExists(o.kind.GroupResource(), o.name)
		}
		return sent.DeepCopyObject().(watches.APIObject), nil
	}); err != nil {
		return err
	}
	return c.answerOwned(w, f, o, code)
}

func (c *ownedAPI) patchOwned(w http.ResponseWriter, r *http.Request, f format, o *owned) error {
	p, err := readPatch(r)
	if err != nil {
		return err
	}
	if err := o.change(func(old *watches.Object) (watches.APIObject, error) {
		if old == nil {
			return nil, o.missing()
		}
		next := o.kind.New()
		return next, p.apply(old.APIObject, next)
	}); err != nil {
		return err
	}
	return c.answerOwned(w, f, o, http.StatusOK)
}

// answerOwned answers a write with what is there now.
func (c *ownedAPI) answerOwned(w http.ResponseWriter, f format, o *owned, code int) error {
	if o.kind == leaseKind {
		c.node.heartbeat()
	}
	now := o.current()
	if now == nil { // deleted meanwhile
		return o.missing()
	}
	e, err := formOf(now, f)
	if err != nil {
		return err
	}
	writePieces(w, f, code, e.Whole)
	return nil
}

func (c *ownedAPI) deleteOwned(w http.ResponseWriter, f format, o *owned) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.current()
	if old == nil {
		return o.missing()
	}
	o.collection.Remove(old.At(c.server.nextVersion()))
	writeObject(w, f, http.StatusOK, success())
	return nil
}

// missing says that there is no such object.
func (o *owned) missing() error { return apierrors.NewNotFound(o.kind.GroupResource(), o.name) }

func success() *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}
}

// CSIDrivers returns the CSI drivers that the cell's kubelet has registered, by its
// CSINode. A kubelet makes that once: it is not known of one that did before this
// process.
func (c *ownedAPI) CSIDrivers() (registered []string, known bool) {
	o := c.csi.current()
	if o == nil {
		return nil, false
	}
	node, ok := o.APIObject.(*storagev1.CSINode)
	if !ok {
		return nil, false
	}
	for _, d := range node.Spec.Drivers {
		registered = append(registered, d.Name)
	}
	return registered, true
}
