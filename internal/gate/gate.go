package gate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
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
	// leadsTimeout bounds the question whether this Kip leads. Without an answer
	// nothing ends.
	leadsTimeout = 5 * time.Second
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

// Config of a Gate. All fields are required unless they say otherwise.
type Config struct {
	// Cloud has its calls wait for their budgets, and a Fence behind.
	Cloud cloud.Cloud
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
	ByLimit Reason = "limit" // too many ends that may be a mistake
	ByLease Reason = "lease" // the cell was heard lately
	ByStore Reason = "store" // what this Kip knows may be too old to go by
	ByDoubt Reason = "doubt" // the fault is more likely Kip's own
)

// HeldError is the answer to an end that the gate holds back.
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

// Gate is what every call that destroys goes through. Its methods are safe for
// concurrent use.
type Gate struct {
	cfg Config

	// storing is held while what counts is read or stored, and comes before mu.
	storing  sync.Mutex
	read     bool  // what is stored was read; under storing
	revision int64 // of what is stored; under storing

	mu sync.Mutex
	// window are the ends that counted in the last Limit.Window, oldest first.
	window []passed
	// waiting are the namespaces of which the limit holds an end back, and when that was
	// last asked for.
	waiting map[string]time.Time
	// reserved is how many more are stored to have ended, and reservedUntil when they
	// may not be spent any more.
	reserved      int
	reservedUntil time.Time
	// admitted are instances that may end: asked for again they do not count again.
	admitted map[string]bool
	held     map[string]*held
	open     bool
}

// New returns a gate.
func New(cfg Config) *Gate {
	if cfg.Limit == (Limit{}) {
		cfg.Limit = DefaultLimit
	}
	return &Gate{
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
func (g *Gate) Admit(ctx context.Context, e End, population int) error {
	for {
		because, unstored := g.decide(e, population)
		if !unstored {
			if because == nil {
				return nil
			}
			return because
		}
		if err := g.reserve(ctx, population); err != nil {
			return g.hold(e, &HeldError{
				Reason: ByLimit,
				Text:   fmt.Sprintf("it is not stored that it counts: %v", err),
				After:  storeRetry,
			})
		}
	}
}

// decide is Admit, unless it is not stored yet that the end counts.
func (g *Gate) decide(e End, population int) (because *HeldError, unstored bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.cfg.Clock.Now()
	h := g.held[e.Instance]
	if h != nil && now.Sub(h.asked) > heldFor {
		h = nil
	}
	admitted := g.admitted[e.Instance]
	if !admitted {
		because = g.distrust(e)
	}
	if because == nil && (g.open || h != nil && h.allowed) {
		g.admit(e.Instance)
		return nil, false
	}
	if because == nil {
		because = g.veto(e, now) // also of one that was admitted before it was to end
	}
	if because == nil && !admitted && e.Doubt != "" {
		because = &HeldError{Reason: ByDoubt, Text: e.Doubt, After: doubtRetry}
	}
	if because == nil && !admitted {
		because, unstored = g.bound(e, now, population)
	}
	switch {
	case unstored:
	case because == nil:
		delete(g.waiting, e.Pod.Namespace) // until the next one asks
		g.admit(e.Instance)
	default:
		if because.Reason == ByLimit {
			g.waiting[e.Pod.Namespace] = now
		}
		g.note(e, because, now)
	}
	return because, unstored
}

// hold notes that an end is held back, and returns why.
func (g *Gate) hold(e End, because *HeldError) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.note(e, because, g.cfg.Clock.Now())
	return because
}

// note notes that an end is held back. It is called under mu.
func (g *Gate) note(e End, because *HeldError, now time.Time) {
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
func (g *Gate) admit(instance string) {
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
func (g *Gate) distrust(e End) *HeldError {
	if e.Asked || g.cfg.Behind == nil {
		return nil
	}
	if why := g.cfg.Behind(); why != "" {
		return &HeldError{Reason: ByStore, Text: why, After: behindRetry}
	}
	return nil
}

// veto holds back the end of a cell that was heard lately. It is called under mu.
func (g *Gate) veto(e End, now time.Time) *HeldError {
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

// Resume admits an end that was decided before this process began: it is stored that
// it counts.
func (g *Gate) Resume(instance string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit(instance)
}

// Forget forgets an instance that is gone.
func (g *Gate) Forget(instance string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.admitted, instance)
	delete(g.held, instance)
}

// Open lets all ends pass from now on, since a person wants all to end.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
}

// Held returns what is held back now, in the order of the instances.
func (g *Gate) Held() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now()
}

// Allow lets what is held back now pass once, and returns it: what is held back since
// then, or for longer. What came later nobody has seen.
func (g *Gate) Allow(seen time.Time) []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.DeleteFunc(g.now(), func(h Held) bool { return h.Since.After(seen) })
	for _, h := range all {
		g.held[h.Instance].allowed = true
	}
	return all
}

