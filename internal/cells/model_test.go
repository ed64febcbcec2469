package cells

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/tunnel"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// modelLinks are the tunnels and the APIs of cells whose agents and kubelets do at
// once what is asked of them, until they are cut off.
type modelLinks struct {
	mu    sync.Mutex
	cells map[string]*modelLink
	nodes map[string][]string // of which node each cell's kubelet was to be
	// boots is false for machines on which no agent comes up.
	boots func(cell string) bool
	// joinsAfter is how long each machine takes to join; kubelets that fail are never ready.
	joinsAfter   time.Duration
	kubeletsFail bool
	// agents answers requests to agents; binds is told when a pod is shown.
	agents func(*http.Request) *http.Response
	binds  func(cell string)
	// hangs says that a cell's agent does not answer.
	hangs func(cell string) bool
	// slow is how long an agent takes for a request.
	slow func(*http.Request) time.Duration
	// drivers are those that kubelets have registered; trouble is what they say of
	// the plugins.
	drivers func() (registered []string, known bool)
	trouble func() string
	// dials judges how a cell is dialled, trusts answers what it is told; nil for yes.
	dials  func(cell, ca string) error
	trusts func(ctx context.Context, l *modelLink) error
	// node is what kubelets say of their machines; nil for nothing.
	node atomic.Pointer[corev1.Node]
}

var (
	_ Tunnels = (*modelLinks)(nil)
	_ APIs    = (*modelLinks)(nil)
	_ Session = (*modelLink)(nil)
	_ API     = (*modelLink)(nil)
)

func (m *modelLinks) AddCell(id string, info cellapi.CellInfo) API {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nodes == nil {
		m.nodes = map[string][]string{}
	}
	m.nodes[id] = append(m.nodes[id], info.Node)
	l := &modelLink{
		id:        id,
		all:       m,
		ready:     make(chan struct{}),
		nodeReady: make(chan struct{}),
	}
	m.cells[id] = l
	return l
}

func (*modelLinks) RemoveCell(string) {}

func (m *modelLinks) Keep(ctx context.Context, t tunnel.Target, api http.Handler, spend tunnel.OnSpend) (Session, error) {
	l := api.(noticeAPI).Unwrap().(*modelLink)
	l.mu.Lock()
	l.kip = api
	l.mu.Unlock()
	l.onState, l.addr, l.target = t.OnState, t.Addr, t
	l.dialledBy(t.CA)
	if m.boots != nil && !m.boots(l.id) {
		return l, nil
	}
	m.mu.Lock()
	dials := m.dials
	m.mu.Unlock()
	if dials != nil {
		if err := dials(l.id, t.CA); err != nil {
			l.set(false, err)
			return l, nil
		}
	}
	go func() {
		time.Sleep(m.joinsAfter)
		for spend(ctx, "key of "+l.id) != nil {
			if ctx.Err() != nil {
				return
			}
			time.Sleep(time.Second)
		}
		l.set(true, nil)
		close(l.ready)
		if !m.kubeletsFail {
			close(l.nodeReady)
		}
	}()
	return l, nil
}

func (m *modelLinks) of(id string) *modelLink {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cells[id]
}

type modelLink struct {
	id               string
	all              *modelLinks
	ready, nodeReady chan struct{}
	kip              http.Handler // what the cell asks; under mu
	onState          func(bool, error)
	addr             netip.AddrPort
	target           tunnel.Target

	mu        sync.Mutex
	connected bool
	heard     time.Time // the last sign of life; zero: now
	joined    bool      // it has been connected
	held      time.Time // when Kip last kept it waiting
	bound     []types.UID
	kept      bool
	err       error
	ca        string // by which it is connected
}

func (l *modelLink) set(connected bool, err error) {
	l.mu.Lock()
	l.connected, l.err, l.joined = connected, err, l.joined || connected
	l.heard = time.Time{}
	if !connected {
		l.heard = time.Now()
	}
	l.mu.Unlock()
	l.onState(connected, err)
}

func (l *modelLink) Ready() <-chan struct{}     { return l.ready }
func (l *modelLink) NodeReady() <-chan struct{} { return l.nodeReady }
func (l *modelLink) Node() *corev1.Node         { return l.all.node.Load() }
func (l *modelLink) LastHeard() time.Time       { return l.LastHeartbeat() }
func (l *modelLink) Close()                     {}
func (l *modelLink) Conn() agentapi.Conn        { return l }
func (l *modelLink) Streams() agentapi.Conn     { return l }

