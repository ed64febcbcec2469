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

// StoreGeneration is the generation of the store, and what the cloud's lists say of it. It is made before the Controller.
type StoreGeneration struct {
	store   *store.Store
	listLag time.Duration // the cloud's

	// writing is held from reading the record to knowing what became of a write.
	writing  sync.Mutex
	revision int64  // of the record when it was last read or written for certain
	known    bool   // revision is that of the stored record
	dirty    bool   // the stored record lacks what this process has seen
	ownLine  string // the line of this process's launches

	mu       sync.Mutex
	now      generation // never modified, only replaced
	compared bool       // what was compared with the store tells whether it is behind
	blind    bool       // a zone was never listed: what runs there was not compared
	first    time.Time  // when the first complete list had come
	unknown  []cloud.Instance
	// awaySince and awayUntil are from when until when cells of earlier processes were not
	// connected to, since they may run more than their records say.
	awaySince, awayUntil time.Time
}

// NewStoreGeneration returns that of a store; listLag is the cloud's, as in Config. Nothing of it is known until a
// Controller has loaded it.
func NewStoreGeneration(st *store.Store, listLag time.Duration) *StoreGeneration {
	return &StoreGeneration{store: st, listLag: listLag}
}

// newAge is how far apart two complete lists are at least before a store is believed to be new
// where the cloud's list lags: any instance would say that the store was lost, and one list may
// lack them.
const newAge = orphanAge

// proofAge returns how far apart the two lists are; 0 where one is enough, since it lacks nothing.
func (s *StoreGeneration) proofAge() time.Duration {
	if s.listLag == 0 {
		return 0
	}
	return max(newAge, s.listLag)
}

// provesLocked reports whether a complete list, asked for at a time, says all about the store that lists
// can say. The caller holds mu.
func (s *StoreGeneration) provesLocked(began time.Time) bool {
	age := s.proofAge()
	return age == 0 || began.Sub(s.first) > age
}

// open reads the record, and makes it where there is none.
func (s *StoreGeneration) open(ctx context.Context) error {
	var g generation
	revision, err := s.store.Get(ctx, generationKey, &g)
	if err != nil {
		return err
	}
	if revision == 0 {
		g = generation{Store: newID("store-"), Line: newID("")}
		if revision, err = s.store.Put(ctx, generationKey, g, 0); err != nil {
			return err
		}
	}
	s.revision, s.known = revision, true
	s.adopt(g)
	return nil
}

func (s *StoreGeneration) adopt(g generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = g
}

func (s *StoreGeneration) current() generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *StoreGeneration) lock(ctx context.Context) {
	defer watchdog.Wait(ctx, watchdog.Store)()
	s.writing.Lock()
}

// changeLocked returns the write of the next record. The caller holds writing.
func (s *StoreGeneration) changeLocked(ctx context.Context, next generation) (store.Change, error) {
	if !s.known {
		var stored generation
		revision, err := s.store.Get(ctx, generationKey, &stored)
		if err != nil {
			return store.Change{}, err
		}
		// The write that was not answered was made, or the record is as it was before.
		if now := s.current(); revision != s.revision && (stored.Line != now.Line || stored.Number > now.Number) {
			return store.Change{}, fmt.Errorf("read back the generation of the store: %w", store.ErrConflict)
		}
		s.revision, s.known = revision, true
	}
	return store.Change{Key: generationKey, Value: next, Revision: s.revision}, nil
}

// storedLocked notes what became of a write of the next record. What may have been written is what
// this process goes by. The caller holds writing.
func (s *StoreGeneration) storedLocked(next generation, revision int64, err error) {
	switch {
	case err == nil:
		s.revision, s.dirty = revision, false
		s.adopt(next)
	case !store.NotWritten(err):
		s.known = false
		s.adopt(next)
	}
}

// putLocked writes the next record alone. The caller holds writing.
func (s *StoreGeneration) putLocked(ctx context.Context, next generation) error {
	change, err := s.changeLocked(ctx, next)
	if err != nil {
		return err
	}
	revision, err := s.store.Put(ctx, change.Key, change.Value, change.Revision)
	s.storedLocked(next, revision, err)
	return err
}

// raise raises the generation for a launch, whose instances are tagged with it. write stores the launch together with the change of the
// record; nobody else writes that meanwhile. raise returns the error of write, and errBehind where nothing is launched.
func (s *StoreGeneration) raise(ctx context.Context, write func(tag string, raised store.Change) (revision int64, err error)) error {
	s.lock(ctx)
	defer s.writing.Unlock()
	next := s.current()
	if next.isBehind() {
		return errBehind
	}
	s.mu.Lock()
	next.Unproven = next.mayBeLost() && !s.compared
	partly := s.blind || !s.compared
	s.mu.Unlock()
	if partly && next.Number > 0 && next.Line != s.ownLine {
		// The store may be older than instances in the zones that are not listed. With its next numbers
		// they would look like its own.
		next.beginLine()
	}
	next.Number++
	s.ownLine = next.Line
	change, err := s.changeLocked(ctx, next)
	if err != nil {
		return err
	}
	revision, err := write(next.tag(), change)
	s.storedLocked(next, revision, err)
	return err
}

