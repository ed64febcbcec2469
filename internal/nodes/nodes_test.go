package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watchdog"
	"github.com/elotl/kip/internal/watches"
	"github.com/elotl/kip/test/journal"
	"github.com/elotl/kip/test/loopback"
)

var silent = slog.New(slog.DiscardHandler)

// sold is what the cloud of these tests offers.
var sold = []catalog.InstanceType{{Name: "small", Arch: "amd64", MilliCPU: 1000, MemoryBytes: 1 << 30, Offerings: []catalog.PurchaseOption{
	{Zone: "a", PricePerHour: 2}, {Zone: "b", PricePerHour: 2}, {Zone: "b", Spot: true, PricePerHour: 1},
}}}

// town is a leader with its virtual nodes, in a cluster of which each node sees its
// own pods.
type town struct {
	*testing.T
	nodes   *Nodes      // of the last process
	serves  *Controller // of these
	file    string
	log     *journal.Log
	cluster *fake.Clientset
	store   *store.Store
	base    int    // kubelet port
	ports   *ports // nil for those of the host
	// certified are the nodes whose certificates are kept.
	certified atomic.Pointer[[]string]

	mu       sync.Mutex
	pods     map[string]*fake.Clientset // of each node
	denied   string                     // the node that Kip may not be
	stop     func()
	clock    *testclock.FakeClock // of shortages
	missing  *capacity.Shortages
	recorder *record.FakeRecorder
	sells    []catalog.InstanceType
	began    []*served      // with which the last process began
	loaded   *config.Config // when the next process began, if not when it leads

	readsAgain time.Duration // of the next process

	// Of the next process.
	asKip   kubernetes.Interface              // nil for the cluster itself
	ways    func(pods cache.Store) node.Cells // to cells
	running func(node string) []stats.Cell    // cells that say what their pods use
	clouds  volumes.CloudDriver               // of a cloud that has disks
	bounder Bounder                           // nil for a cloud that knows no bounds
	cells   Cells                             // nil for none
}

func (w *town) write(nodes string) {
	w.Helper()
	text := fmt.Sprintf("cloud: {sim: {socket: /none}}\ncells: {defaultInstanceType: small}\netcd: {internal: {dataDir: %s}}\n%s\n",
		filepath.Dir(w.file), nodes)
	if err := os.WriteFile(w.file, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *town) To(pods cache.Store) node.Cells { return w.ways(pods) }

func (w *town) Running(node string) []stats.Cell { return w.running(node) }

// flags are those of a process that listens on the loopback.
type flags struct{}

func (flags) Addresses() ([]netip.Addr, error) {
	return []netip.Addr{loopback.Own()}, nil
}

func (flags) Taint() (*corev1.Taint, error) {
	t, err := node.TaintFromEnv(os.LookupEnv)
	return &t, err
}

// certificates are those of an authority.
type certificates struct {
	authority *pki.Authority
	only      *atomic.Pointer[[]string] // the nodes for which they are kept
}

func (c certificates) KeepOnly(_ context.Context, nodes []string) { c.only.Store(&nodes) }

func (c certificates) Certificate(_ context.Context, name string, at []netip.Addr) (Certificate, error) {
	own, err := c.authority.Server([]string{name}, at)
	if err != nil {
		return nil, err
	}
	return certificate{own}, nil
}

// certificate is one that needs nobody to keep it.
type certificate struct{ *pki.Renewed }

func (certificate) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// unobserved is told, and does nothing.
type unobserved struct{}

func (unobserved) StatsGathered(string, time.Duration, map[stats.Miss]int) {}
func (unobserved) NodeGone(string)                                         {}
func (unobserved) Kubelet(metrics.KubeletConfig) http.Handler              { return http.NotFoundHandler() }

// As is a node's own view: its pods are its own, all else is the cluster's.
func (w *town) As(name string) (kubernetes.Interface, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods[name] == nil {
		c := fake.NewClientset()
		for _, resource := range []string{"nodes", "leases"} {
			// One after the other, as an API server does: over the tracker alone a patch of the
			// status would bring back the taints that it had read.
			c.PrependReactor("*", resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
				obj, err := w.cluster.Invokes(a, nil)
				return true, obj, err
			})
		}
		w.pods[name] = c
	}
	return w.pods[name], nil
}

func newTown(t *testing.T, nodes string) *town {
	t.Helper()
	w := &town{
		T:       t,
		file:    filepath.Join(t.TempDir(), "provider.yaml"),
		log:     &journal.Log{},
		cluster: fake.NewClientset(),
		store:   store.Memory(nil),
		pods:    map[string]*fake.Clientset{},
		base:    node.DefaultPort,
		ports:   &ports{open: map[string]*port{}},
		clock:   testclock.NewFakeClock(time.Now()),
		sells:   sold,
		ways:    func(cache.Store) node.Cells { return noCells{} },
		running: func(string) []stats.Cell { return nil },
	}
	w.missing = capacity.New(w.clock)
	w.cluster.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		w.mu.Lock()
		defer w.mu.Unlock()
		review.Status.Allowed = w.denied == "" || !strings.HasSuffix(review.Spec.ResourceAttributes.Name, w.denied)
		return true, review, nil
	})
	// The API server publishes no client CA to Kip: ports know tokens only.
	w.cluster.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("no"))
	})
	// As an API server does, which the library's does not.
	w.cluster.PrependReactor("create", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		n := a.(clienttesting.CreateAction).GetObject().(*corev1.Node)
		n.UID = types.UID(n.Name)
		return false, n, nil
	})
	w.write(nodes)
	return w
}

