package networkpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/watches"
)

func TestMain(m *testing.M) {
	// The last of these sleeps until the real time is over that of a bubble.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	goleak.VerifyTestMain(m)
}

// shared are watches that tell what a test tells them.
type shared struct {
	mu        sync.Mutex
	followers map[schema.GroupVersionResource]watches.Follower
	refusals  map[schema.GroupVersionResource]error
}

func (s *shared) Follow(ctx context.Context, resource schema.GroupVersionResource, f watches.Follower) error {
	s.mu.Lock()
	s.followers[resource] = f
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (s *shared) Refusal(resource schema.GroupVersionResource) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusals[resource]
}

// agentOf is a cell's agent: it has in force what it was told last.
type agentOf struct {
	mu     sync.Mutex
	force  []byte // nil before the first
	puts   int
	fails  error // of the connection
	answer int   // to a PUT, if not 0
	hangs  bool  // says nothing until the caller gives up
	takes  time.Duration
	calls  int
	// beside says that the agent knows Firewall.Beside.
	beside bool
}

func (a *agentOf) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	a.calls++
	takes := a.takes
	if a.hangs {
		takes = time.Hour
	}
	a.mu.Unlock()
	if takes > 0 {
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(takes):
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fails != nil {
		return nil, a.fails
	}
	answer := func(code int, text string) (*http.Response, error) {
		return &http.Response{StatusCode: code, Status: fmt.Sprint(code), Body: io.NopCloser(strings.NewReader(text))}, nil
	}
	if r.URL.Path != agentapi.PathFirewall {
		return answer(http.StatusNotFound, "not found")
	}
	if r.Method == http.MethodGet {
		digest := ""
		if a.force != nil {
			digest = agentapi.Digest(a.force)
		}
		var fw agentapi.Firewall
		if a.force != nil {
			_ = json.Unmarshal(a.force, &fw)
		}
		uid := ""
		if fw.Beside != nil {
			uid = fw.Beside.PodUID
		}
		return answer(http.StatusOK, fmt.Sprintf(`{"digest":%q,"beside":%t,"podUID":%q}`, digest, a.beside, uid))
	}
	a.puts++
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if a.answer != 0 {
		return answer(a.answer, "no such kernel")
	}
	a.force = body
	return answer(http.StatusOK, "")
}

// now is what the agent has in force, and how often it was told.
func (a *agentOf) now() (fw *agentapi.Firewall, puts int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.force == nil {
		return nil, a.puts
	}
	fw = new(agentapi.Firewall)
	if err := json.Unmarshal(a.force, fw); err != nil {
		panic(err)
	}
	return fw, a.puts
}

// world is a controller in a bubble, with a cluster around it.
type world struct {
	*testing.T
	kip    *Controller
	client *fake.Clientset
	shared *shared
	agents map[string]*agentOf
	stop   func()
	// masquerade is Config.Masquerade.
	masquerade func(subnet string) (except []netip.Prefix, does, known bool)
	beside     Beside // Config.Beside

	mu     sync.Mutex
	events []string
	denied bool // to list the cluster's pods
}

func inWorld(t *testing.T, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, client: fake.NewClientset(), agents: map[string]*agentOf{}}
		list := func(clienttesting.Action) (bool, runtime.Object, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.denied {
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("RBAC says no"))
			}
			return false, nil, nil
		}
		w.client.PrependReactor("list", "pods", list)
		w.run()
		f(w)
		w.stop()
	})
}

func (w *world) run() {
	w.shared = &shared{followers: map[schema.GroupVersionResource]watches.Follower{}, refusals: map[schema.GroupVersionResource]error{}}
	// The node's pods are another watch than the cluster's.
	informer := informers.NewSharedInformerFactory(nodeClient(w), 0).Core().V1().Pods().Informer()
	w.kip = New(Config{
		Pods: informer, Client: w.client, Shared: w.shared,
		AllowsMetadata: func(_ string, a map[string]string) bool { return a["metadata"] == "yes" },
		Masquerade: func(subnet string) ([]netip.Prefix, bool, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.masquerade == nil {
				return nil, false, true
			}
			return w.masquerade(subnet)
		},
		Events: w,
		Beside: w.beside,
		Clock:  clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	running.Go(func() {
		if err := w.kip.Run(ctx); err != nil {
			w.Error(err)
		}
	})
	w.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	w.Cleanup(w.stop)
	synctest.Wait()
}

func (w *world) Event(pod apiv1.PodReference, e events.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, pod.Name+" "+e.Type+" "+e.Reason+" "+e.Message)
}

// nodeClient shows the pods of w's cluster that are on the node.
func nodeClient(w *world) *fake.Clientset {
	pods, err := w.client.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		w.Fatal(err)
	}
	var here []runtime.Object
	for i := range pods.(*corev1.PodList).Items {
		if p := &pods.(*corev1.PodList).Items[i]; p.Spec.NodeName != "" {
			here = append(here, p.DeepCopy())
		}
	}
	return fake.NewClientset(here...)
}

