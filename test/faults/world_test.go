package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/stall"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// setting is what a history is played with: the shape of the cloud and of Kip's
// configuration.
type setting struct {
	pools      []poolOf
	cloudAPI   bool // health by the cloud's list
	movingAddr bool // a stopped machine gets new addresses when it starts
	maxTries   int
	knobs      sim.Knobs
	seed       uint64
	armed      failpoint // from the start; none if zero
	reuse      bool      // the address that was freed last is given out next
	mild       bool      // no fault lasts, and time passes between them
	shared     bool      // the machines of a launch share their user data
	stormy     bool      // of hundreds of pods
	routed     bool      // Kip leads networks to pods
	reserved   bool      // the account has capacity that is reserved
	ec2        bool      // Kip asks a model of EC2, by its driver
	// looksEvery is how often that looks for spot instances which are taken back; hardly ever if 0.
	looksEvery time.Duration
	// heard is told of each call to EC2: the code of its answer, "" for success, or that none came.
	heard func(action, code string, answered bool)
	most  int // pods at a time; 12 if 0
	// How far the clocks of the cloud and of the API server are ahead of Kip's.
	cloudClock, apiClock time.Duration
}

type poolOf struct {
	instanceType string
	count        int
	stopped      bool
}

const (
	listLag     = 20 * time.Second // as internal/kip has it for real clouds
	bootTimeout = 5 * time.Minute
	restartTime = time.Second // from Kip's death to its next start
)

// The virtual nodes of Kip; which a pod is on has nothing to do with its size.
const (
	firstNode  = "kip-0"
	secondNode = "kip-0-1"
)

// catalogue is what the simulated cloud sells.
var catalogue = []catalog.InstanceType{
	{Name: "small", MilliCPU: 1000, MemoryBytes: 1 << 30, Arch: "amd64", Offerings: []catalog.PurchaseOption{
		{Zone: "a", PricePerHour: 0.10}, {Zone: "b", PricePerHour: 0.11}, {Zone: "a", Spot: true, PricePerHour: 0.03},
	}},
	{Name: "large", MilliCPU: 2000, MemoryBytes: 2 << 30, Arch: "amd64", Offerings: []catalog.PurchaseOption{
		{Zone: "a", PricePerHour: 0.20}, {Zone: "b", PricePerHour: 0.22},
	}},
}

func offeringsOf(instanceType string, spot bool) (list []offering.Offering) {
	for _, t := range catalogue {
		for _, o := range t.Offerings {
			if t.Name == instanceType && o.Spot == spot {
				list = append(list, offering.Offering{
					InstanceType: t.Name, Zone: o.Zone, Subnet: o.Subnet, Spot: o.Spot, PricePerHour: o.PricePerHour,
					MilliCPU: t.MilliCPU, MemoryBytes: t.MemoryBytes, DiskBytes: 1 << 30, BootTimeout: bootTimeout, Reason: "the cheapest that fits",
					DiskPerHour: 0.01, AddressUnpriced: o.Zone == "b",
				})
			}
		}
	}
	return list
}

// world is everything around Kip, and the Kip that runs in it now.
type world struct {
	setting
	cloud *sim.Cloud
	model *ec2.Model // before the cloud; nil where Kip asks that itself
	disks []string   // of the cloud, by their IDs
	api   *apiServer

	mounted mounts
	store   *store.Store
	ctx     context.Context // ends with the world
	end     context.CancelFunc
	began   time.Time
	log     *slog.Logger

	// faults, changed by events
	downtime    time.Duration // of the next death
	slowestList time.Duration // the longest lag of the list so far

	mu           sync.Mutex
	diskOf       map[types.UID]string
	nextDisk     string            // of the next pod
	annotations  map[string]string // of the next pod
	foreign      string            // attached by somebody else
	violations   []string
	kip          *kip // nil while none runs
	lives        int  // of Kip, so far
	ca, oldCA    string
	supervisor   chan struct{}
	revive       chan struct{} // closed when Kip's downtime is to end at once
	machines     map[string]*machine
	links        chan struct{} // closed and replaced when what can reach whom changes
	policies     map[types.UID]corev1.RestartPolicy
	created      map[types.UID]time.Time
	keeps        map[types.UID]time.Duration // for how long the cell of each pod stays if it fails; 0 once it asks for that no more
	ran          map[types.UID]int           // how often a pod's containers were started
	started      map[types.UID]time.Time     // when they were first
	reports      map[types.UID][]report
	lastCell     map[types.UID]time.Time // when a pod was last seen to have a cell
	lastWaiting  map[types.UID]time.Time // when it last said why it has none
	lastLive     map[types.UID]time.Time // one that was not ending
	lastBound    map[types.UID]time.Time // and a bound one
	live         map[string]int          // checks of the history in which a bound could have been broken
	plays        map[string]int          // how often each kind of event had an effect
	attempts     map[string]*attempts    // what is made about one end
	announced    map[string]bool         // instances whose interruption Kip was told of
	salt         map[string]uint32       // which instances faults that last are of
	readFail     func() error            // of the store
	auditing     map[string]int          // the keys that are read for the books
	lagging      bool                    // an event has made the list late
	paused       chan struct{}           // closed when Kip goes on; nil while it does
	held         bool                    // and that has held it up
	resumed      time.Time               // when it went on last
	said         []string                // the Events that Kip wrote
	unreadable   bool                    // the store, for the next Kip
	ending       bool                    // the history is over
	trouble      time.Time               // when the last fault was over, as far as is known
	lasting      map[string]bool
	behind       bool      // the store was swapped, and has not taken over yet
	swapping     bool      // what is read and written is not by a Kip
	stallsUntil  time.Time // a Kip that was deposed may act until then
	decided      func(sim.Kind)
	points       int
	writing      map[string]int // the point of a write under way, by its keys
	deadly       failpoint      // the next; none if zero
	passed       []failpoint    // while Kip lived, but for those of quiet times
	idle         bool           // nothing may be written now
	killedAt     failpoint      // zero while no failpoint was deadly
	storeFail    func(op string) (before, after error)
	beforeWrite  func(op string) // called without a lock; nil for nothing
	afterWrite   func()          // the same, when the books are made
	cloudFail    []cloudFault
	late         bool // calls go on when their caller has died
	writes       int
	storeTrouble time.Time // when the answer of a write was last lost
	short        map[string]sim.Pool
	strikes      time.Time // until when an announced interruption may come
	lastEvent    time.Time
	serial       int
	mostPods     int                   // at a time, of a storm
	nextOwner    metav1.OwnerReference // of the next pod, if it is not a Job
	nextCopies   string                // how those of the next pod fare, if it is a set's
	deleted      map[types.UID]time.Time
	straying     int // launches of strays that are under way
	moment       time.Time
	atMoment     int // what happened at that moment
	books        books
}

