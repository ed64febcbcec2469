package holder

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/store"
)

var silent = slog.New(slog.DiscardHandler)

// leases is an API server that has one lease at most.
type leases struct {
	coordinationv1client.LeaseInterface
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	away    error
	// readOnly is why no write is taken.
	readOnly error
	writes   int // all that were tried
	// before is called before each write, once.
	before func()
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (l *leases) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.away != nil:
		return nil, l.away
	case l.lease == nil || l.lease.Name != name:
		return nil, apierrors.NewNotFound(resource, name)
	}
	return l.lease.DeepCopy(), nil
}

func (l *leases) Create(_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return l.put(lease, func() error {
		if l.lease != nil {
			return apierrors.NewAlreadyExists(resource, lease.Name)
		}
		return nil
	})
}

func (l *leases) Update(_ context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return l.put(lease, func() error {
		if l.lease == nil {
			return apierrors.NewNotFound(resource, lease.Name)
		}
		if l.lease.ResourceVersion != lease.ResourceVersion {
			return apierrors.NewConflict(resource, lease.Name, errors.New("it is another"))
		}
		return nil
	})
}

func (l *leases) Delete(context.Context, string, metav1.DeleteOptions) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = nil
	return l.away
}

func (l *leases) put(lease *coordinationv1.Lease, refuses func() error) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	l.writes++
	before := l.before
	l.before = nil
	l.mu.Unlock()
	if before != nil {
		before()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := cmp.Or(l.away, l.readOnly); err != nil {
		return nil, err
	}
	if err := refuses(); err != nil {
		return nil, err
	}
	l.version++
	l.lease = lease.DeepCopy()
	l.lease.ResourceVersion = strconv.Itoa(l.version)
	return l.lease.DeepCopy(), nil
}

func (l *leases) mark() *mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return markOf(l.lease)
}

func (l *leases) isAway(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = err
}

func (l *leases) refuses(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readOnly = err
}

// world is a cluster with a node, and Kips that want it.
type world struct {
	t      *testing.T
	leases *leases
	clock  *clocktesting.FakeClock
	term   uint64
}

func newWorld(t *testing.T) *world {
	return &world{t: t, leases: &leases{}, clock: clocktesting.NewFakeClock(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))}
}

func (w *world) config(st *store.Store, who string) Config {
	return Config{
		Leases: w.leases,
		Node:   "kip-0",
		Who:    who,
		Store:  st,
		Begin: func(_ context.Context, above uint64) (uint64, error) {
			w.term = max(w.term, above) + 1
			return w.term, nil
		},
		Say:   func(string) {},
		Clock: w.clock,
		Log:   silent,
	}
}

// takes has a Kip hold the node, without a wait.
func (w *world) takes(c Config) *Hold {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	h, err := Take(ctx, c)
	if err != nil {
		w.t.Fatalf("%s does not hold the node at once: %v", c.Who, err)
	}
	return h
}

// takesUnseen has a Kip hold the node while the API server does not answer.
func (w *world) takesUnseen(c Config) *Hold {
	w.t.Helper()
	w.leases.isAway(errors.New("connection refused"))
	defer w.leases.isAway(nil)
	p := w.begins(c)
	for range unansweredFor / lookEvery {
		if len(p.hold) > 0 {
			w.t.Fatalf("%s holds the node before it has asked for %s", c.Who, unansweredFor)
		}
		w.pass(p)
	}
	select {
	case h := <-p.hold:
		return h
	case <-time.After(time.Minute):
		w.t.Fatalf("%s waits longer than %s", c.Who, unansweredFor)
	}
	return nil
}

// taking is a Kip that waits for the node.
type taking struct {
	hold chan *Hold
	said chan string
	end  context.CancelFunc
	done sync.WaitGroup
}

func (w *world) waits(c Config) *taking {
	w.t.Helper()
	p := w.begins(c)
	select {
	case <-p.said:
	case <-p.hold:
		w.t.Fatalf("%s does not wait", c.Who)
	case <-time.After(time.Minute):
		w.t.Fatalf("%s says nothing", c.Who)
	}
	return p
}

