package cells

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/tunnel"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// modelCloud is a cloud with idempotent launches and faults to order.
type modelCloud struct {
	mu        sync.Mutex
	launches  []string // what was asked for, in order
	byToken   map[string]string
	instances map[string]cloud.Instance
	// fail answers a launch with an error; started says that the instance was
	// started all the same.
	fail func(cloud.LaunchRequest) (err error, started bool)
	// linger keeps terminated instances in the list.
	linger     bool
	terminated map[string]int
}

var _ cloud.Cloud = (*modelCloud)(nil)

func newModelCloud() *modelCloud {
	return &modelCloud{byToken: map[string]string{}, instances: map[string]cloud.Instance{}, terminated: map[string]int{}}
}

func (*modelCloud) Name() string                                              { return "model" }
func (*modelCloud) Catalogue(context.Context) ([]catalog.InstanceType, error) { return nil, nil }

func (m *modelCloud) Launch(_ context.Context, r cloud.LaunchRequest) ([]cloud.Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.launches = append(m.launches, r.InstanceType)
	var err error
	if m.fail != nil {
		var started bool
		if err, started = m.fail(r); err != nil && !started {
			return nil, err
		}
	}
	var list []cloud.Instance
	for n, machine := range r.Machines {
		if !strings.Contains(string(machine.UserData), machine.Tags[cloud.TagCell]) {
			return nil, fmt.Errorf("%w: user data of another cell", cloud.ErrRefused)
		}
		token := fmt.Sprint(r.Token, n)
		id, known := m.byToken[token]
		if !known {
			id = fmt.Sprintf("i-%d", len(m.byToken))
			m.byToken[token] = id
			m.instances[id] = cloud.Instance{
				ID: id, InstanceType: r.InstanceType, State: cloud.Running, Tags: machine.Tags, Launched: time.Now(),
				ManagementIP: netip.AddrFrom4([4]byte{127, 0, 0, 2}), PodIP: netip.AddrFrom4([4]byte{127, 0, 0, 3}),
			}
		}
		list = append(list, m.instances[id])
	}
	return list, err
}

func (m *modelCloud) List(_ context.Context, owner string) (list []cloud.Instance, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.instances {
		if i.Tags[cloud.TagOwner] == owner {
			list = append(list, i)
		}
	}
	return list, nil
}

func (m *modelCloud) Terminate(_ context.Context, ids ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		m.terminated[id]++
		if i, ok := m.instances[id]; ok && m.linger {
			i.State = cloud.Terminating
			m.instances[id] = i
		} else {
			delete(m.instances, id)
		}
	}
	return nil
}

func (m *modelCloud) running() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.instances))
}

const soonPoll = 50 * time.Millisecond

// world is one Kip's cells on a model cloud and a real store.
type world struct {
	*testing.T
	cloud  *modelCloud
	store  *store.Store
	cells  *Controller
	stop   func()
	mu     sync.Mutex
	events []string
	phases map[string][]apiv1.Phase // by pod
	cooled []string
	waker  chan struct{}
}

func newWorld(t *testing.T) *world {
	st, err := store.OpenEmbedded(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{T: t, cloud: newModelCloud(), store: st, phases: map[string][]apiv1.Phase{}, waker: make(chan struct{}, 1)}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start runs a Kip on what is stored; stop ends it.
func (w *world) start() {
	w.Helper()
	authority, err := pki.New(time.Now)
	if err != nil {
		w.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	dialer, err := tunnel.NewDialer(tunnel.DialerConfig{
		Authority: authority,
		Log:       log,
		// The addresses of modelCloud's instances are this host's own.
		Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, syscall.ECONNREFUSED },
	})
	if err != nil {
		w.Fatal(err)
	}
	nowhere := &rest.Config{Host: "http://127.0.0.1:1"}
	api, err := cellapi.New(cellapi.Config{
		NodeName: "kip-0", Node: nowhere, Own: nowhere, Log: log,
		Pods: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil),
	})
	if err != nil {
		w.Fatal(err)
	}
	w.cells = New(Config{
		NodeName: "kip-0", ControllerID: "me", Cloud: w.cloud, Store: w.store, Tunnels: OverTunnels(dialer), APIs: ServedBy(api), CAHash: authority.Hash(),
		Cool:        func(o Offer, _ error) { w.note(func() { w.cooled = append(w.cooled, o.InstanceType) }) },
		Unavailable: func(Offer) bool { return false },
		Silent:      func(Cell, time.Time) {},
		Interrupted: func(Cell) {},
		Event: func(_ apiv1.PodReference, kind, reason, _ string) {
			w.note(func() { w.events = append(w.events, kind+" "+reason) })
		},
		SaveLogs: func(context.Context, apiv1.PodReference, http.RoundTripper) error { return nil },
		Changed: func(c Cell) {
			w.note(func() {
				if p := w.phases[c.Pod.Name]; len(p) == 0 || p[len(p)-1] != c.Phase {
					w.phases[c.Pod.Name] = append(p, c.Phase)
				}
			})
		},
		ClusterDomain: "cluster.local", SoonPoll: soonPoll, Clock: clock.RealClock{}, Log: log,
	})
	if err := w.cells.Load(w.Context()); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.cells.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the controller ended with %v", err)
		}
	})
}