// react puts a reaction before those that the API server has, also while Kip asks it:
// PrependReactor takes no lock.
func (w *town) react(verb, resource string, reaction clienttesting.ReactionFunc) {
	w.cluster.Lock()
	defer w.cluster.Unlock()
	w.cluster.PrependReactor(verb, resource, reaction)
}

// ports are kubelet ports that nobody calls. In a bubble no time passes while somebody
// waits for a connection of the host's network.
type ports struct {
	mu   sync.Mutex
	open map[string]*port
}

func (p *ports) listen(_ context.Context, address string) (net.Listener, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[address] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: at, Err: syscall.EADDRINUSE}
	}
	l := &port{of: p, at: at, closed: make(chan struct{})}
	p.open[address] = l
	return l, nil
}

// port is one of them, that listens.
type port struct {
	of     *ports
	at     net.Addr
	closed chan struct{}
}

func (l *port) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l *port) Close() error {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.of.open[l.at.String()] != l {
		return net.ErrClosed
	}
	delete(l.of.open, l.at.String())
	close(l.closed)
	return nil
}

func (l *port) Addr() net.Addr { return l.at }

// freePorts returns a port for the node by its own name, where those of the first n numbered
// ones are free, too.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	listens := func(port int) int {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: loopback.Own().AsSlice(), Port: port})
		if err != nil {
			return 0
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	for {
		base, free := listens(0), 1
		if base == 0 {
			t.Fatalf("no port of %s is free", loopback.Own())
		}
		for free <= n && listens(portOf(base, free)) != 0 {
			free++
		}
		if free > n {
			return base
		}
	}
}

func TestNoNodeHasAPortOfAnotherPart(t *testing.T) {
	// Of Kip, a kubelet, kube-proxy, the controller managers and the scheduler.
	taken := map[int]string{9443: "", 10248: "", 10249: "", 10255: "", 10256: "", 10257: "", 10258: "", 10259: "", 10260: ""}
	for number := range config.MaxNodes + 1 {
		port := portOf(10250, number)
		if who, is := taken[port]; is {
			t.Errorf("node %d has port %d, as another has (%s)", number, port, who)
		}
		taken[port] = fmt.Sprintf("node %d", number)
	}
}

// start lets a Kip lead; its error is that of the parts that are the nodes'.
func (w *town) start() (ended <-chan error) {
	w.Helper()
	cfg, _, err := config.Load(w.file)
	if err != nil {
		w.Fatal(err)
	}
	if w.loaded != nil {
		cfg = w.loaded
	}
	log := slog.New(slog.NewTextHandler(w.log, nil))
	must := func(err error) {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
	}
	simulated, err := sim.New(sim.Config{Catalogue: w.sells})
	must(err)
	w.Cleanup(func() { _ = simulated.Close() })
	machines := pipe.New(pipe.Config{Cloud: simulated, Clock: clock.RealClock{}})
	w.recorder = record.NewFakeRecorder(100)
	c := Config{
		Name:         "kip-0",
		ControllerID: "me",
		File:         w.file,
		Config:       cfg,
		Store:        w.store,
		Shortages:    w.missing,
		Bounder:      w.bounder,
		Region:       machines.Capabilities().Region,
		HasDisks:     w.clouds.Name != "",
		CloudDriver:  w.clouds,
		Client:       cmp.Or[kubernetes.Interface](w.asKip, w.cluster),
		Reviews:      cmp.Or[kubernetes.Interface](w.asKip, w.cluster),
		Clients:      w,
		Recorder:     w.recorder,
		Flags:        flags{},
		KubeletPort:  w.base,
		Watchdog:     watchdog.New(clock.RealClock{}, silent),
		Clock:        clock.RealClock{},
		Log:          log,
	}
	c.InstanceTypes, err = instancetypes.Open(w.Context(), instancetypes.Config{
		Cloud: machines, Store: w.store, Placement: placement.Config{DefaultInstanceType: "small"}, Clock: c.Clock, Log: silent,
	})
	must(err)
	n, err := newNodes(c)
	must(err)
	n.reads.again = w.readsAgain
	w.nodes = n
	failed := make(chan error, 3)
	if err := n.begin(w.Context()); err != nil {
		failed <- err
		w.stop = func() {}
		return failed
	}
	w.began = n.all()
	authority, err := pki.New(time.Now)
	must(err)
	logs, err := podlogs.Open(podlogs.Config{Dir: w.TempDir(), Log: silent})
	must(err)
	ledger := cells.New(cells.Config{
		NodeName: "kip-0", Calls: machines, Store: w.store, Clock: c.Clock, Log: silent, Nodes: n,
		Guard: guard.New(guard.Config{Clock: c.Clock}),
	})
	w.Cleanup(ledger.Close)
	serves := newController(n, Equipment{
		Cells:        cmp.Or[Cells](w.cells, ledger),
		Endpoints:    w,
		Observer:     unobserved{},
		Logs:         logs,
		Certificates: certificates{authority, &w.certified},
	})
	serves.removals.lingers, serves.following.access.again = 50*time.Millisecond, 10*time.Millisecond
	if w.ports != nil {
		serves.kubelets.listen = w.ports.listen
	}
	w.serves = serves
	must(serves.open(w.Context()))
	following, endFollow := context.WithCancel(context.Background())
	keeping, endKeep := context.WithCancel(context.Background())
	var followed, kept sync.WaitGroup
	followed.Go(func() { failed <- serves.Follow(following) })
	kept.Go(func() { failed <- serves.Keep(keeping) })
	kept.Go(func() { failed <- serves.KeepCapacity(keeping) })
	w.stop = sync.OnceFunc(func() {
		endKeep()
		kept.Wait()
		endFollow()
		followed.Wait()
		serves.Close()
	})
	w.Cleanup(w.stop)
	return failed
}