// begins has a Kip look whether it may hold the node.
func (w *world) begins(c Config) *taking {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	p := &taking{hold: make(chan *Hold, 1), said: make(chan string, 8), end: cancel}
	c.Say = func(why string) { p.said <- why }
	p.done.Go(func() {
		if h, err := Take(ctx, c); err == nil {
			p.hold <- h
		} else if ctx.Err() == nil {
			w.t.Errorf("%s: %v", c.Who, err)
		}
	})
	w.t.Cleanup(func() { cancel(); p.done.Wait() })
	return p
}

// pass lets the time pass between two looks of all who wait.
func (w *world) pass(who ...*taking) {
	w.t.Helper()
	until := time.Now().Add(time.Minute)
	holds := func(p *taking) bool { return len(p.hold) > 0 }
	settle := func() {
		for !w.clock.HasWaiters() && !slices.ContainsFunc(who, holds) && time.Now().Before(until) {
			time.Sleep(time.Millisecond)
		}
	}
	settle()
	w.clock.Step(lookEvery)
	settle()
}

// copyOf is a store as another is now.
func copyOf(t *testing.T, st *store.Store) *store.Store {
	t.Helper()
	var backup bytes.Buffer
	if err := st.Backup(t.Context(), &backup, time.Now()); err != nil {
		t.Fatal(err)
	}
	other := store.Memory(nil)
	if err := other.Restore(t.Context(), &backup, false); err != nil {
		t.Fatal(err)
	}
	return other
}

func (w *world) renews(h *Hold) {
	w.t.Helper()
	if err := h.renew(w.t.Context()); err != nil {
		w.t.Errorf("%s: %v", h.c.Who, err)
	}
}

func TestASecondStoreWaitsUntilTheNodeIsNotHeldAnyMore(t *testing.T) {
	w := newWorld(t)
	first := w.takes(w.config(store.Memory(nil), "first"))
	second := w.waits(w.config(store.Memory(nil), "second"))
	for range 30 { // far longer than a lease holds
		w.pass(second)
		w.renews(first)
		if len(second.hold) > 0 {
			t.Fatal("the second holds the node, which the first renews")
		}
	}
	// The first is gone.
	looks := 0
	for ; len(second.hold) == 0 && looks < 100; looks++ {
		w.pass(second)
	}
	if min := int(Lapse / lookEvery); looks < min || looks > min+3 {
		t.Errorf("the second holds the node after %d looks, %s apart", looks, lookEvery)
	}
	h := <-second.hold
	if h.Term() <= first.Term() {
		t.Errorf("its term is %d, that of the first was %d", h.Term(), first.Term())
	}
	if why := <-second.said; why != "" {
		t.Errorf("at last it says %q", why)
	}
	// The first was only away: it notices, by two looks, and gives way.
	w.renews(first)
	w.renews(h)
	if err := first.renew(t.Context()); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), "second") {
		t.Errorf("the first, which was away: %v", err)
	}
}

func TestARestartDoesNotWait(t *testing.T) {
	w, st := newWorld(t), store.Memory(nil)
	before := w.takes(w.config(st, "before"))
	w.renews(before)
	for range 3 * remembered {
		w.takes(w.config(st, "a restart"))
	}
	// Also where nothing could be asked of the API server for a while.
	for range remembered - 1 {
		h := w.takesUnseen(w.config(st, "while the API server is away"))
		w.leases.isAway(errors.New("connection refused"))
		if err := h.renew(t.Context()); err == nil || errors.Is(err, ErrOther) {
			t.Errorf("while the API server is away: %v", err)
		}
	}
	w.leases.isAway(nil)
	last := w.takes(w.config(st, "the last"))
	w.renews(last)
	if m := w.leases.mark(); m == nil || m.ID != last.ID() || m.Renewed != 1 || m.Term != last.Term() {
		t.Errorf("the mark is %+v", m)
	}
}

func TestTwoThatBeginAtOnceDoNotBothHoldTheNode(t *testing.T) {
	w := newWorld(t)
	first := w.config(store.Memory(nil), "first")
	w.leases.before = func() { w.takes(w.config(store.Memory(nil), "second")) }
	p := w.begins(first)
	w.pass(p)
	select {
	case <-p.said:
	case <-time.After(time.Minute):
		t.Fatal("the first does not wait for the second")
	}
	if len(p.hold) > 0 {
		t.Error("both hold the node")
	}
	if m := w.leases.mark(); m == nil || m.Who != "second" {
		t.Errorf("the mark is %+v", m)
	}
}

