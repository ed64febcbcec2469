package hollow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agent/cloudinit"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

// How often a kubelet renews its lease, and reports its node when nothing of it has
// changed: what Kip configures (a quarter of nodeLeaseDurationSeconds, and
// nodeStatusReportFrequency).
const (
	leaseInterval = 10 * time.Second
	nodeInterval  = 5 * time.Minute
)

// Config is what a [Fleet] is made of. Its zero value works.
type Config struct {
	// StateDir is where agents keep their keys; it must exist. If empty, a
	// folder is made, in memory where there is /dev/shm, and removed by Close.
	StateDir string
	// KeepDisks keeps an agent's key for as long as the fleet lives, so that an
	// instance that boots again, or Restart, finds it. Otherwise it is removed
	// once the agent has it in memory. It costs about 12 KB a cell.
	KeepDisks bool
	// Listen opens the port of a cell's agent: nil is a TCP listener for each.
	Listen func(addr netip.AddrPort) (net.Listener, error)
	// LeaseInterval and NodeInterval are how often a cell renews its lease and
	// reports its node's status; 0 is 10 s and 5 minutes.
	LeaseInterval, NodeInterval time.Duration
	// StartTime is what a pod takes from being seen to Running; a pod that takes
	// any is reported Pending before.
	StartTime time.Duration
	// StopTime is what a pod takes to end when it is deleted, at most its grace
	// period.
	StopTime time.Duration
	// Whole says that cells make all requests that real ones make, with all their
	// watches: see [Asks]. Otherwise they make those only that a pod lives by,
	// which is enough for tests of what becomes of pods.
	Whole bool
	// Faults says what is wrong with an instance when it boots; nil is nothing.
	Faults func(i cloud.Instance) Faults
	// Clock is the time; nil is the real one.
	Clock clock.WithDelayedExecution
	// Log takes what happens; nil drops it.
	Log *slog.Logger
}

// Faults are what an instance does not do.
type Faults struct {
	// NeverJoins: nothing listens on the instance.
	NeverJoins bool
	// NeverReady: it joins, but its kubelet reports that it is not ready.
	NeverReady bool
}

// Fleet is the hollow cells of one simulated cloud.
type Fleet struct {
	cfg     Config
	log     *slog.Logger
	dir     string
	ownsDir bool

	lifetime context.Context // until Close
	end      context.CancelFunc
	boots    sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	machines map[string]*machine // by instance ID; those that are up
	running  []*machine          // those whose pod runs, in no order
	next     int                 // of running, for StatusChange
}

// New returns a fleet without cells.
func New(cfg Config) (*Fleet, error) {
	for _, d := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
	}{
		{"LeaseInterval", &cfg.LeaseInterval, leaseInterval},
		{"NodeInterval", &cfg.NodeInterval, nodeInterval},
		{"StartTime", &cfg.StartTime, 0},
		{"StopTime", &cfg.StopTime, 0},
	} {
		if *d.value < 0 {
			return nil, fmt.Errorf("hollow cells: %s is %v, it must not be negative", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.unset
		}
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Listen == nil {
		cfg.Listen = func(addr netip.AddrPort) (net.Listener, error) { return net.Listen("tcp", addr.String()) }
	}
	f := &Fleet{
		cfg:      cfg,
		log:      cfg.Log,
		dir:      cfg.StateDir,
		machines: map[string]*machine{},
	}
	if f.dir == "" {
		var err error
		if f.dir, err = os.MkdirTemp(memoryDir(), "hollow-cells-"); err != nil {
			return nil, fmt.Errorf("hollow cells: make a folder for their keys: %w", err)
		}
		f.ownsDir = true
	}
	f.lifetime, f.end = context.WithCancel(context.Background())
	return f, nil
}

// memoryDir is a folder where writing to disk costs nothing, or "" for the
// usual temporary one.
func memoryDir() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}

// Boot is the cell on instance i, from the end of the machine's boot until ctx
// ends. Nothing of the cell is left when it returns. What goes wrong is logged.
func (f *Fleet) Boot(ctx context.Context, i cloud.Instance, userData []byte) {
	log := f.log.With("instance", i.ID)
	m, err := f.start(i, userData, log)
	if err != nil {
		log.Error("hollow cell not started", "err", err)
		return
	}
	defer f.boots.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.lifetime, cancel)()
	err = m.run(ctx)
	f.mu.Lock()
	delete(f.machines, i.ID)
	f.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		log.Error("hollow cell ended", "err", err)
	}
}

// start registers a machine. The caller calls f.boots.Done if there is no error.
func (f *Fleet) start(i cloud.Instance, userData []byte, log *slog.Logger) (*machine, error) {
	user, err := cloudinit.Parse(userData, i.Place)
	if err != nil {
		return nil, fmt.Errorf("user data: %w", err)
	}
	if !i.ManagementIP.IsValid() {
		return nil, errors.New("the instance has no management address to listen on")
	}
	m := &machine{
		fleet:      f,
		log:        log,
		instanceID: i.ID,
		user:       user,
		addr:       netip.AddrPortFrom(i.ManagementIP, agentapi.Port),
		dir:        filepath.Join(f.dir, i.ID),
		at:         -1,
		bootedAt:   f.cfg.Clock.Now(),
	}
	if f.cfg.Faults != nil {
		m.faults = f.cfg.Faults(i)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, errors.New("the fleet is closed")
	case f.machines[i.ID] != nil:
		return nil, errors.New("the instance is up already")
	}
	f.machines[i.ID] = m
	f.boots.Add(1)
	return m, nil
}

