package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/gate"
	"github.com/elotl/kip/internal/tunnel"
)

// Health says when a cell that runs a pod counts as lost. One of two signs is
// believed: the lease that its kubelet renews over the tunnel (healthcheck.status),
// or the cloud's list (healthcheck.cloudAPI).
type Health struct {
	// CloudAPI believes the cloud's list alone, for links that break often.
	CloudAPI bool
	// HealthyTimeout is how long the sign may be missing; 0 for ever.
	HealthyTimeout time.Duration
	// Interval is how often the cloud is asked at least, with CloudAPI.
	Interval time.Duration
	// Check is how often leases are looked at.
	Check time.Duration
}

// pollInterval is how often the cloud is asked for its list at least.
func (h Health) pollInterval() time.Duration {
	if h.CloudAPI {
		return min(h.Interval, idlePoll)
	}
	return idlePoll
}

// missingTimeout is how long the cloud's list may lack the instance of a cell.
func (h Health) missingTimeout(silent bool) time.Duration {
	switch {
	case h.CloudAPI && h.HealthyTimeout > 0:
		return h.HealthyTimeout
	case silent:
		return silentAge
	}
	return missingAge
}

const (
	// silentAfter is when a pod whose cell is silent counts as not ready: a
	// kubelet renews its lease each 10 s, and the node controller waits for 40
	// to 50 (node-monitor-grace-period) before it does the same to the pods of
	// a node.
	silentAfter = 40 * time.Second
)

// checkHealth ends cells that are lost by the lease, until ctx ends.
func (c *Controller) checkHealth(ctx context.Context) {
	if c.cfg.Health.Check <= 0 {
		return
	}
	ticker := c.cfg.Clock.NewTicker(c.cfg.Health.Check)
	defer ticker.Stop()
	var disrupted disruptions
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		now, was := c.cfg.Clock.Now(), disrupted
		c.cfg.Pulse.Turn(ctx, "health", func(ctx context.Context) {
			if disrupted = c.checkLeases(ctx, now, was); was.over(disrupted) {
				c.wakeUp(now) // those that are not heard yet may be on their way
			}
			c.showReleased()
		})
	}
}

// wakeUp gives each cell its time anew: until now this process could not hear them. A cell has
// that once until it is heard again, or cells that fall silent in turns would keep others for ever.
func (c *Controller) wakeUp(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awake = now
}

// silence is that of a cell, since when nothing was heard of its kubelet.
type silence struct {
	e     *entry
	since time.Time
}

// checkLeases looks at every cell with a kubelet once. It returns where so many are silent
// that the end of each waits for a person.
func (c *Controller) checkLeases(ctx context.Context, now time.Time, was disruptions) disruptions {
	var silent []silence
	var refused refusals
	var refusing []*entry
	ready, onTime := 0, c.cfg.Late.OnTime()
	counts := hushes{} // of those that may end for their silence: that of others says nothing of Kip's network
	c.mu.Lock()
	for _, e := range c.cells {
		phase := e.cell().Phase
		if e.ending != "" || e.session == nil {
			continue
		}
		if refusal := e.refusal(); refusal != nil && (phase == apiv1.Booting || phase == apiv1.Ready || phase == apiv1.Bound) {
			ready++
			counts.add(e.location(), false)
			refused.add(refusal)
			if e.refusing.IsZero() {
				e.refusing = now
			}
			if phase == apiv1.Bound && now.Sub(e.refusing) >= refusalTellAfter {
				refusing = append(refusing, e)
			}
			continue // it is heard
		}
		if phase != apiv1.Bound && phase != apiv1.Ready || e.api == nil {
			continue
		}
		if e.api.LastHeartbeat().After(e.refusing) {
			e.refusing = time.Time{}
		}
		ready++
		timeout := c.healthyTimeout(e.cell())
		since := e.silentSince(c.began, c.awake, onTime)
		quiet := now.Sub(since) >= min(silentAfter, timeout)
		if timeout < forever {
			counts.add(e.location(), quiet)
		}
		if quiet {
			silent = append(silent, silence{e, since})
		}
	}
	refused.of = ready
	wasRefused := c.refusing
	c.refusing = refused
	c.mu.Unlock()
	c.heardRefusals(refused, wasRefused, refusing, now)
	disrupted := counts.disruptions()
	c.tellDisruption(disrupted, was, counts[location{}])
	c.mu.Lock()
	c.checkup.wanted = len(silent) > 0
	c.mu.Unlock()
	if len(silent) == 0 {
		return disrupted
	}
	population := c.population()
	for _, s := range silent {
		if cell := s.e.cell(); cell.Phase == apiv1.Bound {
			c.observers.CellSilent(*cell, s.since)
		}
		doubt := disrupted.doubt(s.e.location())
		if was.doubt(s.e.location()) != "" && doubt == "" {
			continue // it has its time anew
		}
		why, seen := c.lostInSilence(s, now)
		if why == "" {
			continue
		}
		lost := sign{cause: CauseLost, why: why, heard: s.since}
		if !seen {
			lost.doubt = doubt
		}
		c.lose(ctx, s.e, population, lost)
	}
	return disrupted
}