func TestACopyOfTheStoreGivesWayToWhoLives(t *testing.T) {
	for name, restarts := range map[string]int{"it runs on": 0, "it restarts meanwhile": 3} {
		t.Run(name, func(t *testing.T) {
			w, st := newWorld(t), store.Memory(nil)
			original := w.takes(w.config(st, "original"))
			w.renews(original)
			copied := copyOf(t, st)
			// It cannot be told from a restart.
			younger := w.takes(w.config(copied, "copy"))
			for range restarts {
				younger = w.takes(w.config(copied, "copy"))
			}
			w.renews(younger)
			if err := original.renew(t.Context()); !errors.Is(err, ErrFollowed) {
				t.Fatalf("the original: %v", err)
			}
			// By any process of its store, as often as it starts.
			w.takes(w.config(st, "original"))
			original = w.takes(w.config(st, "original"))
			if original.Term() <= younger.Term() {
				t.Errorf("its term is %d, that of the copy was %d", original.Term(), younger.Term())
			}
			w.renews(original)
			w.renews(younger) // one look says nothing
			w.renews(original)
			if err := younger.renew(t.Context()); !errors.Is(err, ErrOther) {
				t.Errorf("the copy: %v", err)
			}
			w.waits(w.config(copied, "copy")).end()
			// A restart of the original does not lose it to the copy.
			original = w.takes(w.config(st, "original"))
			w.renews(original)
			w.waits(w.config(copied, "copy"))
			for range settled {
				w.renews(original)
			}
			var stored record
			if _, err := st.Get(t.Context(), Key, &stored); err != nil || stored.Followed != "" {
				t.Errorf("it is settled, and the store has %+v, %v", stored, err)
			}
		})
	}
}

func TestAnotherThatWasSeenIsWaitedForWhileNothingIsKnown(t *testing.T) {
	w := newWorld(t)
	w.takes(w.config(store.Memory(nil), "first"))
	second := w.waits(w.config(store.Memory(nil), "second"))
	w.leases.isAway(errors.New("connection refused"))
	for range 100 {
		w.pass(second)
	}
	if len(second.hold) > 0 {
		t.Error("while nothing was known it began")
	}
	// Nor is a lease that is deleted a node that nobody holds.
	w.leases.isAway(nil)
	w.leases.mu.Lock()
	w.leases.lease = nil
	w.leases.mu.Unlock()
	w.pass(second)
	w.pass(second)
	if len(second.hold) > 0 {
		t.Error("the lease is gone for a moment, and it began")
	}
	for range int(Lapse / lookEvery) {
		w.pass(second)
	}
	if len(second.hold) == 0 {
		t.Error("nobody holds the node, and it waits")
	}
}

func TestAHoldThatBeganUnseenIsGivenUpForWhoHoldsTheNode(t *testing.T) {
	w := newWorld(t)
	first := w.takes(w.config(store.Memory(nil), "first"))
	second := w.takesUnseen(w.config(store.Memory(nil), "second"))
	w.renews(second)
	w.renews(first)
	if err := second.renew(t.Context()); !errors.Is(err, ErrOther) {
		t.Errorf("it goes on beside the first: %v", err)
	}
	// A mark of one that is gone is none.
	third := w.takesUnseen(w.config(store.Memory(nil), "third"))
	for range int(Lapse/RenewEvery) + 1 {
		w.renews(third)
		w.clock.Step(RenewEvery)
	}
	if m := w.leases.mark(); m == nil || m.Who != "third" {
		t.Errorf("the mark is %+v", m)
	}
}

func TestWhoDoesNotLeadTakesNothingBack(t *testing.T) {
	w, st := newWorld(t), store.Memory(nil)
	created, err := st.Put(t.Context(), "leader", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	deposed := w.takes(w.config(st.Fenced(st.Prefix()+"leader", created), "deposed"))
	if _, err := st.Put(t.Context(), "leader", 2, created); err != nil {
		t.Fatal(err)
	}
	next := w.takes(w.config(st, "next"))
	if err := deposed.renew(t.Context()); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("the replica that was deposed: %v", err)
	}
	var stored record
	if _, err := st.Get(t.Context(), Key, &stored); err != nil || stored.Followed != "" {
		t.Errorf("by it the store has %+v, %v", stored, err)
	}
	w.renews(next)
}

