package hollow

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	corevalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const nodeName = "kip-0"

// apiServer is as much of an API server as the cell API needs to serve a pod: one
// node, pods, and nothing of every other kind. It answers in JSON.
type apiServer struct {
	t testing.TB

	mu      sync.Mutex
	rv      int64
	node    *corev1.Node
	pods    map[string]*corev1.Pod
	history []change
	changed chan struct{}
	// requests counts what was asked but reads, by verb and resource.
	requests map[string]int
	noTokens bool
}

type change struct {
	kind string
	pod  *corev1.Pod
	rv   int64
}

func newAPIServer(t testing.TB) *apiServer {
	return &apiServer{
		t: t, rv: 1000, pods: map[string]*corev1.Pod{}, changed: make(chan struct{}), requests: map[string]int{},
		node: &corev1.Node{
			TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid", ResourceVersion: "1"},
		},
	}
}

func (s *apiServer) store(kind string, pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	s.rv++
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	pod.ResourceVersion = strconv.FormatInt(s.rv, 10)
	if pod.UID == "" {
		pod.UID = types.UID(fmt.Sprintf("uid-%d", s.rv))
	}
	key := pod.Namespace + "/" + pod.Name
	if s.pods[key] = pod; kind == "DELETED" {
		delete(s.pods, key)
	}
	s.history = append(s.history, change{kind, pod, s.rv})
	close(s.changed)
	s.changed = make(chan struct{})
	return pod
}

// create makes a pod on the node.
func (s *apiServer) create(pod *corev1.Pod) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod.Spec.NodeName = nodeName
	return s.store("ADDED", pod)
}

// remove asks for a pod's deletion, as a user does.
func (s *apiServer) remove(pod *corev1.Pod, grace int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[pod.Namespace+"/"+pod.Name].DeepCopy()
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	s.store("MODIFIED", p)
}

// await returns the first state of the pod, in the order of its history, for which
// is holds; nil stands for its deletion.
func (s *apiServer) await(uid types.UID, is func(*corev1.Pod) bool) *corev1.Pod {
	s.t.Helper()
	for at := 0; ; {
		s.mu.Lock()
		news, changed := s.history[at:], s.changed
		at = len(s.history)
		s.mu.Unlock()
		for _, c := range news {
			if c.pod.UID != uid {
				continue
			}
			if c.kind == "DELETED" {
				if is(nil) {
					return c.pod
				}
				s.t.Fatalf("pod %s is deleted, with status %+v", c.pod.Name, c.pod.Status)
			}
			if is(c.pod) {
				return c.pod
			}
		}
		<-changed
	}
}

// phases are the different phases that a pod went through, in order.
func (s *apiServer) phases(uid types.UID) []corev1.PodPhase {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []corev1.PodPhase
	for _, c := range s.history {
		if c.pod.UID == uid {
			all = append(all, c.pod.Status.Phase)
		}
	}
	return slices.Compact(all)
}

func (s *apiServer) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[what]
}

func isPhase(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == phase }
}

func isDeleted(p *corev1.Pod) bool { return p == nil }

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	isPod := len(parts) >= 6 && parts[2] == "namespaces" && parts[4] == "pods"
	switch {
	case r.Method == http.MethodPatch && isPod && len(parts) == 7 && parts[6] == "status":
		s.patchStatus(w, r, parts[3]+"/"+parts[5])
	case r.Method == http.MethodDelete && isPod && len(parts) == 6:
		s.delete(w, r, parts[3]+"/"+parts[5])
	case r.Method == http.MethodGet && isPod && len(parts) == 6:
		s.get(w, parts[3]+"/"+parts[5])
	case r.Method == http.MethodPost && len(parts) == 5 && parts[4] == "events":
		s.echo(w, r, func(e map[string]any) { s.note("create events of " + e["reason"].(string)) })
	case r.Method == http.MethodPost && len(parts) == 7 && parts[6] == "token" && !s.hasTokens():
		s.fail(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "no tokens today")
	case r.Method == http.MethodPost && len(parts) == 7 && parts[6] == "token":
		s.echo(w, r, func(token map[string]any) {
			s.note("create tokens of " + parts[5])
			seconds := token["spec"].(map[string]any)["expirationSeconds"].(float64)
			until := time.Now().Add(time.Duration(seconds) * time.Second)
			token["status"] = map[string]any{"token": "secret", "expirationTimestamp": until.Format(time.RFC3339)}
		})
	case r.Method == http.MethodGet && !isPod:
		s.read(w, r, parts[len(parts)-1])
	default:
		http.Error(w, "not served", http.StatusMethodNotAllowed)
	}
}

func (s *apiServer) setTokens(has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noTokens = !has
}

func (s *apiServer) hasTokens() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.noTokens
}

