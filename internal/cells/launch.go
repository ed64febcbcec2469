package cells

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/pulse"
	"github.com/elotl/kip/internal/store"
	"sigs.k8s.io/yaml"
)

const (
	// callTimeout bounds what waits for a call to the cloud, where that is not to wait
	// for the budget for ever.
	callTimeout = pipe.Timeout
	// A launch whose outcome stays unknown is given up after both, and so is one that
	// cannot be resolved: the cloud cannot say what is wrong with this offering, and
	// another may work.
	giveUpTries = 5
	giveUpAfter = time.Minute
	// giveUpUnknown is after how long a stored launch of a later Kip is given up.
	giveUpUnknown = 5 * time.Minute
	// Between two tries of a launch.
	firstRetry, longestRetry = 200 * time.Millisecond, 15 * time.Second
)

// launchesPrefix is where the calls are stored whose outcome is not known yet.
const launchesPrefix = "launches/"

// launchVersion is the latest of launchRecord. A Kip that does not know a record's version
// sends nothing of it: it would drop what it does not know, and send another call. After a while it gives the launch up:
// an instance of it is found by its tags, and ended.
const launchVersion = 3

// versionOf is the first version in which Kips know all of a call.
func versionOf(r cloud.LaunchRequest) int {
	to := r.Resolved
	switch {
	case to != nil && (to.SecondaryAddress || len(to.Tags) > 0 || to.Key != "" || to.CPUCredits != "" || to.Boosted):
		return launchVersion
	case r.Shared():
		return 2
	}
	return 1
}

// launchRecord is a call to the cloud, whole: whatever the configuration says by
// then, what is sent again is this.
type launchRecord struct {
	Version int                 `json:"version"`
	Request cloud.LaunchRequest `json:"request"`
	// Until is when the secret expires that the machines share: the call is sent no
	// more, and goes. Zero where they share none.
	Until time.Time `json:"until,omitzero"`
}

// errExpired: the machines of the launch share a secret that is too old to join with.
var errExpired = errors.New("the secret of the launch has expired")

// launch is a stored call that is under way.
type launch struct {
	id       string
	request  cloud.LaunchRequest
	until    time.Time // as in its record
	revision int64     // of its record; 0 where there is none
	// group are the cells by their place in the request; nil where the outcome is
	// known already.
	group []*entry
	// unstored says that there is no record of it, and that its cells are Requested still.
	unstored bool
}

// open returns the places whose outcome is not known.
func (l *launch) open() (places []int) {
	for n, e := range l.group {
		if e != nil {
			places = append(places, n)
		}
	}
	return places
}

func (l *launch) entries(places []int) []*entry {
	all := make([]*entry, len(places))
	for i, n := range places {
		all[i] = l.group[n]
	}
	return all
}

// launchAll launches what waits until ctx ends.
func (c *Controller) launchAll(ctx context.Context) {
	for c.launches.wait(ctx) {
		c.cfg.Pulse.Turn(ctx, "launches", c.launchNext)
	}
}

// launchNext stores the intent to launch cells of the same offering, in one call, and
// sends it. A call's turn is waited for before the call is stored: until then others
// may come along.
func (c *Controller) launchNext(ctx context.Context) {
	turn, err := c.cfg.Calls.Turn(ctx, cloud.CallLaunch, 1)
	if err != nil {
		return // ctx has ended
	}
	if !c.launches.full(c.atMost()) && !turn.Gather(ctx) {
		turn.Cancel()
		return
	}
	group := c.launches.next(c.atMost(), func(n int) int { return max(1, turn.Resources(n)) })
	group = c.wanted(group)
	switch resolver := c.cfg.Calls.Features().Resolver; {
	case len(group) == 0:
		turn.Cancel()
	case resolver == nil:
		c.launchGroup(ctx, group, nil, turn)
	default: // the cloud's answer holds up nobody else
		c.inTurn(ctx, "launch", func(ctx context.Context) { c.prepare(ctx, resolver, group, turn) })
	}
}

// wanted are those of a group that need not end. The others are given back.
func (c *Controller) wanted(group []*entry) []*entry {
	return slices.DeleteFunc(group, func(e *entry) bool {
		why, _ := c.endingOf(e)
		if why != "" {
			c.giveTurnBack(e)
			c.landed(e)
		}
		return why != ""
	})
}

// apartFor is how long cells are launched one by one where there was no room for several, and
// fewer at once when the cloud had not let as many pass.
const apartFor = 10 * time.Minute

// location is where machines are launched; the zero one is everywhere.
type location struct{ zone, subnet string }

// fewer is how many cells one call may launch, and until when.
type fewer struct {
	most  int
	until time.Time
}

