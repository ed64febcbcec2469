package cellapi

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// ownedHistory is how many changes of a cell's lease or CSINode are kept; nobody
// but the cell watches them.
const ownedHistory = 2

// owned is an object that a cell's kubelet makes, reads and renews, and that lives
// only here: its lease or its CSINode, named like the node.
type owned struct {
	server     *Server
	kind       *kind
	namespace  string // "" for cluster scope
	collection *collection

	mu sync.Mutex // orders changes
}

func newOwned(s *Server, k *kind, namespace string) *owned {
	o := &owned{server: s, kind: k, namespace: namespace, collection: newCollection(k, ownedHistory)}
	o.collection.startEmpty(s.nextVersion())
	return o
}

func (o *owned) current() *object { return o.collection.get(key(o.namespace, o.server.nodeName)) }

// store stores next, which the caller gives away. o.mu is held.
func (o *owned) store(next apiObject) error {
	if next.GetName() != o.server.nodeName || next.GetNamespace() != o.namespace {
		return apierrors.NewBadRequest(fmt.Sprintf("the object is %q, it must be %q", key(next.GetNamespace(), next.GetName()), key(o.namespace, o.server.nodeName)))
	}
	old := o.current()
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
			return apierrors.NewConflict(o.kind.groupResource(), o.server.nodeName, fmt.Errorf("%s", conflict))
		}
		next.SetUID(old.GetUID())
		next.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	next.SetManagedFields(nil)
	next.SetResourceVersion(strconv.FormatUint(o.server.nextVersion(), 10))
	stored, err := newObject(o.kind, next)
	if err != nil {
		return err
	}
	o.collection.put(stored)
	return nil
}

// serveOwned answers all that is asked about a lease or a CSINode.
func (c *Cell) serveOwned(w http.ResponseWriter, r *http.Request, a *ask, o *owned) error {
	what := o.kind.resource.Resource
	switch {
	case a.Subresource != "":
		return c.forbidden(a, what+" have no subresources here")
	case a.Namespace != o.namespace && o.namespace != "":
		return c.forbidden(a, fmt.Sprintf("its %s is in namespace %s", what, o.namespace))
	case a.Name != "" && a.Name != c.server.nodeName:
		return c.forbidden(a, fmt.Sprintf("its %s is named %s", what, c.server.nodeName))
	}
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	answer := func(code int) error {
		e, err := o.current().form(f)
		if err != nil {
			return err
		}
		writePieces(w, f, code, e.whole)
		return nil
	}
	missing := apierrors.NewNotFound(o.kind.groupResource(), c.server.nodeName)

	switch a.Verb {
	case "get", "list", "watch":
		rd := &reader{collection: o.collection, clock: c.server.clock, namespace: o.namespace, lifetime: c.lifetime}
		return c.read(w, r, rd, a)
	case "create", "update":
		sent, err := decodeBody[apiObject](r)
		if err != nil {
			return err
		}
		if got, want := fmt.Sprintf("%T", sent), fmt.Sprintf("%T", o.kind.new()); got != want {
			return apierrors.NewBadRequest(fmt.Sprintf("the body is a %s, it must be a %s", got, want))
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		code := http.StatusOK
		if a.Verb == "create" {
			if o.current() != nil {
				return apierrors.NewAlreadyExists(o.kind.groupResource(), c.server.nodeName)
			}
			code = http.StatusCreated
			if sent.GetNamespace() == "" {
				sent.SetNamespace(o.namespace)
			}
		}
		// An update of what does not exist makes it: a kubelet that outlived a
		// restart of Kip renews the lease it had.
		if err := o.store(sent); err != nil {
			return err
		}
		if o.kind == leaseKind {
			c.node.heartbeat()
		}
		return answer(code)
	case "patch":
		p, err := readPatch(r)
		if err != nil {
			return err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		old := o.current()
		if old == nil {
			return missing
		}
		next := o.kind.new()
		if err := p.apply(old.apiObject, next); err != nil {
			return err
		}
		if err := o.store(next); err != nil {
			return err
		}
		if o.kind == leaseKind {
			c.node.heartbeat()
		}
		return answer(http.StatusOK)
	case "delete":
		o.mu.Lock()
		defer o.mu.Unlock()
		old := o.current()
		if old == nil {
			return missing
		}
		o.collection.remove(old.at(c.server.nextVersion()))
		writeObject(w, f, http.StatusOK, success())
		return nil
	}
	return c.forbidden(a, "")
}

func success() *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}
}