// noCells are the cells of pods that have none.
type noCells struct{}

func (noCells) Machine(string) (agentapi.Conn, error) { return nil, node.ErrCellNotFound }

func (noCells) Conn(string, string, types.UID) (agentapi.Conn, error) {
	return nil, node.ErrPodNotFound
}

// short notes that an offering was not served.
func (w *town) short(o offering.Offering, err error) { w.missing.Mark(instancetypes.Shortage(o, err)) }

// patience is how long a test waits for what must come. Where time is not that of a bubble, it
// only has to tell a hang from a slow machine.
const patience = 5 * time.Minute

// eventually waits for what the nodes do by and by, and has them look.
func (w *town) eventually(what string, holds func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("never: %s\n%s", what, w.log)
		}
		w.nodes.LookSoon()
	}
}

func (w *town) node(name string) *corev1.Node {
	n, err := w.cluster.CoreV1().Nodes().Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return n
}

// ready says that a node is Ready.
func (w *town) ready(name string) bool {
	n := w.node(name)
	return n != nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (w *town) addPod(on, name, owner string) {
	w.Helper()
	w.createPod(on, name, owner)
	w.eventually("Kip sees the pod", func() bool { return len(watches.List(w.nodes.named(on).informer)) == 1 })
}

func (w *town) createPod(on, name, owner string) {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-1", ResourceVersion: "1"},
		Spec:       corev1.PodSpec{NodeName: on},
	}
	if owner != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "owner"}}
	}
	client, _ := w.As(on)
	if _, err := client.CoreV1().Pods("ns").Create(w.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *town) removePod(on, name string) {
	w.Helper()
	client, _ := w.As(on)
	if err := client.CoreV1().Pods("ns").Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}

func hasTaint(n *corev1.Node, key string) bool {
	return n != nil && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

const inTwoZones = "nodes: [{zones: [a], labels: {team: x}}, {zones: [b], launchTypes: [spot], capacity: {cpu: 7}}]"

func TestNodesComeAndGoWithTheConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "")
		w.start()
		w.eventually("the one node is Ready", func() bool { return w.ready("kip-0") })
		if revision, err := w.store.Get(t.Context(), Key, new([]any)); err != nil || revision != 0 {
			t.Errorf("a Kip with the one node has a record of it: %d, %v", revision, err)
		}
		w.addPod("kip-0", "old", "")

		w.write(inTwoZones)
		w.eventually("both nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		one, two := w.node("kip-0-1"), w.node("kip-0-2")
		if one.Labels["topology.kubernetes.io/zone"] != "a" || one.Labels["team"] != "x" || one.Labels["karpenter.sh/capacity-type"] != "" {
			t.Errorf("the first node has the labels %v", one.Labels)
		}
		if two.Labels["topology.kubernetes.io/zone"] != "b" || two.Labels["karpenter.sh/capacity-type"] != "spot" {
			t.Errorf("the second node has the labels %v", two.Labels)
		}
		if cpu := two.Status.Allocatable.Cpu(); cpu.Value() != 7 || int(two.Status.DaemonEndpoints.KubeletEndpoint.Port) != w.base+102 {
			t.Errorf("the second node has %s CPUs, port %d", cpu, two.Status.DaemonEndpoints.KubeletEndpoint.Port)
		}
		if two.Spec.ProviderID != "kip://me/kip-0-2/virtual" {
			t.Errorf("the second node's provider ID is %q", two.Spec.ProviderID)
		}
		w.eventually("the node with the pod is cordoned", func() bool { n := w.node("kip-0"); return n != nil && n.Spec.Unschedulable })
		if !hasTaint(w.node("kip-0"), node.RemovedTaint) {
			t.Error("the node that was taken out has no taint that says so")
		}
		if got := w.nodes.StandbyNode(offering.Offering{InstanceType: "small", Zone: "b", Spot: true}); got != "kip-0-2" {
			t.Errorf("a standby cell in zone b, spot, is of %s", got)
		}
		if list, only, ours := w.nodes.Zones("kip-0-2"); !ours || only != "b" || !slices.Equal(list, []string{"b"}) {
			t.Errorf("the second node is in %v, %q, %t", list, only, ours)
		}
		if _, _, ours := w.nodes.Zones("machine"); ours {
			t.Error("a machine's node is ours")
		}

		// Wrong files change nothing.
		for nodes, why := range map[string]string{
			"nodes: [{zones: [mars]}]":                                "provider.yaml:4: nodes[0].zones[0]",
			"nodes: [{zones: [a]}, {zone: b]":                         "no valid YAML",
			"nodes: [{suffix: 3, zones: [a]}, {capacity: {pods: 0}}]": "nodes[1]: capacity of node",
		} {
			w.write(nodes)
			w.eventually("what is wrong is told", func() bool { return w.log.Says(why) })
			if w.node("kip-0-1").Spec.Unschedulable || len(w.nodes.all()) != 3 {
				t.Errorf("%s has changed the nodes", nodes)
			}
		}

		// One is changed, one goes, the first comes back with its pod.
		w.write("nodes: [{suffix: 0}, {zones: [a], labels: {team: y}}]")
		w.eventually("the node that comes back is uncordoned", func() bool { return !w.node("kip-0").Spec.Unschedulable })
		w.eventually("a label is changed", func() bool { return w.node("kip-0-1").Labels["team"] == "y" })
		w.eventually("a node without pods is deleted", func() bool { return w.node("kip-0-2") == nil })
		w.eventually("its record is, too", func() bool { return w.nodes.named("kip-0-2") == nil })

		// Another process knows the same, and lets the node go when its pod has gone.
		w.stop()
		w.write("nodes: [{zones: [a]}]")
		w.start()
		w.eventually("the node with the pod is cordoned again", func() bool { return w.node("kip-0").Spec.Unschedulable && w.ready("kip-0") })
		w.removePod("kip-0", "old")
		w.eventually("the node goes with its last pod", func() bool { return w.node("kip-0") == nil && w.nodes.named("kip-0") == nil })
		w.eventually("the node that is left is Ready", func() bool { return w.ready("kip-0-1") })
	})
}

