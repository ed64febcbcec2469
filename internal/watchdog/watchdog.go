package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// Limit is how long a task may last without a wait that begins or ends.
	Limit = time.Minute
	// lookEvery is how often tasks are looked at.
	lookEvery = 5 * time.Second
	// probeEvery is how often a lock is taken to see that it can be.
	probeEvery = 10 * time.Second
)

// On is what a task waits for.
type On string

const (
	Store     On = "the store"
	APIServer On = "the API server"
	Cloud     On = "the cloud"
	Cell      On = "a cell"
	// Time is a pause that has an end.
	Time On = "its next try"
)

// Watchdog knows the tasks that are being taken. A nil one watches nothing.
type Watchdog struct {
	clock clock.WithTicker
	log   *slog.Logger
	still chan struct{}

	mu    sync.Mutex
	tasks map[*task]struct{}
	names []string // of the tasks that stand still, sorted
}

// task is what one loop does now.
type task struct {
	name string

	mu    sync.Mutex
	moves int // waits that have begun or ended
	waits map[On]int

	// seen are the moves at the last look, -1 before the first, and looks how many looks
	// since saw the same; for look alone.
	seen, looks int
}

// New returns a watchdog without tasks; Run looks at them.
func New(c clock.WithTicker, log *slog.Logger) *Watchdog {
	return &Watchdog{
		clock: c,
		log:   log,
		still: make(chan struct{}),
		tasks: map[*task]struct{}{},
	}
}

// taskKey is where a context has the task that it belongs to.
type taskKey struct{}

// Track calls work, as a task of the loop of that name. The context that work gets
// belongs to the task.
func (w *Watchdog) Track(ctx context.Context, name string, work func(context.Context)) {
	if w == nil {
		work(ctx)
		return
	}
	t := &task{name: name, waits: map[On]int{}, seen: -1}
	w.mu.Lock()
	w.tasks[t] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.tasks, t)
	}()
	work(context.WithValue(ctx, taskKey{}, t))
}

// Alone returns ctx without its task, for what outlives that.
func Alone(ctx context.Context) context.Context {
	return context.WithValue(ctx, taskKey{}, (*task)(nil))
}

// Wait declares that the task of ctx, if it has one, waits for something until over is
// called. A lock that is held over calls of the store is a wait for the store: whoever
// holds it is a task too.
func Wait(ctx context.Context, on On) (over func()) {
	t, _ := ctx.Value(taskKey{}).(*task)
	if t == nil {
		return func() {}
	}
	t.wait(on, 1)
	return func() { t.wait(on, -1) }
}

func (t *task) wait(on On, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moves++
	if t.waits[on] += n; t.waits[on] == 0 {
		delete(t.waits, on)
	}
}

// TrackLock takes a lock again and again until ctx ends. Nobody holds a lock that is tracked
// over a wait.
func (w *Watchdog) TrackLock(ctx context.Context, name string, l sync.Locker) {
	if w == nil {
		return
	}
	tick := w.clock.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		w.Track(ctx, name, func(context.Context) {
			l.Lock()
			defer l.Unlock()
		})
	}
}

// Run looks at the tasks until ctx ends.
func (w *Watchdog) Run(ctx context.Context) error {
	tick := w.clock.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			w.look()
		}
	}
}

// look finds the tasks that stand still.
func (w *Watchdog) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.names
	w.names = nil
	for t := range w.tasks {
		long, waits := t.look()
		switch {
		case long && len(waits) == 0:
			w.names = append(w.names, t.name)
		case long && t.looks == looksMost:
			w.log.Info("a loop waits", "loop", t.name, "for", strings.Join(waits, ", "))
		}
	}
	slices.Sort(w.names)
	w.names = slices.Compact(w.names)
	if len(w.names) == 0 || slices.Equal(before, w.names) {
		return
	}
	w.log.Error("loops stand still: Kip has to be started again", "loops", strings.Join(w.names, ", "), "for", Limit)
	select {
	case <-w.still:
	default:
		close(w.still)
	}
}

// looksMost is how many looks may see the same.
const looksMost = int(Limit / lookEvery)

// look says whether the task has not moved for too long, and what it waits for.
func (t *task) look() (long bool, waits []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moves != t.seen {
		t.seen, t.looks = t.moves, 0
	} else {
		t.looks++
	}
	for _, on := range slices.Sorted(maps.Keys(t.waits)) {
		waits = append(waits, string(on))
	}
	return t.looks >= looksMost, waits
}

// Stalled is closed once a loop has stood still.
func (w *Watchdog) Stalled() <-chan struct{} { return w.still }

// Err names the loops that stand still, nil for none.
func (w *Watchdog) Err() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.names) == 0 {
		return nil
	}
	return fmt.Errorf("for %s and waiting for nothing, these have stood still: %w", Limit, errors.New(strings.Join(w.names, ", ")))
}