type report struct {
	at                    time.Time
	kind, reason, message string
}

// failpoint kills Kip at the nth write or call to the cloud, before or after its
// effect.
type failpoint struct {
	n     int
	after bool
}

// cloudFault happens to the nth call of a kind from now.
type cloudFault struct {
	kind  sim.Kind
	n     int
	name  string
	fault sim.Fault
}

func newWorld(s setting) *world {
	w := &world{
		setting: s, slowestList: slowest(s.knobs.ListLag), deadly: s.armed, began: time.Now(), downtime: restartTime,
		ca:       "ca-1",
		machines: map[string]*machine{}, links: make(chan struct{}), policies: map[types.UID]corev1.RestartPolicy{},
		created: map[types.UID]time.Time{}, ran: map[types.UID]int{}, started: map[types.UID]time.Time{},
		reports: map[types.UID][]report{}, lastBound: map[types.UID]time.Time{},
		lasting:  map[string]bool{},
		lastCell: map[types.UID]time.Time{}, lastWaiting: map[types.UID]time.Time{}, lastLive: map[types.UID]time.Time{},
		live: map[string]int{}, plays: map[string]int{}, keeps: map[types.UID]time.Duration{},
		writing: map[string]int{}, short: map[string]sim.Pool{},
		trouble: time.Now(), supervisor: make(chan struct{}), revive: make(chan struct{}), books: newBooks(),
		storeFail: func(string) (error, error) { return nil, nil }, readFail: func() error { return nil },
		attempts: map[string]*attempts{}, announced: map[string]bool{}, salt: map[string]uint32{}, auditing: map[string]int{},
		deleted: map[types.UID]time.Time{},
		diskOf:  map[types.UID]string{}, mounted: mounts{of: map[string]string{}},
	}
	w.log = slog.New(slog.DiscardHandler)
	if *verbose {
		w.log = slog.New(&traceHandler{w: w})
	}
	w.api = newAPIServer(w)
	w.store = store.MemoryWith(w.onWrite, w.onRead)
	k := s.knobs
	k.StoppedKeepsAddresses = !s.movingAddr
	k.OwnedLeft = 0.2
	machines := sim.Config{Seed: s.seed, Catalogue: catalogue, Boot: w.boot, Fault: w.onCall, Knobs: k, Log: w.log,
		Mounted: w.mounted.has, ReuseAddresses: s.reuse, SharedUserData: s.shared,
		Resolves: s.shared}
	var err error
	if s.ec2 {
		w.model, err = newModel(machines, &w.mounted, s)
	} else {
		w.cloud, err = sim.New(machines)
	}
	if err != nil {
		panic(err)
	}
	if w.model != nil {
		w.cloud = w.model.Machines()
	}
	w.makeDisks()
	w.ctx, w.end = context.WithCancel(context.Background())
	go w.supervise()
	return w
}

// close ends the world; nothing of it runs on.
func (w *world) close() {
	w.kill()
	w.end()
	<-w.supervisor
	_ = w.cloud.Close()
}

func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violateLocked(format, args...)
}

func (w *world) violateLocked(format string, args ...any) {
	if len(w.violations) < 20 {
		w.violations = append(w.violations, fmt.Sprintf("%v: ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
	}
}

func (w *world) linksChanged() {
	close(w.links)
	w.links = make(chan struct{})
	for _, m := range w.machines {
		m.poke()
	}
}

// pokeFor has the kubelet look again that is shown a pod which has changed. The others have
// nothing to see: with hundreds of pods that change at one moment, each of hundreds would look
// as often.
func (w *world) pokeFor(changed any) {
	if last, ok := changed.(cache.DeletedFinalStateUnknown); ok {
		changed = last.Obj
	}
	uid := changed.(*corev1.Pod).UID
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if m.session != nil && m.session.api.uid == uid {
			m.poke()
		}
	}
}

// kip is one life of the process.
type kip struct {
	w        *world
	ctx      context.Context
	cancel   context.CancelFunc
	informer cache.SharedIndexInformer
	guard    *guard.Guard
	asks     cloud.Cloud // its cloud: the simulated one, or the driver of another
	machines cloud.Cloud // with budgets, and as a leader's
	cells    *cells.Controller
	pods     *pods.Controller
	apis     map[string]*cellAPI // under world.mu
	store    *store.Store        // it leads on it, or has
	deposed  chan struct{}       // closed when another leads
	stalled  chan struct{}       // closed when it wakes; nil while it is awake; under world.mu
	up       bool                // its loops run; under world.mu
	// observers of copies, and the pods of DaemonSets that its cells know of; under world.mu
	observers []daemonsets.CopyObserver
	shown     map[types.UID]bool
	life      int // counts them
	// ca and oldCA are those that were stored when it began.
	ca, oldCA string
}

var errDead = errors.New("this Kip is dead")

// alive returns an error once the process is dead.
func (k *kip) alive() error {
	if k.ctx.Err() != nil {
		return errDead
	}
	return nil
}

// Leads is as a process asks: what it does not live to hear it does not act on.
func (k *kip) Leads(ctx context.Context) error {
	if err := k.alive(); err != nil {
		return err
	}
	return k.store.Leads(ctx)
}

// kill is a crash: from here on the process writes nothing and calls nobody.
func (w *world) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killLocked()
}

