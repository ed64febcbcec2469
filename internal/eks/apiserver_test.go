package eks

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/internal/eks/wellknown"
)

// apiServer keeps objects by their paths. It knows reads, creation, updates and server-side apply of one manager, dry runs, and reviews of
// rights. What it is given it keeps as it is. Kip's pod is Ready at once, and so is its node.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex
	objects map[string]map[string]any
	writes  []string // paths that were written
	// version is that of Kubernetes, status what all is answered with that is not 200, and denied the resource that nobody may patch.
	version, denied string
	status          int
	// pulls is the only image that can be pulled; "" for any. A pod of another is never Ready, and as in Kubernetes its StatefulSet does not
	// replace it. deleted are the paths of objects that were deleted.
	pulls   string
	deleted []string
	// template is that of the StatefulSet, and revision counts those that it had.
	template string
	revision int
}

type object = map[string]any

func newAPIServer(t *testing.T, objects map[string]object) *apiServer {
	t.Helper()
	s := &apiServer{objects: objects, version: "v1.34.1-eks-1"}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) connect() (*Kubernetes, error) {
	config := &rest.Config{Host: s.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	extensions, err := apiextensionsclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Kubernetes{Client: client, Dynamic: dyn, CRDs: extensions.CustomResourceDefinitions(), Host: s.URL}, nil
}

// at is the object at a path, as far as tests ask for it.
func (s *apiServer) at(path string, fields ...string) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	var v any = s.objects[path]
	for _, f := range fields {
		m, ok := v.(object)
		if !ok {
			return nil
		}
		v = m[f]
	}
	return v
}

func (s *apiServer) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	code, answer := s.answer(r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // or the client is gone
}

func failure(code int, reason, message string) (int, any) {
	return code, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code}
}

func (s *apiServer) answer(r *http.Request) (int, any) {
	path := r.URL.Path
	switch {
	case s.status == http.StatusUnauthorized:
		return failure(s.status, "Unauthorized", "Unauthorized")
	case path == "/version":
		parts := strings.Split(s.version, ".")
		return 200, object{"major": "1", "minor": parts[1] + "+", "gitVersion": s.version}
	case strings.HasSuffix(path, "/selfsubjectaccessreviews"):
		var review object
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &review)
		review["status"] = object{"allowed": s.denied == "" || !strings.Contains(string(body), `"`+s.denied+`"`)}
		return 201, review
	case r.Method == http.MethodGet && s.objects[path] != nil:
		return 200, s.objects[path]
	case r.Method == http.MethodGet && lists[path[strings.LastIndex(path, "/")+1:]] != "":
		return 200, s.list(path)
	case r.Method == http.MethodGet:
		return failure(404, "NotFound", path+" not found")
	}
	return s.write(r)
}

// lists are the kinds of lists, by resource.
var lists = map[string]string{
	"services": "ServiceList", "storageclasses": "StorageClassList", "csidrivers": "CSIDriverList", "nodes": "NodeList",
}

func (s *apiServer) list(path string) any {
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/"), "/")
	group := parts[0]
	if strings.HasPrefix(path, "/apis/") {
		group += "/" + parts[1]
	}
	items := []any{}
	for _, at := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(at, path+"/") {
			items = append(items, s.objects[at])
		}
	}
	return object{"apiVersion": group, "kind": lists[parts[len(parts)-1]], "metadata": object{}, "items": items}
}

