package cellapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/elotl/kip/internal/agent/agentapi"
)

// reportedEvents is how many of its latest events a cell may still change. A
// kubelet changes an event when it recurs, and makes a new one when it cannot.
const reportedEvents = 128

// serveEvent passes on events about the pod. Those about the node and about plugins
// are acknowledged and dropped.
func (c *Cell) serveEvent(w http.ResponseWriter, r *http.Request, a *ask) error {
	if a.Subresource != "" || (a.Verb != "create" && a.Verb != "patch") {
		return c.forbidden(a, "it may only report events")
	}
	if !c.events.AllowN(c.server.clock.Now(), 1) {
		return apierrors.NewTooManyRequests(fmt.Sprintf("cell %s reports more than %d event a second", c.id, eventRate), 1)
	}
	if a.Verb == "patch" {
		return c.passEventPatch(w, r, a)
	}
	sent, err := decodeBody[apiObject](r)
	if err != nil {
		return err
	}
	var about corev1.ObjectReference
	switch e := sent.(type) {
	case *corev1.Event:
		about = e.InvolvedObject
	case *eventsv1.Event:
		about = e.Regarding
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("a %T is not an event", sent))
	}
	if got, want := sent.GetObjectKind().GroupVersionKind().GroupVersion(), a.resource.GroupVersion(); !got.Empty() && got != want {
		return apierrors.NewBadRequest(fmt.Sprintf("apiVersion is %q, it must be %q", got, want))
	}
	if sent.GetNamespace() != "" && sent.GetNamespace() != a.Namespace {
		return apierrors.NewBadRequest(fmt.Sprintf("metadata.namespace is %q, it must be %q", sent.GetNamespace(), a.Namespace))
	}
	sent.GetObjectKind().SetGroupVersionKind(a.resource.GroupVersion().WithKind("Event"))

	if about.Kind == "Node" && about.Name == c.server.nodeName && a.Namespace == metav1.NamespaceDefault {
		return c.acknowledge(w, r, a, sent)
	}
	b := c.bound()
	if isPod := b != nil && about.UID == b.uid; about.Kind == "Pod" && !isPod && about.Namespace == a.Namespace && agentapi.IsPluginPod(about.Namespace, about.Name) {
		c.notePlugin(sent)
		return c.acknowledge(w, r, a, sent)
	}
	if b == nil || about.Kind != "Pod" || about.Namespace != b.namespace || about.Name != b.name || about.UID != b.uid || a.Namespace != b.namespace {
		return c.forbidden(a, "only events about its own pod")
	}
	encoded, err := encode(formatJSON, sent)
	if err != nil {
		return err
	}
	return c.pass(w, r, a, body{mediaType: runtime.ContentTypeJSON, bytes: encoded}, func(answer []byte) error {
		if made, err := decode[apiObject](answer); err == nil {
			c.reports(made.GetName())
		}
		return nil
	})
}

// acknowledge answers as if an event had been made.
func (c *Cell) acknowledge(w http.ResponseWriter, r *http.Request, a *ask, event apiObject) error {
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	event.SetNamespace(a.Namespace)
	event.SetUID(uuid.NewUUID())
	event.SetCreationTimestamp(metav1.NewTime(c.server.clock.Now().Truncate(1e9)))
	writeObject(w, f, http.StatusCreated, event)
	return nil
}

// recurring are the fields of an event that change when it recurs. What it is
// about is not among them.
var recurring = sets.New("count", "lastTimestamp", "message", "note", "series", "deprecatedCount", "deprecatedLastTimestamp")

func (c *Cell) passEventPatch(w http.ResponseWriter, r *http.Request, a *ask) error {
	b := c.bound()
	if b == nil || a.Namespace != b.namespace || !c.hasReported(a.Name) {
		// The kubelet then makes the event anew.
		return apierrors.NewNotFound(a.resource.GroupResource(), a.Name)
	}
	p, err := readPatch(r)
	if err != nil {
		return err
	}
	var change map[string]any
	if err := utiljson.Unmarshal(p.body, &change); err != nil || change == nil {
		return apierrors.NewBadRequest(fmt.Sprintf("the patch is not a JSON object: %v", err))
	}
	for field := range change {
		if !recurring.Has(field) {
			return c.forbidden(a, fmt.Sprintf("field %q of an event does not change, these do: %q", field, sets.List(recurring)))
		}
	}
	patched, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode the patch of event %s/%s: %w", a.Namespace, a.Name, err)
	}
	return c.pass(w, r, a, body{mediaType: string(p.kind), bytes: patched}, nil)
}

// reports notes an event that the cell made.
func (c *Cell) reports(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.reported) == reportedEvents {
		c.reported = slices.Delete(c.reported, 0, 1)
	}
	c.reported = append(c.reported, name)
}

func (c *Cell) hasReported(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.reported, name)
}
