package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/store"
)

// outcome is what has become of a cell in its launch. Each phase of a launch returns those that it knows, and launching settles them.
type outcome struct {
	e       *entry
	verdict verdict
	answer  cloud.LaunchResult // its error is why the cell is not launched
	event   events.Event       // tells the owner of its pod, when the outcome is stored; zero for nothing
}

// outcomesOf returns the same outcome for some cells.
func outcomesOf(group []*entry, is verdict, err error) []*outcome {
	all := make([]*outcome, len(group))
	for n, e := range group {
		all[n] = &outcome{e: e, verdict: is, answer: cloud.LaunchResult{Err: err}}
	}
	return all
}

// verdict is the kind of an outcome.
type verdict string

const (
	isLaunched verdict = "launched"
	// There surely is no instance.
	isRefused    verdict = "refused"    // the next offering is tried
	isForbidden  verdict = "forbidden"  // Kip has no right to any offering
	isApart      verdict = "apart"      // it is to be launched by itself
	isTooMany    verdict = "too many"   // it is to be launched with fewer others
	isExpired    verdict = "expired"    // it is to be launched anew
	isStale      verdict = "stale"      // it is to be resolved and launched anew
	isUnfit      verdict = "unfit"      // it is to be resolved anew, and waits for the operator
	isUnlabelled verdict = "unlabelled" // it is to be launched without the labels of its pod
	// Nobody knows whether there is an instance.
	isAbandoned verdict = "abandoned" // the cell ends
	isOpen      verdict = "open"      // the call is to be sent again
	// The call was not stored with the cell. Its record stays as it is.
	isUnwanted   verdict = "unwanted"   // it is to end
	isUnresolved verdict = "unresolved" // it waits for another try
	isUnstored   verdict = "unstored"   // the store failed; the cell waits for another try
	isLeftOver   verdict = "left over"  // it did not fit into this call
)

// effect is what a verdict does to a cell.
type effect struct {
	// become makes of the cell's record what the verdict says, and returns what tells the owner of the cell's pod. If it is nil the record
	// stays as it is.
	become func(s *recording, cell *Cell, o *outcome, boosted bool) (events.Event, error)
	// keepsLaunch: an earlier launch of the cell may be stored, its answer lost.
	keepsLaunch bool
	// fails: the step of the cell has failed, with the outcome's error.
	fails bool
	// mayBeShort: the outcome's error may say that the cloud is short of the offering.
	mayBeShort bool
}

// effects has all verdicts.
var effects = map[verdict]effect{
	isLaunched:   {become: (*recording).setLaunched},
	isRefused:    {become: (*recording).refuse, mayBeShort: true},
	isForbidden:  {become: (*recording).forbid},
	isApart:      {become: (*recording).launchAnew},
	isTooMany:    {become: (*recording).launchAnew},
	isExpired:    {become: (*recording).launchAnew},
	isUnfit:      {become: (*recording).launchAnew},
	isStale:      {become: (*recording).resolveAnew},
	isUnlabelled: {become: (*recording).launchWithoutLabels},
	isAbandoned:  {become: (*recording).abandon, mayBeShort: true},
	isOpen:       {},
	isUnwanted:   {keepsLaunch: true},
	isUnresolved: {keepsLaunch: true},
	isUnstored:   {keepsLaunch: true, fails: true},
	isLeftOver:   {},
}

// changesRecord reports whether the cell's record changes by an outcome. That of an unknown verdict cannot be stored.
func (o *outcome) changesRecord() bool {
	if has, known := effects[o.verdict]; known && has.become == nil {
		return false
	}
	return o.e.cell().Phase != apiv1.Gone // such a cell has no record: its instance, if there is one, is seen without a cell
}

// recording stores what has become of cells in their launches.
type recording struct {
	loop      *loop
	records   *records
	budgets   *budgets
	events    *reporter
	shortages Shortages
}

