package hollow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/test/journal"
)

// world is a bubble of testing/synctest with an API server, Kip's cell API and
// tunnels, and a fleet, connected by a Network.
type world struct {
	t         *testing.T
	network   *Network
	api       *apiServer
	authority *pki.Authority
	fleet     *Fleet
	kip       *kip
	boots     sync.WaitGroup
}

// kip is one process of Kip.
type kip struct {
	w      *world
	cells  *cellapi.Server
	dialer *tunnel.Dialer
	stop   func()
}

// inBubble runs a test in a world. What is left over in the end blocks the bubble,
// and fails the test.
func inBubble(t *testing.T, cfg Config, test func(t *testing.T, w *world)) {
	t.Helper()
	// An http2.Server that http2.ConfigureServer has not seen, as the tunnel's, has
	// a pool of channels for the whole process. A bubble may not use another's; the
	// second collection empties a pool.
	runtime.GC()
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, network: &Network{}, api: newAPIServer(t)}
		var err error
		if w.authority, err = pki.New(time.Now); err != nil {
			t.Fatal(err)
		}
		var logs journal.Log
		log := slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(logs.String())
			}
		})
		cfg.Listen, cfg.Log = w.network.Listen, log
		cfg.StateDir = t.TempDir()
		if w.fleet, err = New(cfg); err != nil {
			t.Fatal(err)
		}

		lis, err := w.network.Listen(apiAddress)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: w.api}
		served := make(chan error, 1)
		go func() { served <- server.Serve(lis) }()
		w.kip = w.startKip(log)
		t.Cleanup(func() {
			if err := w.fleet.Close(); err != nil {
				t.Error(err)
			}
			w.boots.Wait()
			w.kip.stop()
			if err := server.Close(); err != nil {
				t.Error(err)
			}
			<-served
		})
		test(t, w)
	})
}

var apiAddress = netip.MustParseAddrPort("10.255.0.1:80")

func (w *world) startKip(log *slog.Logger) *kip {
	w.t.Helper()
	must := func(err error) {
		if err != nil {
			w.t.Helper()
			w.t.Fatal(err)
		}
	}
	cfg := &rest.Config{Host: "http://" + apiAddress.String(), QPS: -1, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.network.Dial(ctx, apiAddress)
	}}
	client, err := kubernetes.NewForConfig(cfg)
	must(err)
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
	})).Core().V1().Pods().Informer()
	k := &kip{w: w}
	k.cells, err = cellapi.New(cellapi.Config{NodeName: nodeName, Node: cfg, Own: cfg, Pods: pods, Log: log})
	must(err)
	k.dialer, err = tunnel.NewDialer(tunnel.DialerConfig{Authority: w.authority, Log: log, Dial: w.network.Dial})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { pods.RunWithContext(ctx) })
	tasks.Go(func() {
		if err := k.cells.Run(ctx); err != nil {
			w.t.Errorf("run the cell API: %v", err)
		}
	})
	k.stop = sync.OnceFunc(func() {
		cancel()
		tasks.Wait()
	})
	return k
}

// cell is an instance, and Kip's view of it.
type cell struct {
	w        *world
	instance cloud.Instance
	user     agentapi.UserData
	token    pki.Token
	end      context.CancelFunc // of the instance

	api     *cellapi.Cell
	session *tunnel.Session
	states  chan error // one for each change of the session's state; nil is connected

	mu      sync.Mutex
	keyHash string
	asked   map[string]int // requests of the cell, by method and path
	asks    map[Ask]int    // the same, by client, verb and resource
}

// made counts the requests of a kind.
func (c *cell) made(a Ask) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asks[Ask{By: a.By, Verb: a.Verb, Resource: a.Resource}]
}

func userDataOf(t testing.TB, u agentapi.UserData) []byte {
	t.Helper()
	body, err := yaml.Marshal(map[string]agentapi.UserData{"kip": u})
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("#cloud-config\n"), body...)
}