func (w *world) killLocked() {
	if w.kip != nil {
		w.kip.cancel()
	}
	w.trouble = time.Now()
}

// jitter is that of one part of one life, from the setting's seed.
func (w *world) jitter() backoff.Random {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(w.seed, uint64(w.lives)))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return r.Float64()
	}
}

// supervise starts Kip again whenever it has died, as a Deployment does.
func (w *world) supervise() {
	defer close(w.supervisor)
	var late sync.WaitGroup // those that were deposed
	defer late.Wait()
	for w.ctx.Err() == nil {
		k := &kip{w: w, apis: map[string]*cellAPI{}, deposed: make(chan struct{}), shown: map[types.UID]bool{}}
		k.ctx, k.cancel = context.WithCancel(w.ctx)
		w.mu.Lock()
		w.resumeLocked() // it was the last one that was paused
		w.kip = k
		w.lives++
		k.life, k.ca, k.oldCA = w.lives, w.ca, w.oldCA
		w.mu.Unlock()
		k.store = w.elect(k.life)
		ended := make(chan error, 1)
		go func() { ended <- k.run() }()
		var err error
		select {
		case err = <-ended:
		case <-k.deposed:
			late.Go(func() { <-ended; k.cancel() })
			w.mu.Lock()
			w.trouble = time.Now()
			w.mu.Unlock()
			continue
		}
		killed := errors.Is(err, errDead) || errors.Is(err, cells.ErrTakenOver) || err == nil
		k.cancel()
		w.mu.Lock()
		never := errors.Is(err, store.ErrConflict) || errors.Is(err, cells.ErrBehindTime)
		if !killed && err != nil && (never || len(w.lasting) == 0 && time.Since(w.trouble) > time.Minute) {
			w.violateLocked("Kip ended by itself: %v", err)
		}
		w.kip, w.trouble = nil, time.Now()
		down, revive := w.downtime, w.revive
		w.downtime = restartTime
		w.mu.Unlock()
		t := time.NewTimer(down)
		select {
		case <-t.C:
		case <-revive:
		case <-w.ctx.Done():
		}
		t.Stop()
		w.mu.Lock()
		w.trouble = time.Now()
		w.mu.Unlock()
	}
}

// renewImages changes what there is to boot: each life of Kip finds an image of its own, and
// every other one that of the life before.
func (w *world) renewImages(life int) {
	first := life
	if life%2 == 0 {
		first--
	}
	if w.model != nil {
		w.model.Change(func(c *ec2.Config) { c.Images = ec2Images(first, life) })
		return
	}
	var images []string
	for n := first; n <= life; n++ {
		images = append(images, fmt.Sprint("image-", n))
	}
	w.change(func(k *sim.Knobs) { k.Images = images })
}

// leaderKey is the record of the Kip that leads.
const leaderKey = "leader"

// elect makes a life the leader: the fence of the last one falls.
func (w *world) elect(life int) *store.Store {
	w.mu.Lock()
	st := w.store
	w.mu.Unlock()
	revision, err := st.Get(context.Background(), leaderKey, new(int))
	if err == nil {
		revision, err = st.Put(context.Background(), leaderKey, life, revision)
	}
	if err != nil {
		panic(err)
	}
	return st.Fenced(st.Prefix()+leaderKey, revision)
}

