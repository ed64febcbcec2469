package guard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"k8s.io/utils/clock"
)

const (
	// Fresh is how long a sign of life keeps a cell from being ended by a mistake: the
	// time after which the node controller of Kubernetes gives up a node that is silent
	// (node-monitor-grace-period, 40 s in its first releases).
	Fresh = 40 * time.Second
	// heldFor is how long an end is still shown as held back once nobody asks for it
	// any more: the cell was heard again, or is gone. Who wants it asks each few
	// seconds, or with each look at the cloud, of which there is one in 15 s.
	heldFor = time.Minute
	// endsKey is the record of what counts: a Kip that begins anew, or leads from now on,
	// counts on from there.
	endsKey = "ends"
	// storeRetry is when it is worth asking again after the store has failed.
	storeRetry = 5 * time.Second
	// mergeFor is how long ends go into the same record of what counts.
	mergeFor = 30 * time.Second
)

// Limit is how many ends that may be a mistake there may be in a time.
type Limit struct {
	// Percent of the cells that run a pod and of the instances without a cell, together,
	// as many as there were when the time began.
	Percent int
	// Least is how many there may be however few cells there are.
	Least int
	// Window is the time.
	Window time.Duration
}

// DefaultLimit is what provider.yaml says where it says nothing.
var DefaultLimit = Limit{Percent: 10, Least: 10, Window: 5 * time.Minute}

// Config of a Guard. All fields are required unless they say otherwise.
type Config struct {
	// Behind says why no instance may end whose end nobody has asked for; "" if it may.
	// Optional: it may.
	Behind func() string
	// Limit is DefaultLimit where it is zero.
	Limit Limit
	// Store keeps what counts for the Limit. Optional: without it a process counts
	// what it has ended itself.
	Store Store
	Clock clock.PassiveClock
}

// End is the end of one instance.
type End struct {
	Instance string
	// Cell is empty for an instance without one.
	Cell string
	// Pod is that of the cell, or of the instance's tags; zero where there is none.
	Pod apiv1.PodReference
	// Why it is to end, for people.
	Why string
	// Mistakable says that what the end follows from may be a mistake of the cloud or
	// of Kip, and that the instance may run a pod that nobody has asked to end. Such
	// ends are bounded by the Limit.
	Mistakable bool
	// Doubt is why what the end follows from is more likely a fault of Kip's own, for
	// people; empty where it is not. Such ends wait for a person.
	Doubt string
	// Asked says that the pod has ended or was deleted.
	Asked bool
	// Heard is when the cell was last heard, where that speaks against its end; zero
	// where it does not, or never was heard.
	Heard time.Time
}

// Reason is a kind of being held back.
type Reason string

const (
	ByLimit      Reason = "limit" // too many ends that may be a mistake
	ByLease      Reason = "lease" // the cell was heard lately
	ByStore      Reason = "store" // what this Kip knows may be too old to go by
	ByDisruption Reason = "doubt" // the fault is more likely Kip's own
)

// HeldError is the answer to an end that the guard holds back.
type HeldError struct {
	Reason Reason
	Text   string
	// After is when it is worth asking again.
	After time.Duration
}

func (e *HeldError) Error() string { return e.Text }

// Held is an end that is held back.
type Held struct {
	End
	Reason Reason
	Text   string
	Since  time.Time
}

// held is a Held, until nobody asks for it any more.
type held struct {
	Held
	asked time.Time
	// allowed says that a person lets it pass once.
	allowed bool
}

// Guard guards the pipe to the cloud: every call that destroys goes through Intercept. Its methods are safe for
// concurrent use.
type Guard struct {
	cfg Config

	// counting guards these fields, and is locked before mu.
	counting sync.Mutex
	read     bool  // the window was read from the store
	revision int64 // of the stored window
	// window are the ends that counted in the last Limit.Window, oldest first.
	window []passed
	// waiting are the namespaces of which the limit holds an end back, and when that was
	// last asked for.
	waiting map[string]time.Time

	mu sync.Mutex
	// admitted are instances that may end: asked for again they do not count again.
	admitted map[string]bool
	held     map[string]*held
	open     bool
}

// New returns a guard.
func New(cfg Config) *Guard {
	if cfg.Limit == (Limit{}) {
		cfg.Limit = DefaultLimit
	}
	return &Guard{
		cfg:      cfg,
		admitted: map[string]bool{},
		held:     map[string]*held{},
		waiting:  map[string]time.Time{},
	}
}