func (s *apiServer) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[what]++
}

// echo answers a creation with what was sent, after add.
func (s *apiServer) echo(w http.ResponseWriter, r *http.Request, add func(map[string]any)) {
	object := map[string]any{}
	if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
		s.t.Errorf("%s: %v", r.URL.Path, err)
	}
	add(object)
	answer(w, http.StatusCreated, object)
}

func (s *apiServer) get(w http.ResponseWriter, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pod := s.pods[key]; pod != nil {
		answer(w, http.StatusOK, pod)
		return
	}
	s.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such pod")
}

func (s *apiServer) fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func (s *apiServer) patchStatus(w http.ResponseWriter, r *http.Request, key string) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests["patch pods/status"]++
	old := s.pods[key]
	if old == nil {
		s.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such pod")
		return
	}
	before, err := json.Marshal(old)
	if err != nil {
		s.t.Error(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, corev1.Pod{})
	next := &corev1.Pod{}
	if err == nil {
		err = json.Unmarshal(after, next)
	}
	switch {
	case err != nil:
		s.fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	case next.UID != old.UID:
		s.fail(w, http.StatusConflict, metav1.StatusReasonConflict, "another UID")
		return
	}
	if errs := corevalidation.ValidateObjectMeta(&next.ObjectMeta, true, corevalidation.NameIsDNSSubdomain,
		field.NewPath("metadata")); len(errs) > 0 {
		s.t.Errorf("the patched pod: %v", errs)
	}
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		if old.Status.Phase == phase && next.Status.Phase != phase {
			s.t.Errorf("pod %s was %s and became %s", key, phase, next.Status.Phase)
		}
	}
	next.Spec = old.Spec
	answer(w, http.StatusOK, s.store("MODIFIED", next))
}

func (s *apiServer) delete(w http.ResponseWriter, r *http.Request, key string) {
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil {
		s.t.Errorf("options of a deletion: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests["delete pods"]++
	old := s.pods[key]
	switch {
	case old == nil:
		s.fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such pod")
		return
	case options.Preconditions == nil || options.Preconditions.UID == nil || *options.Preconditions.UID != old.UID:
		s.fail(w, http.StatusConflict, metav1.StatusReasonConflict, "another UID")
		return
	case options.GracePeriodSeconds == nil || *options.GracePeriodSeconds != 0:
		s.t.Errorf("pod %s is deleted with grace %v", key, options.GracePeriodSeconds)
	}
	answer(w, http.StatusOK, s.store("DELETED", old))
}

// read answers a list, or a watch that begins with its objects.
func (s *apiServer) read(w http.ResponseWriter, r *http.Request, resource string) {
	q := r.URL.Query()
	s.mu.Lock()
	rv, at, changed := s.rv, len(s.history), s.changed
	var items []runtime.Object
	switch resource {
	case "pods":
		for _, p := range s.pods {
			items = append(items, p)
		}
	case "nodes":
		items = append(items, s.node)
	}
	s.mu.Unlock()
	meta := map[string]any{"resourceVersion": strconv.FormatInt(rv, 10)}
	if q.Get("watch") == "" {
		answer(w, http.StatusOK, map[string]any{"kind": kindOf(resource) + "List", "apiVersion": apiVersion(r.URL.Path), "metadata": meta,
			"items": items})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	send := func(kind string, object any) {
		_ = out.Encode(map[string]any{"type": kind, "object": object})
	}
	if q.Get("sendInitialEvents") == "true" {
		for _, o := range items {
			send("ADDED", o)
		}
		meta["annotations"] = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		send("BOOKMARK", map[string]any{"kind": kindOf(resource), "apiVersion": apiVersion(r.URL.Path), "metadata": meta})
	} else if from, err := strconv.ParseInt(q.Get("resourceVersion"), 10, 64); err == nil {
		at, _ = slices.BinarySearchFunc(s.history[:at], from+1, func(c change, rv int64) int { return int(c.rv - rv) })
	}
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		s.mu.Lock()
		news := s.history[at:]
		at, changed = len(s.history), s.changed
		s.mu.Unlock()
		for _, c := range news {
			if resource == "pods" {
				send(c.kind, c.pod)
			}
		}
	}
}

func apiVersion(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		return parts[1]
	}
	return parts[1] + "/" + parts[2]
}

func kindOf(resource string) string {
	return map[string]string{
		"pods": "Pod", "nodes": "Node", "services": "Service", "endpointslices": "EndpointSlice", "namespaces": "Namespace",
		"runtimeclasses": "RuntimeClass", "csidrivers": "CSIDriver", "networkpolicies": "NetworkPolicy",
		"servicecidrs": "ServiceCIDR", "configmaps": "ConfigMap", "secrets": "Secret",
	}[resource]
}