// launch boots instance number n, which Kip does not know yet.
func (w *world) launch(n int) *cell {
	w.t.Helper()
	c := &cell{
		w: w, token: pki.NewToken(), asked: map[string]int{}, states: make(chan error, 1000),
		instance: cloud.Instance{
			ID:           fmt.Sprintf("i-%d", n),
			ManagementIP: netip.AddrFrom4([4]byte{127, 64, byte(n >> 8), byte(n)}),
			PodIP:        netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}),
		},
	}
	c.user = agentapi.UserData{CellID: fmt.Sprintf("c-%d", n), CAHash: w.authority.Hash(), Token: c.token.Reveal()}
	c.boot()
	return c
}

func (c *cell) boot() {
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	c.w.boots.Go(func() { c.w.fleet.Boot(ctx, c.instance, userDataOf(c.w.t, c.user)) })
}

// ServeHTTP counts what the cell asks, and passes it on.
func (c *cell) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.asked[r.Method+" "+r.URL.Path]++
	if c.asks == nil {
		c.asks = map[Ask]int{}
	}
	c.asks[askOf(c.w.t, r)]++
	c.mu.Unlock()
	c.api.ServeHTTP(w, r)
}

// askOf says what a request is, as [Asks] does.
func askOf(t testing.TB, r *http.Request) Ask {
	paths := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := paths.NewRequestInfo(r)
	if err != nil {
		t.Errorf("%s %s: %v", r.Method, r.URL, err)
		return Ask{}
	}
	by, _, _ := strings.Cut(r.UserAgent(), "/")
	a := Ask{By: by, Verb: info.Verb, Resource: info.Resource}
	if info.APIGroup != "" {
		a.Resource += "." + info.APIGroup
	}
	if info.Subresource != "" {
		a.Resource += "/" + info.Subresource
	}
	return a
}

func (c *cell) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[what]
}

// dial makes the instance a cell of Kip and opens the tunnel to it.
func (c *cell) dial(k *kip) {
	c.w.t.Helper()
	c.api = k.cells.AddCell(c.user.CellID, cellapi.CellInfo{NodeIP: c.instance.ManagementIP, PodIP: c.instance.PodIP})
	target := tunnel.Target{
		CellID: c.user.CellID, Addr: netip.AddrPortFrom(c.instance.ManagementIP, agentapi.Port),
		Token: c.token, KeyHash: c.keyHash,
		OnState: func(connected bool, err error) {
			if connected {
				err = nil
			}
			c.states <- err
		},
	}
	session, err := k.dialer.Keep(context.Background(), target, c, func(_ context.Context, keyHash string) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.keyHash = keyHash
		return nil
	})
	if err != nil {
		c.w.t.Fatal(err)
	}
	c.session = session
	c.w.t.Cleanup(session.Close)
}

// await returns the next state of the session that satisfies is.
func (c *cell) await(is func(error) bool) error {
	for err := range c.states {
		if is(err) {
			return err
		}
	}
	return nil
}

func connected(err error) bool { return err == nil }

func (c *cell) do(method, path string, body any) (int, string) {
	c.w.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		c.w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "https://cell"+path, bytes.NewReader(b))
	if err != nil {
		c.w.t.Fatal(err)
	}
	resp, err := c.session.Conn().RoundTrip(req)
	if err != nil {
		c.w.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(text)
}

func (c *cell) get(path string) (int, string) { return c.do(http.MethodGet, path, nil) }

func (c *cell) config() agentapi.Config {
	return agentapi.Config{NodeName: nodeName, NodeIP: c.instance.ManagementIP, PodIP: c.instance.PodIP, ClusterDomain: "cluster.local"}
}

func (c *cell) configure() {
	c.w.t.Helper()
	if code, text := c.do(http.MethodPut, agentapi.PathConfig, c.config()); code != http.StatusOK {
		c.w.t.Fatalf("the agent answers its configuration %d: %s", code, text)
	}
}

// ready brings a cell up to a ready node.
func (w *world) ready(n int) *cell {
	w.t.Helper()
	c := w.launch(n)
	c.dial(w.kip)
	<-c.session.Ready()
	c.configure()
	<-c.api.NodeReady()
	return c
}

func (c *cell) bind(pod *corev1.Pod) {
	c.w.t.Helper()
	if err := c.api.Bind(pod.Namespace, pod.Name, pod.UID); err != nil {
		c.w.t.Fatal(err)
	}
}

