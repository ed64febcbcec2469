package cellapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/watches"
)

// reportedEvents is how many of its latest events a cell may still change. A
// kubelet changes an event when it recurs, and makes a new one when it cannot.
const reportedEvents = 128

// eventAPI takes the events that a cell reports.
type eventAPI struct {
	*base
	pod     *boundPod
	passing *passing

	mu       sync.Mutex
	reported []string // names of events that this cell made, newest last
	trouble  string   // the last warning about a plugin
}

// serveEvent passes on events about the pod and its claims. Those about the node and about plugins
// are acknowledged and dropped.
func (c *eventAPI) serveEvent(w http.ResponseWriter, r *http.Request, a *ask) error {
	if a.Subresource != "" || (a.Verb != "create" && a.Verb != "patch") {
		return c.forbidden(a, "it may only report events")
	}
	if err := c.paced(r.Context(), w, c.events, 1, limitEvents,
		"cell %s reports more than %d event a second", c.id, int(c.events.Limit())); err != nil {
		return err
	}
	if a.Verb == "patch" {
		return c.passEventPatch(w, r, a)
	}
	sent, err := decodeBody[watches.APIObject](r, a.resource.GroupVersion().WithKind("Event"))
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

	if about.Kind == "Node" && about.Name == c.as.name && a.Namespace == metav1.NamespaceDefault {
		return c.acknowledge(w, r, a, sent)
	}
	b := c.pod.bound()
	if about.Kind == "Pod" && (b == nil || about.UID != b.uid) && about.Namespace == a.Namespace &&
		agentapi.IsPluginPod(about.Namespace, about.Name) {
		c.notePlugin(sent)
		return c.acknowledge(w, r, a, sent)
	}
	if about.Kind == "Pod" && about.Namespace == a.Namespace && c.pod.ranBeside(about.UID) {
		// One pod stands for the copies on all cells: its events would be theirs, all at once.
		c.noteCopy(about.UID, sent)
		return c.acknowledge(w, r, a, sent)
	}
	isPod := b != nil && about.Kind == "Pod" && about.Namespace == b.namespace && about.Name == b.name && about.UID == b.uid
	isClaim := about.Kind == "PersistentVolumeClaim"
	if isClaim {
		if err := c.pod.knowsPod(w, r); err != nil {
			return err
		}
		b = c.pod.bound()
		isClaim = b != nil && c.pod.names(about.Namespace, about.Name)
	}
	if !isPod && !isClaim || a.Namespace != b.namespace {
		return c.forbidden(a, "only events about its own pod and its claims")
	}
	encoded, err := encode(formatJSON, c.eventOf(sent, about))
	if err != nil {
		return err
	}
	if err := c.chargeEvent(w, r, encoded); err != nil {
		return err
	}
	return c.passing.pass(w, r, a, body{mediaType: runtime.ContentTypeJSON, bytes: encoded}, func(answer []byte) error {
		if made, err := decode[watches.APIObject](answer); err == nil {
			c.reports(made.GetName())
		}
		return nil
	})
}

// acknowledge answers as if an event had been made.
func (c *eventAPI) acknowledge(w http.ResponseWriter, r *http.Request, a *ask, event watches.APIObject) error {
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
var recurring = map[string]shape{
	"count": whole, "deprecatedCount": whole, "lastTimestamp": moment, "deprecatedLastTimestamp": moment,
	"message": message(maxEventMessage), "note": message(maxNote),
	"series": fieldsOf(map[string]shape{"count": whole, "lastObservedTime": moment}),
}

const (
	// maxNote is the longest message of an event that has an eventTime, in bytes
	// (k8s.io/kubernetes/pkg/apis/core/validation/events.go, NoteLengthLimit).
	maxNote = 1 << 10
	// maxEventMessage is that of another, as a kubelet's are. The API server takes any; the
	// longest of a kubelet are a runtime's errors, of some kilobytes.
	maxEventMessage = 8 << 10
)

// eventOf makes an event anew of what a kubelet reports. It is told in the name of the
// node's kubelet, whatever it says.
func (c *eventAPI) eventOf(sent watches.APIObject, about corev1.ObjectReference) watches.APIObject {
	meta := metav1.ObjectMeta{Name: cut(sent.GetName(), 253), Namespace: about.Namespace}
	about = corev1.ObjectReference{
		Kind:            about.Kind,
		APIVersion:      "v1",
		Namespace:       about.Namespace,
		Name:            about.Name,
		UID:             types.UID(cut(string(about.UID), 64)),
		ResourceVersion: cut(about.ResourceVersion, 32),
		FieldPath:       cut(about.FieldPath, 256),
	}
	source := corev1.EventSource{Component: "kubelet", Host: c.as.name}
	switch e := sent.(type) {
	case *eventsv1.Event:
		made := &eventsv1.Event{
			TypeMeta:                 e.TypeMeta,
			ObjectMeta:               meta,
			Regarding:                about,
			Reason:                   cut(e.Reason, 128),
			Note:                     cut(e.Note, maxNote),
			Type:                     typeOf(e.Type),
			Action:                   cut(e.Action, 128),
			EventTime:                e.EventTime,
			ReportingController:      "kubelet",
			ReportingInstance:        c.as.name,
			DeprecatedSource:         source,
			DeprecatedFirstTimestamp: e.DeprecatedFirstTimestamp,
			DeprecatedLastTimestamp:  e.DeprecatedLastTimestamp,
			DeprecatedCount:          e.DeprecatedCount,
			Series:                   e.Series,
		}
		if made.Action == "" {
			made.Action = made.Reason
		}
		return made
	case *corev1.Event:
		most := maxEventMessage
		if !e.EventTime.IsZero() {
			most = maxNote
		}
		return &corev1.Event{
			TypeMeta:            e.TypeMeta,
			ObjectMeta:          meta,
			InvolvedObject:      about,
			Reason:              cut(e.Reason, 128),
			Message:             cut(e.Message, most),
			Type:                typeOf(e.Type),
			Source:              source,
			FirstTimestamp:      e.FirstTimestamp,
			LastTimestamp:       e.LastTimestamp,
			Count:               e.Count,
			EventTime:           e.EventTime,
			Series:              e.Series,
			Action:              cut(e.Action, 128),
			ReportingController: "kubelet",
			ReportingInstance:   c.as.name,
		}
	}
	return sent
}

// typeOf is the type of an event: one that is not known is a warning.
func typeOf(t string) string {
	if t == corev1.EventTypeNormal {
		return t
	}
	return corev1.EventTypeWarning
}

func (c *eventAPI) passEventPatch(w http.ResponseWriter, r *http.Request, a *ask) error {
	b := c.pod.bound()
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
	for k := range change {
		if recurring[k] == nil {
			return c.forbidden(a, fmt.Sprintf("field %q of an event does not change, these do: %q", cut(k, 64), slices.Sorted(maps.Keys(recurring))))
		}
	}
	made, err := fieldsOf(recurring)(nil, change)
	if err != nil {
		return err
	}
	patched, err := json.Marshal(made)
	if err != nil {
		return fmt.Errorf("encode the patch of event %s/%s: %w", a.Namespace, a.Name, err)
	}
	if err := c.chargeEvent(w, r, patched); err != nil {
		return err
	}
	return c.passing.pass(w, r, a, body{mediaType: string(p.kind), bytes: patched}, nil)
}

// reports notes an event that the cell made.
func (c *eventAPI) reports(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.reported) == reportedEvents {
		c.reported = slices.Delete(c.reported, 0, 1)
	}
	c.reported = append(c.reported, name)
}

func (c *eventAPI) hasReported(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.reported, name)
}