// run wires Kip as internal/kip does.
func (k *kip) run() error {
	w := k.w
	k.asks = w.cloud
	if w.model != nil {
		driver, err := newDriver(k)
		if err != nil {
			return err
		}
		k.asks = driver
	}
	w.renewImages(k.life)
	short := shortages{capacity.New(clock.RealClock{})}
	var pools []cells.Pool
	for _, p := range w.pools {
		sold := func() ([]offering.Offering, error) {
			if list := short.available(offeringsOf(p.instanceType, false)); len(list) > 0 {
				return list, nil
			}
			return nil, cloud.ErrCapacity
		}
		pools = append(pools, cells.Pool{Name: p.instanceType, Count: p.count, Stopped: p.stopped, Offerings: sold})
	}
	k.informer = cache.NewSharedIndexInformer(w.api.listerWatcher(k), &corev1.Pod{}, 0, cache.Indexers{})
	// The library's own handler counts by a clock that is outside this bubble, and
	// would sleep for decades.
	if err := k.informer.SetWatchErrorHandler(func(*cache.Reflector, error) {}); err != nil {
		panic(err)
	}
	health := cells.Health{HealthyTimeout: 90 * time.Second, Check: 5 * time.Second}
	if w.cloudAPI {
		health = cells.Health{CloudAPI: true, HealthyTimeout: 3 * time.Minute, Interval: time.Minute, Check: 5 * time.Second}
	}
	generation := cells.NewStoreGeneration(k.store, listLag)
	k.guard = guard.New(guard.Config{
		Behind: generation.Behind,
		Store:  k.store,
		Clock:  kipClock{k: k},
	})
	machines := pipe.New(pipe.Config{
		Cloud:  handle{k},
		Guard:  k.guard.Intercept,
		Leads:  k.Leads,
		Random: w.jitter(),
		Clock:  kipClock{k: k},
	})
	k.machines = machines
	late := stall.New(kipClock{k: k})
	k.cells = cells.New(cells.Config{
		Random:   w.jitter(),
		Late:     late,
		Guard:    k.guard,
		NodeName: firstNode, ControllerID: owner, Calls: machines, Store: k.store, Generation: generation, Tunnels: tunnels{k}, APIs: cellAPIs{k},
		Nodes:     twoNodes{k, short},
		CAHash:    k.ca,
		OldCAHash: k.oldCA,
		Shortages: short, Events: reporter{k}, Logs: askedFor{},
		ClusterDomain: "cluster.local", Pools: pools, Template: "of " + k.ca, Health: health, ListLag: listLag, SoonPoll: time.Second,
		// Each life has another configuration: what is sent again must not show it.
		NameTag: fmt.Sprint("kip-", k.life), Options: cells.Options{InstanceProfile: fmt.Sprint("profile-", k.life)},
		Clock: kipClock{k: k}, Log: w.log,
	})
	var err error
	k.pods, err = pods.New(pods.Config{
		Random: w.jitter(),
		Pods:   k.informer, Nodes: twoNodes{k, short}, Cells: podCells{k.cells, w}, Volumes: w,
		Events: reporter{k}, Observer: unobserved{}, MaxAttempts: w.maxTries, Leadership: k,
		DaemonSets: besidePods, Copies: copies{k},
		Grants: pods.Grants{MaxKeepFailed: longestKept, MaxKeptCells: mostKept, Namespaces: []pods.NamespaceGrants{{Namespace: namespace,
			Dedicated:   true,
			CloudRoutes: []netip.Prefix{behindPod}}}},
		Clock: kipClock{k: k}, Log: w.log,
	})
	if err != nil {
		return err
	}
	if _, err := k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.pokeFor,
		UpdateFunc: func(_, pod any) { w.pokeFor(pod) },
		DeleteFunc: w.pokeFor,
	}); err != nil {
		return err
	}
	if _, err := k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    k.setChanged,
		UpdateFunc: func(_, pod any) { k.setChanged(pod) },
		DeleteFunc: k.setChanged,
	}); err != nil {
		return err
	}
	load, unread := context.WithCancel(k.ctx)
	w.mu.Lock()
	if w.unreadable {
		w.unreadable = false
		w.plays["store unread"]++
		w.troubled(time.Now())
		unread()
	}
	w.mu.Unlock()
	err = k.cells.Load(load, k.pods)
	unread()
	if err != nil {
		k.cancel()
		// A process would end here; these end their goroutines.
		return errors.Join(err, k.cells.Run(k.ctx), k.pods.Run(k.ctx))
	}
	var running sync.WaitGroup
	var failure error
	for _, loop := range []func() error{
		func() error { return late.Run(k.ctx) },
		func() error { k.informer.RunWithContext(k.ctx); return nil },
		func() error { return k.cells.Run(k.ctx) },
		func() error { return k.pods.Run(k.ctx) },
	} {
		running.Go(func() {
			if err := loop(); err != nil && k.ctx.Err() == nil {
				w.mu.Lock()
				failure = err
				w.mu.Unlock()
			}
			w.mu.Lock()
			failed := failure != nil
			w.mu.Unlock()
			if failed {
				k.stop()
			}
		})
	}
	w.mu.Lock()
	k.up = true
	w.mu.Unlock()
	running.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	deposed := false
	select {
	case <-k.deposed:
		deposed = true // what it reads back is another's
	default:
	}
	if failure != nil && errors.Is(failure, store.ErrConflict) && !deposed {
		w.violateLocked("Kip ended by itself: %v", failure)
	}
	return failure
}

// podCells are the cells as the controller of pods has them.
type podCells struct {
	*cells.Controller
	w *world
}

// ReleaseVanished implements pods.Cells.
func (c podCells) ReleaseVanished(ctx context.Context, uid types.UID, why string) bool {
	released := c.Controller.ReleaseVanished(ctx, uid, why)
	if released && slices.ContainsFunc(c.w.api.list(), func(p *corev1.Pod) bool { return p.UID == uid }) {
		c.w.violate("a pod that the API server has is not let go: %s: %s", uid, why)
	}
	return released
}

// shortages are what the cloud did not serve in this life of Kip.
type shortages struct{ known *capacity.Shortages }

func (s shortages) Mark(o offering.Offering, answer error) {
	s.known.Mark(instancetypes.Shortage(o, answer))
}

func (s shortages) Unavailable(o offering.Offering) bool {
	return s.known.Unavailable(o.Key())
}

// available leaves out what is not served.
func (s shortages) available(all []offering.Offering) []offering.Offering {
	return slices.DeleteFunc(all, s.Unavailable)
}