// runPod has a StatefulSet's pod, if there is none that is stuck, and the set's status.
func (s *apiServer) runPod(set object) {
	const path = "/api/v1/namespaces/kip/pods/" + node
	revision := strconv.Itoa(s.revision)
	old := s.objects[path]
	if old == nil || set["status"] == nil && old["status"].(object)["conditions"] != nil {
		containers := set["spec"].(object)["template"].(object)["spec"].(object)["containers"].([]any)
		status := object{"containerStatuses": []any{object{"name": "kip", "state": object{"waiting": object{"reason": "ImagePullBackOff"}}}}}
		if image := containers[0].(object)["image"]; s.pulls == "" || image == s.pulls {
			status = object{"conditions": []any{object{"type": "Ready", "status": "True"}}}
		}
		s.objects[path] = object{"apiVersion": "v1", "kind": "Pod", "metadata": object{
			"name": node, "namespace": "kip", "uid": "uid " + revision, "resourceVersion": revision,
			"labels": object{"controller-revision-hash": revision},
		}, "status": status}
	}
	pod := s.objects[path]
	status := object{"replicas": 1, "currentRevision": pod["metadata"].(object)["uid"].(string)[len("uid "):], "updateRevision": revision}
	if set["status"] = status; pod["status"].(object)["conditions"] == nil {
		return
	}
	status["readyReplicas"] = 1
	s.objects["/api/v1/nodes/"+node] = object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": node}, "status": object{
		"conditions": []any{object{"type": "Ready", "status": "True"}}}}
}

// remove deletes Kip's pod, if it is the one that is meant, and its StatefulSet makes another.
func (s *apiServer) remove(r *http.Request) (int, any) {
	var options object
	err := json.NewDecoder(r.Body).Decode(&options)
	o := s.objects[r.URL.Path]
	if err != nil || o == nil {
		return failure(404, "NotFound", r.URL.Path+" not found")
	}
	wanted, _ := options["preconditions"].(object)
	if meta := o["metadata"].(object); wanted["uid"] != meta["uid"] || wanted["resourceVersion"] != meta["resourceVersion"] {
		return failure(409, "Conflict", fmt.Sprintf("the preconditions are %v", wanted))
	}
	delete(s.objects, r.URL.Path)
	s.deleted = append(s.deleted, r.URL.Path)
	s.runPod(s.objects["/apis/apps/v1/namespaces/kip/statefulsets/"+name])
	return 200, o
}

func (s *apiServer) write(r *http.Request) (int, any) {
	if r.Method == http.MethodDelete {
		return s.remove(r)
	}
	var o object
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		return failure(400, "BadRequest", err.Error())
	}
	meta := o["metadata"].(object)
	path := r.URL.Path
	if r.Method == http.MethodPost {
		path += "/" + meta["name"].(string)
	}
	if ns, _ := meta["namespace"].(string); ns != "" && s.objects["/api/v1/namespaces/"+ns] == nil {
		return failure(404, "NotFound", fmt.Sprintf("namespaces %q not found", ns))
	}
	if s.denied != "" && strings.Contains(path, "/"+s.denied+"/") {
		return failure(403, "Forbidden", "User cannot patch resource "+s.denied)
	}
	if r.URL.Query().Get("dryRun") == "All" {
		return 200, o
	}
	meta["uid"] = "uid of " + path
	meta["managedFields"] = []any{object{"manager": r.URL.Query().Get("fieldManager"), "operation": "Apply"}}
	switch o["kind"] {
	case "StatefulSet":
		if template := fmt.Sprint(o["spec"].(object)["template"]); template != s.template {
			s.template = template
			s.revision++
		}
		s.runPod(o)
	case "CustomResourceDefinition":
		o["status"] = object{"conditions": []any{object{"type": "Established", "status": "True"}}}
	}
	s.objects[path] = o
	s.writes = append(s.writes, path)
	return 200, o
}

// cluster has what a cluster of EKS has that was made with the add-ons for DNS and disks.
func clusterObjects() map[string]object {
	namespace := func(name string) object {
		return object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name, "uid": "uid of " + name}}
	}
	return map[string]object{
		"/api/v1/namespaces/kube-system": namespace("kube-system"),
		"/api/v1/namespaces/kube-system/services/kube-dns": {"apiVersion": "v1", "kind": "Service", "metadata": object{
			"name": "kube-dns", "namespace": "kube-system"}, "spec": object{"clusterIP": "10.100.0.10"}},
		"/apis/storage.k8s.io/v1/storageclasses/gp2": {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": object{
			"name": "gp2"}, "provisioner": wellknown.InTree},
		"/apis/storage.k8s.io/v1/csidrivers/" + wellknown.EBSDriver: {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
			"metadata": object{"name": wellknown.EBSDriver}},
	}
}