func newPod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			RestartPolicy:  corev1.RestartPolicyAlways,
			InitContainers: []corev1.Container{{Name: "first", Image: "busybox"}},
			Containers:     []corev1.Container{{Name: "main", Image: "nginx"}, {Name: "side", Image: "envoy"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if change != nil {
		change(p)
	}
	return p
}

// running boots a cell and has it run a pod.
func (w *world) running(n int, change func(*corev1.Pod)) (*cell, *corev1.Pod) {
	w.t.Helper()
	c := w.ready(n)
	pod := w.api.create(newPod(fmt.Sprintf("p-%d", n), change))
	c.bind(pod)
	return c, w.api.await(pod.UID, isPhase(corev1.PodRunning))
}

func podReady(p *corev1.Pod) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status
		}
	}
	return ""
}

func TestPodRunsAndEndsAsOnAKubelet(t *testing.T) {
	inBubble(t, Config{StartTime: time.Second, StopTime: 5 * time.Second}, func(t *testing.T, w *world) {
		c, pod := w.running(1, nil)

		s := pod.Status
		if s.HostIP != c.instance.ManagementIP.String() || s.PodIP != c.instance.PodIP.String() || len(s.PodIPs) != 1 || s.StartTime == nil {
			t.Errorf("status has not the cell's addresses and start: %+v", s)
		}
		if podReady(pod) != corev1.ConditionTrue {
			t.Errorf("pod is not ready: %+v", s.Conditions)
		}
		if len(s.InitContainerStatuses) != 1 || s.InitContainerStatuses[0].State.Terminated == nil {
			t.Errorf("init container has not ended: %+v", s.InitContainerStatuses)
		}
		if len(s.ContainerStatuses) != 2 || s.ContainerStatuses[1].Name != "side" || s.ContainerStatuses[1].State.Running == nil ||
			!s.ContainerStatuses[1].Ready {
			t.Errorf("containers do not run: %+v", s.ContainerStatuses)
		}
		if up, running := w.fleet.Count(); up != 1 || running != 1 {
			t.Errorf("%d instances are up, pods run on %d", up, running)
		}

		asked := time.Now()
		w.api.remove(pod, 30)
		w.api.await(pod.UID, isDeleted)
		if took := time.Since(asked); took < 5*time.Second {
			t.Errorf("the pod was deleted after %v, it takes 5 s to stop", took)
		}
		if got, want := w.api.phases(pod.UID), []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded}; !slices.Equal(got,
			want) {
			t.Errorf("the pod went through %v, want %v", got, want)
		}
		synctest.Wait()
		// Pending, Running, Succeeded, and not more than one deletion.
		if patches, deletions := w.api.count("patch pods/status"), w.api.count("delete pods"); patches != 3 || deletions != 1 {
			t.Errorf("%d patches and %d deletions, want 3 and 1", patches, deletions)
		}
		if _, running := w.fleet.Count(); running != 0 {
			t.Errorf("pods run on %d instances", running)
		}
	})
}

func TestGracePeriodBoundsTheStop(t *testing.T) {
	inBubble(t, Config{StopTime: time.Hour}, func(t *testing.T, w *world) {
		_, pod := w.running(1, nil)
		asked := time.Now()
		w.api.remove(pod, 2)
		w.api.await(pod.UID, isDeleted)
		if took := time.Since(asked); took > time.Minute {
			t.Errorf("the pod was deleted after %v, its grace period is 2 s", took)
		}
	})
}

func TestPodEndsByItsAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		policy     corev1.RestartPolicy
		code       string
		want       corev1.PodPhase
		wantCode   int32
		restarting bool
	}{
		"a Job that works":                    {policy: corev1.RestartPolicyNever, want: corev1.PodSucceeded},
		"one that fails":                      {policy: corev1.RestartPolicyNever, code: "3", want: corev1.PodFailed, wantCode: 3},
		"one that may be started again":       {policy: corev1.RestartPolicyOnFailure, want: corev1.PodSucceeded},
		"one that is started again":           {policy: corev1.RestartPolicyOnFailure, code: "1", wantCode: 1, restarting: true},
		"one that goes on whatever comes":     {policy: corev1.RestartPolicyAlways, restarting: true},
		"one whose exit code is not a number": {policy: corev1.RestartPolicyNever, code: "many", want: corev1.PodSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, w *world) {
				_, pod := w.running(1, func(p *corev1.Pod) {
					p.Spec.RestartPolicy = test.policy
					p.Annotations[AnnotationRunSeconds] = "90.5"
					if test.code != "" {
						p.Annotations[AnnotationExitCode] = test.code
					}
				})
				if test.restarting {
					pod = w.api.await(pod.UID, func(p *corev1.Pod) bool {
						return p.Status.ContainerStatuses != nil && p.Status.ContainerStatuses[0].RestartCount == 2
					})
					last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated
					if last == nil || last.ExitCode != test.wantCode || pod.Status.Phase != corev1.PodRunning {
						t.Errorf("started again, its status is %+v", pod.Status)
					}
					return
				}
				pod = w.api.await(pod.UID, isPhase(test.want))
				state := pod.Status.ContainerStatuses[0].State.Terminated
				if state == nil || state.ExitCode != test.wantCode || state.FinishedAt.Sub(state.StartedAt.Time) < 90*time.Second {
					t.Errorf("container ended as %+v", state)
				}
				if podReady(pod) != corev1.ConditionFalse {
					t.Errorf("pod that ended is ready: %+v", pod.Status.Conditions)
				}
				w.api.remove(pod, 30)
				w.api.await(pod.UID, isDeleted)
			})
		})
	}
}

func TestAgentAndKubeletAnswer(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *world) {
		c := w.launch(1)
		c.dial(w.kip)
		<-c.session.Ready()
		if code, _ := c.get(agentapi.PathKubelet + "/healthz"); code != http.StatusServiceUnavailable {
			t.Errorf("a kubelet without configuration answers %d", code)
		}
		if code, text := c.do(http.MethodPut, agentapi.PathConfig, agentapi.Config{}); code != http.StatusBadRequest ||
			!strings.Contains(text, "nodeName") {
			t.Errorf("an empty configuration is answered %d: %s", code, text)
		}
		c.configure()
		<-c.api.NodeReady()
		pod := w.api.create(newPod("p", nil))
		c.bind(pod)
		w.api.await(pod.UID, isPhase(corev1.PodRunning))
		time.Sleep(100 * time.Second)

		var status agentapi.Status
		if _, text := c.get(agentapi.PathStatus); json.Unmarshal([]byte(text), &status) != nil || status.CellID != "c-1" ||
			len(status.Components) != 2 {
			t.Errorf("status is %s", text)
		}
		for path, want := range map[string]struct {
			code int
			text string
		}{
			"/healthz":                   {200, "ok"},
			"/containerLogs/shop/p/main": {200, "container main of pod shop/p, run 0, on hollow instance i-1\n"},
			"/containerLogs/shop/p/main?timestamps=true": {200, "Z container main"},
			"/containerLogs/shop/p/main?previous=true":   {400, "not found"},
			"/containerLogs/shop/p/none":                 {400, "not available"},
			"/containerLogs/shop/other/main":             {404, "does not exist"},
			"/exec/shop/p/main?command=ls":               {501, "runs no process"},
			"/portForward/shop/p":                        {501, "runs no process"},
			"/configz":                                   {404, ""},
			"/metrics/resource":                          {200, `container_cpu_usage_seconds_total{container="side",namespace="shop",pod="p"} 2 `},
			"/stats/summary":                             {200, `"usageCoreNanoSeconds":2000000000`},
		} {
			code, text := c.get(agentapi.PathKubelet + path)
			if code != want.code || !strings.Contains(text, want.text) {
				t.Errorf("%s is answered %d %q, want %d with %q in it", path, code, text, want.code, want.text)
			}
		}
	})
}