// running waits while Kip is paused, at most until ctx ends. Whatever can wake Kip asks
// it first; only what its work queues have put off goes on.
func (k *kip) running(ctx context.Context) {
	for {
		k.w.mu.Lock()
		paused := k.stalled
		if k == k.w.kip && k.w.paused != nil {
			paused, k.w.held = k.w.paused, true
		}
		k.w.mu.Unlock()
		if paused == nil {
			return
		}
		select {
		case <-paused:
		case <-k.ctx.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// kipClock is time itself, but for its timers, which are late when Kip is paused.
type kipClock struct {
	clock.RealClock
	k *kip
}

func (c kipClock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

func (c kipClock) NewTimer(d time.Duration) clock.Timer {
	t := &lateTimer{k: c.k, c: make(chan time.Time, 1)}
	t.start(d)
	return t
}

func (c kipClock) NewTicker(d time.Duration) clock.Ticker {
	t := &lateTimer{k: c.k, c: make(chan time.Time, 1), again: true}
	t.start(d)
	return lateTicker{t}
}

type lateTimer struct {
	k     *kip
	c     chan time.Time
	again bool
	stop  context.CancelFunc
}

func (t *lateTimer) start(d time.Duration) {
	var ctx context.Context
	ctx, t.stop = context.WithCancel(t.k.ctx)
	go func() {
		for sleep(ctx, d) {
			t.k.running(ctx)
			if ctx.Err() != nil {
				return
			}
			select {
			case t.c <- time.Now():
			default:
			}
			if !t.again {
				return
			}
		}
	}()
}

func (t *lateTimer) C() <-chan time.Time { return t.c }

func (t *lateTimer) Stop() bool {
	t.stop()
	return true
}

func (t *lateTimer) Reset(d time.Duration) bool {
	t.stop()
	t.start(d)
	return true
}

type lateTicker struct{ t *lateTimer }

func (t lateTicker) C() <-chan time.Time { return t.t.c }
func (t lateTicker) Stop()               { t.t.stop() }

// stop ends a life whose part has failed.
func (k *kip) stop() { k.cancel() }

// seenPod is the pod as the cell API shows it: from the informer, and from the API
// server itself where the informer has none. It is not known where neither answers.
func (k *kip) seenPod(name cache.ObjectName, uid types.UID) (pod *corev1.Pod, known bool) {
	if !k.informer.HasSynced() {
		return nil, false
	}
	if o, ok, err := k.informer.GetStore().GetByKey(name.String()); err == nil && ok && o.(*corev1.Pod).UID == uid {
		return o.(*corev1.Pod), true
	}
	if k.w.api.isAway() != nil {
		return nil, false
	}
	if p := k.w.api.get(name); p != nil && p.UID == uid {
		return p, true
	}
	return nil, true
}

const owner = "me"

// point is passed at each write and at each call to the cloud, before and after
// its effect; an error is Kip's death there.
func (w *world) point(n int, after bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kip == nil || w.kip.ctx.Err() != nil {
		return errDead
	}
	f := failpoint{n, after}
	if n > 0 && w.deadly == f {
		w.deadly, w.killedAt = failpoint{}, f
		w.plays["kill at"]++
		w.killLocked()
		return errDead
	}
	if w.armed == (failpoint{}) && n > 0 {
		w.passed = append(w.passed, f)
	}
	return nil
}

// nextPoint counts, but for what a quiet time has: how many looks at the cloud fit
// into an hour depends on the order of goroutines.
func (w *world) nextPoint() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle {
		return 0
	}
	w.points++
	return w.points
}

// onWrite is the store's hook.
func (w *world) onWrite(op, key string) error {
	if key == leaderKey || w.isSwapping() {
		return nil
	}
	err := w.written(op, key)
	w.met(err)
	return err
}

func (w *world) isSwapping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.swapping
}

// isBehind says that the store was swapped, and a person has not decided yet.
func (w *world) isBehind() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.behind
}

// met counts a failure of the store of which Kip is told.
func (w *world) met(err error) {
	if e, ok := errors.AsType[*storeError](err); ok {
		w.happened(e.kind)
	}
}

// onRead fails no look of the books'. What counts is what a running Kip meets.
func (w *world) onRead(key string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.auditing[key] > 0 || key == leaderKey || w.swapping {
		return nil
	}
	err := w.readFail()
	if err != nil && w.kip != nil && w.kip.up {
		w.plays["store reads"]++
	}
	return err
}

func (w *world) written(op, key string) error {
	before, after := w.storeFault(op)
	if op != "applied" {
		n := w.nextPoint()
		w.mu.Lock()
		w.writing[key] = n
		w.writes++ // it may come to nothing, and costs a request all the same
		meanwhile := w.beforeWrite
		w.mu.Unlock()
		if meanwhile != nil {
			meanwhile(op)
		}
		if err := w.point(n, false); err != nil {
			return err
		}
		return before
	}
	w.mu.Lock()
	n := w.writing[key]
	if after != nil {
		w.storeTrouble = time.Now()
	}
	w.mu.Unlock()
	for k := range strings.SplitSeq(key, ",") {
		w.audit(k)
	}
	w.mu.Lock()
	now := w.afterWrite
	w.mu.Unlock()
	if now != nil {
		now()
	}
	if err := w.point(n, true); err != nil {
		return err
	}
	return after
}

func (w *world) storeFault(op string) (before, after error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.storeFail(op)
}

// onCall is the cloud's hook.
func (w *world) onCall(c sim.Call) (f sim.Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.cloudFail {
		p := &w.cloudFail[i]
		if p.kind != sim.AnyKind && p.kind != c.Kind || p.n <= 0 {
			continue
		}
		if p.n--; p.n == 0 {
			w.plays["cloud fault"]++
			w.plays["cloud fault: "+p.name]++
			w.plays["cloud fault of "+string(c.Kind)]++
			f = p.fault
			w.troubled(time.Now())
			if f.HangBefore || f.HangAfter {
				w.troubled(time.Now().Add(callTimeout))
			}
		}
	}
	w.cloudFail = slices.DeleteFunc(w.cloudFail, func(p cloudFault) bool { return p.n <= 0 })
	return f
}

// troubled notes a fault that is over at a time; under mu.
func (w *world) troubled(until time.Time) {
	if until.After(w.trouble) {
		w.trouble = until
	}
}

// calm is since when nothing has gone wrong.
func (w *world) calm() time.Time {
	if len(w.lasting) > 0 || w.behind || w.kip == nil || !w.kip.up || w.trouble.After(time.Now()) {
		return time.Now()
	}
	return w.trouble
}

// handle is the cloud as one Kip has it: it dies with it.
type handle struct{ k *kip }

var (
	_ cloud.Cloud          = handle{}
	_ cloud.Stopper        = handle{}
	_ cloud.Interrupter    = handle{}
	_ cloud.OwnedResources = handle{}
	_ cloud.Tagger         = handle{}
	_ cloud.Resolver       = handle{}
	_ cloud.Admitter       = handle{}
	_ cloud.Booster        = handle{}
)

func (h handle) call(ctx context.Context, do func(ctx context.Context) error) error {
	if err := h.k.alive(); err != nil {
		return err
	}
	w := h.k.w
	h.k.running(h.k.ctx)
	n := w.nextPoint()
	if err := w.point(n, false); err != nil {
		return err
	}
	w.mu.Lock()
	late := w.late || n%3 == 1
	w.mu.Unlock()
	var err error
	if late {
		// The request is on its way: that its sender dies does not stop it.
		answer := make(chan error, 1)
		detached, cancel := context.WithTimeout(w.ctx, lateTime)
		go func() {
			defer cancel()
			err := do(detached)
			if err == nil && ctx.Err() != nil {
				w.happened("late calls") // done for a sender that did not wait
			}
			answer <- err
		}()
		select {
		case err = <-answer:
		case <-ctx.Done():
			err = ctx.Err()
		}
	} else {
		err = do(ctx)
	}
	h.k.running(h.k.ctx)
	w.mu.Lock()
	for what, causes := range lastingCauses {
		if w.lasting[what] && !errors.Is(err, errPlanned) && slices.ContainsFunc(causes,
			func(cause error) bool { return errors.Is(err, cause) }) {
			w.plays[what]++
		}
	}
	w.mu.Unlock()
	if dead := w.point(n, true); dead != nil {
		return dead
	}
	return err
}

// lastingCauses are how the calls that meet a lasting fault of the cloud end.
var lastingCauses = map[string][]error{
	"cloud faults": {sim.ErrInternal, sim.ErrLost},
	"unauthorised": {cloud.ErrUnauthorised},
	"throttling":   {cloud.ErrThrottled},
	"quota":        {cloud.ErrQuota},
}

// lateTime bounds how long a request may be under way when its sender has died.
const lateTime = 10 * time.Second

func (h handle) Name() string                     { return "sim" }
func (h handle) Capabilities() cloud.Capabilities { return h.k.asks.Capabilities() }
func (h handle) Optional() cloud.Optional {
	f := cloud.Optional{Stopper: h, Interrupter: h, Disks: h, OwnedResources: h, Tagger: h}
	if h.k.asks.Optional().Resolver != nil {
		f.Resolver = h
	}
	if h.k.asks.Optional().Admitter != nil {
		f.Admitter = h
	}
	if h.k.asks.Optional().Booster != nil {
		f.Booster = h
	}
	if h.k.asks.Optional().DiskGrower != nil {
		f.DiskGrower = h
	}
	if h.k.w.routed {
		f.Router = h
	}
	return f
}

func (h handle) Resolve(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	if h.k.w.model != nil {
		s = onEC2(s)
	}
	return ask(ctx, h, func(ctx context.Context) (cloud.Resolved, error) {
		return h.k.asks.Optional().Resolver.Resolve(ctx, s)
	})
}

func (h handle) Admit(ctx context.Context, owner string) error {
	return h.call(ctx, func(ctx context.Context) error { return h.k.asks.Optional().Admitter.Admit(ctx, owner) })
}
func (h handle) GrowDisk(ctx context.Context, id string, bytes int64) (cloud.Disk, error) {
	return ask(ctx, h, func(ctx context.Context) (cloud.Disk, error) {
		return h.k.asks.Optional().DiskGrower.GrowDisk(ctx, id, bytes)
	})
}
func (h handle) Route(ctx context.Context, instance string, to []netip.Prefix) error {
	return h.call(ctx, func(ctx context.Context) error { return h.k.asks.Optional().Router.Route(ctx, instance, to) })
}
func (h handle) Unroute(ctx context.Context, instance string, to []netip.Prefix) error {
	return h.call(ctx, func(ctx context.Context) error { return h.k.asks.Optional().Router.Unroute(ctx, instance, to) })
}
func (h handle) EndBoost(ctx context.Context, ids ...string) cloud.Results {
	err := h.call(ctx, func(ctx context.Context) error { return h.k.asks.Optional().Booster.EndBoost(ctx, ids...).Err() })
	return cloud.Each(err, ids...)
}

func (h handle) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	return h.k.w.cloud.Catalogue(ctx)
}