func TestAMarkThatNoKipWroteIsNone(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":       "",
		"no JSON":       "{",
		"another thing": `{"a":1}`,
		"no text":       `{"id":7}`,
		"long":          `{"id":"a","who":"` + strings.Repeat("x", maxMark) + `"}`,
	} {
		w := newWorld(t)
		w.leases.lease = &coordinationv1.Lease{}
		w.leases.lease.Name, w.leases.lease.Annotations = "kip-0", map[string]string{Annotation: text, "a": "b"}
		h := w.takes(w.config(store.Memory(nil), name))
		if m := w.leases.mark(); m == nil || m.ID != h.ID() || w.leases.lease.Annotations["a"] != "b" {
			t.Errorf("%s: the lease is %+v", name, w.leases.lease)
		}
	}
	text, err := json.Marshal(mark{ID: "a", Who: "\x1b[31m" + strings.Repeat("y", 2*maxWho)})
	if err != nil {
		t.Fatal(err)
	}
	m := markOf(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Annotation: string(text)}}})
	if m == nil || strings.Contains(m.Who, "\x1b") || len(m.Who) > maxWho {
		t.Errorf("the mark is %+v", m)
	}
}

func TestALookThatFailsOnceIsNoReasonToBegin(t *testing.T) {
	w := newWorld(t)
	w.takes(w.config(store.Memory(nil), "first"))
	w.leases.isAway(errors.New("connection refused"))
	second := w.begins(w.config(store.Memory(nil), "second"))
	w.pass(second)
	w.leases.isAway(nil)
	w.pass(second)
	select {
	case <-second.said:
	case <-time.After(time.Minute):
		t.Fatal("it does not say that it waits")
	}
	if len(second.hold) > 0 {
		t.Error("it holds the node beside the first")
	}
	// A clean restart asks once.
	second.end()
	second.done.Wait()
	w.leases.lease = nil
	first := w.config(store.Memory(nil), "first")
	w.takes(first)
	w.takes(first)
}

func TestTimeInWhichNobodyCouldRenewProvesNobodyGone(t *testing.T) {
	w := newWorld(t)
	first := w.takes(w.config(store.Memory(nil), "first"))
	second := w.waits(w.config(store.Memory(nil), "second"))
	for name, set := range map[string]func(error){"answers nothing": w.leases.isAway, "takes no write": w.leases.refuses} {
		w.renews(first)
		w.pass(second)
		set(errors.New("connection refused"))
		for range 3 * Lapse / lookEvery {
			w.pass(second)
		}
		set(nil)
		w.pass(second) // it is the first to look again
		if len(second.hold) > 0 {
			t.Fatalf("the API server %s, and the second holds the node of the first", name)
		}
		for range 2 * Lapse / lookEvery {
			w.renews(first)
			w.pass(second)
		}
	}
	// Nor is another gone for who has begun unseen, and looks on.
	w = newWorld(t)
	first = w.takes(w.config(store.Memory(nil), "first"))
	third := w.takesUnseen(w.config(store.Memory(nil), "third"))
	w.renews(third)
	w.leases.isAway(errors.New("connection refused"))
	for range Lapse / RenewEvery {
		if err := third.renew(t.Context()); err == nil {
			t.Error("it renews while the API server is away")
		}
		w.clock.Step(RenewEvery)
	}
	w.leases.isAway(nil)
	w.renews(third)
	if m := w.leases.mark(); m.ID != first.ID() {
		t.Errorf("the mark is %+v", m)
	}
}

func TestTimeInWhichAKipStoodStillProvesNobodyGone(t *testing.T) {
	w := newWorld(t)
	first := w.takes(w.config(store.Memory(nil), "first"))
	second := w.waits(w.config(store.Memory(nil), "second"))
	w.pass(second)
	w.clock.Step(2 * Lapse) // the host of both
	for range Lapse/lookEvery - 1 {
		w.pass(second)
	}
	if len(second.hold) > 0 {
		t.Fatal("the second holds the node of the first, which stood still as long")
	}
	w.renews(first)
	for range Lapse/lookEvery + 2 {
		w.pass(second)
	}
	if len(second.hold) == 0 {
		t.Error("the first is gone, and the second waits on")
	}
}

