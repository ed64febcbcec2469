package cellapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metascheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/internal/watches"
)

const (
	nodeName = "kip-0"
	nodeUser = "system:node:kip-0"
	// secondNode is another virtual node of the same Kip.
	secondNode = "kip-0-2"
)

// apiServer is a small API server in memory. It keeps every version, watches from
// any of them, speaks JSON and protobuf through the library's own codecs, and
// refuses what the Node authorizer refuses a node, or RBAC Kip's own account.
type apiServer struct {
	t    testing.TB
	http *httptest.Server

	mu       sync.Mutex
	rv       uint64
	objects  map[string]watches.APIObject // resource/namespace/name
	history  []apiEvent
	changed  chan struct{}
	requests []apiRequest
	watching map[string]int // open watches by resource and selector
	// refuse, when set, may refuse a request first.
	refuse func(apiRequest) error
	// stale makes lists of pods with a resource version show none, as from a
	// replica that lags; reads of the latest state are right.
	stale bool
}

type apiEvent struct {
	kind     watch.EventType
	resource string
	object   watches.APIObject
	rv       uint64
}

type apiRequest struct {
	user, verb, resource, subresource, namespace, name string
	selector, contentType, body                        string
}

func newAPIServer(t testing.TB) *apiServer {
	t.Helper()
	s := &apiServer{t: t, rv: 100, objects: map[string]watches.APIObject{}, changed: make(chan struct{}), watching: map[string]int{}}
	s.http = httptest.NewServer(s)
	t.Cleanup(func() { s.http.CloseClientConnections(); s.http.Close() })
	return s
}

// asNode and asKip are the client configurations of the node and of Kip itself.
func (s *apiServer) asNode() *rest.Config {
	return &rest.Config{Host: s.http.URL, Impersonate: rest.ImpersonationConfig{UserName: nodeUser, Groups: []string{"system:nodes"}}}
}

func (s *apiServer) asKip() *rest.Config { return &rest.Config{Host: s.http.URL} }

func resourceOf(o watches.APIObject) string {
	switch o.(type) {
	case *corev1.Pod:
		return "pods"
	case *corev1.Secret:
		return "secrets"
	case *corev1.ConfigMap:
		return "configmaps"
	case *corev1.Node:
		return "nodes"
	case *corev1.Event:
		return "events"
	case *corev1.PersistentVolume:
		return "persistentvolumes"
	case *corev1.ServiceAccount:
		return "serviceaccounts"
	case *corev1.PersistentVolumeClaim:
		return "persistentvolumeclaims"
	}
	for _, k := range watches.SharedKinds() {
		if fmt.Sprintf("%T", k.New()) == fmt.Sprintf("%T", o) {
			return k.Resource.Resource
		}
	}
	panic(fmt.Sprintf("no resource for %T", o))
}

func path3(resource, namespace, name string) string { return resource + "/" + namespace + "/" + name }

func (s *apiServer) pathOf(o watches.APIObject) string {
	return path3(resourceOf(o), o.GetNamespace(), o.GetName())
}

// put creates or changes an object and returns it as stored.
func (s *apiServer) put(o watches.APIObject) watches.APIObject {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.putLocked(o)
}

func (s *apiServer) putLocked(o watches.APIObject) watches.APIObject {
	o = o.DeepCopyObject().(watches.APIObject)
	p := s.pathOf(o)
	s.rv++
	o.SetResourceVersion(strconv.FormatUint(s.rv, 10))
	t := watch.Added
	if old := s.objects[p]; old != nil {
		t = watch.Modified
		if o.GetUID() == "" {
			o.SetUID(old.GetUID())
		}
	}
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", s.rv)))
	}
	s.objects[p] = o
	s.noteLocked(t, o)
	return o
}

func (s *apiServer) remove(o watches.APIObject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(s.pathOf(o))
}

func (s *apiServer) removeLocked(p string) {
	o := s.objects[p].DeepCopyObject().(watches.APIObject)
	delete(s.objects, p)
	s.rv++
	o.SetResourceVersion(strconv.FormatUint(s.rv, 10))
	s.noteLocked(watch.Deleted, o)
}

func (s *apiServer) noteLocked(t watch.EventType, o watches.APIObject) {
	s.history = append(s.history, apiEvent{t, resourceOf(o), o, s.rv})
	close(s.changed)
	s.changed = make(chan struct{})
}

// get returns a stored object, nil when there is none.
func (s *apiServer) get(resource, namespace, name string) watches.APIObject {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path3(resource, namespace, name)]
}

// asked returns the requests so far that keep says yes to.
func (s *apiServer) asked(keep func(apiRequest) bool) []apiRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kept []apiRequest
	for _, r := range s.requests {
		if keep(r) {
			kept = append(kept, r)
		}
	}
	return kept
}

// watches returns the number of open watches, of all kinds.
func (s *apiServer) watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, open := range s.watching {
		n += open
	}
	return n
}

func (s *apiServer) watchesOf(resource, name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watching[resource+" "+name]
}

