package cellapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
)

// impatient is a clock that waits for nothing longer than a moment, so that watches,
// and requests for what is not known, end.
type impatient struct{ clock.RealClock }

func (impatient) NewTimer(time.Duration) clock.Timer {
	return clock.RealClock{}.NewTimer(time.Millisecond)
}

// lonely starts a cell API with one cell that has the pod shop/one, on an API server
// that has more. Nothing limits how much the cell asks.
func lonely(f *testing.F) (*apiServer, *Cell) {
	f.Helper()
	up := newAPIServer(f)
	up.put(virtual())
	up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "one-secret"}})
	up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "two-secret"}})
	up.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}})
	for _, name := range []string{"one", "two"} {
		up.put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: name + "-data", UID: "claim"},
		}})
		up.put(&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name + "-data", UID: "claim"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		})
	}
	one := podOn("one")
	one.UID = "uid-one"
	up.put(one)
	up.put(podOn("two"))
	// What an API server does with a change is not what is tried here: without
	// changes, each input meets the same state.
	up.refuse = func(r apiRequest) error {
		if slices.Contains([]string{"get", "list", "watch"}, r.verb) || r.resource == "serviceaccounts" {
			return nil
		}
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Any"}, r.name, nil)
	}
	informer := podInformer(f, up)
	server, err := New(Config{NodeName: nodeName, Node: up.asNode(), Own: up.asKip(), Pods: informer, Clock: impatient{}})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { informer.RunWithContext(ctx) })
	tasks.Go(func() {
		if err := server.Run(ctx); err != nil {
			f.Errorf("Run: %v", err)
		}
	})
	f.Cleanup(func() { cancel(); tasks.Wait() })
	c := server.AddCell("c1", info)
	c.passed, c.events, c.refusals = rate.NewLimiter(rate.Inf, 0), rate.NewLimiter(rate.Inf, 0), rate.NewLimiter(0, 0)
	c.final = rate.NewLimiter(rate.Inf, 0)
	c.written, c.eventBytes = rate.NewLimiter(rate.Inf, 0), rate.NewLimiter(rate.Inf, 0)
	c.budget.free()
	if err := c.Bind("shop", "one", "uid-one"); err != nil {
		f.Fatal(err)
	}
	<-c.bound().known
	return up, c
}

// foreign says why a request that came to the API server is none that the pod shop/one
// is a reason for, "" if it is one.
func foreign(r apiRequest) string {
	listed := r.verb == "list" || r.verb == "watch"
	own := func(names ...string) string {
		if r.namespace == "shop" && slices.Contains(names, r.name) {
			return ""
		}
		return "it is another's"
	}
	switch r.resource {
	case "endpointslices", "servicecidrs", "networkpolicies", "namespaces", "services", "runtimeclasses", "csidrivers":
		if listed && r.name == "" {
			return "" // for all cells
		}
	case "nodes":
		if (listed || r.verb == "get") && r.name == nodeName && r.subresource == "" {
			return ""
		}
	case "pods":
		switch {
		case listed && r.selector == "spec.nodeName="+nodeName:
			return "" // the informer
		case r.verb == "get" && r.subresource == "", r.verb == "delete" && r.subresource == "" &&
			strings.Contains(r.body, `"preconditions":{"uid":"uid-one"`):
			return own("one")
		case r.verb == "patch" && r.subresource == "status":
			var patch struct{ Metadata struct{ UID string } }
			if err := json.Unmarshal([]byte(r.body), &patch); err != nil || patch.Metadata.UID != "uid-one" {
				return "it may change another pod of that name"
			}
			return own("one")
		}
	case "secrets":
		if r.verb == "get" || listed {
			return own("one-secret")
		}
	case "configmaps":
		if r.verb == "get" || listed {
			return own("settings")
		}
	case "persistentvolumeclaims":
		if r.verb == "get" {
			return own("one-data")
		}
	case "persistentvolumes":
		if r.verb == "get" && r.name == "pv-one" {
			return ""
		}
	case "serviceaccounts":
		var token authenticationv1.TokenRequest
		if err := json.Unmarshal([]byte(r.body), &token); err != nil || token.Spec.BoundObjectRef == nil || r.verb != "create" ||
			r.subresource != "token" ||
			*token.Spec.BoundObjectRef != (authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "one", UID: "uid-one"}) {
			return "it is no token for the pod"
		}
		return own("clerk")
	case "events":
		var event struct{ InvolvedObject, Regarding corev1.ObjectReference }
		if err := json.Unmarshal([]byte(r.body), &event); err != nil || event.InvolvedObject.UID+event.Regarding.UID != "uid-one" ||
			event.InvolvedObject.Name+event.Regarding.Name != "one" || r.verb != "create" || r.namespace != "shop" {
			return "it is about something else"
		}
		return ""
	}
	return "it is none that a cell causes"
}