func TestARefusalIsNoOutageAndIsWaitedOutForAWhile(t *testing.T) {
	away := errors.New("connection refused")
	for _, refusal := range []error{
		apierrors.NewForbidden(resource, "kip-0", errors.New("no such right")),
		apierrors.NewUnauthorized("who is it?"),
	} {
		// What is answered each second, and in which the work begins, or the start fails.
		for name, c := range map[string]struct {
			answers map[int]error // from a second on
			begins  int           // 0 for never
			fails   int
		}{
			"for good":         {map[int]error{0: refusal}, 0, 60},
			"till it passes":   {map[int]error{0: refusal, 59: nil}, 59, 0},
			"after an outage":  {map[int]error{0: away, 14: refusal}, 0, 74},
			"before an outage": {map[int]error{0: refusal, 50: away}, 65, 0},
			"late":             {map[int]error{0: away, 5: refusal, 10: away, 20: refusal, 70: nil}, 0, 65},
		} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				cfg := w.config(store.Memory(nil), "first")
				cfg.Clock = clock.RealClock{}
				w.leases.isAway(c.answers[0])
				began := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				var h *Hold
				var err error
				ended := -1
				done := make(chan struct{})
				go func() {
					defer close(done)
					h, err = Take(ctx, cfg)
					ended = int(time.Since(began) / time.Second)
				}()
				time.Sleep(time.Millisecond) // each answer is there before it is asked for
				for second := range 120 {
					synctest.Wait()
					if answer, is := c.answers[second+1]; is {
						w.leases.isAway(answer)
					}
					time.Sleep(time.Second)
				}
				cancel()
				<-done
				if c.begins > 0 && (h == nil || err != nil || ended != c.begins) {
					t.Errorf("%s, %v: it ends after %d s with %v, want to begin after %d s", name, refusal, ended, err, c.begins)
				}
				if c.fails > 0 && (!errors.Is(err, refusal) || !strings.Contains(fmt.Sprint(err), "kip-0, for 1m0s") || ended != c.fails) {
					t.Errorf("%s, %v: it ends after %d s with %v, want a failure after %d s", name, refusal, ended, err, c.fails)
				}
			})
		}
	}
}

func TestARenewalThatTheNodeCrossesIsTriedAgainAtOnce(t *testing.T) {
	w := newWorld(t)
	first := w.takes(w.config(store.Memory(nil), "first"))
	w.leases.before = func() {
		w.leases.mu.Lock()
		defer w.leases.mu.Unlock()
		w.leases.version++
		w.leases.lease.ResourceVersion = strconv.Itoa(w.leases.version)
	}
	w.renews(first)
	if m := w.leases.mark(); m.Renewed != 1 {
		t.Errorf("the mark is %+v", m)
	}
}

func TestWhoCannotMarkTheLeaseTakesTheNodeOfNobody(t *testing.T) {
	refused := errors.New("etcdserver: mvcc: database space exceeded")
	t.Run("whose mark is not renewed", func(t *testing.T) {
		w := newWorld(t)
		w.takes(w.config(store.Memory(nil), "first"))
		second := w.waits(w.config(store.Memory(nil), "second"))
		w.leases.refuses(refused)
		for range 3 * Lapse / lookEvery {
			w.pass(second)
		}
		if len(second.hold) > 0 {
			t.Fatal("the second holds the node by a mark that nobody can see")
		}
		if why := <-second.said; !strings.Contains(why, "takes its mark") {
			t.Errorf("it says %q", why)
		}
		if len(second.said) > 0 {
			t.Errorf("it says again %q", <-second.said)
		}
		w.leases.refuses(nil)
		for range Lapse/lookEvery + 1 {
			w.pass(second)
		}
		if m := w.leases.mark(); len(second.hold) == 0 || m.Who != "second" {
			t.Errorf("the mark can be written, and is %+v", m)
		}
	})
	t.Run("who is to give way", func(t *testing.T) {
		w, st := newWorld(t), store.Memory(nil)
		original := w.takes(w.config(st, "original"))
		copied := w.takes(w.config(copyOf(t, st), "copy"))
		if err := original.renew(t.Context()); !errors.Is(err, ErrFollowed) {
			t.Fatal(err)
		}
		w.leases.refuses(refused)
		w.waits(w.config(st, "original"))
		if m := w.leases.mark(); m.ID != copied.ID() {
			t.Errorf("the mark is %+v", m)
		}
	})
	t.Run("where it has seen no other it begins", func(t *testing.T) {
		w, st := newWorld(t), store.Memory(nil)
		w.leases.refuses(refused)
		w.takes(w.config(st, "first"))
		w.leases.refuses(nil)
		w.takes(w.config(st, "a restart"))
		w.leases.refuses(refused)
		w.takes(w.config(st, "a restart"))
	})
}