// The scheduler and the controller of the cloud's own driver read the zone in that driver's words, of nodes
// that have one.
func TestANodeOfOneZoneIsShownToTheDriverOfTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const key = "topology.disks.clouds.example.com/zone"
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [a, b]}]")
		w.clouds = volumes.CloudDriver{Name: "disks.clouds.example.com", ZoneKey: key}
		w.start()
		drivers := func(name string) (list []string) {
			own, err := w.As(name)
			if err != nil {
				t.Fatal(err)
			}
			is, err := own.StorageV1().CSINodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return []string{err.Error()}
			}
			for _, d := range is.Spec.Drivers {
				list = append(list, d.Name)
			}
			return list
		}
		w.eventually("the node of a zone says so to the driver", func() bool {
			n := w.node("kip-0-1")
			return n != nil && n.Labels[key] == "a" && slices.Equal(drivers("kip-0-1"), []string{volumes.Driver, w.clouds.Name})
		})
		w.eventually("that of two does not", func() bool {
			n := w.node("kip-0-2")
			return n != nil && n.Labels[key] == "" && slices.Equal(drivers("kip-0-2"), []string{volumes.Driver})
		})
		if labels, err := w.nodes.labels.of("kip-0-1"); err != nil || labels[key] != "a" {
			t.Errorf("pods are placed by %v, %v", labels, err)
		}
	})
}

func TestLabelsThatOthersWroteOnANodeCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a], labels: {tier: front}}]")
		w.start()
		w.eventually("the node is Ready", func() bool { return w.ready("kip-0-1") })
		asking := func(expressions string) *corev1.Pod {
			return &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
					placement.AnnotationRequirements: `[{"matchExpressions":[` + expressions + `]}]`,
				}},
				Spec: corev1.PodSpec{NodeName: "kip-0-1"},
			}
		}
		const (
			ofX    = `{"key":"team","operator":"In","values":["x"]}`
			notX   = `{"key":"team","operator":"NotIn","values":["x"]}`
			noTeam = `{"key":"team","operator":"DoesNotExist"}`
			front  = `{"key":"tier","operator":"In","values":["front"]}`
			back   = `{"key":"tier","operator":"In","values":["back"]}`
			gpu    = `{"key":"nvidia.com/gpu.product","operator":"Exists"}`
		)
		check := func(when string, want map[string]bool) {
			t.Helper()
			for asks, want := range want {
				_, err := w.nodes.Choose(t.Context(), asking(asks), "")
				if is := errors.As(err, new(*placement.UnplaceableError)); (err == nil) != want || is == want {
					t.Errorf("%s: a pod that asks for %s is placed: %t (%v), want %t", when, asks, err == nil, err, want)
				}
			}
		}
		check("before", map[string]bool{ofX: false, notX: true, noTeam: true, front: true, back: false, gpu: false})
		label := func(labels map[string]string) {
			t.Helper()
			there := w.node("kip-0-1")
			maps.Copy(there.Labels, labels)
			if err := w.cluster.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), there, ""); err != nil {
				t.Fatal(err)
			}
		}
		// Kip has the last word about its own, and a node says nothing of its instances.
		label(map[string]string{"team": "x", "tier": "back", "nvidia.com/gpu.product": "T4"})
		check("labelled", map[string]bool{ofX: true, notX: false, noTeam: false, front: true, back: false, gpu: false,
			ofX + "," + gpu: false, ofX + "," + front: true, ofX + "," + back: false})

		var gets atomic.Int64
		w.react("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			gets.Add(1)
			return true, nil, errors.New("no answer")
		})
		var unplaceable *placement.UnplaceableError
		if _, err := w.nodes.Choose(t.Context(), asking(ofX), ""); err == nil || errors.As(err, &unplaceable) || gets.Load() != 1 {
			t.Errorf("an API server that does not answer has been asked %d times: %v", gets.Load(), err)
		}
		if _, err := w.nodes.Choose(t.Context(), asking(front), ""); err != nil || gets.Load() != 1 {
			t.Errorf("the API server is asked of what Kip knows, %d times: %v", gets.Load(), err)
		}
	})
}