// setApart notes where cells are to be launched one by one, and that fewer are to be launched
// at once.
func (c *Controller) setApart(o Offer, cells int, verdicts map[int]verdict) {
	until := c.cfg.Clock.Now().Add(apartFor)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range verdicts {
		switch v {
		case isApart:
			c.apart[location{o.Zone, o.Subnet}] = fewer{1, until}
		case isTooMany:
			most := cells / 2
			if already, is := c.apart[location{}]; is { // calls that were under way had more
				most = min(most, already.most)
			}
			c.apart[location{}] = fewer{max(1, most), until}
			return // they are all so
		}
	}
}

// atMost says how many cells of an offering one call may launch now.
func (c *Controller) atMost() func(offering) int {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.apart, func(_ location, f fewer) bool { return !now.Before(f.until) })
	apart := maps.Clone(c.apart)
	return func(o offering) int {
		most := cloud.MaxLaunch
		for _, l := range []location{{}, {o.zone, o.subnet}} {
			if f, is := apart[l]; is {
				most = min(most, f.most)
			}
		}
		return most
	}
}

// launchGroup stores the intent to launch a group, in as many calls as the store
// takes at a time, and sends them, the first in the turn that it is given. resolved is
// what the cloud has resolved it to; nil where it resolves nothing.
func (c *Controller) launchGroup(ctx context.Context, group []*entry, resolved *cloud.Resolved, turn *pipe.Turn) {
	l, err := c.storeLaunch(ctx, group, resolved)
	if errors.Is(err, store.ErrTooBig) && len(group) > 1 {
		c.launchGroup(ctx, group[:len(group)/2], resolved, turn)
		rest := group[len(group)/2:]
		if turn, err = c.cfg.Calls.Turn(ctx, cloud.CallLaunch, len(rest)); err != nil {
			return // ctx has ended
		}
		turn.Resources(len(rest))
		c.launchGroup(ctx, rest, resolved, turn)
		return
	}
	if err != nil {
		turn.Cancel()
		for _, e := range group {
			c.mu.Lock()
			e.launching = false
			c.mu.Unlock()
			c.again(e, err)
		}
		return
	}
	c.inTurn(ctx, "launch", func(ctx context.Context) { c.send(ctx, l, turn) })
}

// storeLaunch makes a call and stores it with the cells that it launches, all in one
// transaction.
func (c *Controller) storeLaunch(ctx context.Context, group []*entry, resolved *cloud.Resolved) (*launch, error) {
	intent := Launch{
		ID:        newID("launch-"),
		Cells:     len(group),
		NameTag:   c.cfg.NameTag,
		Shared:    c.cfg.Calls.Traits().SharedUserData,
		CloudInit: c.cloudInit(),
		Agent:     c.cfg.Agent,

		PublicAddress: resolved != nil && resolved.PublicAddress,
	}
	var secret pki.BatchSecret
	var stored launchRecord
	if intent.Shared {
		secret = pki.NewBatchSecret()
		stored.Until = c.cfg.Clock.Now().Add(group[0].cell().Offer().BootTimeout)
	}
	cells := make([]Cell, len(group))
	for n, e := range group {
		own := intent
		own.Index = n
		cells[n] = e.cell().clone()
		cells[n].Launch, cells[n].CA, cells[n].OldCA = &own, c.cfg.CAHash, ""
		cells[n].Template = c.template(intent.CloudInit)
		token := pki.NewToken()
		if intent.Shared {
			token = secret.Token(cells[n].JoinID())
		}
		cells[n].Token = token.Reveal()
	}
	labelled := intent.Shared && len(commonLabels(cells)) > 0
	for n := range cells {
		cells[n].Launch.Labelled = labelled
	}
	var err error
	if stored.Request, err = c.launchRequest(cells, secret); err != nil {
		return nil, err
	}
	stored.Request.Resolved = resolved
	if resolved != nil {
		cloud.DropConfigured(stored.Request.Tags, resolved.Tags)
	}
	stored.Version = versionOf(stored.Request)
	var revision int64
	err = c.lineage.launch(ctx, func(tag string, raised store.Change) (int64, error) {
		stored.Request.Tags[cloud.TagGeneration] = tag
		record := store.Change{Key: launchesPrefix + intent.ID, Value: stored}
		revision, err = c.commitWith(ctx, group, func(n int, cell *Cell) error {
			// Not before: an earlier launch of the cell may be stored, its answer lost,
			// and a member of that one waits for this cell by its ID.
			c.mu.Lock()
			group[n].launch = intent.ID
			c.mu.Unlock()
			cell.Launch, cell.Token, cell.CA, cell.OldCA = cells[n].Launch, cells[n].Token, cells[n].CA, ""
			cell.Template = cells[n].Template
			return cell.enter(apiv1.Launching)
		}, record, raised)
		return revision, err
	})
	if err != nil {
		return nil, err
	}
	return &launch{
		id:       intent.ID,
		request:  stored.Request,
		until:    stored.Until,
		revision: revision,
		group:    group,
	}, nil
}

