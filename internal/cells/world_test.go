package cells

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
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
	mu           sync.Mutex
	launches     []string // what was asked for, in order
	byToken      map[string]string
	requests     map[string]string // by token
	capabilities cloud.Capabilities
	optional     cloud.Optional
	instances    map[string]cloud.Instance
	// fail answers a launch with an error; started says that the instance was
	// started all the same.
	fail func(cloud.LaunchRequest) (err error, started bool)
	// failOne does the same for one machine, which is then not started.
	failOne func(r cloud.LaunchRequest, n int) error
	// keep are errors of terminations, by instance.
	keep map[string]error
	// blind are zones that lists do not cover, hidden instances that they lack, and
	// forgets says that the cloud does not know any more what has ended.
	blind     []string
	hidden    map[string]bool
	forgets   bool
	listed    int
	described int
	describes func() // called in each Describe; nil for nothing
	// odd is an instance of which no description is to be had; "" for none.
	odd string
	// linger keeps terminated instances in the list.
	linger     bool
	terminated map[string]int
	// onlyManagement gives instances no address for their pods.
	onlyManagement bool
	// answer changes what a launch is answered with; nil for nothing.
	answer func(cloud.Instance) cloud.Instance
	// faults are why the cloud has ended instances, by their IDs.
	faults   map[string]error
	tagged   map[string]int
	failTags map[string]error
	// failTagging refuses a tagging; nil for none. taggings are those that were not refused, by instance.
	failTagging func(cloud.Tagging) error
	taggings    map[string]cloud.Tagging
	partsLate   bool // it shows some parts of the instances that it launches later
}

var (
	_ cloud.Cloud  = (*modelCloud)(nil)
	_ cloud.Tagger = (*modelCloud)(nil)
)

// Tag is of the instances that the cloud lists; failTags are errors, by instance.
func (m *modelCloud) Tag(_ context.Context, taggings ...cloud.Tagging) cloud.Results {
	m.mu.Lock()
	defer m.mu.Unlock()
	results := make(cloud.Results, len(taggings))
	for n, t := range taggings {
		m.tagged[t.ID]++
		i, there := m.instances[t.ID]
		results[n] = cloud.Result{ID: t.ID, Err: m.failTags[t.ID]}
		if !there {
			results[n].Err = cloud.ErrNotFound
		}
		if m.failTagging != nil && results[n].Err == nil {
			results[n].Err = m.failTagging(t)
		}
		if results[n].Err == nil {
			m.taggings[t.ID] = t
			i.Tags = maps.Clone(i.Tags)
			maps.Copy(i.Tags, t.Tags)
			m.instances[t.ID] = i
		}
	}
	return results
}

func newModelCloud() *modelCloud {
	return &modelCloud{byToken: map[string]string{}, requests: map[string]string{}, hidden: map[string]bool{},
		instances: map[string]cloud.Instance{}, terminated: map[string]int{}, tagged: map[string]int{}, failTags: map[string]error{},
		taggings: map[string]cloud.Tagging{}}
}

// set changes the model.
func (m *modelCloud) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (*modelCloud) Name() string                                              { return "model" }
func (*modelCloud) Catalogue(context.Context) ([]catalog.InstanceType, error) { return nil, nil }

func (m *modelCloud) Capabilities() cloud.Capabilities {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.capabilities
}

func (m *modelCloud) Optional() cloud.Optional {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.optional
}