// Kip does nothing for pods until each node is registered, or known not to be.
func TestANodeThatGoesAtTheStartIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		w.stop()
		w.write("")
		w.start()
		w.eventually("the one node is Ready", func() bool { return w.ready("kip-0") })
		w.eventually("the others are gone", func() bool { return len(w.nodes.all()) == 1 })
		if len(w.began) != 3 {
			t.Fatalf("%d nodes at the start, want 3", len(w.began))
		}
		for _, s := range w.began {
			select {
			case <-s.settled:
			default:
				t.Errorf("node %s is waited for", s.name)
			}
			if s.number == 0 {
				continue
			}
			l, err := w.ports.listen(t.Context(), s.kubelet.listener.Addr().String())
			if err != nil {
				t.Fatalf("the port of node %s is not free once it is gone: %v", s.name, err)
			}
			l.Close()
		}
	})
}

func TestACatalogueWithoutAZoneTakesNoNodeAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		was := sold
		defer func() { sold = was }()
		for _, nodes := range []string{"nodes: auto", "nodes: [{zones: [a]}, {zones: [b]}]"} {
			sold = was
			w := newTown(t, nodes)
			w.start()
			w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
			w.stop()
			sold = slices.Clone(sold)
			sold[0].Offerings = sold[0].Offerings[:1]
			w.start()
			w.write(nodes + "\nkubelet: {labels: {team: y}}")
			w.eventually("the change is in force", func() bool { return w.node("kip-0-1").Labels["team"] == "y" })
			if e, is := w.nodes.entryOf("kip-0-2"); !is || e.Removed {
				t.Errorf("%s: an answer of the cloud without zone b takes its node away: %+v", nodes, e)
			}
			w.stop()
		}
	})
}

func TestANodeThatIsTakenOutDoesNotWaitForPodsOfDaemonSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		w.addPod("kip-0-2", "agent", "DaemonSet")
		w.write("nodes: [{zones: [a]}]")
		w.eventually("the node is deleted", func() bool { return w.node("kip-0-2") == nil })
		if w.nodes.named("kip-0-2") == nil {
			t.Error("the pods of a node are not followed any more, although it has some")
		}
		if kept := *w.certified.Load(); len(kept) != 2 {
			t.Errorf("certificates are kept of %q", kept)
		}
		w.removePod("kip-0-2", "agent")
		w.eventually("the node is forgotten with its last pod", func() bool { return w.nodes.named("kip-0-2") == nil })
		w.eventually("its certificate is not kept", func() bool { return slices.Equal(*w.certified.Load(), []string{"kip-0-1"}) })
	})
}

func TestAKipThatDoesNotLeadDeletesNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		bare := w.store
		leader, err := bare.Put(t.Context(), "leader", 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		w.store = bare.Fenced(bare.Prefix()+"leader", leader)
		w.start()
		w.eventually("the node is Ready", func() bool { return w.ready("kip-0-2") })
		s := w.nodes.named("kip-0-2")
		w.stop()
		if _, err := bare.Put(t.Context(), "leader", 2, leader); err != nil {
			t.Fatal(err)
		}
		if err := w.serves.removals.removeObject(t.Context(), s); !errors.Is(err, store.ErrNotLeader) || w.node("kip-0-2") == nil {
			t.Errorf("it deletes node %v: %v", w.node("kip-0-2"), err)
		}
	})
}

func TestANodeWithoutRightsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		w.denied = "kip-0-2"
		w.start()
		w.eventually("the node with rights is Ready", func() bool { return w.ready("kip-0-1") })
		w.eventually("the right is named", func() bool { return w.log.Says("impersonate users system:node:kip-0-2") })
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		w.serves.Registered(ctx)
		if ctx.Err() != nil {
			t.Error("the pods wait for a node that Kip may not be")
		}
		if err := w.serves.AllRegistered(); err != nil || !w.nodes.pods.HasSynced() || w.nodes.Listed("kip-0-2") {
			t.Errorf("Kip is not ready without that node: %v", err)
		}
		if w.node("kip-0-2") != nil {
			t.Error("the node is there")
		}
	})
}