// inTurn does something in a turn of its own, which outlives the one that began it.
func (c *Controller) inTurn(ctx context.Context, name string, do func(context.Context)) {
	c.running.Go(func() { c.cfg.Pulse.Turn(ctx, name, do) })
}

// landed gives cells that were being launched back to their workers.
func (c *Controller) landed(entries ...*entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		e.launching, e.launch = false, ""
		c.queue.Add(e.id)
	}
}

// resume sends a stored launch that nobody in this process is sending: an earlier
// Kip may have sent it, or not.
func (c *Controller) resume(ctx context.Context, e *entry) (time.Duration, error) {
	intent := e.cell().Launch
	if intent == nil {
		return 0, fmt.Errorf("cell %s is %s and its record has no launch", e.id, e.cell().Phase)
	}
	// The cloud may have forgotten the token by now, and launch it a second time.
	if why, _ := c.Behind(); why != "" {
		return time.Second, nil
	}
	l := &launch{id: intent.ID, group: make([]*entry, intent.Cells)}
	var stored launchRecord
	var unknown error
	revision, err := c.cfg.Store.Get(ctx, launchesPrefix+intent.ID, &stored)
	if err != nil {
		return 0, err
	}
	switch {
	case revision == 0:
		if err := c.unresolved(ctx, e, intent.ID); err != nil {
			return 0, err
		}
	case stored.Version < 1 || stored.Version > launchVersion || len(stored.Request.Machines) != intent.Cells:
		unknown = fmt.Errorf("the stored launch %s has version %d and %d machines: this Kip knows versions up to %d, and its cells are %d",
			intent.ID, stored.Version, len(stored.Request.Machines), launchVersion, intent.Cells)
		// The Kip that knows it may lead again soon.
		if now := c.cfg.Clock.Now(); e.resolving.failed == 0 || now.Sub(e.resolving.began) < giveUpUnknown {
			e.resolving.fail(now, unknown, c.cfg.Random)
			return 0, unknown
		}
		l.revision = revision
	default:
		l.request, l.until, l.revision = stored.Request, stored.Until, revision
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.cells {
		cell := other.cell()
		if cell.Launch == nil || cell.Launch.ID != intent.ID || cell.Phase != apiv1.Launching {
			if other.launch == intent.ID {
				// It was stored with this one, and does not know that yet: without it
				// the outcome of its machine would be nobody's.
				return time.Second, nil
			}
			continue
		}
		if other.launching {
			return 0, nil // being sent
		}
		l.group[cell.Launch.Index] = other
	}
	if l.group[intent.Index] == nil {
		return 0, errMoved // its outcome was stored meanwhile
	}
	if l.group[intent.Index] != e {
		return 0, fmt.Errorf("two cells have place %d of launch %s", intent.Index, intent.ID)
	}
	if revision == 0 {
		if l.request, err = c.remadeRequest(l); err != nil {
			c.inTurn(ctx, "launch", func(ctx context.Context) { c.abandon(ctx, &launch{group: []*entry{e}}, err) })
			e.launching = true
			return 0, nil
		}
	}
	for _, n := range l.open() {
		l.group[n].launching = true
	}
	if unknown != nil {
		c.inTurn(ctx, "launch", func(ctx context.Context) { c.abandon(ctx, l, unknown) })
		return 0, nil
	}
	c.inTurn(ctx, "launch", func(ctx context.Context) { c.send(ctx, l, nil) })
	return 0, nil
}

// unresolved says that a launch whose call is not stored has no stored outcome either: a
// call goes with the write of its outcomes. If this Kip wrote them, the error is errMoved;
// store.ErrConflict if one did that has followed it.
func (c *Controller) unresolved(ctx context.Context, e *entry, launch string) error {
	lockWriting(ctx, e)
	defer e.writing.Unlock()
	if err := c.settle(ctx, e); err != nil {
		return err
	}
	waits := func(cell *Cell) bool {
		return cell.Phase == apiv1.Launching && cell.Launch != nil && cell.Launch.ID == launch
	}
	if !waits(e.cell()) {
		return errMoved
	}
	var stored Cell
	if _, err := c.cfg.Store.Get(ctx, keyPrefix+e.id, &stored); err != nil {
		return err
	}
	if !waits(&stored) {
		return fmt.Errorf("read back cell %s: %w", e.id, store.ErrConflict)
	}
	return nil
}

// abandon gives up a launch that cannot be sent again, for those of its cells that are open.
func (c *Controller) abandon(ctx context.Context, l *launch, why error) {
	defer func() { c.landed(l.entries(l.open())...) }()
	verdicts := map[int]verdict{}
	for _, n := range l.open() {
		verdicts[n] = isAbandoned
	}
	c.resolve(ctx, l, l.open(), verdicts, cloud.NotLaunched(len(l.group), why))
}

// remadeRequest is the call of a launch that is stored without it, as Kips before
// did: made of the cells' records, as those made it.
func (c *Controller) remadeRequest(l *launch) (cloud.LaunchRequest, error) {
	cells := make([]Cell, len(l.group))
	for n, e := range l.group {
		if e == nil {
			return cloud.LaunchRequest{}, fmt.Errorf("cell %d of %d of launch %s has no record", n, len(l.group), l.id)
		}
		cells[n] = *e.cell()
	}
	if cells[0].Launch.Shared {
		return cloud.LaunchRequest{}, fmt.Errorf("the call of launch %s is lost, and with it the secret that its machines share", l.id)
	}
	r, err := c.launchRequest(cells, pki.BatchSecret{})
	r.Token = offerToken(c.cfg.ControllerID, cells[0].Launch.ID, cells[0].Launch.Cells, cells[0].Offer())
	r.RootDiskBytes = 0 // which they did not ask for
	for n := range r.Machines {
		r.Machines[n].Tags = ownTags(cells[n]) // they did not write labels
	}
	return r, err
}

// verdict is what the answer to a launch means for one cell.
type verdict string

const (
	isLaunched  verdict = "launched"
	isRefused   verdict = "refused"   // there surely is no instance: the next offer
	isForbidden verdict = "forbidden" // there surely is none, nor of any other offer
	isApart     verdict = "apart"     // there surely is none: it is to be launched by itself
	isTooMany   verdict = "too many"  // there surely is none: it is to be launched with fewer others
	isExpired   verdict = "expired"   // there surely is none: it is to be launched anew
	isStale     verdict = "stale"     // there surely is none: it is to be resolved and launched anew
	isUnfit     verdict = "unfit"     // there surely is none: it is to be resolved anew, and waits for the operator
	// There surely is none: it is to be launched without the labels of its pods.
	isUnlabelled verdict = "unlabelled"
	isAbandoned  verdict = "abandoned" // nobody knows: it ends
	isOpen       verdict = "open"      // the call is to be sent again
)

// judge reads the answer for one machine. unsure says that an earlier call may have
// started it: what the cloud refuses now it may then have started all the same. several
// says that it was not launched by itself.
func judge(r cloud.LaunchResult, several, unsure, giveUp bool) verdict {
	switch {
	case r.Err == nil:
		return isLaunched
	case errors.Is(r.Err, errExpired) && !unsure:
		return isExpired
	case errors.Is(r.Err, errExpired):
		return isAbandoned
	case cloud.Refused(r.Err) && !unsure && errors.Is(r.Err, cloud.ErrUnauthorised) && !denied(r.Err):
		return isForbidden
	case cloud.Refused(r.Err) && !unsure && several && errors.Is(r.Err, cloud.ErrTogether):
		return isApart
	case cloud.Refused(r.Err) && !unsure && errors.Is(r.Err, cloud.ErrStale):
		return isStale
	case cloud.Refused(r.Err) && !unsure:
		return isRefused
	case cloud.Refused(r.Err), errors.Is(r.Err, cloud.ErrMismatch), giveUp && !errors.Is(r.Err, cloud.ErrThrottled):
		return isAbandoned
	}
	return isOpen
}

// throttledTries is how often in a row a launch of several is throttled before it is made in
// smaller ones: the cloud may have tokens for few machines only, since others take them as they
// come, or it never has as many, and the call would wait for ever. Where requests are what is
// short, the first tries pass.
const throttledTries = 3

// throttledTries is one where that has just been so: each of these answers makes the next wait longer.
func (c *Controller) throttledTries() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, is := c.apart[location{}]; is && c.cfg.Clock.Now().Before(f.until) {
		return 1
	}
	return throttledTries
}

