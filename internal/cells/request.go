package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Request is what a pod asks for.
type Request struct {
	Pod apiv1.PodReference
	// Node is the virtual node that the pod is on.
	Node    string
	Attempt int
	// Account is whom the pod's cost is put down to.
	Account Account
	// Seen is when Kip first saw the pod, and Created when it was created, by the API
	// server's clock; zero where that is not known.
	Seen, Created time.Time
	// Arrived says that the pod came to its node after this process had listed the pods there, and that
	// nothing had run it then: no other Kip can have launched a cell for it.
	Arrived bool
	// Offers come best first; there is at least one.
	Offers []Offer
	// RuledOut says why other types are none, for people.
	RuledOut []apiv1.RuledOut
	// Disks are those of the pod's volumes, all in the zone of each offer.
	Disks []Disk
	// Plugins are those of the CSI drivers of the pod's volumes.
	Plugins []Plugin
	// GPUs and Accelerators are as in Cell.
	GPUs         int64
	Accelerators map[corev1.ResourceName]int64
	// Options are what a cell for it is launched with.
	Options Options
	// Needs is as in Cell.
	Needs catalog.Room
	// Special says that the pod asks for what only a launch can give. No standby
	// cell fits such a pod.
	Special bool
	// HealthyTimeout is as in Cell.
	HealthyTimeout *time.Duration
}

// Request asks for a cell for a pod. It takes a standby cell of the type that the
// pod would get, where there is one. It returns when the request is stored. The
// error is ErrHasCell where the pod has a cell that is not Gone, a *DiskInUseError
// where a live cell of another pod has one of the disks, a *BudgetError where the
// pod's namespace may not cost so much more, and ErrConnecting.
func (c *Controller) Request(ctx context.Context, r Request) (Cell, error) {
	if len(r.Offers) == 0 {
		return Cell{}, fmt.Errorf("request a cell for pod %s: no offers", r.Pod)
	}
	spent, unlock, err := c.lockBudget(ctx, r.Pod.Namespace)
	if err != nil {
		return Cell{}, fmt.Errorf("request a cell for pod %s: %w", r.Pod, err)
	}
	if _, has := c.byPod[r.Pod.UID]; has {
		unlock()
		return Cell{}, fmt.Errorf("request a cell for pod %s: %w", r.Pod, ErrHasCell)
	}
	if err = c.claimed(r.Disks); err == nil {
		r.Offers, err = c.affordable(r, spent)
	}
	var taken *entry
	if err == nil {
		taken, err = c.takeStandby(r)
	}
	switch {
	case err != nil:
		unlock()
		return Cell{}, fmt.Errorf("request a cell for pod %s: %w", r.Pod, err)
	case taken != nil:
		unlock()
		return c.give(ctx, taken, r)
	}
	cell := Cell{
		ID:             newID("cell-"),
		Pod:            r.Pod,
		Node:           r.Node,
		Account:        r.Account,
		PodCreated:     r.Created,
		Phase:          apiv1.Requested,
		Attempt:        r.Attempt,
		Offers:         r.Offers,
		Best:           r.best(),
		RuledOut:       r.RuledOut,
		Reason:         r.Offers[0].Reason,
		Options:        r.Options,
		Needs:          r.Needs,
		Special:        r.Special,
		HealthyTimeout: r.HealthyTimeout,
		Template:       c.template(c.cloudInit()),
		Disks:          r.Disks,
		Plugins:        r.Plugins,
		GPUs:           r.GPUs,
		Accelerators:   r.Accelerators,
	}
	cell.step(apiv1.StepSeen, r.Seen)
	cell.step(apiv1.StepPlaced, c.cfg.Clock.Now())
	e := newEntry(cell, 0)
	e.arrived = r.Arrived
	c.reserve(e) // while it is being stored
	unlock()
	return cell, c.store(ctx, e)
}

// best are the offers that people are shown.
func (r Request) best() []Offer { return r.Offers[:min(len(r.Offers), apiv1.MaxCandidates)] }

// store writes the record of a new cell, which is reserved, and starts its life.
func (c *Controller) store(ctx context.Context, e *entry) error {
	lockWriting(ctx, e)
	defer e.writing.Unlock()
	cell := e.cell()
	revision, err := c.cfg.Store.Put(ctx, keyPrefix+e.id, cell, 0)
	c.mu.Lock()
	if notWritten(err) {
		c.unreserve(e)
		c.mu.Unlock()
		if refusedWrite(err) {
			c.fail(err)
		}
		return fmt.Errorf("request a cell for pod %s: %w", cell.Pod, err)
	}
	c.enter(e)
	if err != nil {
		// The record may be stored all the same. The cell's worker finds out.
		e.unsure, e.ending = cell, "the store did not answer"
		c.mu.Unlock()
		c.queue.AddRateLimited(e.id)
		return fmt.Errorf("request a cell for pod %s: %w", cell.Pod, err)
	}
	e.revision = revision
	c.mu.Unlock()
	c.observers.CellChanged(*cell)
	c.queue.Add(e.id)
	return nil
}

// reserve notes, under mu, whose a cell is.
func (c *Controller) reserve(e *entry) {
	if e.pod.UID == "" {
		c.standby[e.id] = e
		return
	}
	c.byPod[e.pod.UID] = e.id
	c.count(e)
	c.claim(e)
	name := nameOf(e.pod)
	c.named[name] = append(c.named[name], e.pod.UID)
}