func TestANodeWhoseOffersAreAllCooledHasATaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, inTwoZones)
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		none := cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: "small", Zone: "b"}, errors.New("no spot"))
		w.short(offering.Offering{InstanceType: "small", Zone: "b", Spot: true}, none)
		w.eventually("the taint is there", func() bool { return hasTaint(w.node("kip-0-2"), node.ShortTaint) })
		if hasTaint(w.node("kip-0-1"), node.ShortTaint) {
			t.Error("a node that has capacity has the taint")
		}
		select { // the node writes its taint by itself, so the Event may come later
		case said := <-w.recorder.Events:
			if !strings.HasPrefix(said, "Warning NodeOutOfCapacity ") {
				t.Errorf("Event %q", said)
			}
		case <-time.After(patience):
			t.Error("there is no Event")
		}
		w.clock.Step(capacity.Cooldown)
		w.eventually("the taint is gone", func() bool { return !hasTaint(w.node("kip-0-2"), node.ShortTaint) })
	})
}

func TestWhereAPodMayGoInsteadOfItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, `nodes:
- {suffix: 1, launchTypes: [spot]}
- {suffix: 2, zones: [b], launchTypes: [spot]}
- {suffix: 3, zones: [a], launchTypes: [on-demand], labels: {team: batch}}
- {suffix: 4, zones: [b], launchTypes: [on-demand], taints: [{key: dear}]}
`)
		w.start()
		w.eventually("the nodes are Ready", func() bool {
			return w.ready("kip-0-1") && w.ready("kip-0-2") && w.ready("kip-0-3") && w.ready("kip-0-4")
		})
		short := func(zone string, spot bool) {
			o := offering.Offering{InstanceType: "small", Zone: zone, Spot: spot}
			w.short(o, cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: "small", Zone: zone, Spot: &spot}, errors.New("none")))
		}
		short("b", true)
		kip := corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists}
		dear := corev1.Toleration{Key: "dear", Operator: corev1.TolerationOpExists}
		for what, c := range map[string]struct {
			on          string
			selects     map[string]string
			tolerations []corev1.Toleration
			want        []string
		}{
			"any node":                      {"kip-0-1", nil, []corev1.Toleration{kip, dear}, []string{"kip-0-3", "kip-0-4"}},
			"a taint":                       {"kip-0-1", nil, []corev1.Toleration{kip}, []string{"kip-0-3"}},
			"Kip's own taint":               {"kip-0-1", nil, nil, nil},
			"a selector":                    {"kip-0-1", map[string]string{"team": "batch"}, []corev1.Toleration{kip}, []string{"kip-0-3"}},
			"another's selector":            {"kip-0-1", map[string]string{"karpenter.sh/capacity-type": "spot"}, []corev1.Toleration{kip}, nil},
			"on demand, something for some": {"kip-0-3", nil, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, nil},
		} {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: c.on, NodeSelector: c.selects, Tolerations: c.tolerations}}
			if got := w.nodes.Elsewhere(t.Context(), pod); !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, want %q", what, got, c.want)
			}
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "kip-0-1", Tolerations: []corev1.Toleration{kip}}}
		elsewhere := func(what string, want ...string) {
			t.Helper()
			if got := w.nodes.Elsewhere(t.Context(), pod); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		elsewhere("all is well", "kip-0-3")
		cordon := func(is bool) {
			three := w.node("kip-0-3")
			three.Spec.Unschedulable = is
			if err := w.cluster.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), three, ""); err != nil {
				t.Fatal(err)
			}
		}
		cordon(true)
		elsewhere("a node that somebody has cordoned")
		cordon(false)
		w.clock.Step(capacity.Cooldown)
		elsewhere("its own node has something for others", "kip-0-3")
		short("a", true)
		short("b", true)
		short("a", false)
		elsewhere("a node that has nothing either")
		pod.Spec.NodeName, pod.Spec.Tolerations = "kip-0-3", append(pod.Spec.Tolerations, dear)
		elsewhere("on demand, with nothing for anybody", "kip-0-4")
		w.eventually("such a node turns pods away", func() bool { return w.nodes.TurnsAway(t.Context(), pod) })
		pod.Spec.NodeName = "kip-0-4"
		if w.nodes.TurnsAway(t.Context(), pod) || w.nodes.turning(w.nodes.named("kip-0-4")) != "" {
			t.Error("a node on demand that has something turns pods away")
		}
	})
}