// send sends a stored launch until the outcome of each machine is known and
// stored. Whether an earlier call with it worked or not, the same token leads to the
// same instances; so cells that must end are launched all the same, to learn what
// there is to terminate. turn is the one of the first call; nil where an earlier Kip
// may have made a call, whose outcome is unknown.
func (c *Controller) send(ctx context.Context, l *launch, turn *pipe.Turn) {
	defer func() { c.landed(l.entries(l.open())...) }()
	offer := l.group[l.open()[0]].cell().Offer()
	unsure := make([]bool, len(l.group))
	for n := range unsure {
		unsure[n] = turn == nil
	}
	began := c.cfg.Clock.Now()
	cooled, throttled := false, 0
	for try := 1; ; try++ {
		results := c.call(ctx, l, turn)
		turn = nil
		if ctx.Err() != nil {
			return
		}
		// A launch without labels tells whose fault it is.
		labels := l.labelled() && slices.ContainsFunc(results, func(r cloud.LaunchResult) bool { return mayBeLabels(r.Err) })
		if !labels {
			c.heardOfRights(offer.offering(), results)
		}
		if throttled++; slices.ContainsFunc(results, func(r cloud.LaunchResult) bool { return !errors.Is(r.Err, cloud.ErrThrottled) }) {
			throttled = 0
		}
		bounded := c.cfg.Calls.Traits().Budgets[cloud.CallLaunch].Resources != cloud.Bucket{}
		tooMany := bounded && len(l.group) > 1 && throttled >= c.throttledTries()
		verdicts := map[int]verdict{}
		var known []int
		var failed error
		for _, n := range l.open() {
			verdicts[n] = judge(results[n], len(l.group) > 1, unsure[n], try >= giveUpTries && c.cfg.Clock.Since(began) >= giveUpAfter)
			if labels && (verdicts[n] == isRefused || verdicts[n] == isForbidden) && mayBeLabels(results[n].Err) {
				verdicts[n] = isUnlabelled
				c.looksAgain(l.group[n])
			}
			if verdicts[n] == isOpen && tooMany && !unsure[n] && cloud.NothingDone(results[n].Err) {
				verdicts[n] = isTooMany
			}
			if verdicts[n] == isOpen && !unsure[n] && errors.Is(results[n].Err, cloud.ErrUnfit) {
				verdicts[n] = isUnfit
			}
			if verdicts[n] != isOpen {
				known = append(known, n)
				continue
			}
			unsure[n] = unsure[n] || !cloud.NothingDone(results[n].Err)
			failed = results[n].Err
		}
		c.cool(offer, l, known, verdicts, results)
		if errors.Is(failed, cloud.ErrUnexplained) && !cooled {
			// This call has to be sent again, whatever it was. Others need not meet the same.
			cooled = true
			c.cfg.Shortages.Mark(offer, failed)
		}
		c.setApart(offer, len(l.group), verdicts)
		if len(known) > 0 && !c.resolve(ctx, l, known, verdicts, results) {
			return
		}
		left := l.open()
		if len(left) == 0 {
			return
		}
		if try == 1 {
			for _, e := range l.entries(left) {
				c.warn(e.cell(), events.LaunchDelayed, "%s: %v; retrying", offer, failed)
			}
		}
		c.cfg.Log.Warn("launch cells, retrying", "offer", offer.String(), "cells", len(left), "try", try, "err", failed)
		pause := max(c.cfg.Random.After(try, firstRetry, longestRetry), retryAfter(failed))
		if !l.until.IsZero() {
			pause = min(pause, max(0, l.until.Sub(c.cfg.Clock.Now())))
		}
		if !c.sleep(ctx, pause) {
			return
		}
	}
}

