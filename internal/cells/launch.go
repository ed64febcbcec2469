package cells

import (
	"context"
	"errors"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
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

// launching launches the cells that wait for it, in groups.
type launching struct {
	table       *table
	loop        *loop
	records     *records
	events      *reporter
	calls       *pipe.Pipe
	lineage     *lineage
	launchCalls *launchCalls
	recipe      *recipe
	rights      *rights
	blockers    *blockers
	outcomes    *outcomes
	sending     *sending
	sizes       *batchSizes
	authorities authorities
	queue       *launchQueue
}

// run launches what waits until ctx ends.
func (s *launching) run(ctx context.Context) {
	for s.queue.wait(ctx) {
		s.loop.pulse.Turn(ctx, "launches", s.launchNext)
	}
}

// launchNext stores the intent to launch cells of the same offering, in one call, and
// sends it. A call's turn is waited for before the call is stored: until then others
// may come along.
func (s *launching) launchNext(ctx context.Context) {
	turn, err := s.calls.Turn(ctx, cloud.CallLaunch, 1)
	if err != nil {
		return // ctx has ended
	}
	if !s.queue.full(s.sizes.atMost()) && !turn.Gather(ctx) {
		turn.Cancel()
		return
	}
	group := s.queue.next(s.sizes.atMost(), func(n int) int { return max(1, turn.Resources(n)) })
	group = s.wanted(group)
	switch resolver := s.calls.Features().Resolver; {
	case len(group) == 0:
		turn.Cancel()
	case resolver == nil:
		s.launchGroup(ctx, group, nil, turn)
	default: // the cloud's answer holds up nobody else
		s.loop.inTurn(ctx, "launch", func(ctx context.Context) { s.prepare(ctx, resolver, group, turn) })
	}
}

// wanted are those of a group that need not end. The others are given back.
func (s *launching) wanted(group []*entry) []*entry {
	return slices.DeleteFunc(group, func(e *entry) bool {
		why, _ := s.table.endingOf(e)
		if why != "" {
			s.rights.giveTurnBack(e)
			s.loop.landed(e)
		}
		return why != ""
	})
}

// launchGroup stores the intent to launch a group, in as many calls as the store
// takes at a time, and sends them, the first in the turn that it is given. resolved is
// what the cloud has resolved it to; nil where it resolves nothing.
func (s *launching) launchGroup(ctx context.Context, group []*entry, resolved *cloud.Resolved, turn *pipe.Turn) {
	l, err := s.store(ctx, group, resolved)
	if errors.Is(err, store.ErrTooBig) && len(group) > 1 {
		s.launchGroup(ctx, group[:len(group)/2], resolved, turn)
		rest := group[len(group)/2:]
		if turn, err = s.calls.Turn(ctx, cloud.CallLaunch, len(rest)); err != nil {
			return // ctx has ended
		}
		turn.Resources(len(rest))
		s.launchGroup(ctx, rest, resolved, turn)
		return
	}
	if err != nil {
		turn.Cancel()
		for _, e := range group {
			s.table.mu.Lock()
			e.launching = false
			s.table.mu.Unlock()
			s.loop.again(e, err)
		}
		return
	}
	s.loop.inTurn(ctx, "launch", func(ctx context.Context) { s.sending.send(ctx, l, turn) })
}

// store makes a call and stores it with the cells that it launches, all in one
// transaction.
func (s *launching) store(ctx context.Context, group []*entry, resolved *cloud.Resolved) (*launch, error) {
	intent := Launch{
		ID:        newID("launch-"),
		Cells:     len(group),
		NameTag:   s.recipe.nameTag,
		Shared:    s.calls.Traits().SharedUserData,
		CloudInit: s.recipe.digest(),
		Agent:     s.recipe.agent,

		PublicAddress: resolved != nil && resolved.PublicAddress,
	}
	var secret pki.BatchSecret
	stored := launchRecord{Version: launchVersion}
	if intent.Shared {
		secret = pki.NewBatchSecret()
		stored.Until = s.loop.clock.Now().Add(group[0].cell().Offering().BootTimeout)
	}
	cells := make([]Cell, len(group))
	for n, e := range group {
		own := intent
		own.Index = n
		cells[n] = e.cell().clone()
		cells[n].Launch, cells[n].CA, cells[n].OldCA = &own, s.authorities.now, ""
		cells[n].Template = s.recipe.template(intent.CloudInit)
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
	if stored.Request, err = s.launchCalls.launchRequest(cells, secret); err != nil {
		return nil, err
	}
	stored.Request.Resolved = resolved
	if resolved != nil {
		cloud.DropConfigured(stored.Request.Tags, resolved.Tags)
	}
	var revision int64
	err = s.lineage.launch(ctx, func(tag string, raised store.Change) (int64, error) {
		stored.Request.Tags[cloud.TagGeneration] = tag
		record := store.Change{Key: launchesPrefix + intent.ID, Value: stored}
		revision, err = s.records.commitWith(ctx, group, func(n int, cell *Cell) error {
			// Not before: an earlier launch of the cell may be stored, its answer lost,
			// and a member of that one waits for this cell by its ID.
			s.table.mu.Lock()
			group[n].launch = intent.ID
			s.table.mu.Unlock()
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