func TestASpotNodeTurnsPodsAwayForAWhileWhenSomeLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, `nodes:
- {suffix: 1, launchTypes: [spot]}
- {suffix: 2, launchTypes: [on-demand]}
`)
		w.start()
		w.nodes.mu.Lock()
		w.nodes.turnsFor, w.nodes.turnsAgain = time.Hour, 2*time.Hour
		w.nodes.mu.Unlock()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		short := func() bool { return hasTaint(w.node("kip-0-1"), node.ShortTaint) }
		kip := corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists}
		pod := func(tolerations ...corev1.Toleration) *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{NodeName: "kip-0-1", Tolerations: append(tolerations, kip)}}
		}
		all := pod(corev1.Toleration{Operator: corev1.TolerationOpExists})
		if w.nodes.TurnsAway(t.Context(), all) || w.nodes.turning(w.nodes.named("kip-0-1")) != "" {
			t.Error("a node is to turn pods away for one that tolerates all")
		}
		w.eventually("the node turns pods away", func() bool { return w.nodes.TurnsAway(t.Context(), pod()) })
		if w.nodes.TurnsAway(t.Context(), all) {
			t.Error("a node turns away what tolerates all")
		}
		if !short() || hasTaint(w.node("kip-0-2"), node.ShortTaint) {
			t.Errorf("the taints are %v and %v", w.node("kip-0-1").Spec.Taints, w.node("kip-0-2").Spec.Taints)
		}
		ago := func(d time.Duration) {
			w.nodes.mu.Lock()
			defer w.nodes.mu.Unlock()
			s := w.nodes.served["kip-0-1"]
			s.turns = s.turns.Add(-d)
		}
		ago(time.Hour)
		w.eventually("it takes pods again", func() bool { return !short() })
		for range 3 {
			w.nodes.TurnsAway(t.Context(), pod())
		}
		if w.nodes.turning(w.nodes.named("kip-0-1")) != "" {
			t.Error("it turns pods away time and again")
		}
		ago(time.Hour)
		w.eventually("later it turns pods away again", func() bool { return w.nodes.TurnsAway(t.Context(), pod()) })
		ago(2 * time.Hour)
		w.eventually("then it takes pods", func() bool { return !short() })
		for _, zone := range []string{"a", "b"} {
			spot := true
			none := cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: "small", Zone: zone, Spot: &spot}, errors.New("none"))
			w.short(offering.Offering{InstanceType: "small", Zone: zone, Spot: true}, none)
		}
		w.eventually("it has nothing for any pod", func() bool { return w.nodes.TurnsAway(t.Context(), pod()) })
		if w.nodes.turning(w.nodes.named("kip-0-1")) != "" {
			t.Error("a node that has nothing for any pod is to turn pods away for longer than that")
		}
	})
}

// noSpot notes that there is no spot of a type in a zone.
func (w *town) noSpot(instanceType, zone string) {
	spot := true
	scope := cloud.Scope{InstanceType: instanceType, Zone: zone, Spot: &spot}
	w.short(offering.Offering{InstanceType: instanceType, Zone: zone, Spot: true}, cloud.No(cloud.ErrCapacity, scope, errors.New("none")))
}

// spotTown has a node of spot in each of two zones and one on demand, and large is what a
// pod on one of them selects.
func spotTown(t *testing.T) (w *town, pod func(on string) *corev1.Pod) {
	t.Helper()
	w = newTown(t, `nodes:
- {suffix: 1, zones: [a], launchTypes: [spot]}
- {suffix: 2, zones: [b], launchTypes: [spot]}
- {suffix: 3, launchTypes: [on-demand]}
`)
	both := slices.Clone(sold[0].Offerings)
	both = append(both, catalog.PurchaseOption{Zone: "a", Spot: true, PricePerHour: 1})
	small, large := sold[0], sold[0]
	small.Offerings, large.Offerings, large.Name = both, both, "large"
	w.sells = []catalog.InstanceType{small, large}
	w.start()
	w.nodes.mu.Lock()
	w.nodes.turnsFor, w.nodes.turnsAgain = time.Hour, 2*time.Hour
	w.nodes.mu.Unlock()
	w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") && w.ready("kip-0-3") })
	kip := corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists}
	pod = func(on string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{placement.AnnotationInstanceType: "large"}},
			Spec:       corev1.PodSpec{NodeName: on, Tolerations: []corev1.Toleration{kip}},
		}
	}
	return w, pod
}

func (w *town) isShort(name string) bool { return hasTaint(w.node(name), node.ShortTaint) }

func TestPodsLeaveAllSpotNodesThatHaveNothingForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, pod := spotTown(t)
		w.noSpot("large", "a")
		w.noSpot("large", "b")
		w.eventually("pods may leave the first", func() bool { return w.nodes.TurnsAway(t.Context(), pod("kip-0-1")) })
		if !w.isShort("kip-0-2") || w.isShort("kip-0-3") {
			t.Error("pods that leave the first get to the second, or have nowhere to go")
		}
		const none = "The node takes no new pods for now: the cloud has no capacity for large as spot in zone "
		const come = "; pods that need it leave the node, and their replacements would come back"
		w.said("Warning NodeOutOfCapacity "+none+"a"+come, "Warning NodeOutOfCapacity "+none+"b"+come)
		w.nodes.mu.Lock()
		for _, s := range w.nodes.served {
			s.turns = time.Time{}
		}
		w.nodes.mu.Unlock()
		w.eventually("they take pods", func() bool { return !w.isShort("kip-0-1") && !w.isShort("kip-0-2") })
		const again = "Normal NodeHasCapacity The node takes new pods again. There may still be no capacity for large as spot in zone "
		w.said(again+"a", again+"b")
	})
}

// said checks which Events of nodes there have been since the last look, in any order.
func (w *town) said(want ...string) {
	w.Helper()
	var got []string
	for range want {
		select {
		case e := <-w.recorder.Events:
			got = append(got, e)
		case <-time.After(patience):
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || len(w.recorder.Events) > 0 {
		w.Errorf("the Events of nodes are %q and %d more, want %q", got, len(w.recorder.Events), want)
	}
}

func TestPeopleAreToldWhatANodeLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := spotTown(t)
		for names, want := range map[string]string{
			"large":               "large as spot in zone b",
			"large small":         "large or small as spot in zone b",
			"1 2 3 small":         "1, 2, 3 or small as spot in zone b",
			"small 1 2 3 4 5 6 7": "small, 1, 2, 3, 4 or 3 more as spot in zone b",
			"gone":                "gone as spot",
		} {
			if got := w.nodes.offeringsOf(w.nodes.named("kip-0-2"), strings.Fields(names)); got != want {
				t.Errorf("%s: %q, want %q", names, got, want)
			}
		}
		if got := w.nodes.offeringsOf(w.nodes.named("kip-0-3"), []string{"small"}); got != "small as on-demand in zone a or b" {
			t.Errorf("of a node with two zones: %q", got)
		}
	})
}