// ServeHTTP refuses all, as the API does what no kubelet may ask.
func (l *modelLink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if agentapi.IsNotice(r) {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	w.WriteHeader(http.StatusForbidden)
}

func (l *modelLink) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.all.hangs != nil && l.all.hangs(l.id) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if l.all.slow != nil {
		select {
		case <-time.After(l.all.slow(r)):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if l.all.agents != nil {
		return l.all.agents(r), nil
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}, nil
}

// CSIDrivers are known where drivers says them.
func (l *modelLink) CSIDrivers() ([]string, bool) {
	if l.all.drivers == nil {
		return nil, false
	}
	return l.all.drivers()
}

func (l *modelLink) StatusTrouble() string { return "" }

func (l *modelLink) PluginTrouble() string {
	if l.all.trouble == nil {
		return ""
	}
	return l.all.trouble()
}

// Trust is as trusts says.
func (l *modelLink) Trust(ctx context.Context) error {
	l.all.mu.Lock()
	trusts := l.all.trusts
	l.all.mu.Unlock()
	if trusts == nil {
		return nil
	}
	return trusts(ctx, l)
}

// dialledBy is the CA by which it is connected from now on.
func (l *modelLink) dialledBy(ca string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ca = ca
}

func (l *modelLink) CA() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ca
}

func (l *modelLink) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.connected
}

func (l *modelLink) HeldBack() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

func (l *modelLink) LastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *modelLink) LastHeartbeat() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard.IsZero() && l.joined {
		return time.Now()
	}
	return l.heard
}

func (l *modelLink) Reserve(corev1.ResourceList, []string) {}

// KeepPod notes that the kubelet hears no more of its pod.
func (l *modelLink) KeepPod() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = true
}

func (l *modelLink) Bind(_, _ string, uid types.UID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bound = append(l.bound, uid)
	if l.all.binds != nil {
		l.all.binds(l.id)
	}
	return nil
}

// setup is a Kip's configuration with a bare cloud.
type setup struct {
	Config
	Cloud cloud.Cloud
	Disks cloud.Disks // its disks, if not nil
}

// bubble is a Kip's cells in a bubble of virtual time.
type bubble struct {
	*world
	links *modelLinks
	cfg   setup
	also  []Observer   // besides the world
	ended <-chan error // what Run returned
	guard *guard.Guard // of the Kip that runs now
	limit guard.Limit  // of the next
	leads func(context.Context) error
	// patient is the Kip that has not listed the cloud before.
	patient bool
	special bool // what ask asks for is its pod's own
}

// inBubble runs f with a Kip whose Config it may change first, and that others may
// observe also.
func inBubble(t *testing.T, change func(*setup), hook func(op, key string) error, f func(t *testing.T, b *bubble), also ...Observer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{
			world: &world{
				T:      t,
				cloud:  newModelCloud(),
				store:  store.Memory(hook),
				phases: map[string][]apiv1.Phase{},
				waker:  make(chan struct{}, 1),
			},
			links: &modelLinks{cells: map[string]*modelLink{}},
			also:  also,
			leads: func(context.Context) error { return nil },
		}
		b.cfg = setup{Cloud: b.cloud, Config: Config{
			NodeName:     "kip-0",
			ControllerID: "me",
			Store:        b.store,
			Tunnels:      b.links,
			APIs:         b.links,
			Shortages:    b.world,
			Events:       b,
			Logs:         saves(func(context.Context, Cell, agentapi.Conn) error { return nil }),
			SoonPoll:     time.Second,
			Health:       Health{HealthyTimeout: 90 * time.Second, Check: 5 * time.Second},
			Clock:        clock.RealClock{},
			Random:       func() float64 { return 1 }, // no jitter
			Log:          slog.New(slog.DiscardHandler),
		}}
		if change != nil {
			change(&b.cfg)
		}
		b.run()
		f(t, b)
		b.stop()
	})
}

