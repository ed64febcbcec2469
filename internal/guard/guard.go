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
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

const (
	// Fresh is how long a heartbeat keeps a cell from an end that nobody requested. After as long the node controller of
	// Kubernetes gives up a silent node (node-monitor-grace-period, 40 s in its first releases).
	Fresh = 40 * time.Second
	// heldFor is how long an end is shown as held back after the last request for it. The cell was heard again, or is gone,
	// since whoever wants an end repeats the request every few seconds, or with each list of the cloud, every 15 s.
	heldFor = time.Minute
	// endsKey is the record of the ends that count, with which the next process, or the next leader, continues.
	endsKey = "ends"
	// mergeFor is how long ends go into the same stored record.
	mergeFor = 30 * time.Second

	// When it is worth asking again:
	storeRetry      = 5 * time.Second  // after the store has failed
	behindRetry     = 15 * time.Second // while the store is behind: the cloud is listed as often
	disruptionRetry = 5 * time.Second  // in a disruption: leases are checked every few seconds
)

// Limit bounds the unrequested ends within a window of time.
type Limit struct {
	// Percent of the population when the window began: the cells that run a pod and the instances without a cell.
	Percent int
	// Least is how many may end, however small the population is.
	Least int
	// Window is how long an end counts.
	Window time.Duration
}

// DefaultLimit applies where provider.yaml has no limit.
var DefaultLimit = Limit{Percent: 10, Least: 10, Window: 5 * time.Minute}

// Config of a Guard. All fields are required unless they say otherwise.
type Config struct {
	// Behind returns why the store may not know all instances; "" if it does. Optional: it does.
	Behind func() string
	// Limit is DefaultLimit where it is zero.
	Limit Limit
	// Store keeps the ends that count for the Limit. Optional: without it they count in this process only.
	Store Store
	Clock clock.PassiveClock
}

// Ground says on what ground an instance ends.
type Ground int

const (
	// Unrequested is an end that nobody has requested, and that may cost a running pod if it follows from a mistake of the cloud
	// or of Kip. It counts for the Limit. It is the zero value, so an end of which nothing is said is bounded.
	Unrequested Ground = iota
	// Harmless is an end that nobody has requested, and that costs no pod: the cell never ran one, or the cloud is sure that its
	// instance has ended.
	Harmless
	// Requested is an end whose pod has ended or was deleted.
	Requested
)

// End is the end of one instance.
type End struct {
	Instance string
	// Cell is empty for an instance without one.
	Cell string
	// Pod is that of the cell, or of the instance's tags; zero where there is none.
	Pod apiv1.PodReference
	// Why the instance is to end, for people.
	Why    string
	Ground Ground
	// LastHeartbeat is when the cell was last heard, or could not have been; zero where its end does not follow from silence.
	LastHeartbeat time.Time
	// Heard returns LastHeartbeat as it is now. The guard asks it after a wait for the store. Optional: the cell was not heard meanwhile.
	Heard func() time.Time
	// Disruption is why Kip may not be able to hear the cell at all, for people: most cells of its place are silent. Its lease then
	// counts as fresh, or a network that is down between Kip and its cells would end a share of them in each window
	// (TestWhenMostCellsAreSilentNoneIsEnded).
	Disruption string
}

// Reason is why an end is held back. It is a label of a metric.
type Reason string