// authorize is what the Node authorizer and RBAC say.
func authorize(r apiRequest) error {
	no := func(why string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: r.resource}, r.name, fmt.Errorf("user %q: %s", r.user, why))
	}
	read := slices.Contains([]string{"get", "list", "watch"}, r.verb)
	switch r.resource {
	case "endpointslices", "servicecidrs", "networkpolicies", "namespaces":
		if r.user != "" || !read {
			return no("only Kip reads this")
		}
		return nil
	}
	node := strings.TrimPrefix(r.user, "system:node:")
	if node != nodeName && node != secondNode {
		return no("only the node may")
	}
	switch r.resource {
	case "services", "runtimeclasses", "csidrivers":
		if !read {
			return no("read only")
		}
	case "secrets", "configmaps":
		if !read || r.name == "" || r.namespace == "" {
			return no("by name only")
		}
	case "persistentvolumeclaims", "persistentvolumes":
		if r.verb != "get" && (r.verb != "patch" || r.resource != "persistentvolumeclaims" || r.subresource != "status") {
			return no("can only get individual resources of this type")
		}
	case "nodes":
		if !read || r.name != node {
			return no("its own node only")
		}
	case "pods":
		if (r.verb == "list" || r.verb == "watch") && !slices.Contains(strings.Split(r.selector, ","), "spec.nodeName="+node) {
			return no("can only list/watch pods with spec.nodeName field selector")
		}
	case "serviceaccounts", "events":
	default:
		return no("unknown resource")
	}
	return nil
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, err := apiPaths.NewRequestInfo(r)
	if err != nil || !info.IsResourceRequest {
		http.Error(w, "not a resource", http.StatusNotFound)
		return
	}
	b, _ := io.ReadAll(r.Body)
	asked := apiRequest{
		user: r.Header.Get("Impersonate-User"), verb: info.Verb, resource: info.Resource, subresource: info.Subresource,
		namespace: info.Namespace, name: info.Name, selector: info.FieldSelector,
		contentType: r.Header.Get("Content-Type"), body: string(b),
	}
	if asked.user != "" && r.Header.Get("Impersonate-Group") != "system:nodes" {
		s.t.Errorf("%s %s as %s without the group system:nodes", r.Method, r.URL.Path, asked.user)
	}
	if info.Resource == "namespaces" {
		asked.namespace = ""
	}
	s.mu.Lock()
	s.requests = append(s.requests, asked)
	refuse := s.refuse
	s.mu.Unlock()
	if refuse != nil {
		err = refuse(asked)
	}
	if err == nil {
		err = authorize(asked)
	}
	if err == nil {
		err = s.answer(w, r, asked)
	}
	if err != nil {
		status := statusOf(err)
		s.write(w, r, int(status.Code), status, schema.GroupVersion{Version: "v1"})
	}
}

func (s *apiServer) serializer(r *http.Request) runtime.SerializerInfo {
	want := runtime.ContentTypeJSON
	if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		want = runtime.ContentTypeProtobuf
	}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), want)
	if !ok {
		s.t.Errorf("no serializer for %s", want)
	}
	return info
}

func (s *apiServer) write(w http.ResponseWriter, r *http.Request, code int, o runtime.Object, gv schema.GroupVersion) {
	info := s.serializer(r)
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	// The encoder sets the kind on what it encodes; what is stored is shared.
	if err := scheme.Codecs.EncoderForVersion(info.Serializer, gv).Encode(o.DeepCopyObject(), w); err != nil {
		s.t.Errorf("encode %T: %v", o, err)
	}
}

func (s *apiServer) answer(w http.ResponseWriter, r *http.Request, a apiRequest) error {
	info, _ := apiPaths.NewRequestInfo(r)
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	p := path3(a.resource, a.namespace, a.name)
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: a.resource}, a.name)
	switch {
	case a.verb == "get":
		o := s.get(a.resource, a.namespace, a.name)
		if o == nil {
			return notFound
		}
		s.write(w, r, http.StatusOK, o, gv)
		return nil
	case a.verb == "list" || a.verb == "watch":
		return s.listOrWatch(w, r, a, gv)
	case a.resource == "serviceaccounts" && a.subresource == "token":
		o, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), []byte(a.body))
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		s.write(w, r, http.StatusCreated, o, schema.GroupVersion{Group: "authentication.k8s.io", Version: "v1"})
		return nil
	case a.resource == "events" && a.verb == "create":
		o, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), []byte(a.body))
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if e, ok := o.(*corev1.Event); ok {
			e.Namespace = a.namespace
			o = s.put(e)
		}
		s.write(w, r, http.StatusCreated, o, gv)
		return nil
	case a.verb == "patch" && (a.resource == "events" || a.subresource == "status"):
		s.mu.Lock()
		defer s.mu.Unlock()
		old := s.objects[p]
		if old == nil {
			return notFound
		}
		before, err := json.Marshal(old)
		if err != nil {
			return err
		}
		empty := old.DeepCopyObject().(watches.APIObject)
		after, err := strategicpatch.StrategicMergePatch(before, []byte(a.body), empty)
		if a.contentType == string(types.MergePatchType) {
			after, err = jsonpatch.MergePatch(before, []byte(a.body))
		}
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		o, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), withKind(s.t, after, a.resource))
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		next := o.(watches.APIObject)
		if next.GetUID() != old.GetUID() || next.GetResourceVersion() != old.GetResourceVersion() {
			return apierrors.NewConflict(schema.GroupResource{Resource: a.resource}, a.name, fmt.Errorf("UID or version mismatch"))
		}
		s.write(w, r, http.StatusOK, s.putLocked(next), gv)
		return nil
	case a.verb == "delete" && a.resource == "pods":
		options := &metav1.DeleteOptions{}
		if err := json.Unmarshal([]byte(a.body), options); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		old := s.objects[p]
		if old == nil {
			return notFound
		}
		if pre := options.Preconditions; pre != nil && pre.UID != nil && *pre.UID != old.GetUID() {
			return apierrors.NewConflict(schema.GroupResource{Resource: a.resource}, a.name, fmt.Errorf("UID mismatch"))
		}
		s.removeLocked(p)
		s.write(w, r, http.StatusOK, old, gv)
		return nil
	}
	return apierrors.NewMethodNotSupported(schema.GroupResource{Resource: a.resource}, a.verb)
}