// heardRefusals reports what cells say of this Kip, and has it begin a new term where its clock was behind.
func (c *Controller) heardRefusals(refused, was refusals, cells []*entry, now time.Time) {
	if is := refused.said(); (is != "") != (was.said() != "") {
		c.cfg.Log.Error("most cells refuse this Kip, or do so no more", "by_term", refused.cells, "by_ca", refused.rotated, "of", refused.of,
			"why", is)
	}
	if refused.said() == "" {
		c.tellRefusing(cells, now)
	}
	if refused.cells > refused.of-refused.cells && c.beganAfter(refused.term) {
		c.fail(ErrBehindTime)
	}
}

// tellDisruption reports that most cells are silent, or are heard again.
func (c *Controller) tellDisruption(disrupted, was disruptions, all hush) {
	if now, before := disrupted.String(), was.String(); now != before {
		if now != "" {
			c.cfg.Log.Error("most cells are silent: Kip's own network may be down, and none ends for its silence until that is over, or kipctl allow",
				"of", now, "silent", all.silent, "ready", all.bounded)
		} else {
			c.cfg.Log.Info("most cells are heard again", "silent", all.silent, "ready", all.bounded)
		}
	}
}

// silentSince is when a cell was last heard, or could not have been. The caller holds Controller.mu.
func (e *entry) silentSince(began, awake, onTime time.Time) time.Time {
	since := began
	for _, t := range []time.Time{onTime, e.api.LastHeartbeat(), e.connecting, e.session.HeldBack(), e.cell().StepTime(apiv1.StepBound)} {
		if t.After(since) {
			since = t
		}
	}
	if !awake.After(since) {
		return since
	}
	if !e.anew.heard.Equal(since) {
		e.anew.heard, e.anew.since = since, awake
	}
	return e.anew.since
}

// lostInSilence says why a silent cell is lost; "" if it is not yet. The cloud may have seen it: what
// it says does not come over Kip's network to the cells.
func (c *Controller) lostInSilence(s silence, now time.Time) (why string, seen bool) {
	cell, quiet := s.e.cell(), now.Sub(s.since).Round(time.Second)
	timeout := c.healthyTimeout(cell)
	c.mu.Lock()
	impaired := c.checkup.finds(cell.Instance.ID, now)
	c.mu.Unlock()
	switch {
	case timeout < forever && impaired >= checkupAfter:
		return fmt.Sprintf("nothing was heard of its kubelet for %s, and the cloud's own checks have failed for %s", quiet,
			impaired.Round(time.Second)), true
	case !c.cfg.Health.CloudAPI && quiet >= timeout:
		// That its tunnel is heard speaks against a link that is down, and not against
		// a kubelet that hangs.
		return fmt.Sprintf("nothing was heard of its kubelet for %s: %s", quiet, c.whySilent(s.e)), false
	}
	return "", false
}

// refusedPoll is after how long to look again at a cell that refuses this process.
const refusedPoll = 5 * time.Second

// timeLeft is what is left of the time that a cell has to be ready: one that refuses this
// process is not given up, and is looked at again.
func (e *entry) timeLeft(left time.Duration) time.Duration {
	if e.refusal() != nil {
		return max(left, refusedPoll)
	}
	return left
}

// refusal is why a cell that is there does not obey this process: another Kip has connected
// to it since, or it knows a CA that is not in the store. It may run a pod for that Kip.
// Nil if it does.
func (e *entry) refusal() error {
	if e.session == nil {
		return nil
	}
	err := e.session.LastError()
	if followed, is := errors.AsType[*tunnel.FollowedError](err); is {
		return followed
	}
	if rotated, is := errors.AsType[*tunnel.RotatedError](err); is {
		return rotated
	}
	return nil
}

// refusals are of cells that are there: that another Kip has connected to since, and that
// know a CA of Kip's that is not in the store.
type refusals struct {
	of      int // so many cells could
	cells   int
	term    uint64 // the highest of those
	rotated int
}