func (w *world) note(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	select {
	case w.waker <- struct{}{}:
	default:
	}
}

// until waits for a condition on what was noted.
func (w *world) until(what string, ok func() bool) {
	w.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		w.mu.Lock()
		is := ok()
		w.mu.Unlock()
		if is {
			return
		}
		select {
		case <-w.waker:
		case <-look.C:
		case <-deadline.C:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.Fatalf("%s: never; events %v, phases %v, launches %v, instances %v", what, w.events, w.phases, w.cloud.launches, w.cloud.instances)
		}
	}
}

func (w *world) reached(pod string, phase apiv1.Phase) func() bool {
	return func() bool { return slices.Contains(w.phases[pod], phase) }
}

func ref(name string) apiv1.PodReference {
	return apiv1.PodReference{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}
}

func (w *world) request(pod string, offers ...string) Cell {
	w.Helper()
	var list []Offer
	for _, o := range offers {
		list = append(list, Offer{InstanceType: o, Zone: "z", PricePerHour: 1, BootTimeout: time.Hour})
	}
	cell, err := w.cells.Request(w.Context(), Request{Pod: ref(pod), Attempt: 1, Seen: time.Now(), Offers: list})
	if err != nil {
		w.Fatal(err)
	}
	return cell
}

func TestACellIsLaunchedOnceAndTerminatedWhenItsPodLetsGo(t *testing.T) {
	w := newWorld(t)
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	if got := w.cloud.running(); len(got) != 1 {
		t.Fatalf("instances %v, want one", got)
	}
	if _, err := w.cells.Request(t.Context(), Request{Pod: ref("a"), Attempt: 2, Offers: []Offer{{InstanceType: "nano"}}}); !errors.Is(err, ErrHasCell) {
		t.Fatalf("a second cell for the pod: %v, want ErrHasCell", err)
	}
	w.cells.Release(ref("a").UID, "done", false)
	w.until("gone", w.reached("a", apiv1.Gone))
	want := []apiv1.Phase{apiv1.Requested, apiv1.Launching, apiv1.Booting, apiv1.Terminating, apiv1.Gone}
	if !slices.Equal(w.phases["a"], want) {
		t.Fatalf("phases %v, want %v", w.phases["a"], want)
	}
	if got := w.cloud.running(); len(got) != 0 {
		t.Fatalf("instances %v are left", got)
	}
	if list := w.cells.List(); len(list) != 0 {
		t.Fatalf("cells %v are left", list)
	}
}

func TestWithoutCapacityTheNextOfferIsTriedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
		if r.InstanceType != "large" {
			return &cloud.CapacityError{InstanceType: r.InstanceType, Zone: r.Zone, Err: errors.New("sold out")}, false
		}
		return nil, false
	}
	w.request("a", "nano", "small", "large")
	w.until("booting, and said so", func() bool { return w.reached("a", apiv1.Booting)() && len(w.events) == 3 })
	cell, _ := w.cells.ForPod(ref("a").UID)
	if cell.Offer().InstanceType != "large" || !slices.Equal(w.cooled, []string{"nano", "small"}) {
		t.Fatalf("launched %s; remembered %v", cell.Offer(), w.cooled)
	}
	if want := []string{"Warning NoCapacity", "Warning NoCapacity", "Normal CellLaunched"}; !slices.Equal(w.events, want) {
		t.Fatalf("events %v, want %v", w.events, want)
	}
}