func withKind(t testing.TB, b []byte, resource string) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Errorf("patched object: %v", err)
	}
	m["apiVersion"], m["kind"] = "v1", map[string]string{"pods": "Pod", "events": "Event",
		"persistentvolumeclaims": "PersistentVolumeClaim"}[resource]
	b, err := json.Marshal(m)
	if err != nil {
		t.Errorf("patched object: %v", err)
	}
	return b
}

func (s *apiServer) listOrWatch(w http.ResponseWriter, r *http.Request, a apiRequest, gv schema.GroupVersion) error {
	options := &internalversion.ListOptions{}
	if err := metascheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, options); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	matches := func(resource string, o watches.APIObject) bool {
		if resource != a.resource || (a.namespace != "" && a.namespace != o.GetNamespace()) {
			return false
		}
		set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
		if pod, ok := o.(*corev1.Pod); ok {
			set["spec.nodeName"] = pod.Spec.NodeName
		}
		return options.FieldSelector == nil || options.FieldSelector.Matches(set)
	}
	gvk := gv.WithKind(kindOf(a.resource))
	s.mu.Lock()
	stale := s.stale && a.resource == "pods" && (a.verb == "watch" || options.ResourceVersion != "")
	var items []runtime.Object
	for p, o := range s.objects {
		if matches(strings.SplitN(p, "/", 2)[0], o) && !stale {
			items = append(items, o)
		}
	}
	rv, next := s.rv, len(s.history)
	s.mu.Unlock()

	if a.verb == "list" {
		list, err := scheme.Scheme.New(gv.WithKind(gvk.Kind + "List"))
		if err != nil {
			return err
		}
		if err := meta.SetList(list, items); err != nil {
			return err
		}
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			return err
		}
		accessor.SetResourceVersion(strconv.FormatUint(rv, 10))
		s.write(w, r, http.StatusOK, list, gv)
		return nil
	}

	open := a.resource + " " + a.name
	s.mu.Lock()
	s.watching[open]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.watching[open]--
		s.mu.Unlock()
	}()

	info := s.serializer(r)
	mediaType := info.MediaType
	if mediaType == runtime.ContentTypeProtobuf {
		mediaType += ";stream=watch"
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(http.StatusOK)
	framer := info.StreamSerializer.Framer.NewFrameWriter(w)
	send := func(t watch.EventType, o runtime.Object) bool {
		raw, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, gv), o.DeepCopyObject())
		if err != nil {
			s.t.Errorf("encode %T: %v", o, err)
			return false
		}
		e := &metav1.WatchEvent{Type: string(t), Object: runtime.RawExtension{Raw: raw}}
		if err := info.StreamSerializer.Serializer.Encode(e, framer); err != nil {
			return false
		}
		w.(http.Flusher).Flush()
		return true
	}
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if initial {
		for _, o := range items {
			if !send(watch.Added, o) {
				return nil
			}
		}
		o, err := scheme.Scheme.New(gvk)
		if err != nil {
			return err
		}
		bookmark := o.(watches.APIObject)
		bookmark.SetResourceVersion(strconv.FormatUint(rv, 10))
		bookmark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		send(watch.Bookmark, bookmark)
	} else if from, err := strconv.ParseUint(options.ResourceVersion, 10, 64); err == nil {
		s.mu.Lock()
		for next = 0; next < len(s.history) && s.history[next].rv <= from; next++ {
		}
		s.mu.Unlock()
	}
	w.(http.Flusher).Flush()
	for {
		s.mu.Lock()
		events, changed := s.history[next:], s.changed
		next = len(s.history)
		s.mu.Unlock()
		for _, e := range events {
			if matches(e.resource, e.object) && !send(e.kind, e.object) {
				return nil
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		}
	}
}

func kindOf(resource string) string {
	for _, k := range watches.SharedKinds() {
		if k.Resource.Resource == resource {
			return k.Name
		}
	}
	return map[string]string{"pods": "Pod", "secrets": "Secret", "configmaps": "ConfigMap", "nodes": "Node"}[resource]
}