func TestALeaseThatOthersAlwaysWriteIsTriedWithPauses(t *testing.T) {
	w := newWorld(t)
	w.leases.readOnly = apierrors.NewConflict(resource, "kip-0", errors.New("it is another"))
	var log bytes.Buffer
	c := w.config(store.Memory(nil), "first")
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	p := w.begins(c)
	tried := func() int {
		w.leases.mu.Lock()
		defer w.leases.mu.Unlock()
		return w.leases.writes
	}
	const times = 5
	for range times {
		w.pass(p) // longer than any pause
	}
	if n := tried(); n < times || n > times+1 {
		t.Errorf("it has tried %d times in %d pauses", n, times)
	}
	p.end()
	p.done.Wait()
	if n := strings.Count(log.String(), "retrying"); n < times-1 || n > times {
		t.Errorf("it says so %d times:\n%s", n, log.String())
	}
}

func TestALeaseThatCannotBeMadeIsNoCrossing(t *testing.T) {
	w := newWorld(t)
	w.leases.readOnly = apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "kube-node-lease")
	first := w.takes(w.config(store.Memory(nil), "first"))
	if err := first.renew(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("without the namespace: %v", err)
	}
	w.leases.readOnly = nil
	w.renews(first)
	if m := w.leases.mark(); m == nil || m.ID != first.ID() {
		t.Errorf("the mark is %+v", m)
	}
}

func TestAMarkMadeAgainIsTheOneThatWas(t *testing.T) {
	w, st := newWorld(t), store.Memory(nil)
	before := w.takes(w.config(st, "first"))
	first := w.takes(w.config(st, "first"))
	second := w.waits(w.config(store.Memory(nil), "second"))
	for n := range uint64(2 * Lapse / lookEvery) {
		// Its owner was a node that is no more, each time.
		if err := w.leases.Delete(t.Context(), "kip-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.renews(first)
		if m := w.leases.mark(); m == nil || m.ID != first.ID() || m.Renewed != n+1 || m.After != before.ID() {
			t.Fatalf("made again for the %d. time, the mark is %+v", n+1, m)
		}
		w.pass(second)
		if len(second.hold) > 0 {
			t.Fatal("the second holds the node, which the first renews")
		}
	}
}

func TestKeepRenewsAndEndsForAnother(t *testing.T) {
	w := newWorld(t)
	first := w.takes(w.config(store.Memory(nil), "first"))
	ended := make(chan error, 1)
	go func() { ended <- first.Keep(t.Context()) }()
	renewed := func() uint64 {
		w.leases.mu.Lock()
		defer w.leases.mu.Unlock()
		return markOf(w.leases.lease).Renewed
	}
	for n := range uint64(3) {
		for until := time.Now().Add(time.Minute); renewed() <= n; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("the mark is not renewed")
			}
			if w.clock.HasWaiters() {
				w.clock.Step(RenewEvery)
			}
		}
	}
	// Another has it, and renews it.
	for n := uint64(1); len(ended) == 0; n++ {
		if n > 10000 {
			t.Fatal("it goes on beside another")
		}
		w.leases.mu.Lock()
		l := w.leases.lease.DeepCopy()
		w.leases.mu.Unlock()
		text, err := json.Marshal(mark{ID: "another", Renewed: n})
		if err != nil {
			t.Fatal(err)
		}
		l.Annotations[Annotation] = string(text)
		if _, err := w.leases.Update(t.Context(), l, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		w.clock.Step(RenewEvery)
		time.Sleep(time.Millisecond)
	}
	if err := <-ended; !errors.Is(err, ErrOther) {
		t.Errorf("it ends with %v", err)
	}
	if err := first.Forget(t.Context()); err != nil || w.leases.lease != nil {
		t.Errorf("the lease is not forgotten: %v", err)
	}
}