// FuzzACellReachesWhatItsPodNames sends a cell's requests of all forms: each is answered
// as Kubernetes does, and the API server hears only what is the pod's own.
func FuzzACellReachesWhatItsPodNames(f *testing.F) {
	up, c := lonely(f)
	for path, resource := range map[string]string{
		"/api/v1/namespaces/shop/pods/one":                        "pods",
		"/api/v1/namespaces/shop/persistentvolumeclaims/one-data": "persistentvolumeclaims",
		"/api/v1/persistentvolumes/pv-one":                        "persistentvolumes",
	} {
		code, _, b := get(f.Context(), c, path)
		if asked := up.asked(func(r apiRequest) bool { return r.verb == "get" && r.resource == resource }); code != http.StatusOK ||
			len(asked) == 0 {
			f.Fatalf("%s does not come through, so nothing is shown: %d %s", path, code, b)
		}
	}
	for _, path := range []string{
		"/api/v1/nodes/kip-0", "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Dkip-0", "/api/v1/nodes/kip-1",
		"/api/v1/nodes/kip-0/status",
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dkip-0&limit=500&resourceVersion=0",
		"/api/v1/pods?watch=1&allowWatchBookmarks=true&timeoutSeconds=1",
		"/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99999",
		"/api/v1/namespaces/shop/pods/one", "/api/v1/namespaces/shop/pods/one/status", "/api/v1/namespaces/shop/pods/two",
		"/api/v1/namespaces/shop/pods/two/status",
		"/api/v1/namespaces/shop/pods/one/exec?command=id", "/api/v1/namespaces/shop/pods/one/eviction", "/api/v1/namespaces/shop/pods",
		"/api/v1/namespaces/shop/secrets/one-secret", "/api/v1/namespaces/shop/secrets/two-secret", "/api/v1/secrets",
		"/api/v1/namespaces/bank/secrets/one-secret",
		"/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Done-secret&watch=true", "/api/v1/namespaces/shop/configmaps/settings",
		"/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dtwo-secret&watch=true", "/api/v1/namespaces/shop/configmaps/other",
		"/api/v1/namespaces/shop/persistentvolumeclaims/one-data", "/api/v1/namespaces/shop/persistentvolumeclaims/two-data",
		"/api/v1/persistentvolumes/pv-one", "/api/v1/persistentvolumes/pv-two", "/api/v1/persistentvolumes",
		"/api/v1/namespaces/shop/serviceaccounts/clerk/token", "/api/v1/namespaces/shop/serviceaccounts/boss/token",
		"/api/v1/namespaces/bank/serviceaccounts/clerk/token",
		"/api/v1/namespaces/shop/events", "/api/v1/namespaces/bank/events", "/api/v1/namespaces/default/events",
		"/apis/events.k8s.io/v1/namespaces/shop/events",
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/kip-0", "/apis/storage.k8s.io/v1/csinodes/kip-0",
		"/apis/storage.k8s.io/v1/csidrivers",
		"/apis/discovery.k8s.io/v1/endpointslices?labelSelector=a%3Db", "/api/v1/services?watch=true", "/api/v1/namespaces/shop",
		"/api/v1/watch/pods", "/api/v1/proxy/namespaces/shop/pods/one", "/api/v1/namespaces/shop/pods/../secrets/two-secret",
		"/api/v1/namespaces/shop/pods%2Ftwo",
		"/apis/resource.k8s.io/v1/resourceslices", "/apis/apps/v1/deployments", "/", "/version", "//api/v1/nodes",
	} {
		f.Add("GET", path, "", []byte(nil))
		if strings.Contains(path, "?") || !strings.Contains(path, "/one") && !strings.Contains(path, "clerk") &&
			!strings.Contains(path, "kip-0") {
			continue
		}
		f.Add("POST", path, "application/json", []byte(`{}`))
		f.Add("PATCH", path, "application/strategic-merge-patch+json", []byte(`{"metadata":{"uid":"uid-one"},"status":{"phase":"Running"}}`))
		f.Add("DELETE", path, "application/json", []byte(`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`))
	}
	for _, seed := range [][3]string{
		{"PATCH", "/api/v1/namespaces/shop/pods/one/status", `{"metadata":{"uid":"uid-two"}}`},
		{"PATCH", "/api/v1/namespaces/shop/pods/one/status?fieldManager=x&force=true", `{"metadata":{"uid":"uid-two"},"metadata":{}}`},
		{"PATCH", "/api/v1/namespaces/shop/pods/one/status", `{"metadata":null,"spec":{},"Metadata":{"uid":"uid-two"}}`},
		{"PATCH", "/api/v1/nodes/kip-0/status", `{"status":{"conditions":[{"type":"Ready","status":"True"}],"images":null}}`},
		{"PUT", "/api/v1/nodes/kip-0/status", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"kip-0"},"status":{"capacity":{"cpu":"1"}}}`},
		{"DELETE", "/api/v1/namespaces/shop/pods/one", `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"uid-two"}}`},
		{"DELETE", "/api/v1/namespaces/shop/pods/one", ``},
		{"POST", "/api/v1/namespaces/shop/serviceaccounts/clerk/token",
			`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["a"],"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"one","uid":"uid-one"}}}`},
		{"POST", "/api/v1/namespaces/shop/serviceaccounts/clerk/token",
			`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"two","uid":"uid-two"}}}`},
		{"POST", "/api/v1/namespaces/shop/events",
			`{"kind":"Event","apiVersion":"v1","metadata":{"name":"e"},"involvedObject":{"kind":"Pod","namespace":"shop","name":"one","uid":"uid-one"}}`},
		{"POST", "/api/v1/namespaces/shop/serviceaccounts/boss/token",
			`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"one","uid":"uid-one"}}}`},
		{"POST", "/api/v1/namespaces/shop/events",
			`{"kind":"Event","apiVersion":"v1","metadata":{"name":"e"},"involvedObject":{"kind":"Pod","namespace":"shop","name":"one","uid":"uid-two"}}`},
		{"POST", "/api/v1/namespaces/shop/events",
			`{"kind":"Event","apiVersion":"v1","metadata":{"name":"e"},"involvedObject":{"kind":"Pod","namespace":"shop","name":"two","uid":"uid-one"}}`},
		{"POST", "/apis/events.k8s.io/v1/namespaces/shop/events",
			`{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"e"},"regarding":{"kind":"Pod","namespace":"shop","name":"one","uid":"uid-one"}}`},
		{"POST", "/api/v1/namespaces/default/events",
			`{"kind":"Event","apiVersion":"v1","metadata":{"name":"e"},"involvedObject":{"kind":"Node","name":"kip-0"}}`},
		{"POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
			`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"kip-0"},"spec":{"renewTime":"2026-07-01T12:00:00.000000Z"}}`},
		{"POST", "/apis/storage.k8s.io/v1/csinodes", `{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"kip-0"},"spec":{"drivers":[]}}`},
	} {
		mediaType := "application/json"
		if seed[0] == "PATCH" {
			mediaType = "application/merge-patch+json"
		}
		f.Add(seed[0], seed[1], mediaType, []byte(seed[2]))
	}
	f.Add("PATCH", "/api/v1/nodes/kip-0", "application/json-patch+json", []byte(`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`))
	f.Add("PUT", "/api/v1/nodes/kip-0/status", "application/vnd.kubernetes.protobuf",
		[]byte("k8s\x00\n\x0a\n\x02v1\x12\x04Node\x12\x00\x1a\x00\"\x00"))
	f.Fuzz(func(t *testing.T, method, target, mediaType string, body []byte) {
		head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: kip\r\nContent-Length: %d\r\n\r\n", method, target, len(body))
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head + string(body))))
		if err != nil {
			return
		}
		if mediaType != "" {
			r.Header.Set("Content-Type", mediaType)
		}
		up.mu.Lock()
		up.requests = nil
		up.mu.Unlock()
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r.WithContext(t.Context()))

		said := fmt.Sprintf("%s %q: %d %.500q", method, target, w.Code, w.Body.String())
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable && w.Code != http.StatusGatewayTimeout {
			t.Fatalf("%s, Kip's own fault", said)
		}
		if w.Code >= 400 {
			o, _, err := scheme.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, nil)
			if status, ok := o.(*metav1.Status); err != nil || !ok || int(status.Code) != w.Code || status.Status != metav1.StatusFailure {
				t.Fatalf("%s, which is no Status: %v", said, err)
			}
		}
		if bytes.Contains(w.Body.Bytes(), []byte("two")) && w.Code < 400 && !strings.Contains(target+string(body), "two") {
			t.Fatalf("%s, of another pod", said)
		}
		for _, asked := range up.asked(func(apiRequest) bool { return true }) {
			if why := foreign(asked); why != "" {
				t.Fatalf("%s: the API server was asked %+v: %s", said, asked, why)
			}
		}
	})
}