// noteList notes a list of the cloud: of the instances in it that no cell has and that do
// not end, those that the store does not know of are remembered, whatever later lists
// say: a person decides. It returns whether there were none before.
func (s *StoreGeneration) noteList(ctx context.Context, seen snapshot, orphans []cloud.Instance, now time.Time) (news bool, err error) {
	s.lock(ctx)
	defer s.writing.Unlock()
	next := s.current()
	lines := maps.Clone(next.UnknownLines)
	if lines == nil {
		lines = map[string]uint64{}
	}
	var unknown []cloud.Instance
	for _, i := range orphans {
		line, number := generationOf(i)
		if next.knows(line, number) {
			continue
		}
		unknown = append(unknown, i)
		lines[line] = max(lines[line], number)
	}
	s.mu.Lock()
	complete := len(seen.missing) == 0
	if complete && s.first.IsZero() {
		s.first = now // a list may wait for its budget after it has begun
	}
	s.compared = s.compared || !next.mayBeLost() || complete && s.provesLocked(seen.began)
	s.unknown, s.blind = unknown, seen.blind
	if next.Unproven && s.compared {
		next.Unproven, s.dirty = false, true
	}
	if !maps.Equal(lines, next.UnknownLines) {
		if news = len(next.UnknownLines) == 0; news {
			next.Since = seen.began
		}
		next.UnknownLines, s.dirty = lines, true
	}
	s.now = next // at once with compared: nobody sees a store that was compared and not what came of it
	s.mu.Unlock()
	if !s.dirty {
		return false, nil
	}
	return news, s.putLocked(ctx, next)
}

// shownLocked names what a person is shown: what the store does not know of, by the last list and
// by those before. The caller holds mu.
func (s *StoreGeneration) shownLocked() string {
	hash := sha256.New()
	for _, line := range slices.Sorted(maps.Keys(s.now.UnknownLines)) {
		fmt.Fprintf(hash, "%q.%d ", line, s.now.UnknownLines[line])
	}
	ids := make([]string, len(s.unknown))
	for n, i := range s.unknown {
		ids[n] = i.ID
	}
	slices.Sort(ids)
	fmt.Fprintf(hash, "%q", ids)
	return hex.EncodeToString(hash.Sum(nil)[:6])
}

// takeOver has the store know of all that was seen, and that a person was shown. Its own
// launches begin a new line: whoever goes on with the old one does not know of them.
func (s *StoreGeneration) takeOver(ctx context.Context, shown string) error {
	s.lock(ctx)
	defer s.writing.Unlock()
	s.mu.Lock()
	next, looked, now := s.now, s.compared, s.shownLocked()
	s.mu.Unlock()
	switch {
	case len(next.UnknownLines) == 0:
		return ErrNotBehind
	case !looked:
		return ErrNotAllSeen
	case shown != now:
		return ErrShownOther
	}
	next.beginLine()
	for line, seen := range next.UnknownLines {
		next.KnownLines[line] = max(next.KnownLines[line], seen)
	}
	next.Number++
	next.UnknownLines, next.Distrusted = nil, true
	return s.putLocked(ctx, next)
}

// noteAwayUntil notes that cells of earlier processes may not have been connected to since the store was found to be behind, if it is.
// It is called before anything else runs.
func (s *StoreGeneration) noteAwayUntil(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.isBehind() {
		s.awaySince, s.awayUntil = s.now.Since, now
	}
}

// shown returns what a person is shown of the generation. complete reports whether the last list shows all instances.
func (s *StoreGeneration) shown(complete bool) Generation {
	why, _ := s.whyBehind()
	s.mu.Lock()
	defer s.mu.Unlock()
	g := Generation{
		Store:   s.now.Store,
		Number:  s.now.Number,
		Behind:  why,
		Unknown: slices.Clone(s.unknown),
		Shown:   s.shownLocked(),
	}
	if !complete || !s.compared {
		g.Incomplete = ErrNotAllSeen.Error()
	}
	return g
}

// trust notes that what was not to be trusted is forgotten.
func (s *StoreGeneration) trust(ctx context.Context) error {
	s.lock(ctx)
	defer s.writing.Unlock()
	next := s.current()
	next.Distrusted = false
	return s.putLocked(ctx, next)
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