// ask makes a call that has an answer; a late one may come when nobody waits.
func ask[T any](ctx context.Context, h handle, do func(context.Context) (T, error)) (T, error) {
	var answer T
	err := h.call(ctx, func(ctx context.Context) error {
		a, err := do(ctx)
		h.k.w.mu.Lock()
		defer h.k.w.mu.Unlock()
		answer = a
		return err
	})
	h.k.w.mu.Lock()
	defer h.k.w.mu.Unlock()
	return answer, err
}

// told are instances as the cloud tells of them, by its clock.
func (h handle) told(list []cloud.Instance) []cloud.Instance {
	told := slices.Clone(list)
	for n := range told {
		if !told[n].Launched.IsZero() {
			told[n].Launched = told[n].Launched.Add(h.k.w.cloudClock)
		}
	}
	return told
}

// isDecided is told of what Kip is about to ask of the cloud.
func (w *world) isDecided(kind sim.Kind) {
	w.mu.Lock()
	tell := w.decided
	w.mu.Unlock()
	if tell != nil {
		tell(kind)
	}
}

func (h handle) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	w := h.k.w
	w.isDecided(sim.KindLaunch)
	if w.model != nil {
		r.LaunchSpec = onEC2(r.LaunchSpec)
	}
	results, err := ask(ctx, h, func(ctx context.Context) (cloud.LaunchResults, error) {
		results := slices.Clone(h.k.asks.Launch(ctx, r))
		for n := range results {
			results[n].Instance = h.told([]cloud.Instance{results[n].Instance})[0]
		}
		return results, results.Err()
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	missing := 0
	if errors.Is(results.Err(), cloud.ErrStale) {
		w.plays["stale launch"]++
	}
	for _, one := range results {
		if errors.Is(one.Err, cloud.ErrCapacity) && !errors.Is(one.Err, errPlanned) {
			missing++
		}
	}
	if missing > 0 {
		w.plays["capacity"]++
	}
	if missing > 0 && missing < len(results) {
		w.plays["partial group"]++
	}
	if err == nil && len(results) > 0 && w.lasting["slow boots"] {
		w.plays["slow boots"]++
	}
	if err != nil && (results.Err() == nil || errors.Is(err, errDead)) {
		return cloud.NotLaunched(len(r.Machines), err)
	}
	return results
}

func (h handle) List(ctx context.Context, owner string) (cloud.Listing, error) {
	w := h.k.w
	listing, err := ask(ctx, h, func(ctx context.Context) (cloud.Listing, error) {
		listing, err := h.k.asks.List(ctx, owner)
		if err == nil {
			w.judge(listing, w.cloud.Truth())
		}
		return listing, err
	})
	listing.Instances = h.told(w.omit(listing.Instances))
	return listing, err
}

// judge counts an answer of the cloud's list that is not true, because an event has
// made it late or blind.
func (w *world) judge(listing cloud.Listing, truth []sim.Instance) {
	told := map[string]cloud.State{}
	for _, i := range listing.Instances {
		told[i.ID] = i.State
	}
	truth = slices.DeleteFunc(slices.Clone(truth), func(i sim.Instance) bool { return !listing.Covers(i.Zone) })
	late := len(told) != len(truth) || slices.ContainsFunc(truth, func(i sim.Instance) bool { return told[i.ID] != i.State })
	w.mu.Lock()
	defer w.mu.Unlock()
	if late && w.lagging {
		w.plays["list lag"]++
	}
	if !listing.Complete() {
		w.plays["blind zone"]++
	}
}

func (h handle) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	list, err := ask(ctx, h, func(ctx context.Context) ([]cloud.Instance, error) { return h.k.asks.Describe(ctx, ids...) })
	h.k.w.forget(list)
	return h.told(list), err
}