func (r *refusals) add(refusal error) {
	if followed, is := errors.AsType[*tunnel.FollowedError](refusal); is {
		r.cells, r.term = r.cells+1, max(r.term, followed.Term)
		return
	}
	r.rotated++
}

// refusalTellAfter is how long a cell refuses this process before its pod's owner is told: longer than another Kip takes to
// give way.
const refusalTellAfter = 2 * time.Minute

// tellRefusing tells the owners of the pods of a few cells that these refuse this process. That may be a lie of their roots, or the
// store may be older than the cell's last Kip: no cell is ended for it, so a person has to decide.
func (c *Controller) tellRefusing(cells []*entry, now time.Time) {
	for _, e := range cells {
		why := e.refusal()
		if why == nil {
			continue
		}
		c.mu.Lock()
		tell := e.refusalTold.is(events.CellRefuses, now)
		since := e.refusing
		c.mu.Unlock()
		if tell {
			c.report(e.cell(), events.NewCellRefuses(e.id, now.Sub(since), why))
		}
	}
}

// refusalsLeast is how many cells are believed at least that Kip is not obeyed.
const refusalsLeast = 2

// said is what the cells say of this Kip, if most of them do. A Kip that is followed, and a
// store that is older than a rotation, are refused by all cells that the store knows, but for
// new ones. What a few say, their roots may have made up.
func (r refusals) said() string {
	if n := r.cells + r.rotated; n < refusalsLeast || n <= r.of-n {
		return ""
	}
	if r.rotated >= r.cells {
		return fmt.Sprintf("%d cells of %d refuse this Kip, since they trust a CA that is not in its store: the store is older than the rotation"+
			" of the CA; they run on, and none is ended for it, until a newer backup is restored or their pods are deleted", r.rotated, r.of)
	}
	return fmt.Sprintf("%d cells of %d refuse this Kip, since one of the higher term %d has connected to them: either another Kip has the same"+
		" identity, or the clock of this one was behind when it began, or that of one before ahead; they run on, and none is ended for it",
		r.cells, r.of, r.term)
}

// Refused says why most cells, which are well, do not obey this Kip; "" if they do. They are
// not lost.
func (c *Controller) Refused() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusing.said()
}

// ErrBehindTime ends Run: the clock was behind when this process began, and has been set since.
// With a term of now cells would know it for the last that began.
var ErrBehindTime = errors.New("cells take this Kip for an older one, since its clock was behind when it began: it begins anew")

// leastStep is how far the clock has to have been set: less is the time between two readings of it.
const leastStep = time.Second

// beganAfter reports whether the clock has been set forward since this process began its term, and whether it began after
// that of another term by the clock as it is now. The clock is Kip's own, so cells that lie about terms have Kip begin
// anew once at most each time that it is set.
func (c *Controller) beganAfter(term uint64) bool {
	now, lasted := c.cfg.Clock.Now(), c.cfg.Clock.Since(c.cfg.TermBegan)
	began := now.Round(0).Add(-lasted) // Round(0): of the clock that is set, not of the one that measures
	return began.Sub(c.cfg.TermBegan.Round(0)) >= leastStep && began.UnixMilli() > 0 && uint64(began.UnixMilli()) > term
}

// forever is longer than anybody waits.
const forever = time.Duration(1<<63 - 1)

// healthyTimeout is how long the cell may be silent.
func (c *Controller) healthyTimeout(cell *Cell) time.Duration {
	timeout := c.cfg.Health.HealthyTimeout
	if cell.HealthyTimeout != nil {
		timeout = *cell.HealthyTimeout
	}
	if timeout <= 0 {
		return forever
	}
	return timeout
}

// whySilent tells a cell that is cut off from one that has died.
func (c *Controller) whySilent(e *entry) string {
	i, there := c.inventory.last().byID[e.cell().Instance.ID]
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.session != nil && e.session.Connected():
		return "its agent answers, its kubelet does not"
	case !there:
		return "the cloud no longer shows its instance"
	case i.State != cloud.Running:
		return fmt.Sprintf("its instance is %s", i.State)
	}
	const why = "it is cut off, while its instance runs"
	if e.session != nil {
		if err := e.session.LastError(); err != nil {
			return why + ": " + err.Error()
		}
	}
	return why
}

