package cells

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
)

// ErrTakenOver ends Run: a person has had the store take over, and the cells are to be
// loaded anew.
var ErrTakenOver = errors.New("the store has taken over: its cells are loaded anew")

// Lineage is the generation of the store. It is made before the Controller.
type Lineage struct {
	store   *store.Store
	listLag time.Duration // the cloud's

	// writing is held from reading the record to knowing what became of a write. It comes
	// before all other locks.
	writing  sync.Mutex
	revision int64  // of the record when it was last read or written for certain
	known    bool   // revision is that of the stored record
	untold   bool   // the stored record lacks what this process has seen
	own      string // the line of this process's launches

	mu      sync.Mutex
	now     generation // never modified, only replaced
	looked  bool       // what was compared with the store tells whether it is behind
	blind   bool       // a zone was never listed: what runs there was not compared
	first   time.Time  // when the first complete list had come
	unknown []cloud.Instance
	// unsureSince and unsure are from when until when cells of earlier processes were not
	// connected to, since they may run more than their records say.
	unsureSince, unsure time.Time
}

// NewLineage returns that of a store; listLag is the cloud's, as in Config. Nothing of it is known until a Controller has loaded it.
func NewLineage(st *store.Store, listLag time.Duration) *Lineage {
	return &Lineage{store: st, listLag: listLag}
}

// newAge is how far apart two complete lists are at least before a store is believed to be new
// where the cloud's list lags: any instance would say that the store was lost, and one list may
// lack them.
const newAge = orphanAge

// proofAge is how far apart the two lists are; 0 where one is enough, since it lacks nothing.
func (l *Lineage) proofAge() time.Duration {
	if l.listLag == 0 {
		return 0
	}
	return max(newAge, l.listLag)
}

// proves reports whether a complete list, asked for at a time, says all about the store that lists
// can say. The caller holds mu.
func (l *Lineage) proves(began time.Time) bool {
	age := l.proofAge()
	return age == 0 || began.Sub(l.first) > age
}

// open reads the record, and makes it where there is none.
func (l *Lineage) open(ctx context.Context) error {
	var g generation
	revision, err := l.store.Get(ctx, generationKey, &g)
	if err != nil {
		return err
	}
	if revision == 0 {
		g = generation{Store: newID("store-"), Line: newID("")}
		if revision, err = l.store.Put(ctx, generationKey, g, 0); err != nil {
			return err
		}
	}
	l.revision, l.known = revision, true
	l.set(g)
	return nil
}

func (l *Lineage) set(g generation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = g
}

func (l *Lineage) current() generation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *Lineage) lock(ctx context.Context) {
	defer watchdog.Wait(ctx, watchdog.Store)()
	l.writing.Lock()
}

// change returns the write of the next record. The caller holds writing.
func (l *Lineage) change(ctx context.Context, next generation) (store.Change, error) {
	if !l.known {
		var stored generation
		revision, err := l.store.Get(ctx, generationKey, &stored)
		if err != nil {
			return store.Change{}, err
		}
		// The write that was not answered was made, or the record is as it was before.
		if now := l.current(); revision != l.revision && (stored.Line != now.Line || stored.Number > now.Number) {
			return store.Change{}, fmt.Errorf("read back the generation of the store: %w", store.ErrConflict)
		}
		l.revision, l.known = revision, true
	}
	return store.Change{Key: generationKey, Value: next, Revision: l.revision}, nil
}

// stored notes what became of a write of the next record. What may have been written is what
// this process goes by. The caller holds writing.
func (l *Lineage) stored(next generation, revision int64, err error) {
	switch {
	case err == nil:
		l.revision, l.untold = revision, false
		l.set(next)
	case !notWritten(err):
		l.known = false
		l.set(next)
	}
}

// put writes the next record alone. The caller holds writing.
func (l *Lineage) put(ctx context.Context, next generation) error {
	change, err := l.change(ctx, next)
	if err != nil {
		return err
	}
	revision, err := l.store.Put(ctx, change.Key, change.Value, change.Revision)
	l.stored(next, revision, err)
	return err
}

// raised is the generation of a launch that is about to be stored. Nobody else writes the record
// until unlock.
type raised struct {
	lineage *Lineage
	next    generation
	change  store.Change // to be stored with the launch
}

// tag is what the launch's instances are tagged with.
func (r *raised) tag() string { return r.next.tag() }

// stored notes what became of the launch's transaction.
func (r *raised) stored(revision int64, err error) { r.lineage.stored(r.next, revision, err) }

func (r *raised) unlock() { r.lineage.writing.Unlock() }