func (w *world) pod(name, ip string, labels map[string]string, node string) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID("uid of " + name), Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
	if err := w.client.Tracker().Add(p); err != nil {
		w.Fatal(err)
	}
	return p
}

// cell makes a cell with a pod of the name, which this process has seen. Its agent is as is has it, from its first question on.
func (w *world) cell(name string, is ...func(*agentOf)) *agentOf {
	w.Helper()
	p := w.pod(name, "10.0.0.9", nil, "kip-0")
	if err := w.kip.cfg.Pods.GetStore().Add(p); err != nil {
		w.Fatal(err)
	}
	a := &agentOf{}
	for _, is := range is {
		is(a)
	}
	w.mu.Lock()
	w.agents[name] = a // A part of Kip that asks for agents may run already.
	w.mu.Unlock()
	w.bind(name)
	return a
}

func (w *world) bind(name string) {
	w.kip.Connected("cell-"+name, w.agents[name])
	w.kip.Bound(Cell{
		ID: "cell-" + name, PodIP: netip.MustParseAddr("10.0.0.9"), PodIPv6: netip.MustParseAddr("fd00::9"),
		Pod: apiv1.PodReference{Namespace: "a", Name: name, UID: types.UID("uid of " + name)},
	})
}

func (w *world) policies(texts ...string) {
	w.Helper()
	var all []runtime.Object
	for i, text := range texts {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i)}}
		if err := yaml.UnmarshalStrict([]byte(text), &p.Spec); err != nil {
			w.Fatal(err)
		}
		all = append(all, p)
	}
	w.shared.followers[policies].Replace(all)
}

func (w *world) namespaces() {
	w.shared.followers[namespaces].Replace([]runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}})
}

// later lets time pass, and all that happens in it happen.
func (w *world) later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) told(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e string) bool { return strings.Contains(e, what) })
}

// watching says whether the cluster's pods are being watched.
func (w *world) watching() bool {
	w.kip.mu.Lock()
	defer w.kip.mu.Unlock()
	return w.kip.peers != nil
}

// lists are how often the cluster's pods were asked for.
func (w *world) lists() (n int) {
	for _, a := range w.client.Actions() {
		if a.Matches("list", "pods") || a.Matches("watch", "pods") {
			n++
		}
	}
	return n
}

const (
	denyAll  = `{podSelector: {}, policyTypes: [Ingress, Egress]}`
	fromWebs = `{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}`
)

func TestAPodGetsItsFirstRulesWhenAllIsKnown(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.cell("p")
		w.later(time.Second)
		w.namespaces()
		w.later(time.Second)
		if fw, _ := a.now(); fw != nil {
			t.Fatalf("rules without policies being known: %+v", fw)
		}
		w.shared.mu.Lock()
		w.shared.refusals[policies] = errors.New("forbidden")
		w.shared.mu.Unlock()
		w.later(patience)
		if !w.told("p Warning NetworkPolicyUnknown The pod's network waits until Kip knows the NetworkPolicies: Kip may not list networkpolicies of the cluster: forbidden") {
			t.Errorf("events %q", w.events)
		}
		w.policies(denyAll)
		w.later(0)
		if fw, puts := a.now(); fw == nil || !fw.Ingress.Isolated || !fw.Egress.Isolated || fw.PodIP.String() != "10.0.0.9" ||
			fw.PodIPv6.String() != "fd00::9" || fw.Pod != "a/p" || puts != 1 {
			t.Errorf("rules %+v after %d calls", fw, puts)
		}
		if w.lists() > 0 {
			t.Error("the cluster's pods were asked for, and no policy does")
		}
	})
}

