package cellapi

import (
	"net/http"

	"github.com/elotl/kip/internal/watches"
)

// sharedAPI answers from what cells share: kinds that all see, and objects that pods name.
type sharedAPI struct {
	*base
	pod     *boundPod
	volumes *volumeAPI
	slices  *watches.Collection // the EndpointSlices that the cell is shown
}

// serveShared answers from what all cells see.
func (c *sharedAPI) serveShared(w http.ResponseWriter, r *http.Request, a *ask, src *watches.Source) error {
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
func (c *sharedAPI) serveReference(w http.ResponseWriter, r *http.Request, a *ask, k *watches.Kind) error {
	if a.Subresource != "" || (a.Verb != "get" && a.Verb != "list" && a.Verb != "watch") {
		return c.forbidden(a, a.Resource+" can only be read")
	}
	if a.Name == "" || a.Namespace == "" {
		return c.forbidden(a, "only by name, those that its pod names")
	}
	if err := c.pod.knowsPod(w, r); err != nil {
		return err
	}
	ref := c.pod.reference(watches.Ref{
		Node:      c.as.name,
		Kind:      k,
		Namespace: a.Namespace,
		Name:      a.Name,
	})
	if ref == nil && k == secretKind && a.Verb == "get" {
		return c.volumes.serveVolumeSecret(w, r, a)
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