// Launch refuses a token that comes with another request, as EC2 does.
func (m *modelCloud) Launch(_ context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.launches = append(m.launches, r.InstanceType)
	text, err := json.Marshal(r)
	if err != nil {
		return cloud.NotLaunched(len(r.Machines), err)
	}
	if first, known := m.requests[r.Token]; known && first != string(text) {
		return cloud.NotLaunched(len(r.Machines), &cloud.Error{Cause: cloud.ErrMismatch, Err: fmt.Errorf("first %s, then %s", first, text)})
	}
	if m.fail != nil {
		var started bool
		if err, started = m.fail(r); err != nil && !started {
			return cloud.NotLaunched(len(r.Machines), err)
		}
	}
	m.requests[r.Token] = string(text)
	results := make(cloud.LaunchResults, len(r.Machines))
	for n, machine := range r.Machines {
		tags := r.TagsOf(n)
		if !r.Shared() && !strings.Contains(string(machine.UserData), tags[cloud.TagCell]) || r.Shared() && r.OwnData() {
			return cloud.NotLaunched(len(r.Machines), fmt.Errorf("%w: user data of another cell", cloud.ErrRefused))
		}
		token := fmt.Sprint(r.Token, n)
		if m.failOne != nil {
			if results[n].Err = m.failOne(r, n); results[n].Err != nil && m.byToken[token] == "" {
				continue
			}
		}
		id, known := m.byToken[token]
		if !known {
			id = fmt.Sprintf("i-%d", len(m.byToken))
			m.byToken[token] = id
			made := cloud.Instance{
				ID: id, InstanceType: r.InstanceType, Zone: r.Zone, State: cloud.Running, Tags: tags, Launched: time.Now(), Place: cloud.PlaceOf(n),
				ManagementIP: netip.AddrFrom4([4]byte{127, 0, 0, 2}), PodIP: netip.AddrFrom4([4]byte{127, 0, 0, 3}),
				OwnedLate: m.partsLate,
			}
			if m.onlyManagement {
				made.PodIP = netip.Addr{}
			}
			m.instances[id] = made
		}
		results[n].Instance = m.instances[id]
		if m.answer != nil {
			results[n].Instance = m.answer(results[n].Instance)
		}
		if err != nil {
			results[n] = cloud.LaunchResult{Err: err}
		}
	}
	return results
}

func (m *modelCloud) List(_ context.Context, owner string) (list cloud.Listing, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed++
	list.Missing, list.Silent = m.blind, m.blind
	for _, i := range m.instances {
		if i.Tags[cloud.TagOwner] == owner && list.Covers(i.Zone) && !m.hidden[i.ID] {
			list.Instances = append(list.Instances, i)
		}
	}
	return list, nil
}