func TestNothingIsSentWhenNothingChanges(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.cell("p")
		w.namespaces()
		w.policies()
		w.later(time.Second)
		if fw, puts := a.now(); fw == nil || fw.Ingress.Isolated || puts != 1 {
			t.Fatalf("rules %+v after %d calls", fw, puts)
		}
		w.policies(`{podSelector: {matchLabels: {app: other}}}`) // not this pod's
		w.bind("p")                                              // a new connection
		w.later(time.Minute)
		if _, puts := a.now(); puts != 1 {
			t.Errorf("%d calls", puts)
		}
		// Another Kip.
		w.stop()
		w.run()
		w.bind("p")
		w.namespaces()
		w.policies()
		w.later(time.Minute)
		if _, puts := a.now(); puts != 1 {
			t.Errorf("%d calls after a restart of Kip", puts)
		}
		// An agent that has lost them.
		a.mu.Lock()
		a.force = nil
		a.mu.Unlock()
		w.bind("p")
		w.later(time.Second)
		if fw, puts := a.now(); fw == nil || puts != 2 {
			t.Errorf("rules %+v after %d calls", fw, puts)
		}
	})
}

func TestTheClustersPodsAreWatchedOnlyWhileAPolicyAsksForThem(t *testing.T) {
	inWorld(t, func(w *world) {
		w.pod("web", "10.0.0.1", map[string]string{"app": "web"}, "")
		a := w.cell("p")
		w.namespaces()
		w.policies()
		w.later(time.Second)
		if w.lists() > 0 {
			t.Fatal("the cluster's pods were asked for without a policy")
		}
		w.policies(fromWebs)
		w.later(time.Second)
		fw, _ := a.now()
		if len(fw.Ingress.Allowed) != 1 || fmt.Sprint(fw.Ingress.Allowed[0].Addresses) != "[10.0.0.1/32]" {
			t.Fatalf("rules %+v", fw.Ingress)
		}
		w.pod("web2", "10.0.0.4", map[string]string{"app": "web"}, "")
		w.later(time.Second)
		if fw, _ = a.now(); fmt.Sprint(fw.Ingress.Allowed[0].Addresses) != "[10.0.0.1/32 10.0.0.4/32]" {
			t.Fatalf("rules %+v", fw.Ingress)
		}
		w.policies()
		w.later(linger / 2)
		w.policies(fromWebs)
		w.later(linger)
		if !w.watching() {
			t.Fatal("the watch did not last")
		}
		w.policies()
		w.later(linger + time.Second)
		if w.watching() {
			t.Error("the watch goes on for nobody")
		}
		before := w.lists()
		w.policies(fromWebs)
		w.later(time.Second)
		if fw, _ = a.now(); w.lists() == before || len(fw.Ingress.Allowed) != 1 {
			t.Errorf("after the watch began again: %+v", fw.Ingress)
		}
	})
}

// Whose pod says that it has another's address opens nobody's firewall to that.
func TestAPodOnACellHasNoAddressButItsInstances(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.cell("p")
		w.namespaces()
		w.policies(fromWebs)
		liar := w.pod("liar", "8.8.8.8", map[string]string{"app": "web"}, "kip-0")
		liar.Status.PodIPs = append(liar.Status.PodIPs, corev1.PodIP{IP: "10.0.0.9"})
		if err := w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), liar, "a"); err != nil {
			w.Fatal(err)
		}
		if err := w.kip.cfg.Pods.GetStore().Add(liar); err != nil {
			w.Fatal(err)
		}
		allowed := func() string {
			fw, _ := a.now()
			return fmt.Sprint(fw.Ingress.Allowed)
		}
		w.later(time.Second)
		w.agents["liar"] = &agentOf{}
		w.bind("liar")
		w.later(time.Second)
		if got := allowed(); strings.Contains(got, "8.8.8.8") || !strings.Contains(got, "10.0.0.9/32") {
			t.Errorf("the cell was bound after its pod was seen: %s is let in", got)
		}
		liar = liar.DeepCopy()
		liar.Status.PodIPs = []corev1.PodIP{{IP: "8.8.4.4"}, {IP: "fd00::9"}}
		if err := w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), liar, "a"); err != nil {
			w.Fatal(err)
		}
		w.later(time.Second)
		if got := allowed(); strings.Contains(got, "8.8.4.4") || !strings.Contains(got, "fd00::9/128") {
			t.Errorf("the status changed after the cell was bound: %s is let in", got)
		}
	})
}