// call sends a launch once, in a turn, or waits for one. It is not sent any more when
// the secret that its machines share has expired.
func (c *Controller) call(ctx context.Context, l *launch, turn *pipe.Turn) cloud.LaunchResults {
	expired := cloud.NotLaunched(len(l.group), errExpired)
	if turn == nil {
		wait, cancel := ctx, func() {}
		if !l.until.IsZero() {
			wait, cancel = context.WithTimeout(ctx, l.until.Sub(c.cfg.Clock.Now()))
		}
		var err error
		turn, err = c.cfg.Calls.Turn(wait, cloud.CallLaunch, len(l.group))
		cancel()
		if err != nil {
			return expired // or ctx has ended, and nobody reads this
		}
		turn.Resources(len(l.group))
	}
	if !l.until.IsZero() && !c.cfg.Clock.Now().Before(l.until) {
		turn.Cancel()
		return expired
	}
	return complete(turn.Launch(ctx, l.request), l)
}

// complete sees to it that there is a result for each machine, and in each without
// an error an instance, which is at its place where the machines share their user data:
// it joins as the cell of that place, and of no other.
func complete(results cloud.LaunchResults, l *launch) cloud.LaunchResults {
	if n := len(l.group); len(results) != n {
		err := fmt.Errorf("the cloud answered a launch of %d with %d results", n, len(results))
		return cloud.NotLaunched(n, errors.Join(err, results.Err()))
	}
	for n, r := range results {
		switch {
		case r.Err != nil:
		case r.Instance.ID == "":
			results[n].Err = errors.New("the cloud answered with an instance without an ID")
		case l.request.Shared() && r.Instance.Place != cloud.PlaceOf(n):
			results[n].Err = fmt.Errorf("the cloud answered with instance %s at place %q: want place %d", r.Instance.ID, r.Instance.Place, n)
		}
	}
	return results
}

