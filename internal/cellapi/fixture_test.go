package cellapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/credentialproviders"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/watches"
)

// testPatience is how long a test waits for what must come. It only tells a hang from a slow machine.
const testPatience = 5 * time.Minute

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(testPatience)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// closed waits until c is closed.
func closed(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(testPatience):
		t.Fatalf("never: %s", what)
	}
}

// house is one process of Kip, as far as the cell API is concerned, on an API
// server that outlives it.
type house struct {
	t         *testing.T
	up        *apiServer
	clock     clock.Clock
	images    ImageCredentials
	events    Recorder
	sets      *daemonsets.Rules
	providers []credentialproviders.Provider
	server    *Server
	stop      func()
}

// newHouse starts an API server that knows the virtual node, and the cell API on it.
func newHouse(t *testing.T) *house {
	t.Helper()
	return newHouseAt(t, clock.RealClock{})
}

func newHouseAt(t *testing.T, clk clock.Clock, with ...func(*house)) *house {
	t.Helper()
	up := newAPIServer(t)
	up.put(virtual())
	h := &house{t: t, up: up, clock: clk}
	for _, f := range with {
		f(h)
	}
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

func virtual() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName, UID: "virtual-uid",
			Labels:      map[string]string{"type": "virtual-kubelet", "kubernetes.io/arch": "amd64"},
			Annotations: map[string]string{"from": "virtual"},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider", Effect: corev1.TaintEffectNoSchedule}}},
	}
}

func (h *house) start() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	informer := podInformer(h.t, h.up)
	server, err := New(Config{
		NodeName: nodeName,
		Node:     h.up.asNode(),
		Own:      h.up.asKip(),
		Pods:     informer,
		Images:   h.images,
		Events:   h.events,
		Clock:    h.clock,

		DaemonSets:          h.sets,
		CredentialProviders: h.providers,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.server = server
	var tasks sync.WaitGroup
	tasks.Go(func() { informer.RunWithContext(ctx) })
	tasks.Go(func() {
		if err := server.Run(ctx); err != nil {
			h.t.Errorf("Run: %v", err)
		}
	})
	var once sync.Once
	h.stop = func() {
		once.Do(func() {
			cancel()
			tasks.Wait()
			noGoroutines(h.t)
		})
	}
}

// ours is in the stack of a goroutine that runs code of this package.
var ours = regexp.MustCompile(`internal/cellapi/[a-z]+\.go:`)

// noGoroutines fails if a goroutine of this package goes on.
func noGoroutines(t *testing.T) {
	t.Helper()
	var left string
	deadline := time.Now().Add(testPatience)
	for time.Now().Before(deadline) {
		left = ""
		buf := make([]byte, 4<<20)
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if ours.MatchString(g) {
				left = g
			}
		}
		if left == "" {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("goroutine left behind:\n%s", left)
}

func podInformer(t testing.TB, up *apiServer) cache.SharedIndexInformer {
	t.Helper()
	return podInformerOf(t, up, nodeName)
}

func podInformerOf(t testing.TB, up *apiServer, node string) cache.SharedIndexInformer {
	t.Helper()
	config := up.asNode()
	config.Impersonate.UserName = "system:node:" + node
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}))
	return factory.Core().V1().Pods().Informer()
}

// machine is a cell as its kubelet has it: an address that stays, behind which Kip
// may come and go.
type machine struct {
	id      string
	has     CellInfo
	http    *httptest.Server
	handler atomic.Pointer[Cell]
}

func newMachine(t *testing.T, id string) *machine {
	t.Helper()
	m := &machine{id: id, has: info}
	m.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := m.handler.Load()
		if c == nil {
			panic(http.ErrAbortHandler)
		}
		c.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { m.http.CloseClientConnections(); m.http.Close() })
	return m
}

var info = CellInfo{
	Capacity:    corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")},
	Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1900m"), corev1.ResourceMemory: resource.MustParse("3Gi")},
	NodeIP:      netip.MustParseAddr("10.0.0.5"),
	NodeIPv6:    netip.MustParseAddr("fd00::5"),
	PodIP:       netip.MustParseAddr("10.0.128.5"),
	PodIPv6:     netip.MustParseAddr("fd00::8005"),
}