func TestWithoutTheRightToListPodsTheirRulesLetNobodyIn(t *testing.T) {
	inWorld(t, func(w *world) {
		w.denied = true
		w.pod("web", "10.0.0.1", map[string]string{"app": "web"}, "")
		old := w.cell("old")
		w.namespaces()
		w.policies()
		w.later(time.Second)
		w.policies(fromWebs)
		w.later(time.Second)
		next := w.cell("next")
		w.later(patience + time.Second)
		if fw, _ := old.now(); !fw.Ingress.Isolated || len(fw.Ingress.Allowed) > 0 {
			t.Errorf("a running pod: %+v", fw.Ingress)
		}
		if fw, _ := next.now(); fw != nil {
			t.Errorf("a new pod is let through with %+v", fw)
		}
		for _, event := range []string{"old Warning NetworkPolicyUnknown Kip cannot apply NetworkPolicies",
			"next Warning NetworkPolicyUnknown The pod's network waits"} {
			if !w.told(event) || !w.told("RBAC says no") {
				t.Errorf("no event %q: %q", event, w.events)
			}
		}
		w.mu.Lock()
		w.denied = false
		w.mu.Unlock()
		w.later(time.Minute)
		for name, a := range map[string]*agentOf{"old": old, "next": next} {
			if fw, _ := a.now(); fw == nil || len(fw.Ingress.Allowed) != 1 {
				t.Errorf("%s: %+v", name, fw)
			}
		}
	})
}

func TestABurstOfPeersIsHandedOverInFewParts(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.cell("p")
		w.namespaces()
		w.policies(fromWebs)
		w.later(time.Second)
		_, before := a.now()
		const pods = 100
		for i := range pods {
			w.pod(fmt.Sprint("web", i), fmt.Sprint("10.0.1.", i), map[string]string{"app": "web"}, "")
			w.later(10 * time.Millisecond)
		}
		w.later(pace)
		fw, puts := a.now()
		// 100 addresses, as networks.
		if got := fmt.Sprint(fw.Ingress.Allowed[0].Addresses); got != "[10.0.1.0/26 10.0.1.64/27 10.0.1.96/30]" {
			t.Errorf("rules %s", got)
		}
		if puts-before > 4 {
			t.Errorf("%d calls for a second of changes", puts-before)
		}
	})
}

// A thousand cells with a thousand peers each: what changes of one peer is not a thousand large sets twice a second, while a
// cell with few rules has its changes as soon as ever.
func TestLargeSetsOfRulesAreHandedOverLessOften(t *testing.T) {
	for _, c := range []struct {
		bytes int
		large sets
		want  time.Duration
	}{
		{0, sets{10000, 10000 * 160 << 10}, pace},
		{1 << 10, sets{10000, 10000 * 32 << 10}, pace},
		{32 << 10, sets{100, 100 * 32 << 10}, pace},
		{32 << 10, sets{2000, 2000 * 32 << 10}, 2 * time.Second}, // 64 MB in all
		{160 << 10, sets{10000, 10000 * 160 << 10}, longestPace},
		{160 << 10, sets{1601, 1600*4<<10 + 160<<10}, pace}, // among many small ones
		{4 << 10, sets{1601, 1600*160<<10 + 4<<10}, pace},   // among many larger ones
	} {
		if got := (&agent{bytes: c.bytes}).pace(c.large).Round(100 * time.Millisecond); (got - c.want).Abs() > c.want/20 {
			t.Errorf("%d bytes of rules, of %d sets, are handed over every %s, want about %s", c.bytes, c.large, got, c.want)
		}
	}
	inWorld(t, func(w *world) {
		a := w.cell("p")
		w.namespaces()
		w.policies(fromWebs)
		w.later(time.Second)
		w.kip.mu.Lock()
		w.kip.has(w.kip.agents["cell-p"], 10*updateRate) // as of many cells
		w.kip.mu.Unlock()
		_, before := a.now()
		w.pod("web0", "10.0.1.1", map[string]string{"app": "web"}, "")
		w.later(8 * time.Second)
		if _, puts := a.now(); puts != before {
			t.Error("rules of ten times what goes over in a second are handed over within eight")
		}
		w.later(2 * time.Second)
		if _, puts := a.now(); puts != before+1 {
			t.Errorf("rules were handed over %d times when their time had come, want once", puts-before)
		}
		w.kip.Connected("cell-p", a)
		w.later(time.Second)
		w.kip.mu.Lock()
		defer w.kip.mu.Unlock()
		if now := w.kip.agents["cell-p"]; now.bytes == 0 || now.pushed.IsZero() || w.kip.large.count != 0 || w.kip.large.bytes != 0 {
			t.Errorf("of a new connection's agent it is known that it has %d bytes since %s, and of all %+v", now.bytes, now.pushed, w.kip.large)
		}
	})
}