// longestRetryAfter bounds what a cloud may ask for between two tries of a launch.
const longestRetryAfter = time.Minute

// retryAfter is when a cloud says that a call is worth trying again; 0 if it does
// not.
func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		return min(e.RetryAfter, longestRetryAfter)
	}
	return 0
}

// cool tells of what the cloud did not serve, each cause once.
func (c *Controller) cool(offer Offer, l *launch, known []int, verdicts map[int]verdict, results cloud.LaunchResults) {
	told := map[string]bool{}
	for _, n := range known {
		err := results[n].Err
		fault := results[n].Instance.Fault
		if verdicts[n] == isLaunched && errors.Is(fault, cloud.ErrUnfit) {
			c.heardNotStarted(l.group[n].cell(), fault)
		}
		if verdicts[n] == isLaunched && lacks(fault) {
			err = fault
		} else if v := verdicts[n]; v != isRefused && v != isAbandoned {
			continue
		}
		// These say nothing of what the cloud has.
		if errors.Is(err, cloud.ErrMismatch) || errors.Is(err, cloud.ErrUnauthorised) && !denied(err) || errors.Is(err, errExpired) ||
			errors.Is(err, cloud.ErrStale) || errors.Is(err, cloud.ErrNotYet) || errors.Is(err, cloud.ErrUnfit) || ofDisks(err) ||
			ofTheCell(l.group[n].cell(), err) || told[err.Error()] {
			continue
		}
		told[err.Error()] = true
		c.cfg.Shortages.Mark(offer, err)
	}
}

// maxRefusals is how many offers in a row may be refused for what a cell itself asks for: a
// second one may differ in what the cloud found fault with, others will not.
const maxRefusals = 2

// perhapsOfTheCell says that besides of what the cloud refuses for a reason that nobody knows, so that
// a pod that is at fault itself does not go on to cool one offer after the other.
func perhapsOfTheCell(cell *Cell, err error) bool {
	return ofTheCell(cell, err) || cell.Special && errors.Is(err, cloud.ErrUnexplained)
}

// ofTheCell says that the cloud found fault with what a cell's pod asks for, and not with what
// it has: others may be launched as the same offer. A pod that asks for nothing of its own
// is not at fault.
func ofTheCell(cell *Cell, err error) bool {
	return cell.Special && cloud.Refused(err) && !errors.Is(err, cloud.ErrCapacity) && !errors.Is(err, cloud.ErrQuota) &&
		!errors.Is(err, cloud.ErrUnauthorised) && !errors.Is(err, cloud.ErrUnexplained) && !cloud.ScopeOf(err).Says()
}

// ofDisks reports whether the account lacks room for the cell's disk. No other offer has more, and no offer
// is short: other cells may have smaller disks.
func ofDisks(err error) bool { return cloud.ScopeOf(err).Disks }

// sleep returns false when ctx ends.
func (c *Controller) sleep(ctx context.Context, d time.Duration) bool {
	defer pulse.Wait(ctx, pulse.Time)()
	select {
	case <-ctx.Done():
		return false
	case <-c.cfg.Clock.After(d):
		return true
	}
}