// Admit decides whether an instance may end. population is how many cells run a pod
// and how many instances have no cell, together, now. The error is a *HeldError.
// Once admitted an instance stays so until it is forgotten. That an end counts is stored
// before it is admitted.
func (g *Guard) Admit(ctx context.Context, e End, population int) error {
	because, counts := g.judge(e)
	if because == nil && counts {
		because = g.count(ctx, e, population)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if because != nil {
		g.note(e, because, g.cfg.Clock.Now())
		return because
	}
	g.admit(e.Instance)
	return nil
}

// judge applies all rules but the Limit. It returns why the end is held back; if it is not, whether it counts for the Limit.
func (g *Guard) judge(e End) (because *HeldError, counts bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, admitted := g.cfg.Clock.Now(), g.admitted[e.Instance]
	if !admitted {
		if because = g.distrust(e); because != nil {
			return because, false
		}
	}
	if h := g.held[e.Instance]; g.open || h != nil && h.allowed && now.Sub(h.asked) <= heldFor {
		return nil, false
	}
	if because = veto(e, now); because != nil || admitted { // it also vetoes one that was admitted before it was to end
		return because, false
	}
	if e.Doubt != "" {
		return &HeldError{Reason: ByDisruption, Text: e.Doubt, After: doubtRetry}, false
	}
	return nil, e.Mistakable
}

// note notes that an end is held back. It is called under mu.
func (g *Guard) note(e End, because *HeldError, now time.Time) {
	since := now
	if h := g.held[e.Instance]; h != nil && now.Sub(h.asked) <= heldFor {
		since = h.Since
	}
	g.held[e.Instance] = &held{
		Held: Held{
			End:    e,
			Reason: because.Reason,
			Text:   because.Text,
			Since:  since,
		},
		asked: now,
	}
}

// admit is called under mu.
func (g *Guard) admit(instance string) {
	g.admitted[instance] = true
	delete(g.held, instance)
}

// behindRetry is when an end is worth asking for again that is held back for what this
// Kip does not know: there is a look at the cloud in as long.
const behindRetry = 15 * time.Second

// doubtRetry is when an end is worth asking for again that is in doubt: cells are looked at
// each few seconds.
const doubtRetry = 5 * time.Second

// distrust holds back what nobody has asked for while what this Kip knows may be too
// old. Neither Open nor Allow lets it pass.
func (g *Guard) distrust(e End) *HeldError {
	if e.Asked || g.cfg.Behind == nil {
		return nil
	}
	if why := g.cfg.Behind(); why != "" {
		return &HeldError{Reason: ByStore, Text: why, After: behindRetry}
	}
	return nil
}

// veto holds back the end of a cell that was heard lately.
func veto(e End, now time.Time) *HeldError {
	ago := now.Sub(e.Heard)
	if e.Heard.IsZero() || ago >= Fresh {
		return nil
	}
	return &HeldError{
		Reason: ByLease,
		Text:   fmt.Sprintf("it was heard less than %s ago", Fresh),
		After:  Fresh - ago,
	}
}

// Store keeps one record. Put writes it if it has the revision, 0 for a new one, and
// returns the new revision, which Get returns also.
type Store interface {
	Get(ctx context.Context, key string, v any) (revision int64, err error)
	Put(ctx context.Context, key string, v any, revision int64) (int64, error)
}

// passed are ends that counted.
type passed struct {
	At time.Time `json:"at"`
	// Population is how many there were then.
	Population int `json:"population"`
	Ends       int `json:"ends"`
	// namespace is that of the pod that ended, if this process has ended it.
	namespace *string
}

// count counts an end for the Limit, and stores that before it returns, or holds the end back.
func (g *Guard) count(ctx context.Context, e End, population int) *HeldError {
	g.counting.Lock()
	defer g.counting.Unlock()
	if g.isAdmitted(e.Instance) { // by another that asked at the same time
		return nil
	}
	if err := g.readWindow(ctx); err != nil {
		return unstored(err)
	}
	now := g.cfg.Clock.Now()
	if held := g.limit(e, now, population); held != nil {
		g.waiting[e.Pod.Namespace] = now
		return held
	}
	window := append(g.window, passed{At: now, Population: population, Ends: 1, namespace: new(e.Pod.Namespace)})
	if g.cfg.Store != nil {
		revision, err := g.cfg.Store.Put(ctx, endsKey, together(window), g.revision)
		if err != nil {
			g.read = false // what is stored is not known: it is no less than what has ended
			return unstored(err)
		}
		g.revision = revision
	}
	g.window = window
	delete(g.waiting, e.Pod.Namespace) // until the next one asks
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit(e.Instance)
	return nil
}

func unstored(err error) *HeldError {
	return &HeldError{Reason: ByLimit, Text: fmt.Sprintf("it is not stored that it counts: %v", err), After: storeRetry}
}

func (g *Guard) isAdmitted(instance string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.admitted[instance]
}

// readWindow reads what is stored, once. It is called under counting.
func (g *Guard) readWindow(ctx context.Context) error {
	if g.cfg.Store == nil || g.read {
		return nil
	}
	var stored []passed
	revision, err := g.cfg.Store.Get(ctx, endsKey, &stored)
	if err != nil {
		return err
	}
	now := g.cfg.Clock.Now()
	for n, p := range stored {
		if p.At.After(now) { // by the clock of another machine
			stored[n].At = now
		}
	}
	g.read, g.revision, g.window = true, revision, stored
	return nil
}

// limit holds an end back if as many have ended as may, or if it is the turn of others. It is called under counting.
func (g *Guard) limit(e End, now time.Time, population int) *HeldError {
	g.window = slices.DeleteFunc(g.window, func(p passed) bool { return now.Sub(p.At) >= g.cfg.Limit.Window })
	ended, began, after := 0, population, g.cfg.Limit.Window
	if len(g.window) > 0 {
		began, after = g.window[0].Population, g.window[0].At.Add(g.cfg.Limit.Window).Sub(now)
	}
	for _, p := range g.window {
		ended += p.Ends
	}
	if ended >= max(g.cfg.Limit.Least, began*g.cfg.Limit.Percent/100) {
		return &HeldError{
			Reason: ByLimit,
			Text: fmt.Sprintf("%d of %d have ended within %s, which is as many as may end for a mistake",
				ended, began, g.cfg.Limit.Window),
			After: after,
		}
	}
	if !g.isTurn(e.Pod.Namespace, now) {
		return &HeldError{
			Reason: ByLimit,
			Text: fmt.Sprintf("as many as may end for a mistake had ended within %s, and it is the turn of other namespaces than %s",
				g.cfg.Limit.Window, cmp.Or(e.Pod.Namespace, "none")),
			After: storeRetry,
		}
	}
	return nil
}

// isTurn says that no namespace waits that has had fewer ends within the time: who has
// pods that end all the time does not keep others from ever getting another cell. It is
// called under counting.
func (g *Guard) isTurn(namespace string, now time.Time) bool {
	maps.DeleteFunc(g.waiting, func(_ string, asked time.Time) bool { return now.Sub(asked) > heldFor })
	if _, mine := g.waiting[namespace]; len(g.waiting) == 0 || mine && len(g.waiting) == 1 {
		return true
	}
	had := map[string]int{}
	for _, p := range g.window {
		if p.namespace != nil {
			had[*p.namespace] += p.Ends
		}
	}
	for other := range g.waiting {
		if had[other] < had[namespace] {
			return false
		}
	}
	return true
}

// together are the same ends in few records, each with the last of their times.
func together(all []passed) (few []passed) {
	var began time.Time
	for _, p := range all {
		if last := len(few) - 1; last >= 0 && p.At.Sub(began) < mergeFor {
			few[last].At = p.At
			few[last].Ends += p.Ends
			continue
		}
		few, began = append(few, p), p.At
	}
	return few
}

// Resume admits an end that was decided before this process began: it is stored that
// it counts.
func (g *Guard) Resume(instance string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit(instance)
}

// Forget forgets an instance that is gone.
func (g *Guard) Forget(instance string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.admitted, instance)
	delete(g.held, instance)
}