func TestAnAgentThatFailsIsTriedAgainAndItsRefusalIsTold(t *testing.T) {
	inWorld(t, func(w *world) {
		w.namespaces()
		w.policies()
		a := w.cell("p", func(a *agentOf) { a.fails = errors.New("broken pipe") })
		w.later(time.Minute)
		if w.told("broken pipe") {
			t.Errorf("a connection that breaks is no news of the pod: %q", w.events)
		}
		a.mu.Lock()
		a.fails, a.answer = nil, http.StatusInternalServerError
		a.mu.Unlock()
		w.later(2 * time.Minute) // two tries are up to 30 s apart, and some more by chance
		if !w.told("p Warning FirewallFailed") || !w.told("no such kernel") || len(w.events) != 1 {
			t.Errorf("events %q", w.events)
		}
		a.mu.Lock()
		a.answer = 0
		a.mu.Unlock()
		w.later(time.Minute)
		if fw, _ := a.now(); fw == nil {
			t.Error("it is not retried")
		}
	})
}

func TestAgentsThatDoNotAnswerKeepNoOtherCellWithoutItsFirewall(t *testing.T) {
	inWorld(t, func(w *world) {
		var stuck []*agentOf
		for n := range 100 {
			a := w.cell(fmt.Sprint("stuck-", n))
			a.mu.Lock()
			a.hangs = true
			a.mu.Unlock()
			stuck = append(stuck, a)
		}
		w.namespaces()
		w.policies()
		w.later(2 * time.Second)
		well := w.cell("well")
		w.later(time.Second)
		if fw, _ := well.now(); fw == nil {
			t.Error("a cell whose agent answers has no firewall after 1 s")
		}
		for _, a := range stuck {
			a.mu.Lock()
			a.hangs = false
			a.mu.Unlock()
		}
		w.later(5 * time.Minute)
		for n, a := range stuck {
			if fw, _ := a.now(); fw == nil {
				t.Errorf("agent %d answers again and has no firewall", n)
			}
		}
	})
}

func TestTheMetadataAnnotationIsFollowed(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.cell("p")
		w.namespaces()
		w.policies()
		w.later(time.Second)
		if fw, _ := a.now(); fw.AllowMetadata {
			t.Error("allowed, and nobody asked for it")
		}
		p := w.pod("q", "10.0.0.9", nil, "kip-0")
		p.UID, p.Name, p.Annotations = "uid of p", "p", map[string]string{"metadata": "yes"}
		w.kip.podSeen(p)
		w.later(time.Second)
		if fw, _ := a.now(); !fw.AllowMetadata {
			t.Error("not allowed")
		}
	})
}

// Another Kip may have begun to lead, the pod may be deleted, and another one may have its name.
func TestNothingPassesToAPodWhoseCellIsKept(t *testing.T) {
	inWorld(t, func(w *world) {
		w.namespaces()
		w.policies()
		a := w.cell("p", func(a *agentOf) { a.force = []byte("{}") })
		w.later(time.Second)
		if fw, _ := a.now(); fw == nil || fw.Ingress.Isolated {
			t.Fatalf("rules %+v", fw)
		}
		p := w.pod("other", "10.0.0.10", nil, "kip-0")
		p.Name, p.UID = "p", "second"
		if err := w.kip.cfg.Pods.GetStore().Update(p); err != nil {
			t.Fatal(err)
		}
		w.kip.Bound(Cell{ID: "cell-second", PodIP: netip.MustParseAddr("10.0.0.10"),
			Pod: apiv1.PodReference{Namespace: "a", Name: "p", UID: "second"}})
		w.kip.Isolate("cell-p")
		w.later(time.Second)
		if fw, _ := a.now(); !fw.Ingress.Isolated || !fw.Egress.Isolated || len(fw.Ingress.Allowed)+len(fw.Egress.Allowed) > 0 ||
			fw.AllowMetadata {
			t.Errorf("rules %+v", fw)
		}
		w.stop()
		w.run() // it knows neither policies nor the pod
		w.bind("p")
		w.kip.Isolate("cell-p")
		_, before := a.now()
		w.later(time.Second)
		if fw, puts := a.now(); !fw.Ingress.Isolated || puts != before {
			t.Errorf("after a restart: rules %+v, after %d calls", fw, puts-before)
		}
	})
}