// Describe is positive that what is not there is gone, unless it has forgotten, and
// knows nothing of the zones that lists do not cover.
func (m *modelCloud) Describe(_ context.Context, ids ...string) ([]cloud.Instance, error) {
	if m.describes != nil {
		m.describes()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.described++
	if m.odd != "" && slices.Contains(ids, m.odd) {
		return nil, fmt.Errorf("%w: describe %s", cloud.ErrRefused, m.odd)
	}
	list := make([]cloud.Instance, len(ids))
	for n, id := range ids {
		i, there := m.instances[id]
		switch {
		case there && !slices.Contains(m.blind, i.Zone):
			list[n] = i
		case there, m.forgets:
			list[n] = cloud.Instance{ID: id, State: cloud.Unknown, Fault: m.faults[id]}
		default:
			list[n] = cloud.Instance{ID: id, State: cloud.Gone, Fault: m.faults[id]}
		}
	}
	return list, nil
}

func (m *modelCloud) Terminate(_ context.Context, ids ...string) cloud.Results {
	m.mu.Lock()
	defer m.mu.Unlock()
	results := cloud.Each(nil, ids...)
	for n, id := range ids {
		m.terminated[id]++
		if results[n].Err = m.keep[id]; results[n].Err != nil {
			continue
		}
		if i, ok := m.instances[id]; ok && m.linger {
			i.State = cloud.Terminating
			m.instances[id] = i
		} else {
			delete(m.instances, id)
		}
	}
	return results
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
	Unobserved
	cloud  *modelCloud
	store  *store.Store
	cells  *Controller
	config Config // of cells
	stop   func()
	mu     sync.Mutex
	events []string
	phases map[string][]apiv1.Phase // by pod
	cooled []string
	// refused are the answers for which offerings were cooled.
	refused []error
	waker   chan struct{}
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
	w := &world{
		T:      t,
		cloud:  newModelCloud(),
		store:  st,
		phases: map[string][]apiv1.Phase{},
		waker:  make(chan struct{}, 1),
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// takeOver is what a person decides, for the next Kip.
func (w *world) takeOver() {
	w.Helper()
	if err := w.cells.core.generation.takeOver(w.Context(), w.cells.Generation().Shown); err != nil {
		w.Fatal(err)
	}
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
		NodeName: "kip-0",
		Node:     nowhere,
		Own:      nowhere,
		Log:      log,
		Pods:     cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil),
	})
	if err != nil {
		w.Fatal(err)
	}
	generation := NewStoreGeneration(w.store, 0)
	guards := guard.New(guard.Config{Behind: generation.Behind, Clock: clock.RealClock{}})
	machines := pipe.New(pipe.Config{Cloud: w.cloud, Guard: guards.Intercept, Leads: w.store.Leads, Clock: clock.RealClock{}})
	w.config = Config{
		NodeName:      "kip-0",
		ControllerID:  "me",
		Calls:         machines,
		Guard:         guards,
		Store:         w.store,
		Generation:    generation,
		Tunnels:       OverTunnels(dialer),
		APIs:          ServedBy(api),
		CAHash:        authority.Hash(),
		Shortages:     w,
		Events:        w,
		Logs:          saves(func(context.Context, Cell, agentapi.Conn) error { return nil }),
		ClusterDomain: "cluster.local",
		SoonPoll:      soonPoll,
		Clock:         clock.RealClock{},
		Log:           log,
	}
	w.cells = New(w.config)
	if err := w.cells.Load(w.Context(), w); err != nil {
		w.Fatal(err)
	}
	listedBefore(w.cells)
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

var (
	_ Observer  = (*world)(nil)
	_ Shortages = (*world)(nil)
	_ Recorder  = (*world)(nil)
)

func (w *world) Event(_ apiv1.PodReference, e events.Event) {
	w.note(func() { w.events = append(w.events, e.Type+" "+e.Reason) })
}

// saves are Logs that are kept by a function.
type saves func(ctx context.Context, cell Cell, agent agentapi.Conn) error

func (f saves) SaveLogs(ctx context.Context, cell Cell, agent agentapi.Conn) error {
	return f(ctx, cell, agent)
}

func (f saves) HasStreams(types.UID) bool { return false }

func (f saves) Finish(context.Context, types.UID) {}

// standbyOn are Nodes of which a function says which a standby cell is made for.
type standbyOn func(Offering) string

func (f standbyOn) StandbyNode(o Offering) string { return f(o) }

func (w *world) CellChanged(c Cell) {
	w.note(func() {
		if p := w.phases[c.Pod.Name]; len(p) == 0 || p[len(p)-1] != c.Phase {
			w.phases[c.Pod.Name] = append(p, c.Phase)
		}
	})
}

func (w *world) CellSilent(c Cell, _ time.Time) {
	w.note(func() { w.events = append(w.events, "silent "+c.Pod.Name) })
}

func (w *world) CellInterrupted(c Cell) {
	w.note(func() { w.events = append(w.events, "interrupted "+c.Pod.Name) })
}

func (w *world) Mark(o Offering, answer error) {
	w.note(func() { w.cooled, w.refused = append(w.cooled, o.InstanceType), append(w.refused, answer) })
}

func (*world) Unavailable(Offering) bool { return false }

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
			w.Fatalf("%s: never; events %v, phases %v, launches %v, instances %v",
				what, w.events, w.phases, w.cloud.launches, w.cloud.instances)
		}
	}
}

func (w *world) reached(pod string, phase apiv1.Phase) func() bool {
	return func() bool { return slices.Contains(w.phases[pod], phase) }
}

func ref(name string) apiv1.PodReference {
	return apiv1.PodReference{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}
}

// nano is the plainest request for a cell.
func nano(pod string) Request {
	return Request{
		Pod:     ref(pod),
		Attempt: 1,
		Seen:    time.Now(),
		Offerings: []Offering{{
			InstanceType: "nano",
			Zone:         "z",
			PricePerHour: 1,
			BootTimeout:  time.Minute,
		}},
	}
}

func (w *world) request(pod string, offerings ...string) Cell {
	w.Helper()
	var list []Offering
	for _, o := range offerings {
		list = append(list, Offering{
			InstanceType: o,
			Zone:         "z",
			PricePerHour: 1,
			BootTimeout:  time.Hour,
		})
	}
	cell, err := w.cells.Request(w.Context(), Request{
		Pod:       ref(pod),
		Attempt:   1,
		Seen:      time.Now(),
		Offerings: list,
	})
	if err != nil {
		w.Fatal(err)
	}
	return cell
}