const (
	ByLimit      Reason = "limit" // too many unrequested ends
	ByLease      Reason = "lease" // the cell was heard in the last 40 s
	ByDisruption Reason = "doubt" // Kip may not be able to hear the cell; dashboards know it by this value
	ByStore      Reason = "store" // the store may not know all instances
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

// held is a Held, until nobody requests it any more.
type held struct {
	Held
	asked time.Time
	// allowed reports whether a person lets it pass once.
	allowed bool
}

// Guard is the termination guard: every call that destroys passes its Intercept. Its methods are safe for concurrent use.
type Guard struct {
	cfg Config

	// counting guards these fields, and is locked before mu.
	counting sync.Mutex
	read     bool  // the window was read from the store
	revision int64 // of the stored window
	// window has the ends that counted in the last Limit.Window, oldest first.
	window []passed

	mu sync.Mutex
	// admitted are the instances that may end. They do not count again.
	admitted map[string]bool
	// counted are the instances whose end was stored by a request that is not answered yet.
	counted map[string]bool
	// waiting are the instances whose end the limit holds back.
	waiting map[string]waiting
	held    map[string]*held
	open    bool
	// population is the last that a caller of Admit knew.
	population int
}

// waiting is an end that the limit holds back: the namespace of its pod, and when it was last requested.
type waiting struct {
	namespace string
	asked     time.Time
}

// New returns a guard.
func New(cfg Config) *Guard {
	if cfg.Limit == (Limit{}) {
		cfg.Limit = DefaultLimit
	}
	return &Guard{
		cfg:      cfg,
		admitted: map[string]bool{},
		counted:  map[string]bool{},
		waiting:  map[string]waiting{},
		held:     map[string]*held{},
	}
}

// Admit decides whether an instance may end. population is how many cells run a pod and how many instances have no cell, together, now.
// The error is a *HeldError. An instance that is admitted stays so until it is forgotten. An end that counts is stored before Admit
// returns.
func (g *Guard) Admit(ctx context.Context, e End, population int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	because, counts := g.judge(e)
	if because == nil && counts {
		g.mu.Unlock()
		limited := g.count(ctx, e, population)
		if e.Heard != nil {
			e.LastHeartbeat = e.Heard()
		}
		g.mu.Lock()
		// While the store was waited for, the cell may have been heard, the store may be known to be behind, or a person may have
		// let the end pass.
		if because, counts = g.judge(e); because == nil && counts {
			because = limited
		}
		delete(g.counted, e.Instance) // it is admitted, or counts again when it is
	}
	if because != nil {
		g.note(e, because, g.cfg.Clock.Now())
		return because
	}
	g.admit(e.Instance)
	return nil
}

// judge applies everything but the Limit. It returns why the end is held back, or whether it counts for the Limit. It is called
// under mu.
func (g *Guard) judge(e End) (because *HeldError, counts bool) {
	now, admitted := g.cfg.Clock.Now(), g.admitted[e.Instance]
	if !admitted {
		if because = g.behind(e.Ground); because != nil {
			return because, false
		}
	}
	if h := g.held[e.Instance]; g.open || h != nil && h.allowed && now.Sub(h.asked) <= heldFor {
		return nil, false
	}
	if because = vetoOf(e, now); because != nil { // also of an instance that was admitted and has not ended yet
		return because, false
	}
	return nil, e.Ground == Unrequested && !admitted
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
	delete(g.waiting, instance)
}

// behind holds back all but requested ends while the store may not know all instances. Neither Open nor Allow lets them pass.
func (g *Guard) behind(ground Ground) *HeldError {
	if ground == Requested || g.cfg.Behind == nil {
		return nil
	}
	if why := g.cfg.Behind(); why != "" {
		return &HeldError{Reason: ByStore, Text: why, After: behindRetry}
	}
	return nil
}

// vetoOf is rule 1: it returns the veto of a cell that was heard lately, or that Kip may not be able to hear; nil if there is none.
func vetoOf(e End, now time.Time) *HeldError {
	if ago := now.Sub(e.LastHeartbeat); !e.LastHeartbeat.IsZero() && ago < Fresh {
		return &HeldError{Reason: ByLease, Text: fmt.Sprintf("it was heard less than %s ago", Fresh), After: Fresh - ago}
	}
	if e.Disruption != "" {
		return &HeldError{Reason: ByDisruption, Text: e.Disruption, After: disruptionRetry}
	}
	return nil
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
	// namespace is that of the pod, if this process has let its cell end.
	namespace *string
}

// lock locks counting. Whoever has it may wait for the store.
func (g *Guard) lock(ctx context.Context) {
	defer watchdog.Wait(ctx, watchdog.Store)()
	g.counting.Lock()
}

// count is rule 3: it stores that an end counts for the Limit, unless it counts already, or returns why the Limit holds it back.
func (g *Guard) count(ctx context.Context, e End, population int) *HeldError {
	g.lock(ctx)
	defer g.counting.Unlock()
	if g.isCounted(e.Instance) { // for another request at the same time
		return nil
	}
	population = g.knownPopulation(population)
	if err := g.readWindow(ctx); err != nil {
		return unstored(err)
	}
	now := g.cfg.Clock.Now()
	if held := g.limit(e, now, population); held != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.waiting[e.Instance] = waiting{namespace: e.Pod.Namespace, asked: now}
		return held
	}
	window := append(g.window, passed{At: now, Population: population, Ends: 1, namespace: new(e.Pod.Namespace)})
	if g.cfg.Store != nil {
		revision, err := g.cfg.Store.Put(ctx, endsKey, together(window), g.revision)
		if err != nil {
			g.read = false // the write may have come through: the stored window has at least what has ended
			return unstored(err)
		}
		g.revision = revision
	}
	g.window = window
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counted[e.Instance] = true
	delete(g.waiting, e.Instance)
	return nil
}