func TestACellThatNoOfferCanServeIsGoneAndSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return cloud.ErrQuota, false }
	w.request("a", "nano", "small")
	w.until("gone, and said so", func() bool { return w.reached("a", apiv1.Gone)() && len(w.events) == 2 })
	if len(w.cloud.launches) != 2 || len(w.cells.List()) != 0 {
		t.Fatalf("%d launches, cells %v", len(w.cloud.launches), w.cells.List())
	}
	if want := []string{"Warning CellNotLaunched", "Warning CellNotLaunched"}; !slices.Equal(w.events, want) {
		t.Fatalf("events %v, want %v", w.events, want)
	}
}

func TestAnAnswerThatIsLostAfterItsEffectStartsNoSecondInstance(t *testing.T) {
	w := newWorld(t)
	lost := 3
	w.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
		if lost--; lost >= 0 {
			return errors.New("connection reset by peer"), true
		}
		return nil, false
	}
	w.request("a", "nano", "small")
	w.until("booting", w.reached("a", apiv1.Booting))
	if got := w.cloud.running(); len(got) != 1 || slices.Contains(w.cloud.launches, "small") || len(w.cloud.launches) != 4 {
		t.Fatalf("instances %v after launches %v", got, w.cloud.launches)
	}
}

func TestAPodThatGoesWhileItsLaunchIsUncertainLeavesNoInstance(t *testing.T) {
	w := newWorld(t)
	released := make(chan struct{})
	w.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
		select {
		case <-released:
			return nil, false
		default:
			return errors.New("timeout"), true
		}
	}
	w.request("a", "nano")
	w.until("an instance", func() bool { return len(w.cloud.running()) == 1 })
	if !w.cells.ReleaseUnbound(ref("a").UID, "deleted") {
		t.Fatal("a cell that is being launched counts as bound")
	}
	close(released)
	w.until("gone", w.reached("a", apiv1.Gone))
	if got := w.cloud.running(); len(got) != 0 {
		t.Fatalf("instances %v are left", got)
	}
}

func TestACellIsGoneOnlyWhenTheCloudNoLongerShowsIt(t *testing.T) {
	w := newWorld(t)
	w.cloud.linger = true
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	w.cells.Release(ref("a").UID, "done", false)
	w.until("the termination is accepted", func() bool {
		w.cloud.mu.Lock()
		defer w.cloud.mu.Unlock()
		return w.cloud.terminated["i-0"] == 1
	})
	began := w.cells.lastLook().began
	w.until("two more looks", func() bool { return w.cells.lastLook().began.After(began.Add(2 * soonPoll)) })
	if cell, ok := w.cells.ForPod(ref("a").UID); !ok || cell.Phase != apiv1.Terminating {
		t.Fatalf("the cell is %s while its instance is still shown", cell.Phase)
	}
	w.cloud.mu.Lock()
	clear(w.cloud.instances)
	w.cloud.mu.Unlock()
	w.until("gone", w.reached("a", apiv1.Gone))
}

func TestAnOrphanIsTerminatedOnlyAfterASecondLook(t *testing.T) {
	w := newWorld(t)
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	w.stop() // looks are made by hand from here
	w.cloud.instances["i-orphan"] = cloud.Instance{ID: "i-orphan", State: cloud.Running, Tags: map[string]string{cloud.TagOwner: "me", cloud.TagCell: "cell-lost"}}
	w.cloud.instances["i-foreign"] = cloud.Instance{ID: "i-foreign", State: cloud.Running, Tags: map[string]string{cloud.TagOwner: "another"}}
	orphans := map[string]time.Time{}
	began := time.Now()
	for _, tc := range []struct {
		at   time.Duration
		want int
	}{{0, 0}, {orphanAge - 1, 0}, {orphanAge, 1}} {
		list, err := w.cloud.List(t.Context(), "me")
		if err != nil {
			t.Fatal(err)
		}
		w.cells.compare(t.Context(), began.Add(tc.at), list, orphans)
		if got := w.cloud.terminated["i-orphan"]; got != tc.want {
			t.Fatalf("after %s it was terminated %d times, want %d", tc.at, got, tc.want)
		}
	}
	if w.cloud.terminated["i-0"] != 0 || w.cloud.terminated["i-foreign"] != 0 {
		t.Fatalf("terminated %v", w.cloud.terminated)
	}
}