// each makes a call that names instances.
func (h handle) each(ctx context.Context, ids []string, do func(context.Context, ...string) cloud.Results) cloud.Results {
	return cloud.Each(h.call(ctx, func(ctx context.Context) error { return do(ctx, ids...).Err() }), ids...)
}

func (h handle) Terminate(ctx context.Context, ids ...string) cloud.Results {
	w := h.k.w
	w.isDecided(sim.KindTerminate)
	w.mu.Lock()
	for _, id := range ids {
		w.attemptLocked("a call that ends " + id)
	}
	w.mu.Unlock()
	results := h.each(ctx, ids, func(ctx context.Context, ids ...string) cloud.Results {
		if err := w.refuses(ids); err != nil {
			return cloud.Each(err, ids...)
		}
		return h.k.asks.Terminate(ctx, ids...)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range results {
		// That is paced by budgets, and made in two: nobody has tried anything.
		if a := w.attempts["a call that ends "+r.ID]; a != nil && errors.Is(r.Err, cloud.ErrThrottled) {
			a.n--
		}
	}
	if results.Err() == nil && w.lasting["slow ends"] {
		w.plays["slow ends"]++
	}
	return results
}

func (h handle) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	ids := make([]string, len(taggings))
	for n, t := range taggings {
		ids[n] = t.ID
	}
	return h.each(ctx, ids, func(ctx context.Context, _ ...string) cloud.Results {
		results := h.k.asks.Optional().Tagger.Tag(ctx, taggings...)
		if results.Err() == nil {
			h.k.w.happened("tag")
		}
		return results
	})
}

func (h handle) Stop(ctx context.Context, ids ...string) cloud.Results {
	return h.each(ctx, ids, h.k.asks.Optional().Stopper.Stop)
}

func (h handle) Start(ctx context.Context, ids ...string) cloud.Results {
	return h.each(ctx, ids, h.k.asks.Optional().Stopper.Start)
}

func (h handle) ListOwned(ctx context.Context, owner string) ([]cloud.OwnedResource, error) {
	return ask(ctx, h, func(ctx context.Context) ([]cloud.OwnedResource, error) {
		return h.k.asks.Optional().OwnedResources.ListOwned(ctx, owner)
	})
}

func (h handle) DeleteOwned(ctx context.Context, ids ...string) cloud.Results {
	results := h.each(ctx, ids, h.k.asks.Optional().OwnedResources.DeleteOwned)
	if results.Err() == nil {
		h.k.w.happened("part left")
	}
	return results
}

func (h handle) Interruptions(ctx context.Context, l cloud.Listener) error {
	if err := h.k.alive(); err != nil {
		return err
	}
	w := h.k.w
	notice := func(i cloud.Interruption) {
		h.k.running(h.k.ctx)
		w.mu.Lock()
		if !w.announced[i.InstanceID] {
			w.announced[i.InstanceID] = true
			w.plays["interrupt"]++
		}
		w.mu.Unlock()
		i.At = i.At.Add(w.cloudClock)
		l.Notify(i)
	}
	told := l
	told.Notify = notice
	err := h.k.asks.Optional().Interrupter.Interruptions(ctx, told)
	if errors.Is(err, errQueueGone) {
		w.happened("notices end")
	}
	return err
}

// books are kept beside Kip's own, from the records that reach the store.
type books struct {
	cells   map[string]*account
	closed  map[string]cells.Cost // by type and spot
	removed map[string]time.Time  // when a cell's record went
	pods    map[string]types.UID  // the last pod of a cell
	known   map[string]bool       // the instances that a record has had
	podOf   map[string]types.UID  // the last pod of an instance
	names   map[string]string     // the cells by what their machines know of them
	stays   []stay                // that have ended
}

// named is the cell that a machine knows by a name; under world.mu.
func (b *books) named(joinID string) string { return cmp.Or(b.names[joinID], joinID) }

// cellOf is the cell that an instance was launched as.
func (w *world) cellOf(i cloud.Instance) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cellOfLocked(i)
}