// Open lets all ends pass from now on, since a person wants all to end.
func (g *Guard) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
}

// Held returns what is held back now, in the order of the instances.
func (g *Guard) Held() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now()
}

// Allow lets what is held back now pass once, and returns it: what is held back since
// then, or for longer. What came later nobody has seen.
func (g *Guard) Allow(seen time.Time) []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.DeleteFunc(g.now(), func(h Held) bool { return h.Since.After(seen) })
	for _, h := range all {
		g.held[h.Instance].allowed = true
	}
	return all
}

// Holds says that the end of an instance is held back.
func (g *Guard) Holds(instance string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.held[instance]
	return h != nil && !h.allowed && g.cfg.Clock.Since(h.asked) <= heldFor
}

// now forgets what nobody asks for any more, and returns the rest that is not
// allowed. It is called under mu.
func (g *Guard) now() []Held {
	now, all := g.cfg.Clock.Now(), []Held{}
	for id, h := range g.held {
		switch {
		case now.Sub(h.asked) > heldFor:
			delete(g.held, id)
		case !h.allowed:
			all = append(all, h.Held)
		}
	}
	slices.SortFunc(all, func(a, b Held) int { return strings.Compare(a.Instance, b.Instance) })
	return all
}

// Intercept is a pipe.Interceptor. It sends only what may be destroyed. An end that nobody has asked Admit about counts as one that may
// be a mistake. What is held back has a *HeldError as its answer.
func (g *Guard) Intercept(ctx context.Context, call pipe.Call, next pipe.Send) []pipe.Answer {
	switch call.Kind {
	case cloud.CallTerminate:
		for _, id := range call.IDs {
			if err := g.Admit(ctx, End{Instance: id, Why: "it is to be terminated", Mistakable: true}, 0); err != nil {
				return call.Fail(err)
			}
		}
	case cloud.CallDeleteDisk, cloud.CallDeleteParts:
		if held := g.distrust(End{}); held != nil {
			return call.Fail(held)
		}
	}
	return next(ctx, call)
}