func TestPodsDoNotGoRoundAmongSpotNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, pod := spotTown(t)
		w.noSpot("large", "a")
		w.eventually("pods may leave the first", func() bool { return w.nodes.TurnsAway(t.Context(), pod("kip-0-1")) })
		if w.isShort("kip-0-2") {
			t.Error("a node that may have something turns pods away")
		}
		ago := func(d time.Duration) {
			w.nodes.mu.Lock()
			defer w.nodes.mu.Unlock()
			s := w.nodes.served["kip-0-1"]
			s.turns = s.turns.Add(-d)
		}
		ago(time.Hour)
		w.clock.Step(capacity.Cooldown)
		w.eventually("the first takes pods", func() bool { return !w.isShort("kip-0-1") })
		w.noSpot("large", "b")
		for range 3 {
			if w.nodes.TurnsAway(t.Context(), pod("kip-0-2")) || w.nodes.turning(w.nodes.named("kip-0-2")) != "" {
				t.Error("pods that leave the second come back to the first")
			}
		}
		ago(time.Hour)
		w.eventually("pods may leave the second", func() bool { return w.nodes.TurnsAway(t.Context(), pod("kip-0-2")) })
		if !w.isShort("kip-0-1") || !w.isShort("kip-0-2") || w.isShort("kip-0-3") {
			t.Error("pods that leave the second come back, or have nowhere to go")
		}
	})
}

func TestPodsThatWaitLeaveASpotNodeThatIsTakenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, `nodes:
- {suffix: 1, launchTypes: [spot]}
- {suffix: 2, launchTypes: [on-demand]}
`)
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		w.addPod("kip-0-1", "web", "ReplicaSet")
		w.write("nodes: [{suffix: 2, launchTypes: [on-demand]}]")
		w.eventually("the node is cordoned", func() bool { return w.node("kip-0-1").Spec.Unschedulable })
		w.noSpot("small", "b")
		kip := corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists}
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "kip-0-1", Tolerations: []corev1.Toleration{kip}}}
		if on := w.nodes.Elsewhere(t.Context(), pod); !slices.Equal(on, []string{"kip-0-2"}) {
			t.Fatalf("it may go to %q", on)
		}
		w.eventually("its pods may leave", func() bool { return w.nodes.TurnsAway(t.Context(), pod) })
	})
}

func TestANameThatIsAMachinesIsLeftOutAndCannotBeConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		machine := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kip-0-2", UID: "machine"}}
		if err := w.cluster.Tracker().Add(machine); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.eventually("the other node is Ready", func() bool { return w.ready("kip-0-1") })
		w.eventually("the name is told", func() bool { return w.log.Says("a virtual node cannot be served") })
		w.stop()
		w.write("nodes: [{zones: [a]}]")
		w.start()
		w.eventually("the other node is Ready", func() bool { return w.ready("kip-0-1") })
		w.eventually("the name is told", func() bool { return w.log.Says("a virtual node cannot be served") })
		w.write("nodes: [{zones: [a]}, {suffix: 2, zones: [b]}]")
		w.eventually("the name is told", func() bool { return w.log.Says("provider.yaml:4: nodes[1]: its name is kip-0-2") })
		if n := w.node("kip-0-2"); len(n.Labels)+len(n.Spec.Taints) != 0 || n.Spec.Unschedulable {
			t.Errorf("the machine's node was changed: %+v", n)
		}
	})
}

// The scheduler prefers all other nodes for pods that may burst: their own preference does not outweigh how empty a virtual node is.
func TestNodesThatAreTheSecondChoiceSaySo(t *testing.T) {
	burst := corev1.Taint{Key: node.BurstTaint, Effect: corev1.TaintEffectPreferNoSchedule}
	for says, c := range map[string]struct {
		mode string
		own  []config.Taint
		want []corev1.Taint
	}{
		"no profile for which they are": {config.ModeOnly, nil, nil},
		"a profile for which they are":  {config.ModeBurst, []config.Taint{{Key: "a", Effect: "NoSchedule"}}, []corev1.Taint{{Key: "a", Effect: "NoSchedule"}, burst}},
		"its taint is configured":       {config.ModeBurst, []config.Taint{{Key: node.BurstTaint, Effect: "PreferNoSchedule"}}, []corev1.Taint{burst}},
	} {
		cfg := &config.Config{Admission: config.Admission{Profiles: []config.Profile{{Name: "p", Mode: c.mode}}}}
		if got := taintsOf(cfg, nodeplan.Entry{Node: config.Node{Taints: c.own}}); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", says, got, c.want)
		}
	}
}
