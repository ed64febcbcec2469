package cells

import (
	"errors"
	"slices"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// unresolved finds out what becomes of cells whose launch the cloud could not resolve.
type unresolved struct {
	loop     *loop
	rights   *rights
	answers  *launchAnswers
	blockers *blockers
	events   *reporter
	retries  *resolveRetries
}

// outcomes returns what has become of a group whose launch could not be resolved. A definite no counts as one to the launch itself.
// Anything else is tried again for as long as it takes: a cloud that does not answer is not short of this offering.
func (s *unresolved) outcomes(group []*entry, failure error) []*outcome {
	offering, results := group[0].cell().Offering(), cloud.NotLaunched(len(group), failure)
	as, waiting, refused := judge(results[0], false, false, false), []*entry(nil), group
	if as == isOpen {
		as = isRefused
		waiting, refused = byOtherArch(group, failure)
	} else if errors.Is(failure, cloud.ErrUnauthorised) {
		s.rights.noteAnswer(offering.Key(), results)
	}
	if len(waiting) > 0 {
		s.wait(waiting, failure)
	}
	for _, e := range refused {
		s.retries.restart(e) // the next offering is another question
	}
	known := outcomesOf(refused, as, failure)
	s.answers.learnShortages(offering, known)
	return append(known, outcomesOf(waiting, isUnresolved, failure)...)
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

// wait has a group wait until its launch is resolved once more, and reports that.
func (s *unresolved) wait(group []*entry, failure error) {
	offering, unfit := group[0].cell().Offering(), whyUnfit(failure)
	reason := events.LaunchDelayed
	if unfit != "" && !unfitForType(failure) {
		reason = events.CloudInitUnfit
	}
	if reason == events.LaunchDelayed {
		s.loop.log.Warn("resolve a launch, retrying", "offering", offering.String(), "cells", len(group), "err", failure)
	}
	for _, e := range group {
		failed := s.retries.fail(e, failure)
		switch {
		case unfit != "":
			s.blockers.report(e, unfit, reason, false)
		case failed == 1:
			s.events.report(e.cell(), events.NewLaunchDelayed(offering.String(), failure))
		}
	}
}
