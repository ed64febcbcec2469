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

// outcomes store what has become of launches.
type outcomes struct {
	loop      *loop
	records   *records
	budgets   *budgets
	blockers  *blockers
	events    *reporter
	shortages Shortages
}

// reportShortages reports what the cloud did not serve, each cause once.
func (s *outcomes) reportShortages(offering Offering, l *launch, known []int, verdicts map[int]verdict, results cloud.LaunchResults) {
	told := map[string]bool{}
	for _, n := range known {
		err := results[n].Err
		fault := results[n].Instance.Fault
		if verdicts[n] == isLaunched && errors.Is(fault, cloud.ErrUnfit) {
			s.blockers.noteNotStarted(l.group[n].cell(), fault)
		}
		if verdicts[n] == isLaunched && isShortage(fault) {
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
		s.shortages.Mark(offering, err)
	}
}

// maxRefusals is how many offerings in a row may be refused for what a cell itself asks for: a
// second one may differ in what the cloud found fault with, others will not.
const maxRefusals = 2

// perhapsOfTheCell says that besides of what the cloud refuses for a reason that nobody knows, so that
// a pod that is at fault itself does not go on to cool one offering after the other.
func perhapsOfTheCell(cell *Cell, err error) bool {
	return ofTheCell(cell, err) || cell.Special && errors.Is(err, cloud.ErrUnexplained)
}

// ofTheCell says that the cloud found fault with what a cell's pod asks for, and not with what
// it has: others may be launched as the same offering. A pod that asks for nothing of its own
// is not at fault.
func ofTheCell(cell *Cell, err error) bool {
	return cell.Special && cloud.Refused(err) && !errors.Is(err, cloud.ErrCapacity) && !errors.Is(err, cloud.ErrQuota) &&
		!errors.Is(err, cloud.ErrUnauthorised) && !errors.Is(err, cloud.ErrUnexplained) && !cloud.ScopeOf(err).Says()
}

// ofDisks reports whether the account lacks room for the cell's disk. No other offering has more, and no offering
// is short: other cells may have smaller disks.
func ofDisks(err error) bool { return cloud.ScopeOf(err).Disks }

// store stores what became of some cells of a launch, for as long as it takes:
// nobody else knows it. With the last of them the stored call goes. It returns the cells of which
// nothing is left to be stored, but for those that it has given back before it stores others; the error is one for which nothing can go on.
func (s *outcomes) store(
	ctx context.Context, l *launch, known []int, verdicts map[int]verdict, results cloud.LaunchResults,
) (over []*entry, err error) {
	// A cell that is gone needs none: its instance, if there is one, is seen without a
	// cell.
	known = slices.DeleteFunc(slices.Clone(known), func(n int) bool {
		gone := l.group[n].cell().Phase == apiv1.Gone
		if gone {
			over = append(over, l.group[n])
			l.group[n] = nil
		}
		return gone
	})
	if len(known) == 0 {
		return over, nil
	}
	group := l.entries(known)
	outcomes := make([]events.Event, len(group))
	var more []store.Change
	if l.revision != 0 && len(known) == len(l.open()) {
		more = append(more, store.Change{Key: launchesPrefix + l.id, Revision: l.revision})
	}
	for try := 1; ; try++ {
		_, err := s.records.commitWith(ctx, group, func(i int, cell *Cell) (err error) {
			if cell.Phase != apiv1.Launching && !l.unstored { // an earlier write of this, whose answer was lost, was found meanwhile
				return errMoved
			}
			outcomes[i], err = s.become(cell, verdicts[known[i]], results[known[i]], l.boosted())
			return err
		}, more...)
		switch {
		case err == nil, errors.Is(err, errMoved): // an earlier commit of the same worked
			for _, n := range known {
				l.group[n] = nil
			}
			for i, e := range group {
				if outcomes[i] != (events.Event{}) {
					s.events.report(e.cell(), outcomes[i])
				}
			}
			return append(over, group...), nil
		case refusedWrite(err):
			return over, err
		case errors.Is(err, store.ErrTooBig) && len(known) > 1:
			half := len(known) / 2
			first, err := s.store(ctx, l, known[:half], verdicts, results)
			if err != nil {
				return append(over, first...), err
			}
			s.loop.giveBack(first...) // they do not wait for the others
			second, err := s.store(ctx, l, known[half:], verdicts, results)
			return append(over, second...), err
		case errors.Is(err, errGone):
			others, err := s.store(ctx, l, known, verdicts, results)
			return append(over, others...), err
		}
		s.loop.log.Warn("store the outcome of a launch, retrying", "cell", group[0].id, "cells", len(group), "err", err)
		if !s.loop.sleep(ctx, s.loop.random.After(try, firstRetry, longestRetry)) {
			return over, ctx.Err()
		}
	}
}

// become makes of a cell what the answer to its launch says, and returns what people are told.
func (s *outcomes) become(cell *Cell, v verdict, result cloud.LaunchResult, boosted bool) (events.Event, error) {
	switch v {
	case isLaunched:
		outcome, err := s.setLaunched(cell, result.Instance)
		if boosted {
			cell.step(apiv1.StepBoosted, s.loop.clock.Now())
		}
		return outcome, err
	case isRefused:
		cell.restoreLabels(result.Err)
		return s.nextOrEnd(cell, result.Err)
	case isForbidden:
		cell.restoreLabels(result.Err)
		return s.requestAgain(cell)
	case isApart, isTooMany, isExpired, isUnfit:
		return s.requestAgain(cell)
	case isUnlabelled:
		return s.requestWithoutLabels(cell)
	case isStale:
		return s.requestStale(cell, result.Err)
	default:
		return s.abandon(cell, result.Err)
	}
}

func (s *outcomes) setLaunched(cell *Cell, instance cloud.Instance) (events.Event, error) {
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

// nextOrEnd moves a cell that the cloud has surely not launched to its next offering,
// or to its end.
func (s *outcomes) nextOrEnd(cell *Cell, refusal error) (events.Event, error) {
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

// requestAgain has a cell requested again: Kip had no right to its launch, the cell is to be launched by itself, the secret of its
// launch has expired, or the configuration does not fit, of which the next Resolve tells the pod.
func (s *outcomes) requestAgain(cell *Cell) (events.Event, error) {
	cell.Launch, cell.Token = nil, ""
	return events.Event{}, cell.enter(apiv1.Requested)
}

// abandon ends a cell of which nobody knows whether it has an instance.
func (s *outcomes) abandon(cell *Cell, err error) (events.Event, error) {
	cell.Reason, cell.Token, cell.Cause = fmt.Sprintf("%s: %v", cell.Offering(), err), "", CauseNotLaunched
	cell.step(apiv1.StepEnded, s.loop.clock.Now())
	return events.NewLaunchAbandoned(cell.Offering().String(), err), cell.enter(apiv1.Terminating)
}

// requestStale has a cell requested again whose launch was resolved to what is not there any more. Where
// that comes again at once, the cloud shows what it does not find: the launch is refused.
func (s *outcomes) requestStale(cell *Cell, err error) (events.Event, error) {
	if cell.Stale {
		return s.nextOrEnd(cell, err)
	}
	cell.Stale = true
	offering := cell.Offering()
	_, failed := s.requestAgain(cell)
	return events.NewLaunchPreparedAgain(offering.String(), err), failed
}

// requestWithoutLabels has a cell requested again, to be launched without labels as tags. They are written afterwards.
func (s *outcomes) requestWithoutLabels(cell *Cell) (events.Event, error) {
	cell.NoLabels = true
	return s.requestAgain(cell)
}
