package eks

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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
var lists = map[string]string{"services": "ServiceList", "storageclasses": "StorageClassList", "csidrivers": "CSIDriverList"}

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

func (s *apiServer) write(r *http.Request) (int, any) {
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
		o["status"] = object{"replicas": 1, "readyReplicas": 1, "currentRevision": "1", "updateRevision": "1"}
		s.objects["/api/v1/nodes/"+node] = object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": node}, "status": object{
			"conditions": []any{object{"type": "Ready", "status": "True"}}}}
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
			"name": "gp2"}, "provisioner": inTree},
		"/apis/storage.k8s.io/v1/csidrivers/" + ebsDriver: {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
			"metadata": object{"name": ebsDriver}},
	}
}
