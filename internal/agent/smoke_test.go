// A whole cell against a small stand-in for Kip and its API: needs root, the
// local cloud, and the programs of a cell in the folder that KIP_BIN names.

package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/elotl/kip/image"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "local-machine" {
		local.MachineMain(os.Args[2:])
	}
	goleak.VerifyTestMain(m)
}

// api is the least that a kubelet takes for an API server: one node, its lease,
// one pod; every other collection is empty.
type api struct {
	t       *testing.T
	mu      sync.Mutex
	objects map[string]json.RawMessage // by path
	watched map[string]bool            // collections
	changed chan struct{}              // closed and replaced at each change
	version int
}

func (a *api) put(path string, object any) {
	b, err := json.Marshal(object)
	if err != nil {
		a.t.Error(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		a.t.Error(err)
	}
	a.version++
	m["metadata"].(map[string]any)["resourceVersion"] = fmt.Sprint(a.version)
	b, _ = json.Marshal(m)
	a.objects[path] = b
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *api) get(path string) (json.RawMessage, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, ok := a.objects[path]
	return b, ok
}

// forget removes an object, and that a collection was watched.
func (a *api) forget(object, collection string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.objects, object)
	delete(a.watched, collection)
}

func (a *api) pod() *corev1.Pod {
	b, _ := a.get("/api/v1/namespaces/default/pods/hello")
	var p corev1.Pod
	if err := json.Unmarshal(b, &p); err != nil {
		a.t.Error(err)
	}
	return &p
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, "/status")
	w.Header().Set("Content-Type", "application/json")
	switch r.Method {
	case http.MethodPost:
		b, _ := io.ReadAll(r.Body)
		var o struct{ Metadata metav1.ObjectMeta }
		_ = json.Unmarshal(b, &o)
		if !strings.HasSuffix(path, "/events") {
			a.put(path+"/"+o.Metadata.Name, json.RawMessage(b))
		}
		w.WriteHeader(http.StatusCreated)
		w.Write(b)
	case http.MethodPut:
		b, _ := io.ReadAll(r.Body)
		a.put(path, json.RawMessage(b))
		w.Write(b)
	case http.MethodPatch:
		b, _ := io.ReadAll(r.Body)
		old, ok := a.get(path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		var as any = corev1.Node{}
		if strings.Contains(path, "/pods/") {
			as = corev1.Pod{}
		}
		b, err := strategicpatch.StrategicMergePatch(old, b, as)
		if err != nil {
			a.t.Errorf("patch %s: %v", path, err)
		}
		a.put(path, json.RawMessage(b))
		w.Write(b)
	case http.MethodDelete:
		a.mu.Lock()
		delete(a.objects, path)
		a.mu.Unlock()
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	case http.MethodGet:
		if b, ok := a.get(path); ok {
			w.Write(b)
			return
		}
		if i := strings.LastIndex(path, "/"); r.URL.Query().Get("watch") == "" &&
			(strings.Contains(path, "/nodes/") || strings.Contains(path, "/leases/") || strings.Contains(path, "/pods/") ||
				strings.Contains(path, "/csinodes/")) && i > 0 {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		a.collection(w, r, path)
	}
}

func (a *api) collection(w http.ResponseWriter, r *http.Request, path string) {
	prefix := path + "/"
	if strings.HasSuffix(path, "/pods") {
		prefix = "/api/v1/namespaces/default/pods/"
	}
	kind, version := "List", "v1"
	if rest, ok := strings.CutPrefix(path, "/apis/"); ok {
		version = rest[:strings.LastIndex(rest, "/")]
	}
	seen := map[string]string{}
	news := func() (out []json.RawMessage, changed chan struct{}, rv int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for p, o := range a.objects {
			if strings.HasPrefix(p, prefix) && seen[p] != string(o) {
				out = append(out, o)
			}
		}
		return out, a.changed, a.version
	}
	if r.URL.Query().Get("watch") == "" {
		items, _, rv := news()
		if items == nil {
			items = []json.RawMessage{}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind, "apiVersion": version,
			"metadata": map[string]any{"resourceVersion": fmt.Sprint(rv)}, "items": items})
		return
	}
	a.mu.Lock()
	a.watched[path] = true
	a.mu.Unlock()
	first := true
	for {
		items, changed, rv := news()
		for _, o := range items {
			var m struct{ Metadata metav1.ObjectMeta }
			_ = json.Unmarshal(o, &m)
			event := "ADDED"
			if _, ok := seen[prefix+m.Metadata.Name]; ok {
				event = "MODIFIED"
			}
			seen[prefix+m.Metadata.Name] = string(o)
			_ = json.NewEncoder(w).Encode(map[string]any{"type": event, "object": o})
		}
		if first && r.URL.Query().Get("sendInitialEvents") == "true" {
			single := map[string]string{"nodes": "Node", "pods": "Pod", "services": "Service", "runtimeclasses": "RuntimeClass",
				"csidrivers": "CSIDriver", "configmaps": "ConfigMap", "secrets": "Secret"}[path[strings.LastIndex(path, "/")+1:]]
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{
				"kind": single, "apiVersion": version,
				"metadata": map[string]any{"resourceVersion": fmt.Sprint(rv),
					"annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
			}})
		}
		first = false
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func glob(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found
}

func TestACellRunsAPod(t *testing.T) {
	bin := os.Getenv("KIP_BIN")
	if os.Geteuid() != 0 || bin == "" {
		t.Skip("needs root, and KIP_BIN=folder with itzo, itzo-containerd, itzo-lite, runc, pause")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	dir := t.TempDir()
	began := time.Now()
	step := func(format string, args ...any) {
		t.Logf("%6.3fs %s", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	root := filepath.Join(dir, "root")
	programs, err := image.HostPrograms()
	must(err)
	programs[image.Portmap] = bin + "/portmap"
	must(image.Build(ctx, image.Options{
		Dir: root, Itzo: bin + "/itzo", ItzoContainerd: bin + "/itzo-containerd", ItzoLite: bin + "/itzo-lite", Runc: bin + "/runc",
		Busybox: "/usr/bin/busybox", Pause: bin + "/pause", Programs: programs,
	}))
	step("root built")
	place := local.Config{
		Config: host.Config{
			StateDir: filepath.Join(dir, "cloud"), Bridge: "kipagent0", CIDR: netip.MustParsePrefix("10.118.0.0/16"), Log: log,
			Catalogue: []catalog.InstanceType{{Name: "small", MilliCPU: 1000, MemoryBytes: 1 << 30, DiskBytes: 2 << 30, Arch: "amd64",
				Offerings: []catalog.Offering{{Zone: "local"}}}},
		},
		RootDir: root,
	}
	machines, err := local.New(place)
	must(err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, log := range []string{"kubelet", "containerd"} {
				for _, f := range glob(filepath.Join(dir, "cloud/machines/*/upper/var/log", log+".log")) {
					b, _ := os.ReadFile(f)
					t.Logf("%s:\n%s", f, b[max(0, len(b)-8000):])
				}
			}
		}
		must(machines.Close())
		must(local.Destroy(context.Background(), place))
		left, err := local.Leftovers(context.Background(), place)
		if err != nil || len(left) > 0 {
			t.Errorf("left over: %v, %v", left, err)
		}
	})
	authority, err := pki.New(time.Now)
	must(err)
	token := pki.NewToken()
	user := fmt.Sprintf("#cloud-config\nkip:\n  cellID: c-1\n  caHash: \"%s\"\n  token: \"%s\"\n", authority.Hash(), token.Reveal())
	began = time.Now()
	launched, err := machines.Launch(ctx, cloud.LaunchRequest{
		Token: "t1", LaunchSpec: cloud.LaunchSpec{InstanceType: "small", Zone: "local"},
		Machines: []cloud.Machine{{UserData: []byte(user), Tags: map[string]string{cloud.TagOwner: "smoke", cloud.TagCell: "c-1"}}},
	}).All()
	must(err)
	m := launched[0]
	step("launched %s, %s, pod %s", m.ID, m.ManagementIP, m.PodIP)

	server := &api{t: t, objects: map[string]json.RawMessage{}, watched: map[string]bool{}, changed: make(chan struct{})}
	dialer, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: log})
	must(err)
	var session *tunnel.Session
	keyHash := "" // of the key that the token is spent on
	connect := func(token pki.Token) {
		t.Helper()
		session, err = dialer.Keep(ctx, tunnel.Target{CellID: "c-1", Addr: netip.AddrPortFrom(m.ManagementIP, agentapi.Port), Token: token,
			KeyHash: keyHash},
			server, func(_ context.Context, hash string) error { keyHash = hash; return nil })
		must(err)
		t.Cleanup(session.Close)
		select {
		case <-session.Ready():
		case <-ctx.Done():
			t.Fatal(session.LastError())
		}
	}
	connect(token)
	step("joined")

	call := func(method, path string, body any) (int, string) {
		b, err := json.Marshal(body)
		must(err)
		req, err := http.NewRequestWithContext(ctx, method, "http://cell"+path, bytes.NewReader(b))
		must(err)
		resp, err := session.Conn().RoundTrip(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	config := agentapi.Config{
		NodeName: "kip-0", NodeIP: m.ManagementIP, PodIP: m.PodIP, ClusterDomain: "cluster.local", ReservedMemoryBytes: 64 << 20,
		RegistryMirrors: map[string][]string{"_default": {"http://10.118.0.1:5000"}},
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case <-ctx.Done():
				_, status := call(http.MethodGet, agentapi.PathStatus, nil)
				t.Fatalf("%s: %v; status %s", what, ctx.Err(), status)
			case <-time.After(10 * time.Millisecond):
			}
		}
		step("%s", what)
	}
	wait("configured", func() bool {
		code, text := call(http.MethodPut, agentapi.PathConfig, config)
		if code != http.StatusOK && code != http.StatusServiceUnavailable { // it is starting, and is to be asked again
			t.Fatal(code, text)
		}
		return code == http.StatusOK
	})
	wait("kubelet healthy", func() bool {
		code, _ := call(http.MethodGet, agentapi.PathKubelet+"/healthz", nil)
		return code == http.StatusOK
	})
	nodeReady := func() bool {
		b, ok := server.get("/api/v1/nodes/kip-0")
		var n corev1.Node
		if !ok || json.Unmarshal(b, &n) != nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	}
	watchesPods := func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.watched["/api/v1/pods"]
	}
	wait("node ready", nodeReady)
	wait("kubelet watches its pods", watchesPods)

	rules := agentapi.Firewall{Pod: "default/hello", PodIP: m.PodIP}
	if code, text := call(http.MethodPut, agentapi.PathFirewall, rules); code != http.StatusOK {
		t.Fatal(code, text)
	}
	step("firewall in force")

	// A machine that boots a second time is the same cell: it has its key and
	// its certificate, and what it was told.
	session.Close()
	must(machines.Stop(ctx, m.ID).Err())
	server.forget("/api/v1/nodes/kip-0", "/api/v1/pods")
	restarted := time.Now()
	must(machines.Start(ctx, m.ID).Err())
	spent := keyHash
	connect(pki.Token{})
	if keyHash != spent || spent == "" {
		t.Errorf("the cell joined a second time: its key is %q, was %q", keyHash, spent)
	}
	step("connected again, without a token, %s after its start", time.Since(restarted))
	wait("node ready again, without a word from Kip", nodeReady)
	wait("kubelet watches its pods again", watchesPods)
	if code, text := call(http.MethodPut, agentapi.PathConfig, config); code != http.StatusOK {
		t.Fatal(code, text)
	}
	// Rules are of a boot: others may be right by now.
	if code, text := call(http.MethodGet, agentapi.PathFirewall, nil); code != http.StatusOK || !strings.Contains(text, `""`) {
		t.Errorf("the firewall of an earlier boot is in force: %d %s", code, text)
	}
	if code, text := call(http.MethodPut, agentapi.PathFirewall, rules); code != http.StatusOK {
		t.Fatal(code, text)
	}

	server.put("/api/v1/namespaces/default/pods/hello", &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "default", UID: "0b2a2a3e-6a5c-4d7e-9a6a-1f0e6cfa7d11",
			CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{
			NodeName: "kip-0", RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSDefault,
			TerminationGracePeriodSeconds: new(int64), EnableServiceLinks: new(bool), SchedulerName: "default-scheduler",
			SecurityContext: &corev1.PodSecurityContext{},
			Containers: []corev1.Container{{Name: "main", Image: configs.PauseImage, ImagePullPolicy: corev1.PullNever,
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	})
	podAt := time.Now()
	wait("pod running", func() bool { return server.pod().Status.Phase == corev1.PodRunning })
	step("pod took %s, IP %s", time.Since(podAt), server.pod().Status.PodIP)
	if ip := server.pod().Status.PodIP; ip != m.PodIP.String() {
		t.Errorf("the pod's address is %s, want %s", ip, m.PodIP)
	}
	if out, err := exec.Command("busybox", "ping", "-c", "1", "-W", "2", m.PodIP.String()).CombinedOutput(); err != nil {
		t.Errorf("ping the pod: %v\n%s", err, out)
	}
	step("pinged")
	_, status := call(http.MethodGet, agentapi.PathStatus, nil)
	step("status %s", status)
	if hold := os.Getenv("KIP_SMOKE_HOLD"); hold != "" {
		step("holding until %s is gone; machine in %s", hold, dir)
		for {
			if _, err := os.Stat(hold); err != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}