func TestHeartbeatsGoOn(t *testing.T) {
	inBubble(t, Config{Whole: true}, func(t *testing.T, w *world) {
		c := w.ready(1)
		time.Sleep(10*time.Minute + 5*time.Second)
		// Every 10 s, or 5 minutes, and up to 4 % more; and those of the start.
		for what, want := range map[string][2]int{
			"PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/kip-0": {57, 62},
			"PATCH /api/v1/nodes/kip-0/status":                                         {3, 5},
		} {
			if n := c.count(what); n < want[0] || n > want[1] {
				t.Errorf("%s: %d times in ten minutes, want from %d to %d", what, n, want[0], want[1])
			}
		}
		if age := time.Since(c.api.LastHeartbeat()); age > 11*time.Second {
			t.Errorf("the last heartbeat is %v old", age)
		}
		// A watch lasts 5 to 10 minutes.
		for _, watch := range Asks() {
			n := c.made(watch)
			if watch.Verb != "watch" || strings.HasPrefix(watch.When, "as long as the pod") {
				continue
			}
			if n < 2 || n > 3 {
				t.Errorf("%s: %s watched %d times in ten minutes", watch.Resource, watch.By, n)
			}
		}
	})
}

func TestStatusChangesArriveInTurn(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *world) {
		if _, err := w.fleet.StatusChange(t.Context()); !errors.Is(err, ErrNothingRuns) {
			t.Errorf("without pods: %v", err)
		}
		pods := map[string]*corev1.Pod{}
		for n := range 3 {
			_, pod := w.running(n, nil)
			pods[pod.Name] = pod
		}
		turned := map[string]int{}
		for range 6 {
			c, err := w.fleet.StatusChange(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			turned[c.Name]++
			p := w.api.await(pods[c.Name].UID, func(p *corev1.Pod) bool { return p.ResourceVersion == c.ResourceVersion })
			if (podReady(p) == corev1.ConditionTrue) != c.Ready {
				t.Errorf("the change was to ready: %v, the pod has %+v", c.Ready, p.Status.Conditions)
			}
		}
		for name := range pods {
			if turned[name] != 2 {
				t.Errorf("of 6 changes, %v", turned)
			}
		}

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var mu sync.Mutex
		var failed []error
		n := 0
		if err := w.fleet.StatusChanges(ctx, 9, func(_ Change, _ time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			if n++; err != nil {
				failed = append(failed, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if n < 88 || n > 92 || len(failed) > 0 {
			t.Errorf("%d changes in 10 s at 9 a second, failed: %v", n, failed)
		}
	})
}

func TestCellThatIsCutOffComesBack(t *testing.T) {
	for name, cut := range map[string]func(*Fleet, string) error{"refused": (*Fleet).Refuse, "silent": (*Fleet).Silence} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, w *world) {
				c, pod := w.running(1, nil)
				c.await(connected)
				if err := cut(w.fleet, "i-1"); err != nil {
					t.Fatal(err)
				}
				c.await(func(err error) bool { return err != nil })
				time.Sleep(time.Minute)
				if c.session.Connected() {
					t.Fatal("Kip is connected to a cell that is cut off")
				}
				w.api.remove(pod, 30)
				time.Sleep(time.Minute)
				if n := w.api.count("delete pods"); n != 0 {
					t.Fatalf("the cell deleted its pod through a network that is cut")
				}
				if err := w.fleet.Restore("i-1"); err != nil {
					t.Fatal(err)
				}
				c.await(connected)
				w.api.await(pod.UID, isDeleted)
			})
		})
	}
}

// A short silence is one that the connection survives.
func TestShortSilenceLosesNothing(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *world) {
		c, pod := w.running(1, nil)
		c.await(connected)
		if err := w.fleet.Silence("i-1"); err != nil {
			t.Fatal(err)
		}
		w.api.remove(pod, 30)
		time.Sleep(5 * time.Second)
		if n := w.api.count("delete pods"); n != 0 {
			t.Fatalf("the cell deleted its pod through a network that is cut")
		}
		if err := w.fleet.Restore("i-1"); err != nil {
			t.Fatal(err)
		}
		w.api.await(pod.UID, isDeleted)
		select {
		case err := <-c.states:
			t.Errorf("the session's state changed: %v", err)
		default:
		}
	})
}

func TestFaultsAtBoot(t *testing.T) {
	inBubble(t, Config{Faults: func(i cloud.Instance) Faults {
		return Faults{NeverJoins: i.ID == "i-1", NeverReady: i.ID == "i-2"}
	}}, func(t *testing.T, w *world) {
		never := w.launch(1)
		never.dial(w.kip)
		time.Sleep(10 * time.Minute)
		if never.session.Connected() || never.session.LastError() == nil {
			t.Errorf("a cell that never joins: connected %v, %v", never.session.Connected(), never.session.LastError())
		}
		unready := w.launch(2)
		unready.dial(w.kip)
		<-unready.session.Ready()
		unready.configure()
		time.Sleep(10 * time.Minute)
		select {
		case <-unready.api.NodeReady():
			t.Error("a cell that is never ready is")
		default:
		}
		if age := time.Since(unready.api.LastHeartbeat()); age > 11*time.Second {
			t.Errorf("the last heartbeat of a cell that is not ready is %v old", age)
		}
	})
}