// listedAddress is an element of a patch of a list of addresses.
type listedAddress struct {
	IP    string
	Patch string `json:"$patch"`
}

// mayBe says whether it is the one that there may be, or takes any away.
func (a listedAddress) mayBe(known netip.Addr) bool {
	return a.Patch == "delete" && a.IP != "" || a.Patch == "" && a.IP == known.String()
}

// FuzzAStatusPatchOfACell patches a pod's status with anything: what comes through is
// small, has no metadata but the UID, and no address but the cell's.
func FuzzAStatusPatchOfACell(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"uid":"u"},"status":{"phase":"Running","podIP":"10.0.128.5","podIPs":[{"ip":"10.0.128.5"}],"$setElementOrder/podIPs":[{"ip":"10.0.128.5"}]}}`,
		`{"status":{"conditions":[{"type":"Ready","status":"True"},{"$patch":"delete","type":"PodScheduled"}],"$setElementOrder/conditions":[{"type":"Ready"}]}}`,
		`{"status":{"containerStatuses":[{"name":"c","state":{"terminated":{"exitCode":1,"message":"m"}},"resources":{"limits":{"cpu":"1e99"}}}]}}`,
		`{"metadata":{"annotations":{"a":"b"}},"$patch":"replace","status":{"podIP":"8.8.8.8","message":null,"hostIPs":[{"$patch":"replace"}]}}`,
	} {
		f.Add([]byte(seed))
	}
	known := addresses{host: []netip.Addr{info.NodeIP}, pod: []netip.Addr{info.PodIP}}
	pod := podOn("one")
	pod.UID, pod.Spec.InitContainers = "uid-one", []corev1.Container{{Name: "i"}}
	f.Fuzz(func(t *testing.T, sent []byte) {
		if _, err := podStatusPatch(sent, pod, known, ends{true, true}); err != nil {
			if _, stays := podStatusPatch(sent, pod, known, ends{}); stays == nil {
				t.Fatalf("refused of a pod that ends with its machine alone: %v", err)
			}
		}
		made, err := podStatusPatch(sent, pod, known, ends{})
		if err != nil {
			return
		}
		b := made.bytes
		var patch struct {
			Metadata map[string]any
			Status   corev1.PodStatus
		}
		var listed struct {
			Status struct{ PodIPs, HostIPs []listedAddress }
		}
		decoder := json.NewDecoder(bytes.NewReader(b))
		if err := decoder.Decode(&patch); err != nil {
			t.Fatalf("%s is none of a status: %v", b, err)
		}
		if len(b) > maxRequest || len(patch.Status.ContainerStatuses) > 1 || len(patch.Metadata) != 1 || patch.Metadata["uid"] != "uid-one" {
			t.Fatalf("%d bytes, metadata %v", len(b), patch.Metadata)
		}
		s := patch.Status
		if s.PodIP != "" && s.PodIP != info.PodIP.String() || s.HostIP != "" && s.HostIP != info.NodeIP.String() ||
			len(s.ResourceClaimStatuses) > 0 || s.NominatedNodeName != "" {
			t.Fatalf("it has %+v", s)
		}
		if err := json.Unmarshal(b, &listed); err != nil {
			t.Fatal(err)
		}
		for _, ip := range listed.Status.PodIPs {
			if !ip.mayBe(info.PodIP) {
				t.Fatalf("it has the addresses %v", listed.Status.PodIPs)
			}
		}
		for _, ip := range listed.Status.HostIPs {
			if !ip.mayBe(info.NodeIP) {
				t.Fatalf("it has the host's addresses %v", listed.Status.HostIPs)
			}
		}
		for _, c := range s.Conditions {
			if !slices.Contains(kubeletConditions, string(c.Type)) {
				t.Fatalf("it has the condition %q", c.Type)
			}
		}
	})
}
