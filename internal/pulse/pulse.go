package pulse

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
	// Limit is how long a turn may last without a wait that begins or ends.
	Limit = time.Minute
	// lookEvery is how often turns are looked at.
	lookEvery = 5 * time.Second
	// probeEvery is how often a lock is taken to see that it can be.
	probeEvery = 10 * time.Second
)

// On is what a turn waits for.
type On string

const (
	Store     On = "the store"
	APIServer On = "the API server"
	Cloud     On = "the cloud"
	Cell      On = "a cell"
	// Time is a pause that has an end.
	Time On = "its next try"
)

// Pulse knows the turns that are being taken. A nil one watches nothing.
type Pulse struct {
	clock clock.WithTicker
	log   *slog.Logger
	still chan struct{}

	mu    sync.Mutex
	turns map[*turn]struct{}
	names []string // of the turns that stand still, sorted
}

// turn is what one loop does now.
type turn struct {
	name string

	mu    sync.Mutex
	moves int // waits that have begun or ended
	waits map[On]int

	// seen are the moves at the last look, -1 before the first, and looks how many looks
	// since saw the same; for look alone.
	seen, looks int
}

// New returns a pulse without turns; Run looks at them.
func New(c clock.WithTicker, log *slog.Logger) *Pulse {
	return &Pulse{
		clock: c,
		log:   log,
		still: make(chan struct{}),
		turns: map[*turn]struct{}{},
	}
}

// turnKey is where a context has the turn that it belongs to.
type turnKey struct{}

// Turn calls work, as a turn of the loop of that name. The context that work gets
// belongs to the turn.
func (p *Pulse) Turn(ctx context.Context, name string, work func(context.Context)) {
	if p == nil {
		work(ctx)
		return
	}
	t := &turn{name: name, waits: map[On]int{}, seen: -1}
	p.mu.Lock()
	p.turns[t] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.turns, t)
	}()
	work(context.WithValue(ctx, turnKey{}, t))
}

// Alone returns ctx without its turn, for what outlives that.
func Alone(ctx context.Context) context.Context {
	return context.WithValue(ctx, turnKey{}, (*turn)(nil))
}

// Wait declares that the turn of ctx, if it has one, waits for something until over is
// called. A lock that is held over calls of the store is a wait for the store: whoever
// holds it takes a turn too.
func Wait(ctx context.Context, on On) (over func()) {
	t, _ := ctx.Value(turnKey{}).(*turn)
	if t == nil {
		return func() {}
	}
	t.wait(on, 1)
	return func() { t.wait(on, -1) }
}

func (t *turn) wait(on On, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moves++
	if t.waits[on] += n; t.waits[on] == 0 {
		delete(t.waits, on)
	}
}

// Probe takes a lock again and again until ctx ends. Nobody holds a lock that is probed
// over a wait.
func (p *Pulse) Probe(ctx context.Context, name string, l sync.Locker) {
	if p == nil {
		return
	}
	tick := p.clock.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		p.Turn(ctx, name, func(context.Context) {
			l.Lock()
			defer l.Unlock()
		})
	}
}

// Run looks at the turns until ctx ends.
func (p *Pulse) Run(ctx context.Context) error {
	tick := p.clock.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			p.look()
		}
	}
}

// look finds the turns that stand still.
func (p *Pulse) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.names
	p.names = nil
	for t := range p.turns {
		long, waits := t.look()
		switch {
		case long && len(waits) == 0:
			p.names = append(p.names, t.name)
		case long && t.looks == looksMost:
			p.log.Info("a loop waits", "loop", t.name, "for", strings.Join(waits, ", "))
		}
	}
	slices.Sort(p.names)
	p.names = slices.Compact(p.names)
	if len(p.names) == 0 || slices.Equal(before, p.names) {
		return
	}
	p.log.Error("loops stand still: Kip has to be started again", "loops", strings.Join(p.names, ", "), "for", Limit)
	select {
	case <-p.still:
	default:
		close(p.still)
	}
}

// looksMost is how many looks may see the same.
const looksMost = int(Limit / lookEvery)

// look says whether the turn has not moved for too long, and what it waits for.
func (t *turn) look() (long bool, waits []string) {
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

// Still is closed once a loop has stood still.
func (p *Pulse) Still() <-chan struct{} { return p.still }

// Err names the loops that stand still, nil for none.
func (p *Pulse) Err() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.names) == 0 {
		return nil
	}
	return fmt.Errorf("for %s and waiting for nothing, these have stood still: %w", Limit, errors.New(strings.Join(p.names, ", ")))
}