// raise raises the generation for a launch. The error is errBehind where nothing is launched.
func (l *Lineage) raise(ctx context.Context) (r *raised, err error) {
	l.lock(ctx)
	defer func() {
		if err != nil {
			l.writing.Unlock()
		}
	}()
	next := l.current()
	if next.behind() {
		return nil, errBehind
	}
	l.mu.Lock()
	next.Unproven = next.mayBeLost() && !l.looked
	partly := l.blind || !l.looked
	l.mu.Unlock()
	if partly && next.Number > 0 && next.Line != l.own {
		// The store may be older than instances in the zones that are not listed. With its next numbers
		// they would look like its own.
		next.leave()
	}
	next.Number++
	l.own = next.Line
	change, err := l.change(ctx, next)
	return &raised{l, next, change}, err
}

// saw compares a list of the cloud: of the instances in it that no cell has and that do
// not end, those that the store does not know of are remembered, whatever later lists
// say: a person decides. It returns whether there were none before.
func (l *Lineage) saw(ctx context.Context, seen snapshot, orphans []cloud.Instance, now time.Time) (news bool, err error) {
	l.lock(ctx)
	defer l.writing.Unlock()
	next := l.current()
	ahead := maps.Clone(next.Ahead)
	if ahead == nil {
		ahead = map[string]uint64{}
	}
	var unknown []cloud.Instance
	for _, i := range orphans {
		line, number := generationOf(i)
		if next.knows(line, number) {
			continue
		}
		unknown = append(unknown, i)
		ahead[line] = max(ahead[line], number)
	}
	l.mu.Lock()
	complete := len(seen.missing) == 0
	if complete && l.first.IsZero() {
		l.first = now // a list may wait for its budget after it has begun
	}
	l.looked = l.looked || !next.mayBeLost() || complete && l.proves(seen.began)
	l.unknown, l.blind = unknown, seen.blind
	if next.Unproven && l.looked {
		next.Unproven, l.untold = false, true
	}
	if !maps.Equal(ahead, next.Ahead) {
		if news = len(next.Ahead) == 0; news {
			next.Since = seen.began
		}
		next.Ahead, l.untold = ahead, true
	}
	l.now = next // at once with looked: nobody sees a store that was compared and not what came of it
	l.mu.Unlock()
	if !l.untold {
		return false, nil
	}
	return news, l.put(ctx, next)
}

// shown names what a person is shown: what the store does not know of, by the last list and
// by those before. The caller holds mu.
func (l *Lineage) shown() string {
	hash := sha256.New()
	for _, line := range slices.Sorted(maps.Keys(l.now.Ahead)) {
		fmt.Fprintf(hash, "%q.%d ", line, l.now.Ahead[line])
	}
	ids := make([]string, len(l.unknown))
	for n, i := range l.unknown {
		ids[n] = i.ID
	}
	slices.Sort(ids)
	fmt.Fprintf(hash, "%q", ids)
	return hex.EncodeToString(hash.Sum(nil)[:6])
}

// takeOver has the store know of all that was seen, and that a person was shown. Its own
// launches begin a new line: whoever goes on with the old one does not know of them.
func (l *Lineage) takeOver(ctx context.Context, shown string) error {
	l.lock(ctx)
	defer l.writing.Unlock()
	l.mu.Lock()
	next, looked, now := l.now, l.looked, l.shown()
	l.mu.Unlock()
	switch {
	case len(next.Ahead) == 0:
		return ErrNotBehind
	case !looked:
		return ErrNotAllSeen
	case shown != now:
		return ErrShownOther
	}
	next.leave()
	for line, seen := range next.Ahead {
		next.Left[line] = max(next.Left[line], seen)
	}
	next.Number++
	next.Ahead, next.Distrusted = nil, true
	return l.put(ctx, next)
}

// trust notes that what was not to be trusted is forgotten.
func (l *Lineage) trust(ctx context.Context) error {
	l.lock(ctx)
	defer l.writing.Unlock()
	next := l.current()
	next.Distrusted = false
	return l.put(ctx, next)
}

// Why there is no take-over.
var (
	// ErrNotBehind: there is nothing to take over.
	ErrNotBehind = errors.New("there is nothing to take over: the store knows of all instances that the cloud has shown")
	// ErrNotAllSeen: what the list lacks would end as well.
	ErrNotAllSeen = errors.New("the cloud has not shown all instances lately: a zone may be away, or its list lacks some that are known; " +
		"others may be there that nobody has seen")
	// ErrShownOther: what is there now nobody has decided on.
	ErrShownOther = errors.New("the instances that the store does not know of are others than those that were shown: look again")
)
