package cells

import (
	"context"
	"errors"
	"slices"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// unresolved moves on cells whose launch the cloud could not resolve.
type unresolved struct {
	loop     *loop
	rights   *rights
	outcomes *outcomes
	blockers *blockers
	events   *reporter
}

// handle moves on a group whose launch could not be resolved: by a definite no as by one to
// the launch itself. Anything else is tried again for as long as it takes: a cloud that does not
// answer does not do so for this offering alone, and is no shortage of it.
func (s *unresolved) handle(ctx context.Context, group []*entry, failure error) {
	offering, results := group[0].cell().Offering(), cloud.NotLaunched(len(group), failure)
	is := judge(results[0], false, false, false)
	if is == isOpen {
		stay, others := byOtherArch(group, failure)
		if len(stay) > 0 {
			s.again(stay, failure)
		}
		if len(others) == 0 {
			return
		}
		group, results, is = others, cloud.NotLaunched(len(others), failure), isRefused
	}
	for _, e := range group {
		e.resolving = attempts{} // the next offering is another question
	}
	l := &launch{group: group, unstored: true}
	known := l.open()
	if errors.Is(failure, cloud.ErrUnauthorised) {
		s.rights.noteAnswer(keyOf(offering), results)
	}
	verdicts := map[int]verdict{}
	for _, n := range known {
		verdicts[n] = is
	}
	s.outcomes.reportShortages(offering, l, known, verdicts, results)
	s.outcomes.store(ctx, l, known, verdicts, results)
}

// byOtherArch parts a group whose configuration does not go together with its offering's type: those that may as
// well have a type of another architecture go on, the others stay.
func byOtherArch(group []*entry, failure error) (stay, others []*entry) {
	if !unfitForType(failure) {
		return group, nil
	}
	for _, e := range group {
		if cell := e.cell(); slices.ContainsFunc(cell.Offerings, func(o Offering) bool { return o.Arch != cell.Offering().Arch }) {
			others = append(others, e)
		} else {
			stay = append(stay, e)
		}
	}
	return stay, others
}

// again has a group wait until its launch is resolved once more.
func (s *unresolved) again(group []*entry, failure error) {
	offering, now, unfit := group[0].cell().Offering(), s.loop.clock.Now(), whyUnfit(failure)
	reason := events.LaunchDelayed
	if unfit != "" && !unfitForType(failure) {
		reason = events.CloudInitUnfit
	}
	if reason == events.LaunchDelayed {
		s.loop.log.Warn("resolve a launch, retrying", "offering", offering.String(), "cells", len(group), "err", failure)
	}
	for _, e := range group {
		e.resolving.fail(now, failure, s.loop.random)
		switch {
		case unfit != "":
			s.blockers.report(e, unfit, reason, false)
		case e.resolving.failed == 1:
			s.events.report(e.cell(), events.NewLaunchDelayed(offering.String(), failure))
		}
	}
	s.loop.landed(group...)
}