func TestRestartedAgentIsTheSameCell(t *testing.T) {
	inBubble(t, Config{KeepDisks: true}, func(t *testing.T, w *world) {
		c, pod := w.running(1, nil)
		c.await(connected)
		if err := w.fleet.Restart("i-1"); err != nil {
			t.Fatal(err)
		}
		c.await(func(err error) bool { return err != nil })
		c.await(connected)
		if _, err := w.fleet.StatusChange(t.Context()); err != nil {
			t.Errorf("the pod does not run on: %v", err)
		}

		// The instance is stopped, and started: its pod has gone, its disk has not.
		c.end()
		w.boots.Wait()
		c.boot()
		c.await(connected)
		c.configure()
		w.api.remove(pod, 30)
		w.api.await(pod.UID, isDeleted)
	})
}

func TestMachineThatForgetsIsNotTheCell(t *testing.T) {
	inBubble(t, Config{KeepDisks: true}, func(t *testing.T, w *world) {
		c, _ := w.running(1, nil)
		c.await(connected)
		if err := w.fleet.Forget("i-1"); err != nil {
			t.Fatal(err)
		}
		c.await(func(err error) bool { return err != nil })
		time.Sleep(time.Minute)
		if c.session.Connected() {
			t.Error("Kip is connected to a machine with another key")
		}
		if _, running := w.fleet.Count(); running != 0 {
			t.Error("the machine has not forgotten its pod")
		}
	})
}

func TestCellReportsToAKipThatStartedSince(t *testing.T) {
	// Its next report of the node by the clock would be too late.
	inBubble(t, Config{NodeInterval: time.Hour}, func(t *testing.T, w *world) {
		c, pod := w.running(1, nil)
		c.session.Close()
		w.kip.stop()
		w.kip = w.startKip(w.fleet.log)
		began := time.Now()
		c.dial(w.kip)
		c.bind(pod)
		<-c.api.NodeReady()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the node was reported after %v", took)
		}
		w.api.remove(pod, 30)
		w.api.await(pod.UID, isDeleted)
	})
}

// A kubelet kills what its list lacks.
func TestPodThatIsNotListedIsKilled(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *world) {
		c, pod := w.running(1, nil)
		synctest.Wait() // its report is answered: nothing else tells it of the pod's end
		c.session.Close()
		// A Kip that does not know of the binding yet, and has the cell wait.
		w.kip.stop()
		w.kip = w.startKip(w.fleet.log)
		c.dial(w.kip)
		<-c.api.NodeReady()
		time.Sleep(time.Minute)
		if _, running := w.fleet.Count(); running != 1 {
			t.Error("the cell killed its pod though Kip did not say that it is gone")
		}
		w.api.mu.Lock()
		w.api.store("DELETED", pod)
		w.api.mu.Unlock()
		synctest.Wait() // Kip knows when it binds, and so has no deletion to tell
		c.bind(pod)
		time.Sleep(time.Minute)
		if _, running := w.fleet.Count(); running != 0 {
			t.Error("the cell runs a pod that is gone")
		}
	})
}

func TestInstanceThatEndsLeavesNothing(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *world) {
		c, _ := w.running(1, func(p *corev1.Pod) { p.Annotations[AnnotationRunSeconds] = "1000000" })
		c.end()
		w.boots.Wait()
		if up, running := w.fleet.Count(); up != 0 || running != 0 {
			t.Errorf("%d instances are up, pods run on %d", up, running)
		}
		if err := w.fleet.Refuse("i-1"); !errors.Is(err, ErrUnknownInstance) {
			t.Errorf("cut an instance off that is gone: %v", err)
		}
		// Its address is free for another.
		other := w.launch(1)
		other.dial(w.kip)
		<-other.session.Ready()
	})
}