// Holds says that the end of an instance is held back.
func (g *Gate) Holds(instance string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.held[instance]
	return h != nil && !h.allowed && g.cfg.Clock.Since(h.asked) <= heldFor
}

// now forgets what nobody asks for any more, and returns the rest that is not
// allowed. It is called under mu.
func (g *Gate) now() []Held {
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

// Terminate ends instances, those that are admitted or may be. There is a result for
// each, in their order, a *HeldError for one that is held back: to that nothing was
// done.
func (g *Gate) Terminate(ctx context.Context, population int, ends ...End) cloud.Results {
	results := make(cloud.Results, len(ends))
	var ids []string
	var places []int
	for n, e := range ends {
		results[n].ID = e.Instance
		if results[n].Err = g.Admit(ctx, e, population); results[n].Err == nil {
			ids, places = append(ids, e.Instance), append(places, n)
		}
	}
	if len(ids) == 0 {
		return results
	}
	for i, r := range each(ctx, g.cfg.Cloud.Terminate, ids...) {
		results[places[i]].Err = r.Err
	}
	return results
}

// Stop stops an instance that runs no pod. The cloud can stop instances.
func (g *Gate) Stop(ctx context.Context, id string) error {
	return each(ctx, g.cfg.Cloud.Features().Stopper.Stop, id).Err()
}

// Unroute takes routes back from an instance that ends, or has ended.
func (g *Gate) Unroute(ctx context.Context, instance string, to []netip.Prefix) error {
	return g.cfg.Cloud.Features().Router.Unroute(ctx, instance, to)
}

// DetachDisk takes a disk from an instance whose pod has ended or was deleted. The
// cloud has disks.
func (g *Gate) DetachDisk(ctx context.Context, disk, instance string) error {
	return g.cfg.Cloud.Features().Disks.DetachDisk(ctx, disk, instance)
}

// DeleteDisk removes a disk with its data, whose claim was deleted, or which the cloud could not
// make. The cloud has disks.
func (g *Gate) DeleteDisk(ctx context.Context, disk string) error {
	if held := g.distrust(End{}); held != nil {
		return held
	}
	return g.cfg.Cloud.Features().Disks.DeleteDisk(ctx, disk)
}

// DeleteParts removes what instances have left. The cloud has parts.
func (g *Gate) DeleteParts(ctx context.Context, ids ...string) cloud.Results {
	if held := g.distrust(End{}); held != nil {
		return cloud.Each(held, ids...)
	}
	return each(ctx, g.cfg.Cloud.Features().Parts.DeleteParts, ids...)
}

// each makes a call that names things, and sees to it that each has a result.
func each(ctx context.Context, do func(context.Context, ...string) cloud.Results, ids ...string) cloud.Results {
	results := do(ctx, ids...)
	if len(results) != len(ids) {
		err := fmt.Errorf("the cloud answered a call about %d of them with %d results", len(ids), len(results))
		return cloud.Each(errors.Join(err, results.Err()), ids...)
	}
	return results
}
