package gate

import (
	"context"
	"errors"
	"fmt"
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

// passed is one end that counted.
type passed struct {
	at time.Time
	// population is how many there were then.
	population int
}

// Gate is what every call that destroys goes through. Its methods are safe for
// concurrent use.
type Gate struct {
	cfg Config

	mu sync.Mutex
	// window are the ends that counted in the last Limit.Window, oldest first.
	window []passed
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
	}
}

// Admit decides whether an instance may end. population is how many cells run a pod
// and how many instances have no cell, together, now. The error is a *HeldError.
// Once admitted an instance stays so until it is forgotten.
func (g *Gate) Admit(e End, population int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.admitted[e.Instance] {
		return nil
	}
	now := g.cfg.Clock.Now()
	h := g.held[e.Instance]
	if h != nil && now.Sub(h.asked) > heldFor {
		h = nil
	}
	because := g.distrust(e)
	if because == nil && (g.open || h != nil && h.allowed) {
		g.admit(e.Instance)
		return nil
	}
	if because == nil {
		because = g.veto(e, now)
	}
	if because == nil {
		because = g.bound(e, now, population)
	}
	if because == nil {
		g.admit(e.Instance)
		return nil
	}
	since := now
	if h != nil {
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
	return because
}

// admit is called under mu.
func (g *Gate) admit(instance string) {
	g.admitted[instance] = true
	delete(g.held, instance)
}

// behindRetry is when an end is worth asking for again that is held back for what this
// Kip does not know: there is a look at the cloud in as long.
const behindRetry = 15 * time.Second

// distrust holds back what nobody has asked for while what this Kip knows may be too
// old. Neither Open nor Allow lets it pass. It is called under mu.
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

// bound counts an end that may be a mistake, or holds it back. It is called under mu.
func (g *Gate) bound(e End, now time.Time, population int) *HeldError {
	if !e.Mistakable {
		return nil
	}
	g.window = slices.DeleteFunc(g.window, func(p passed) bool { return now.Sub(p.at) >= g.cfg.Limit.Window })
	began := population
	if len(g.window) > 0 {
		began = g.window[0].population
	}
	if most := max(g.cfg.Limit.Least, began*g.cfg.Limit.Percent/100); len(g.window) >= most {
		after := g.cfg.Limit.Window
		if len(g.window) > 0 {
			after = g.window[0].at.Add(g.cfg.Limit.Window).Sub(now)
		}
		return &HeldError{
			Reason: ByLimit,
			Text: fmt.Sprintf("%d of %d have ended within %s, which is as many as may end for a mistake",
				len(g.window), began, g.cfg.Limit.Window),
			After: after,
		}
	}
	g.window = append(g.window, passed{at: now, population: population})
	return nil
}

// Resume counts an end that was decided before this process began, and admits it.
func (g *Gate) Resume(e End, population int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit(e.Instance)
	if e.Mistakable {
		g.window = append(g.window, passed{at: g.cfg.Clock.Now(), population: population})
	}
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

// Allow lets what is held back now pass once, and returns it.
func (g *Gate) Allow() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.now()
	for _, h := range all {
		g.held[h.Instance].allowed = true
	}
	return all
}

// Holds says that the end of an instance is held back.
func (g *Gate) Holds(instance string) bool {
	return slices.ContainsFunc(g.Held(), func(h Held) bool { return h.Instance == instance })
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
		if results[n].Err = g.Admit(e, population); results[n].Err == nil {
			ids, places = append(ids, e.Instance), append(places, n)
		}
	}
	if len(ids) == 0 {
		return results
	}
	said := g.cfg.Cloud.Terminate(ctx, ids...)
	if len(said) != len(ids) {
		err := fmt.Errorf("the cloud answered the end of %d instances with %d results", len(ids), len(said))
		said = cloud.Each(errors.Join(err, said.Err()), ids...)
	}
	for i, r := range said {
		results[places[i]].Err = r.Err
	}
	return results
}

// Stop stops an instance that runs no pod. The cloud can stop instances.
func (g *Gate) Stop(ctx context.Context, id string) error {
	return g.cfg.Cloud.Features().Stopper.Stop(ctx, id).Err()
}

// DetachDisk takes a disk from an instance whose pod has ended or was deleted. The
// cloud has disks.
func (g *Gate) DetachDisk(ctx context.Context, disk, instance string) error {
	return g.cfg.Cloud.Features().Disks.DetachDisk(ctx, disk, instance)
}

// DeleteDisk removes a disk with its data, whose claim was deleted. The cloud has
// disks.
func (g *Gate) DeleteDisk(ctx context.Context, disk string) error {
	if held := g.distrust(End{}); held != nil {
		return held
	}
	return g.cfg.Cloud.Features().Disks.DeleteDisk(ctx, disk)
}