// record stores the outcomes of some cells of a launch, all or none, and reports them. With the last of them the stored call goes.
func (s *recording) record(ctx context.Context, l *launch, some []*outcome) error {
	last := l.endsWith(some)
	some = slices.DeleteFunc(slices.Clone(some), func(o *outcome) bool { return !o.changesRecord() })
	if len(some) == 0 {
		return nil
	}
	group := make([]*entry, len(some))
	for n, o := range some {
		group[n] = o.e
	}
	var more []store.Change
	if l.revision != 0 && last {
		more = append(more, store.Change{Key: launchesPrefix + l.id, Revision: l.revision})
	}
	_, err := s.records.commitWith(ctx, group, func(n int, cell *Cell) (err error) {
		if cell.Phase != apiv1.Launching && l.isStored() { // an earlier write of this, whose answer was lost, was found meanwhile
			return errMoved
		}
		some[n].event, err = s.become(cell, some[n], l.boosted())
		return err
	}, more...)
	if err != nil && !errors.Is(err, errMoved) { // moved: an earlier write of the same worked
		return err
	}
	for _, o := range some {
		if o.event != (events.Event{}) {
			s.events.report(o.e.cell(), o.event)
		}
	}
	return nil
}

// become makes of a cell what its outcome says, and returns what tells the owner of its pod.
func (s *recording) become(cell *Cell, o *outcome, boosted bool) (events.Event, error) {
	has, known := effects[o.verdict]
	if !known {
		return events.Event{}, fmt.Errorf("store the outcome of the launch of cell %s: %q is no known verdict", cell.ID, o.verdict)
	}
	return has.become(s, cell, o, boosted)
}

// setLaunched notes the instance of a cell. boosted reports whether that starts with more CPU than it has afterwards.
func (s *recording) setLaunched(cell *Cell, o *outcome, boosted bool) (events.Event, error) {
	event, err := s.enterLaunched(cell, o.answer.Instance)
	if boosted {
		cell.step(apiv1.StepBoosted, s.loop.clock.Now())
	}
	return event, err
}

// enterLaunched has a cell boot that has an instance, or ends it if that has ended already.
func (s *recording) enterLaunched(cell *Cell, instance cloud.Instance) (events.Event, error) {
	offering := cell.Offering()
	cell.setInstance(instance, s.loop.clock.Now())
	cell.Reason, cell.Offerings, cell.Stale = offering.Reason, cell.Offerings[:1], false
	cell.step(apiv1.StepLaunched, s.loop.clock.Now())
	if instance.State == cloud.Terminating || instance.State == cloud.Gone {
		// A launch that is sent again is answered with what it once started.
		cell.Reason, cell.Token, cell.Cause = "instance "+instance.ID+" has ended before its launch was known", "", CauseLost
		if instance.Fault != nil {
			cell.Reason, cell.Cause = endedBy(instance.ID, instance.Fault), causeOf(instance.Fault)
		}
		cell.step(apiv1.StepEnded, s.loop.clock.Now())
		return events.NewCellLost(cell.ID, cell.Reason), cell.enter(apiv1.Terminating)
	}
	return events.NewCellLaunched(cell.ID, instance.ID, offering.String()), cell.enter(apiv1.Booting)
}

// maxRefusals is how many offerings in a row may be refused for what a cell itself asks for: a
// second one may differ in what the cloud found fault with, others will not.
const maxRefusals = 2

// refuse moves on a cell whose launch was refused.
func (s *recording) refuse(cell *Cell, o *outcome, _ bool) (events.Event, error) {
	cell.restoreLabels(o.answer.Err)
	return s.nextOrEnd(cell, o.answer.Err)
}

// forbid has a cell requested again to whose launch Kip had no right.
func (s *recording) forbid(cell *Cell, o *outcome, boosted bool) (events.Event, error) {
	cell.restoreLabels(o.answer.Err)
	return s.launchAnew(cell, o, boosted)
}