func (b *bubble) run() {
	b.Helper()
	if b.cfg.Disks != nil {
		b.cloud.optional.Disks = b.cfg.Disks
	}
	b.cfg.Generation = NewStoreGeneration(b.cfg.Store, b.cfg.ListLag)
	b.guard = guard.New(guard.Config{
		Behind: b.cfg.Generation.Behind,
		Limit:  b.limit,
		Store:  b.store,
		Clock:  b.cfg.Clock,
	})
	b.cfg.Calls = pipe.New(pipe.Config{
		Cloud: b.cfg.Cloud,
		Guard: b.guard.Intercept,
		Leads: func(ctx context.Context) error {
			b.cloud.mu.Lock()
			leads := b.leads
			b.cloud.mu.Unlock()
			return leads(ctx)
		},
		Watchdog: b.cfg.Watchdog,
		Clock:    b.cfg.Clock,
	})
	b.cfg.Guard = b.guard
	b.cells = New(b.cfg.Config)
	if err := b.cells.Load(b.Context(), append([]Observer{b.world}, b.also...)...); err != nil {
		b.Fatal(err)
	}
	if !b.patient {
		listedBefore(b.cells)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	b.ended = ended
	go func() { ended <- b.cells.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			b.Errorf("the controller ended with %v", err)
		}
	}
}

// Event notes the message, too.
func (b *bubble) Event(_ apiv1.PodReference, e events.Event) {
	b.note(func() { b.events = append(b.events, e.Type+" "+e.Reason+": "+e.Message) })
}

// listedBefore has a new store believed after one list more, so that tests of launches need
// not wait.
func listedBefore(c *Controller) {
	c.core.generation.mu.Lock()
	defer c.core.generation.mu.Unlock()
	c.core.generation.first = time.Unix(0, 0)
}

// takeOver is what a person decides of a store that is behind: Kip begins anew.
func (b *bubble) takeOver() {
	b.Helper()
	b.later(time.Second)
	if err := b.cells.TakeOver(b.Context(), b.cells.Generation().Shown); err != nil {
		b.Fatal(err)
	}
	b.cells.Reload()
	if err := <-b.ended; !errors.Is(err, ErrTakenOver) {
		b.Fatalf("after a take-over Run ended with %v", err)
	}
	b.run()
}

// later lets time pass, and what follows from it come to rest.
func (b *bubble) later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// restartsReady starts Kip anew while the cell of a pod waits: it is to be Ready still.
func (b *bubble) restartsReady(pod string) {
	b.Helper()
	b.stop()
	b.run()
	b.later(20 * time.Second)
	if got := b.phase(pod); got != apiv1.Ready {
		b.Fatalf("after a restart the cell is %s: want Ready", got)
	}
}

// vanish has the instances of pods vanish, and their kubelets and agents with them.
func (b *bubble) vanish(pods ...string) {
	b.Helper()
	for _, pod := range pods {
		cell, has := b.cells.ForPod(ref(pod).UID)
		if !has {
			b.Fatalf("pod %s has no cell", pod)
		}
		b.cloud.set(func() { delete(b.cloud.instances, cell.Instance.ID) })
		b.links.of(cell.ID).set(false, errors.New("no route to host"))
	}
}

// bound requests cells for so many pods, and returns the pods when they are bound.
func (b *bubble) bound(n int) (pods []string) {
	b.Helper()
	b.later(time.Second)
	for i := range n {
		pods = append(pods, fmt.Sprintf("p%03d", i))
		b.request(pods[i], "nano")
	}
	b.later(time.Minute)
	for _, pod := range pods {
		if b.phase(pod) != apiv1.Bound {
			b.Fatalf("pod %s has a cell that is %q", pod, b.phase(pod))
		}
	}
	return pods
}

// unbound are the pods whose cells are not bound any more.
func (b *bubble) unbound(pods []string) (list []string) {
	for _, pod := range pods {
		if b.phase(pod) != apiv1.Bound {
			list = append(list, pod)
		}
	}
	return list
}

// phase of the pod's cell; "" without one.
func (b *bubble) phase(pod string) apiv1.Phase {
	cell, _ := b.cells.ForPod(ref(pod).UID)
	return cell.Phase
}

// said returns the events in which all words stand.
func (b *bubble) said(words ...string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, e := range b.events {
		for _, w := range words {
			if !strings.Contains(e, w) {
				continue next
			}
		}
		found = append(found, e)
	}
	return found
}

// onChange is told of changes, onConnection of connections.
type (
	onChange struct {
		Unobserved
		told func(Cell)
	}
	onConnection struct {
		Unobserved
		told func(Cell, agentapi.Conn)
	}
)

func (o onChange) CellChanged(cell Cell) { o.told(cell) }

func (o onConnection) CellConnected(cell Cell, agent agentapi.Conn) { o.told(cell, agent) }