// resolve stores what became of some cells of a launch, for as long as it takes:
// nobody else knows it. With the last of them the stored call goes. It returns
// false if that could not be done.
func (c *Controller) resolve(ctx context.Context, l *launch, known []int, verdicts map[int]verdict, results cloud.LaunchResults) bool {
	// A cell that is gone needs none: its instance, if there is one, is seen without a
	// cell.
	known = slices.DeleteFunc(slices.Clone(known), func(n int) bool {
		gone := l.group[n].cell().Phase == apiv1.Gone
		if gone {
			c.landed(l.group[n])
			l.group[n] = nil
		}
		return gone
	})
	if len(known) == 0 {
		return true
	}
	group := l.entries(known)
	outcomes := make([]events.Event, len(group))
	var more []store.Change
	if l.revision != 0 && len(known) == len(l.open()) {
		more = append(more, store.Change{Key: launchesPrefix + l.id, Revision: l.revision})
	}
	for try := 1; ; try++ {
		_, err := c.commitWith(ctx, group, func(i int, cell *Cell) (err error) {
			if cell.Phase != apiv1.Launching && !l.unstored { // an earlier write of this, whose answer was lost, was found meanwhile
				return errMoved
			}
			n := known[i]
			switch verdicts[n] {
			case isLaunched:
				outcomes[i], err = c.launched(cell, results[n].Instance)
				if l.boosted() {
					cell.step(apiv1.StepBoosted, c.cfg.Clock.Now())
				}
			case isRefused:
				cell.withoutLabelsRefused(results[n].Err)
				outcomes[i], err = c.refused(cell, results[n].Err)
			case isForbidden:
				cell.withoutLabelsRefused(results[n].Err)
				outcomes[i], err = c.takenBack(cell)
			case isApart, isTooMany, isExpired, isUnfit:
				outcomes[i], err = c.takenBack(cell)
			case isUnlabelled:
				outcomes[i], err = c.withoutLabels(cell)
			case isStale:
				outcomes[i], err = c.stale(cell, results[n].Err)
			default:
				outcomes[i], err = c.abandoned(cell, results[n].Err)
			}
			return err
		}, more...)
		switch {
		case err == nil, errors.Is(err, errMoved): // an earlier commit of the same worked
			for _, n := range known {
				l.group[n] = nil
			}
			c.landed(group...)
			for i, e := range group {
				if outcomes[i] != (events.Event{}) {
					c.report(e.cell(), outcomes[i])
				}
			}
			return true
		case refusedWrite(err):
			c.fail(err)
			return false
		case errors.Is(err, store.ErrTooBig) && len(known) > 1:
			half := len(known) / 2
			return c.resolve(ctx, l, known[:half], verdicts, results) && c.resolve(ctx, l, known[half:], verdicts, results)
		case errors.Is(err, errGone):
			return c.resolve(ctx, l, known, verdicts, results)
		}
		c.cfg.Log.Warn("store the outcome of a launch, retrying", "cell", group[0].id, "cells", len(group), "err", err)
		if !c.sleep(ctx, c.cfg.Random.After(try, firstRetry, longestRetry)) {
			return false
		}
	}
}

func (c *Controller) launched(cell *Cell, instance cloud.Instance) (events.Event, error) {
	offer := cell.Offer()
	cell.take(instance, c.cfg.Clock.Now())
	cell.Reason, cell.Offers, cell.Stale = offer.Reason, cell.Offers[:1], false
	cell.step(apiv1.StepLaunched, c.cfg.Clock.Now())
	if instance.State == cloud.Terminating || instance.State == cloud.Gone {
		// A launch that is sent again is answered with what it once started.
		cell.Reason, cell.Token, cell.Cause = "instance "+instance.ID+" has ended before its launch was known", "", CauseLost
		if instance.Fault != nil {
			cell.Reason, cell.Cause = endedBy(instance.ID, instance.Fault), causeOf(instance.Fault)
		}
		cell.step(apiv1.StepEnded, c.cfg.Clock.Now())
		return events.NewCellLost(cell.ID, cell.Reason), cell.enter(apiv1.Terminating)
	}
	return events.NewCellLaunched(cell.ID, instance.ID, offer.String()), cell.enter(apiv1.Booting)
}

// refused moves a cell that the cloud has surely not launched to its next offer,
// or to its end.
func (c *Controller) refused(cell *Cell, refusal error) (events.Event, error) {
	offer := cell.Offer()
	left := slices.DeleteFunc(slices.Clone(cell.Offers[1:]), c.cfg.Shortages.Unavailable)
	if unfitForType(refusal) {
		left = slices.DeleteFunc(left, func(o Offer) bool { return o.Arch == offer.Arch })
	}
	reason := events.CellNotLaunched
	if errors.Is(refusal, cloud.ErrCapacity) {
		reason = events.NoCapacity
	}
	left, over := c.nextWithin(cell, left)
	cell.Launch, cell.Token, cell.Stale = nil, "", false // another offer is another launch
	if cell.Refusals++; !perhapsOfTheCell(cell, refusal) {
		cell.Refusals = 0
	}
	if over != nil {
		cell.Reason, cell.Cause = fmt.Sprintf("%s: %v; %v", offer, refusal, over), CauseNotLaunched
		cell.step(apiv1.StepTerminated, c.cfg.Clock.Now())
		return events.Event{Type: warning, Reason: reason, Message: cell.Reason}, cell.enter(apiv1.Gone)
	}
	if len(left) == 0 || cell.Refusals >= maxRefusals || ofDisks(refusal) {
		cell.Reason, cell.Cause = fmt.Sprintf("%s: %v", offer, refusal), CauseNotLaunched
		cell.step(apiv1.StepTerminated, c.cfg.Clock.Now())
		why := "; no other type fits now"
		switch {
		case ofDisks(refusal):
			why = "; other types need the same disk, so Kip tries again later"
		case len(left) > 0:
			why = "; other types are not tried, since the fault is in what is asked for"
		}
		return events.Event{Type: warning, Reason: reason, Message: cell.Reason + why}, cell.enter(apiv1.Gone)
	}
	cell.Offers, cell.Reason = left, left[0].Reason
	message := fmt.Sprintf("%s: %v; trying %s", offer, refusal, left[0])
	return events.Event{Type: warning, Reason: reason, Message: message}, cell.enter(apiv1.Requested)
}