// knownPopulation returns the population, or the last that was known where a caller knows none.
func (g *Guard) knownPopulation(population int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.population = cmp.Or(population, g.population)
	return g.population
}

func unstored(err error) *HeldError {
	return &HeldError{Reason: ByLimit, Text: fmt.Sprintf("store that it counts for the limit of ends: %v", err), After: storeRetry}
}

func (g *Guard) isCounted(instance string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counted[instance] || g.admitted[instance]
}

// readWindow reads the stored window once. It is called under counting.
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

// limit holds an end back if as many have ended as may, or if it is another namespace's turn. It is called under counting.
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

// isTurn reports whether no other namespace waits that has had fewer ends in the window. It is called under counting, not under mu.
// Without turns a tenant whose cells fall silent all the time would use up the limit, and Kip would never replace a lost cell of
// another namespace (TestNamespacesTakeTurnsAtTheLimit).
func (g *Guard) isTurn(namespace string, now time.Time) bool {
	had := map[string]int{}
	for _, p := range g.window {
		if p.namespace != nil {
			had[*p.namespace] += p.Ends
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.waiting, func(_ string, w waiting) bool { return now.Sub(w.asked) > heldFor })
	for _, w := range g.waiting {
		if had[w.namespace] < had[namespace] {
			return false
		}
	}
	return true
}

// together merges ends into few records, each with the last of their times.
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

// Resume admits an end that an earlier process has decided, and stored where it counts.
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
	delete(g.waiting, instance)
	delete(g.held, instance)
}

// Open lets all ends pass from now on, since a person wants everything to end.
func (g *Guard) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
}

// Held returns the ends that are held back now, ordered by instance.
func (g *Guard) Held() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now()
}

// Allow lets pass once what is held back now and was at the time of seen, and returns it. A person has not seen what came later.
func (g *Guard) Allow(seen time.Time) []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.DeleteFunc(g.now(), func(h Held) bool { return h.Since.After(seen) })
	for _, h := range all {
		g.held[h.Instance].allowed = true
	}
	return all
}

// Holds reports whether the end of an instance is held back.
func (g *Guard) Holds(instance string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.held[instance]
	return h != nil && !h.allowed && g.cfg.Clock.Since(h.asked) <= heldFor
}

// now forgets what nobody requests any more, and returns the rest that is not allowed. It is called under mu.
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

// Intercept is a pipe.Interceptor. It sends only what may be destroyed, and answers everything else with a *HeldError. An end for which
// nobody has called Admit is unrequested.
func (g *Guard) Intercept(ctx context.Context, call pipe.Call, next pipe.Send) []pipe.Answer {
	switch call.Kind {
	case cloud.CallTerminate:
		return g.terminate(ctx, call, next)
	case cloud.CallDeleteDisk, cloud.CallDeleteOwned:
		if held := g.behind(Unrequested); held != nil {
			return call.Fail(held)
		}
	}
	return next(ctx, call)
}

// terminate sends what may end of a CallTerminate.
func (g *Guard) terminate(ctx context.Context, call pipe.Call, next pipe.Send) []pipe.Answer {
	answers, places, ids := make([]pipe.Answer, len(call.IDs)), []int{}, []string{}
	for n, id := range call.IDs {
		if err := g.Admit(ctx, End{Instance: id, Why: "it is to be terminated"}, 0); err != nil {
			answers[n].Err = err
			continue
		}
		places, ids = append(places, n), append(ids, id)
	}
	if len(ids) == 0 {
		return answers
	}
	call.IDs = ids
	for n, answer := range next(ctx, call) {
		answers[places[n]] = answer
	}
	return answers
}