// unreserve undoes reserve, under mu.
func (c *Controller) unreserve(e *entry) {
	delete(c.standby, e.id)
	if e.pod.UID == "" {
		return
	}
	c.unclaim(e)
	c.uncount(e)
	if c.byPod[e.pod.UID] != e.id {
		return // another cell has the pod
	}
	delete(c.byPod, e.pod.UID)
	name := nameOf(e.pod)
	c.named[name] = slices.DeleteFunc(c.named[name], func(uid types.UID) bool { return uid == e.pod.UID })
	if len(c.named[name]) == 0 {
		delete(c.named, name)
	}
}

func nameOf(pod apiv1.PodReference) cache.ObjectName {
	return cache.ObjectName{Namespace: pod.Namespace, Name: pod.Name}
}

// PodsNamed returns the pods of this name, of the past or the present, that have
// a cell.
func (c *Controller) PodsNamed(name cache.ObjectName) []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.named[name])
}

// ErrHasCell says that the pod has a cell: it has at most one at a time.
var ErrHasCell = errors.New("the pod has a cell already")

// ErrConnecting says that Kip has begun a moment ago, and has yet to connect to a standby cell that the
// pod may be given. It is to be requested again soon.
var ErrConnecting = errors.New("connecting to standby cells that the pod may be given")

// request hands a cell to be launched with others, as soon as nobody else can be
// running its pod.
func (c *Controller) request(ctx context.Context, e *entry) (time.Duration, error) {
	c.mu.Lock()
	removed := e.launching && e.ending != "" && c.launches.remove(e)
	if removed {
		e.launching = false
	}
	launching, why := e.launching, e.ending
	c.mu.Unlock()
	if removed {
		c.giveTurnBack(e)
	}
	switch {
	case launching:
		return 0, nil // it waits, or is its group's, which may be storing the launch, and gives it back
	case why != "":
		return 0, c.gone(ctx, e, why)
	}
	if wait := e.resolving.wait(c.cfg.Clock.Now()); wait > 0 {
		return wait, nil
	}
	if why, sure := c.Behind(); why != "" && sure {
		if e.unknown.is(why, c.cfg.Clock.Now()) {
			c.warn(e.cell(), events.StoreBehind, "%s", why)
		}
		return idlePoll, nil
	}
	if !c.nobodyElseRuns(e) {
		c.pollSoon()
		return time.Second, nil
	}
	if wait := c.launchesPaused(e); wait > 0 {
		return wait, nil
	}
	next, err := toLaunchOf(e)
	if err != nil {
		return 0, err
	}
	if wait := c.keptBack(e); wait > 0 {
		return wait, nil
	}
	wait := c.looksForRights(e)
	c.mu.Lock()
	e.launching = wait == 0 && e.ending == "" // one that is to end is queued again
	goes := e.launching
	if goes {
		c.launches.add(next)
	}
	c.mu.Unlock()
	if !goes {
		c.giveTurnBack(e)
	}
	return wait, nil
}

// clockSkew is how far the API server's clock may be from Kip's, and be believed.
const clockSkew = 5 * time.Minute

// nobodyElseRuns says that the cloud shows no other instance that may run the
// pod: one that a Kip launched whose store was lost would go on running it. It is
// terminated first. What no pod is named on may run any that was there before the
// store was lost, and holds up no other.
func (c *Controller) nobodyElseRuns(e *entry) bool {
	cell := e.cell()
	c.mu.Lock()
	doubt, arrived := c.doubt(e), e.arrived
	tells := doubt != unlooked || c.cfg.Clock.Since(c.awake) >= quietStart
	c.mu.Unlock()
	if doubt != "" {
		if tells && e.unknown.is(doubt, c.cfg.Clock.Now()) {
			reason := events.InstancesNotListed
			if doubt == behind {
				reason = events.StoreBehind
			}
			c.warn(cell, reason, "%s", doubt)
		}
		return false
	}
	if cell.Pod.UID == "" {
		return true
	}
	other := c.others(cell.Pod.UID, cell.PodCreated, cell.JoinID(), arrived)
	if len(other) == 0 {
		return true
	}
	if e.unknown.is(fmt.Sprint(other), c.cfg.Clock.Now()) {
		c.warn(cell, events.CellUnknown, mayRun, other)
	}
	return false
}

// quietStart is how long after its start Kip does not say that it waits for the cloud's first list,
// which mostly comes within a second.
const quietStart = 5 * time.Second

const mayRun = "Instances %v may run this pod: they were launched by a Kip whose state is lost. They are terminated before another runs it"

// others are the instances of the last look that may run a pod, besides that of the cell
// with a JoinID. They are ended. Of a pod that arrived none can be a stranger.
func (c *Controller) others(pod types.UID, created time.Time, joinID string, arrived bool) (other []string) {
	look := c.inventory.last()
	if !arrived && (created.IsZero() || created.Before(c.born.Add(clockSkew))) {
		other = append(other, look.strangers...)
	}
	for _, id := range look.byPod[pod] {
		if joinIDOf(look.byID[id]) != joinID {
			other = append(other, id)
		}
	}
	slices.Sort(other)
	for _, id := range other {
		if i := look.byID[id]; i.State != cloud.Terminating {
			c.endStray(i)
		}
	}
	return other
}