func TestAnOldCellsEndLeavesTheRulesOfAPodOfTheSameName(t *testing.T) {
	inWorld(t, func(w *world) {
		w.namespaces()
		w.policies()
		w.cell("p")
		w.later(time.Second)
		next := &agentOf{}
		p := w.pod("other", "10.0.0.10", nil, "kip-0")
		p.Name, p.UID = "p", "second"
		if err := w.kip.cfg.Pods.GetStore().Update(p); err != nil {
			t.Fatal(err)
		}
		w.kip.Connected("cell-second", next)
		w.kip.Bound(Cell{ID: "cell-second", PodIP: netip.MustParseAddr("10.0.0.10"),
			Pod: apiv1.PodReference{Namespace: "a", Name: "p", UID: "second"}})
		w.kip.Gone("cell-p")
		w.policies(denyAll)
		w.later(time.Second)
		if fw, _ := next.now(); fw == nil || !fw.Ingress.Isolated || fw.PodIP.String() != "10.0.0.10" {
			t.Errorf("rules %+v", fw)
		}
		w.kip.Gone("cell-second")
		if n := len(w.kip.cells) + len(w.kip.agents) + len(w.kip.byPod) + len(w.kip.owners); n > 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// Agents that answer nothing, however many, hold up nobody else: not a change of a
// policy, nor a new pod. What is merely slow still gets its rules.
func TestAgentsThatHangHoldUpNobodyElse(t *testing.T) {
	inWorld(t, func(w *world) {
		w.namespaces()
		w.policies()
		good, late := w.cell("good"), w.cell("late")
		w.later(time.Second)
		late.takes = 3 * time.Second // longer than those that are well
		var hanging []*agentOf
		for i := range 40 {
			hanging = append(hanging, w.cell(fmt.Sprint("bad-", i), func(a *agentOf) { a.hangs = i%2 == 0 }))
		}
		synctest.Wait()
		for _, a := range hanging {
			a.mu.Lock()
			a.takes = time.Hour // those that do not hang have had their first rules by now
			a.mu.Unlock()
		}
		isolated := func(a *agentOf, what string) {
			t.Helper()
			if fw, _ := a.now(); fw == nil || !fw.Ingress.Isolated {
				t.Errorf("%s: the rules are not in force: %+v", what, fw)
			}
		}
		w.policies(denyAll)
		synctest.Wait()
		isolated(good, "while others hang")
		isolated(w.fresh("new"), "a new cell while others hang")
		w.later(2*time.Minute + 3*time.Second) // they are tried again and again
		isolated(late, "what is only slow")
		w.policies()
		synctest.Wait()
		if fw, _ := good.now(); fw.Ingress.Isolated {
			t.Error("the change back was not followed at once")
		}
		for i, a := range hanging {
			if a.mu.Lock(); a.calls < 2 {
				t.Errorf("agent %d was asked %d times", i, a.calls)
			}
			a.mu.Unlock()
		}
		// One that answers again is in nobody's way, and waits for nobody.
		a := hanging[0]
		a.mu.Lock()
		a.hangs, a.takes = false, 0
		a.mu.Unlock()
		w.later(2 * time.Minute)
		w.policies(denyAll)
		synctest.Wait()
		isolated(a, "one that answers again")
		// A new connection is no new patience.
		before := hanging[2].calls
		for range 100 {
			w.bind("bad-2")
			w.later(time.Second / 10)
		}
		if n := hanging[2].calls - before; n > 10 {
			t.Errorf("%d calls in 10 s of an agent that hangs", n)
		}
		isolated(w.fresh("newer"), "a new cell while another comes and goes")
	})
}

// fresh makes a cell and lets happen what happens at once.
func (w *world) fresh(name string) *agentOf {
	a := w.cell(name)
	synctest.Wait()
	return a
}

// An agent that fails and whose tunnel flaps is not asked as often as it connects with
// the pace of a first failure: each failure makes the next wait longer.
func TestConnectingAgainDoesNotUndoTheBackOff(t *testing.T) {
	inWorld(t, func(w *world) {
		w.namespaces()
		w.policies()
		a := w.cell("p", func(a *agentOf) { a.fails = errors.New("broken pipe") })
		w.later(time.Minute)
		failed := w.kip.queue.NumRequeues("cell-p")
		w.kip.Connected("cell-p", a)
		if n := w.kip.queue.NumRequeues("cell-p"); failed == 0 || n < failed {
			t.Errorf("after %d failures and a connection, %d count", failed, n)
		}
	})
}