// nextOrEnd moves a cell that the cloud has surely not launched to its next offering,
// or to its end.
func (s *recording) nextOrEnd(cell *Cell, refusal error) (events.Event, error) {
	offering := cell.Offering()
	left := slices.DeleteFunc(slices.Clone(cell.Offerings[1:]), s.shortages.Unavailable)
	if unfitForType(refusal) {
		left = slices.DeleteFunc(left, func(o Offering) bool { return o.Arch == offering.Arch })
	}
	outOfCapacity := errors.Is(refusal, cloud.ErrCapacity)
	left, over := s.budgets.reserveNext(cell, left)
	cell.Launch, cell.Token, cell.Stale = nil, "", false // another offering is another launch
	if cell.Refusals++; !perhapsOfTheCell(cell, refusal) {
		cell.Refusals = 0
	}
	if over != nil {
		cell.Reason, cell.Cause = fmt.Sprintf("%s: %v; %v", offering, refusal, over), CauseNotLaunched
		cell.step(apiv1.StepTerminated, s.loop.clock.Now())
		return events.NewNextOverBudget(outOfCapacity, offering.String(), refusal, over), cell.enter(apiv1.Gone)
	}
	if len(left) == 0 || cell.Refusals >= maxRefusals || ofDisks(refusal) {
		cell.Reason, cell.Cause = fmt.Sprintf("%s: %v", offering, refusal), CauseNotLaunched
		cell.step(apiv1.StepTerminated, s.loop.clock.Now())
		said := events.NewNoOtherOffering(outOfCapacity, offering.String(), refusal)
		switch {
		case ofDisks(refusal):
			said = events.NewSameDiskElsewhere(outOfCapacity, offering.String(), refusal)
		case len(left) > 0:
			said = events.NewRequestAtFault(outOfCapacity, offering.String(), refusal)
		}
		return said, cell.enter(apiv1.Gone)
	}
	cell.Offerings, cell.Reason = left, left[0].Reason
	return events.NewNextOffering(outOfCapacity, offering.String(), refusal, left[0].String()), cell.enter(apiv1.Requested)
}

// launchAnew has a cell requested again: Kip had no right to its launch, the cell is to be launched by itself, the secret of its
// launch has expired, or the configuration does not fit, of which the next Resolve tells the pod.
func (s *recording) launchAnew(cell *Cell, _ *outcome, _ bool) (events.Event, error) {
	cell.Launch, cell.Token = nil, ""
	return events.Event{}, cell.enter(apiv1.Requested)
}

// launchWithoutLabels has a cell requested again, to be launched without labels as tags. They are written afterwards.
func (s *recording) launchWithoutLabels(cell *Cell, o *outcome, boosted bool) (events.Event, error) {
	cell.NoLabels = true
	return s.launchAnew(cell, o, boosted)
}

// resolveAnew has a cell requested again whose launch was resolved to what is not there any more. Where
// that comes again at once, the cloud shows what it does not find: the launch is refused.
func (s *recording) resolveAnew(cell *Cell, o *outcome, boosted bool) (events.Event, error) {
	err := o.answer.Err
	if cell.Stale {
		return s.nextOrEnd(cell, err)
	}
	cell.Stale = true
	offering := cell.Offering()
	_, failed := s.launchAnew(cell, o, boosted)
	return events.NewLaunchPreparedAgain(offering.String(), err), failed
}

// abandon ends a cell of which nobody knows whether it has an instance.
func (s *recording) abandon(cell *Cell, o *outcome, _ bool) (events.Event, error) {
	err := o.answer.Err
	cell.Reason, cell.Token, cell.Cause = fmt.Sprintf("%s: %v", cell.Offering(), err), "", CauseNotLaunched
	cell.step(apiv1.StepEnded, s.loop.clock.Now())
	return events.NewLaunchAbandoned(cell.Offering().String(), err), cell.enter(apiv1.Terminating)
}