// takenBack takes back the launch of a cell that Kip has no right to, which then waits
// until Kip may launch again, one that is to be launched by itself, one whose secret has
// expired, or one that the configuration does not fit, of which its next Resolve tells the pod.
func (c *Controller) takenBack(cell *Cell) (events.Event, error) {
	cell.Launch, cell.Token = nil, ""
	return events.Event{}, cell.enter(apiv1.Requested)
}

// abandoned ends a cell of which nobody knows whether it has an instance.
func (c *Controller) abandoned(cell *Cell, err error) (events.Event, error) {
	cell.Reason, cell.Token, cell.Cause = fmt.Sprintf("%s: %v", cell.Offer(), err), "", CauseNotLaunched
	cell.step(apiv1.StepEnded, c.cfg.Clock.Now())
	return events.Event{Type: warning, Reason: events.CellNotLaunched, Message: cell.Reason +
		"; it is given up, and another is tried when the cloud surely has no instance of it"}, cell.enter(apiv1.Terminating)
}

// launchSpec is what the cells of one offer and with the same options are launched as.
func (c *Controller) launchSpec(cell Cell, nameTag string) cloud.LaunchSpec {
	offer := cell.Offer()
	return cloud.LaunchSpec{
		InstanceType:  offer.InstanceType,
		Arch:          offer.Arch,
		Zone:          offer.Zone,
		Subnet:        offer.Subnet,
		Market:        offer.Market(),
		Reservation:   offer.Reservation,
		RootDiskBytes: offer.DiskBytes,
		Login:         c.cfg.CloudInit != nil && c.cfg.CloudInit.NeedsLogin(),
		Devices:       cell.needsDevices(),
		Options:       cell.Options,
		Tags:          map[string]string{cloud.TagOwner: c.cfg.ControllerID, cloud.TagNameTag: nameTag},
	}
}

// launchRequest is the call that launches cells of one offer and with the same
// options. The secret is that of machines that share their user data.
func (c *Controller) launchRequest(cells []Cell, secret pki.BatchSecret) (cloud.LaunchRequest, error) {
	first := cells[0]
	r := cloud.LaunchRequest{Token: first.launchToken(c.cfg.ControllerID), LaunchSpec: c.launchSpec(first, first.Launch.NameTag)}
	if first.Launch.Shared {
		maps.Copy(r.Tags, commonLabels(cells))
		r.Tags[cloud.TagBatch], r.Machines = first.Launch.ID, make([]cloud.Machine, len(cells))
		var err error
		r.UserData, err = userData(agentapi.BatchUserData{
			Version: agentapi.BatchVersion,
			Batch:   first.Launch.ID,
			CAHash:  c.caOf(&first),
			Secret:  secret.Reveal(),
		})
		return r, err
	}
	for _, cell := range cells {
		data, err := userData(agentapi.UserData{CellID: cell.ID, CAHash: c.caOf(&cell), Token: cell.Token})
		if err != nil {
			return r, err
		}
		r.Machines = append(r.Machines, cloud.Machine{UserData: data, Tags: tags(cell)})
	}
	return r, nil
}

// tags are those of one machine: the labels of its pod, and Kip's own.
func tags(cell Cell) map[string]string {
	tags := ownTags(cell)
	maps.Copy(tags, labelTags(&cell))
	return tags
}

func ownTags(cell Cell) map[string]string {
	tags := map[string]string{
		cloud.TagCell: cell.ID,
		cloud.TagName: "Kip cell " + cell.Launch.NameTag + " standby",
	}
	// A standby cell that is taken while its launch is unknown keeps the tags
	// that it was launched with: Pod is set no earlier than that is resolved.
	if cell.Pod.UID != "" {
		tags[cloud.TagNamespace], tags[cloud.TagPod], tags[cloud.TagPodUID] = cell.Pod.Namespace, cell.Pod.Name, string(cell.Pod.UID)
		tags[cloud.TagName] = "Kip cell " + cell.Launch.NameTag + " " + cell.Pod.Name
	}
	return tags
}

// userData renders what a machine is told when it is launched.
func userData[T agentapi.UserData | agentapi.BatchUserData](u T) ([]byte, error) {
	body, err := yaml.Marshal(map[string]T{"kip": u})
	if err != nil {
		return nil, fmt.Errorf("render user data: %w", err)
	}
	return append([]byte("#cloud-config\n"), body...), nil
}