// lastSign is when the cell was last heard, by its lease or its tunnel; zero if this
// process never has. The caller holds Controller.mu.
func (e *entry) lastSign() (last time.Time) {
	if e.api != nil {
		last = e.api.LastHeartbeat()
	}
	if e.session != nil {
		if t := e.session.LastHeard(); t.After(last) {
			last = t
		}
	}
	return last
}

// mayHaveBeenHeard is when the cell was last heard, or could not have been since this
// process did not listen, or kept the cell waiting: that alone does not speak against
// a cloud that is sure. The caller holds mu.
func (c *Controller) mayHaveBeenHeard(e *entry, sure bool) time.Time {
	last := e.lastSign()
	could := []time.Time{c.awake, c.cfg.Late.OnTime(), e.connecting}
	if e.session != nil && !sure {
		could = append(could, e.session.HeldBack())
	}
	for _, t := range could {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// sign is what speaks for the end of a cell that nobody has asked to end.
type sign struct {
	cause Cause
	why   string
	// sure says that the cloud is positive that the instance has ended, or was to end:
	// then there is nothing that an end could destroy.
	sure bool
	// fault is why the cloud has ended the instance, where it says so.
	fault error
	// heard is when the cell was last heard, where that speaks against it.
	heard time.Time
	// doubt is why the fault is more likely Kip's own; "" where it is not.
	doubt string
}

// lose ends a cell that is lost, if the gate lets it. It returns whether the cell
// ends. The cell may come back until the cloud has confirmed its end. Only then does
// the pod get another.
func (c *Controller) lose(ctx context.Context, e *entry, population int, s sign) bool {
	if why, _ := c.endingOf(e); why != "" {
		return true
	}
	cell := e.cell()
	end := c.endOf(cell, s.why)
	// Of a cell that runs no pod yet, nothing is lost that another launch does not give.
	end.Mistakable, end.Heard, end.Doubt = cell.Phase == apiv1.Bound && !s.sure, s.heard, s.doubt
	if !c.admit(ctx, e, end, population) {
		return false
	}
	if lacks(s.fault) { // what it could not serve after all is not asked for again at once
		c.cfg.Shortages.Mark(cell.Offer(), s.fault)
	}
	if errors.Is(s.fault, cloud.ErrUnfit) {
		c.heardNotStarted(cell, s.fault)
	}
	c.endFor(e, s.cause, s.why)
	return true
}

// admit asks the gate whether a cell may end. Where it holds the end back that is shown
// and told.
func (c *Controller) admit(ctx context.Context, e *entry, end gate.End, population int) bool {
	held, isHeld := errors.AsType[*gate.HeldError](c.cfg.Gate.Admit(ctx, end, population))
	if !isHeld {
		return true
	}
	c.mu.Lock()
	changed := e.held != held.Text
	e.held = held.Text
	tell := e.heldTold.is(string(held.Reason), c.cfg.Clock.Now())
	c.mu.Unlock()
	if tell {
		c.tellHeld(end, held)
	}
	if changed {
		c.showAgain(e)
	}
	return false
}

// showReleased takes back that the end of a cell is held back, where nobody wants it
// any more.
func (c *Controller) showReleased() {
	var released []*entry
	c.mu.Lock()
	for _, e := range c.cells {
		if e.held != "" && !c.cfg.Gate.Holds(e.cell().Instance.ID) {
			e.held, e.heldTold = "", news{}
			released = append(released, e)
		}
	}
	c.mu.Unlock()
	for _, e := range released {
		c.showAgain(e)
	}
}

// showAgain tells observers of a cell whose record is the same, and of which something
// else is to be shown. If its record is being changed they are told anyway.
func (c *Controller) showAgain(e *entry) {
	if e.writing.TryLock() {
		defer e.writing.Unlock()
		c.observers.CellChanged(*e.cell())
	}
}

// endFor ends a cell that is lost.
func (c *Controller) endFor(e *entry, cause Cause, why string) {
	c.mu.Lock()
	begun := e.beginEnd(cause, why)
	c.mu.Unlock()
	if begun {
		c.sayLost(e, why)
	}
}

// beginEnd has a cell end that is lost, from now on without any pod but its own, unless it ends
// already. The caller holds Controller.mu, and says it with sayLost when it does not.
func (e *entry) beginEnd(cause Cause, why string) bool {
	if e.ending != "" {
		return false
	}
	e.ending, e.cause, e.held = why, cause, ""
	return true
}

// sayLost says that a cell that is lost begins to end, and has it end.
func (c *Controller) sayLost(e *entry, why string) {
	c.report(e.cell(), events.NewCellLost(e.id, why))
	c.queue.Add(e.id)
}