func TestAPodThatAnUnknownInstanceRunsGetsAnotherOnlyAfterThatOnesEnd(t *testing.T) {
	w := newWorld(t)
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	w.stop()
	// The store is lost: a new Kip, in an empty one, finds the pod without a cell.
	fresh, err := store.OpenEmbedded(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fresh.Close(); err != nil {
			t.Error(err)
		}
	})
	w.store, w.cloud.linger, w.phases = fresh, true, map[string][]apiv1.Phase{}
	w.start()
	w.request("a", "nano")
	w.until("the old instance is being terminated", func() bool {
		w.cloud.mu.Lock()
		defer w.cloud.mu.Unlock()
		return w.cloud.terminated["i-0"] > 0
	})
	if cell, _ := w.cells.ForPod(ref("a").UID); cell.Phase != apiv1.Requested {
		t.Fatalf("the second cell is %s while the first instance is still there", cell.Phase)
	}
	w.cloud.mu.Lock()
	clear(w.cloud.instances)
	w.cloud.mu.Unlock()
	w.until("booting", w.reached("a", apiv1.Booting))
	if got := w.cloud.running(); !slices.Equal(got, []string{"i-1"}) {
		t.Fatalf("instances %v, want a new one", got)
	}
}

func TestTwoWritersOfOneRecordEndTheController(t *testing.T) {
	w := newWorld(t)
	w.stop()
	cell := w.request("a", "nano")
	var stored Cell
	revision, err := w.store.Get(t.Context(), keyPrefix+cell.ID, &stored)
	if err != nil {
		t.Fatal(err)
	}
	stored.Reason = "another Kip was here"
	if _, err := w.store.Put(t.Context(), keyPrefix+cell.ID, stored, revision); err != nil {
		t.Fatal(err)
	}
	c := New(w.cells.cfg)
	c.cells, c.byPod = w.cells.cells, w.cells.byPod // what was read before the other one wrote
	c.queue.Add(cell.ID)
	if err := c.Run(t.Context()); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("it went on: %v", err)
	}
	if len(w.cloud.launches) != 0 {
		t.Fatal("it launched all the same")
	}
}

func TestThePhasesFormALineWithTwoWaysBack(t *testing.T) {
	// Besides, a phase may be entered again.
	allowed := map[apiv1.Phase][]apiv1.Phase{
		apiv1.Requested:   {apiv1.Launching, apiv1.Gone},
		apiv1.Launching:   {apiv1.Requested, apiv1.Booting, apiv1.Terminating, apiv1.Gone},
		apiv1.Booting:     {apiv1.Ready, apiv1.Terminating},
		apiv1.Ready:       {apiv1.Booting, apiv1.Bound, apiv1.Terminating},
		apiv1.Bound:       {apiv1.Draining, apiv1.Terminating},
		apiv1.Draining:    {apiv1.Terminating},
		apiv1.Terminating: {apiv1.Gone},
		apiv1.Gone:        nil,
	}
	for from, to := range allowed {
		for phase := range allowed {
			cell := Cell{ID: "c", Phase: from}
			err := cell.enter(phase)
			want := phase == from || slices.Contains(to, phase)
			if (err == nil) != want || (cell.Phase == phase) != want {
				t.Errorf("%s → %s: %v, and the cell is %s; allowed %t", from, phase, err, cell.Phase, want)
			}
		}
	}
}

func TestTheLaunchTokenNamesOneGroupOnOneOffer(t *testing.T) {
	base := Cell{Launch: &Launch{ID: "launch-a", Cells: 2}, Offers: []Offer{{InstanceType: "nano", Zone: "z"}}}
	token := base.launchToken("me")
	if len(token) > 64 {
		t.Fatalf("%d characters; EC2 takes 64", len(token))
	}
	if other := base.clone(); other.launchToken("me") != token {
		t.Fatal("the same launch has two tokens")
	}
	other := map[string]string{"controller": base.launchToken("you")}
	for name, change := range map[string]func(*Cell){
		"launch": func(c *Cell) { c.Launch.ID = "launch-b" },
		"size":   func(c *Cell) { c.Launch.Cells = 3 },
		"type":   func(c *Cell) { c.Offers[0].InstanceType = "small" },
		"zone":   func(c *Cell) { c.Offers[0].Zone = "y" },
		"subnet": func(c *Cell) { c.Offers[0].Subnet = "s" },
		"spot":   func(c *Cell) { c.Offers[0].Spot = true },
	} {
		c := base.clone()
		change(&c)
		other[name] = c.launchToken("me")
	}
	for name, got := range other {
		if got == token {
			t.Errorf("another %s has the same token", name)
		}
	}
}