// join makes the machine a cell of the house.
func (m *machine) join(h *house) *Cell {
	c := h.server.AddCell(m.id, m.has)
	m.handler.Store(c)
	return c
}

// cut breaks all connections; the next ones fail until join.
func (m *machine) cut() {
	m.handler.Store(nil)
	m.http.CloseClientConnections()
}

// client returns a client as the kubelet has one.
func (m *machine) client(t *testing.T, contentType string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(&rest.Config{
		Host: m.http.URL, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: contentType, AcceptContentTypes: contentType + ",application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (m *machine) kubelet(t *testing.T) kubernetes.Interface {
	return m.client(t, apiruntime.ContentTypeProtobuf)
}

// mirror follows a resource with client-go's reflector, as a kubelet does.
type mirror struct {
	cache.Store
	mu    sync.Mutex
	lists [][]string // the keys of every full list it was given

	changes atomic.Int64 // that it was told of after a list
}

func (m *mirror) Add(o any) error {
	m.changes.Add(1)
	return m.Store.Add(o)
}

func (m *mirror) Update(o any) error {
	m.changes.Add(1)
	return m.Store.Update(o)
}

func (m *mirror) Replace(list []any, rv string) error {
	var keys []string
	for _, o := range list {
		k, err := cache.MetaNamespaceKeyFunc(o)
		if err != nil {
			return err
		}
		keys = append(keys, k)
	}
	m.mu.Lock()
	m.lists = append(m.lists, keys)
	m.mu.Unlock()
	return m.Store.Replace(list, rv)
}

func (m *mirror) synced() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.lists)
}

func (m *mirror) emptyLists() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, l := range m.lists {
		if len(l) == 0 {
			n++
		}
	}
	return n
}

func (m *mirror) has(k string) bool {
	_, ok, _ := m.GetByKey(k)
	return ok
}

// follow starts a reflector that ends with the test.
func follow(t *testing.T, client rest.Interface, k *watches.Kind, namespace string, selector fields.Selector) *mirror {
	t.Helper()
	return followAt(t, clock.RealClock{}, client, k, namespace, selector)
}

func followAt(t *testing.T, clk clock.Clock, client rest.Interface, k *watches.Kind, namespace string, selector fields.Selector) *mirror {
	t.Helper()
	m := &mirror{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	lw := cache.NewListWatchFromClient(client, k.Resource.Resource, namespace, selector)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		cache.NewReflectorWithOptions(lw, k.New(), m, cache.ReflectorOptions{Clock: clk}).RunWithContext(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return m
}

// podOn returns a pod of the node that names all sorts of things.
func podOn(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.PodSpec{
			NodeName: nodeName, ServiceAccountName: "clerk",
			Containers: []corev1.Container{{Name: "main", Image: "busybox", EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name + "-secret"}}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}},
			}}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name + "-data"},
			}}, tokenVolume("api", nil)},
		},
	}
}

// tokenVolume asks for a token for an audience.
func tokenVolume(audience string, seconds *int64) corev1.Volume {
	sources := []corev1.VolumeProjection{{
		ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience, ExpirationSeconds: seconds, Path: "token"},
	}}
	return corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
}

// bindNew makes a pod on the API server and binds it to the cell.
func (h *house) bindNew(c *Cell, pod *corev1.Pod) *corev1.Pod {
	h.t.Helper()
	stored := h.up.put(pod).(*corev1.Pod)
	if err := c.Bind(stored.Namespace, stored.Name, stored.UID); err != nil {
		h.t.Fatal(err)
	}
	return stored
}

// stepped is a clock that goes on by itself while anybody waits for it, until it is held.
type stepped struct {
	*clocktesting.FakeClock
	mu   sync.Mutex
	held bool
}

func steppedClock(t *testing.T) *stepped {
	t.Helper()
	clk := &stepped{FakeClock: clocktesting.NewFakeClock(time.Now())}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
				clk.step()
			}
		}
	}()
	t.Cleanup(func() { close(end); <-ended })
	return clk
}

func (s *stepped) step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held && s.HasWaiters() {
		s.Step(time.Second / 10)
	}
}

// hold has the clock stand still: whoever waits for it now waits for ever.
func (s *stepped) hold(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
}