func (w *world) cellOfLocked(i cloud.Instance) string {
	if batch := i.Tags[cloud.TagBatch]; batch != "" {
		return w.books.named(agentapi.BatchCell(batch, i.Place))
	}
	return i.Tags[cloud.TagCell]
}

type account struct {
	cell    cells.Cell
	seconds float64   // before the last stop
	from    time.Time // since when it runs; zero when it does not
	price   float64
}

func newBooks() books {
	return books{cells: map[string]*account{}, closed: map[string]cells.Cost{}, removed: map[string]time.Time{},
		pods: map[string]types.UID{}, podOf: map[string]types.UID{}, known: map[string]bool{}, names: map[string]string{}}
}

const cellPrefix = "cells/"

// neverShown says that a cell's launch had no answer, and that lists have hidden what it
// made: nobody can tell, and the instance joins as no cell. It is swept when it is shown.
func (w *world) neverShown(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.books.cells[id]
	return a != nil && a.cell.Instance == nil &&
		(w.lasting["empty list"] || w.lasting["partial list"] || w.lasting["living forgotten"])
}

// audit enters what a write has made of a record.
func (w *world) audit(key string) {
	i := strings.LastIndex(key, cellPrefix)
	if i < 0 {
		return
	}
	key = key[i:]
	var raw json.RawMessage
	w.mu.Lock()
	w.auditing[key]++
	w.mu.Unlock()
	revision, err := w.store.Get(context.Background(), key, &raw)
	w.mu.Lock()
	w.auditing[key]--
	w.mu.Unlock()
	if err != nil {
		panic(err)
	}
	id, now := strings.TrimPrefix(key, cellPrefix), time.Now()
	if revision == 0 {
		for _, i := range w.cloud.Truth() {
			if w.cellOf(i.Instance) == id && !w.isBehind() && !w.neverShown(id) {
				w.violate("invariant 2: the record of cell %s goes while its instance %s is %s", id, i.ID, i.State)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	b := &w.books
	a := b.cells[id]
	if revision == 0 {
		if a == nil {
			return
		}
		if a.running() {
			a.seconds += now.Sub(a.from).Seconds()
			if !w.behind { // what is not trusted goes without a trace
				b.stays = append(b.stays, stay{a.from, now, a.cell})
			}
		}
		if a.seconds > 0 && !w.behind {
			o := a.cell.Offering()
			k := fmt.Sprint(o.InstanceType, o.Spot)
			sum := b.closed[k]
			b.closed[k] = cells.Cost{InstanceType: o.InstanceType, Spot: o.Spot, Seconds: sum.Seconds + a.seconds, Dollars: sum.Dollars +
				a.seconds/3600*a.price}
		}
		delete(b.cells, id)
		b.removed[id] = now
		w.hadCell(a.cell, now)
		return
	}
	var cell cells.Cell
	if err := json.Unmarshal(raw, &cell); err != nil {
		panic(err)
	}
	if a == nil {
		a = &account{}
		b.cells[id] = a
	}
	b.names[cell.JoinID()] = id
	was := a.cell
	w.checkKeptLocked(was, cell, now)
	w.hadCell(was, now)
	w.hadCell(cell, now)
	a.cell, a.price = cell, cell.Offering().PricePerHour
	switch runs := cell.Instance != nil && !cell.Stopped; {
	case runs && !a.running():
		a.from = cell.Instance.Launched
		if was.Stopped {
			a.from = now
		}
	case !runs && a.running():
		a.seconds += now.Sub(a.from).Seconds()
		b.stays = append(b.stays, stay{a.from, now, was})
		a.from = time.Time{}
	}
	if cell.Instance != nil {
		b.known[cell.Instance.ID] = true
	}
	if cell.Pod.UID != "" {
		if cell.Instance != nil {
			b.podOf[cell.Instance.ID] = cell.Pod.UID
		}
		b.pods[id] = cell.Pod.UID
	}
}

// hadCell notes until when a pod had a cell, and a bound one.
func (w *world) hadCell(c cells.Cell, now time.Time) {
	if w.lastCell[c.Pod.UID] = now; c.Live() {
		w.lastLive[c.Pod.UID] = now
	}
	if c.Phase == apiv1.Bound {
		w.lastBound[c.Pod.UID] = now
	}
}

func (a *account) running() bool { return !a.from.IsZero() }

// costs are what Costs should say.
func (b *books) costs(now time.Time) map[string]cells.Cost {
	sums := maps.Clone(b.closed)
	for _, a := range b.cells {
		seconds := a.seconds
		if a.running() {
			seconds += now.Sub(a.from).Seconds()
		}
		if seconds == 0 {
			continue
		}
		o := a.cell.Offering()
		k := fmt.Sprint(o.InstanceType, o.Spot)
		sum := sums[k]
		sums[k] = cells.Cost{InstanceType: o.InstanceType, Spot: o.Spot, Seconds: sum.Seconds + seconds, Dollars: sum.Dollars +
			seconds/3600*a.price}
	}
	return sums
}

// spins says that the kubelets look so often at one moment that it will not end: virtual time
// then never moves on. The storms of 300 pods have been seen to need some 2,000 looks.
func (w *world) spins() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); !now.Equal(w.moment) {
		w.moment, w.atMoment = now, 0
	}
	if w.atMoment++; w.atMoment == 100_000 {
		w.violateLocked("a loop without end: nothing waits, and no time passes")
	}
	return w.atMoment >= 100_000
}

// rest lets everything that can happen now happen.
func (w *world) rest() { synctest.Wait() }