// Close ends all cells and returns when nothing is left of them.
func (f *Fleet) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.end()
	f.boots.Wait()
	if f.ownsDir {
		if err := os.RemoveAll(f.dir); err != nil {
			return fmt.Errorf("hollow cells: remove their keys: %w", err)
		}
	}
	return nil
}

// Count is how many instances are up and on how many a pod runs.
func (f *Fleet) Count() (up, running int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.machines), len(f.running)
}

// ErrUnknownInstance is for an instance that is not up.
var ErrUnknownInstance = errors.New("no such instance is up")

func (f *Fleet) machine(instanceID string) (*machine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.machines[instanceID]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("instance %q: %w", instanceID, ErrUnknownInstance)
}

// Refuse cuts a cell off as a host without the agent is: connections are reset,
// new ones refused, until Restore.
func (f *Fleet) Refuse(instanceID string) error { return f.cut(instanceID, refusing) }

// Silence cuts a cell off as a network is cut: nothing that either end sends
// arrives until Restore, and nobody is told. What was on the way then arrives.
func (f *Fleet) Silence(instanceID string) error { return f.cut(instanceID, silent) }

// Restore ends what Refuse or Silence began.
func (f *Fleet) Restore(instanceID string) error { return f.cut(instanceID, open) }

func (f *Fleet) cut(instanceID string, to reach) error {
	m, err := f.machine(instanceID)
	if err != nil {
		return err
	}
	return m.setReach(to)
}

// Restart ends a cell's agent and kubelet and starts them again. The pod runs on.
// Without Config.KeepDisks it is Forget.
func (f *Fleet) Restart(instanceID string) error { return f.restart(instanceID, !f.cfg.KeepDisks) }

// Forget is Restart on a machine that has lost its disk: a new key, no
// configuration, and no pod.
func (f *Fleet) Forget(instanceID string) error { return f.restart(instanceID, true) }

func (f *Fleet) restart(instanceID string, forget bool) error {
	m, err := f.machine(instanceID)
	if err != nil {
		return err
	}
	m.restart(forget)
	return nil
}

// pods notes whether the machine's pod runs.
func (f *Fleet) pods(m *machine, runs bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case runs && m.at < 0:
		m.at = len(f.running)
		f.running = append(f.running, m)
	case !runs && m.at >= 0:
		last := f.running[len(f.running)-1]
		f.running[m.at], last.at = last, m.at
		f.running[len(f.running)-1] = nil
		f.running = f.running[:len(f.running)-1]
		m.at = -1
	}
}

// Change is a pod's status that a cell has changed.
type Change struct {
	Namespace, Name string
	// Ready is what the pod's condition of that name became.
	Ready bool
	// ResourceVersion is the pod's with this change in it, by which a watcher
	// recognises it.
	ResourceVersion string
}

// ErrNothingRuns is when no cell runs a pod.
var ErrNothingRuns = errors.New("no hollow cell runs a pod")

// StatusChange turns the readiness of one pod, as a probe would, and returns when
// the API server has taken it. Every call is the turn of another pod that runs.
func (f *Fleet) StatusChange(ctx context.Context) (Change, error) {
	f.mu.Lock()
	if len(f.running) == 0 {
		f.mu.Unlock()
		return Change{}, ErrNothingRuns
	}
	f.next = (f.next + 1) % len(f.running)
	m := f.running[f.next]
	f.mu.Unlock()
	return m.statusChange(ctx)
}

// StatusChanges makes perSecond status changes a second, evenly, until ctx ends,
// and hands each to done, from several goroutines, with the time that it took. It
// returns when the last has ended.
func (f *Fleet) StatusChanges(ctx context.Context, perSecond float64, done func(c Change, took time.Duration, err error)) error {
	if perSecond <= 0 || perSecond > float64(time.Second) {
		return fmt.Errorf("status changes: %v a second: it must be more than 0 and at most 1e9", perSecond)
	}
	clk, pause := f.cfg.Clock, time.Duration(float64(time.Second)/perSecond)
	var changes sync.WaitGroup
	defer changes.Wait()
	for due := clk.Now(); ; due = due.Add(pause) {
		// By when it is due, so that what is late does not make all later.
		if !sleep(ctx, clk, due.Sub(clk.Now())) {
			return nil
		}
		changes.Go(func() {
			began := clk.Now()
			c, err := f.StatusChange(ctx)
			if err == nil || ctx.Err() == nil {
				done(c, clk.Since(began), err)
			}
		})
	}
}

// sleep waits for d and says whether ctx has not ended.
func sleep(ctx context.Context, clk clock.Clock, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := clk.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	}
}
