package cells

import (
	"errors"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"k8s.io/utils/clock"
)

// launchAnswers reads what the cloud answers to launches.
type launchAnswers struct {
	clock     clock.PassiveClock
	calls     *pipe.Pipe
	sizes     *batchSizes
	rights    *rights
	blockers  *blockers
	shortages Shortages
}

// launchTries are the calls of one launch, as far as they were answered.
type launchTries struct {
	of        *launch
	offering  Offering
	began     time.Time
	tries     int
	failed    error  // of a cell that the last has left open
	unsure    []bool // by place: a call may have started the machine
	throttled int    // the last so many were, as a whole
	marked    bool   // the offering, since the cloud has not said why it fails
}

// begin returns the tries of a launch before the first.
func (s *launchAnswers) begin(l *launch) *launchTries {
	return &launchTries{
		of:       l,
		offering: l.open()[0].cell().Offering(),
		began:    s.clock.Now(),
		unsure:   slices.Repeat([]bool{l.sentBefore}, len(l.group)),
	}
}

// read takes the answers to a try, and returns the outcomes that are known by now.
func (s *launchAnswers) read(t *launchTries, results cloud.LaunchResults) (known []*outcome) {
	l := t.of
	t.tries++
	t.failed = nil
	// If they are at fault, a launch without them shows it.
	labels := l.labelled() && slices.ContainsFunc(results, func(r cloud.LaunchResult) bool { return mayBeLabels(r.Err) })
	if !labels {
		s.rights.noteAnswer(t.offering.Key(), results)
	}
	if t.throttled++; slices.ContainsFunc(results, func(r cloud.LaunchResult) bool { return !errors.Is(r.Err, cloud.ErrThrottled) }) {
		t.throttled = 0
	}
	bounded := s.calls.Capabilities().Budgets[cloud.CallLaunch].Resources != cloud.Bucket{}
	tooMany := bounded && len(l.group) > 1 && t.throttled >= s.sizes.throttledTries()
	giveUp := t.tries >= giveUpTries && s.clock.Since(t.began) >= giveUpAfter
	for n, e := range l.group {
		if e == nil {
			continue
		}
		err := results[n].Err
		is := judge(results[n], len(l.group) > 1, t.unsure[n], giveUp)
		switch {
		case labels && (is == isRefused || is == isForbidden) && mayBeLabels(err):
			is = isUnlabelled
		case is == isOpen && tooMany && !t.unsure[n] && cloud.NothingDone(err):
			is = isTooMany
		case is == isOpen && !t.unsure[n] && errors.Is(err, cloud.ErrUnfit):
			is = isUnfit
		}
		if is != isOpen {
			known = append(known, &outcome{e: e, verdict: is, answer: results[n]})
			continue
		}
		t.unsure[n] = t.unsure[n] || !cloud.NothingDone(err)
		t.failed = err
	}
	return known
}

// judge reads the answer for one machine. If unsure, an earlier call may have
// started it: what the cloud refuses now it may then have started all the same. several
// reports whether it was launched with others.
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

// learn notes what the answers to a try mean for other launches.
func (s *launchAnswers) learn(t *launchTries, known []*outcome) {
	s.learnShortages(t.offering, known)
	if errors.Is(t.failed, cloud.ErrUnexplained) && !t.marked {
		// This call has to be sent again, whatever it was. Others need not meet the same.
		t.marked = true
		s.shortages.Mark(t.offering, t.failed)
	}
	s.sizes.note(t.offering, len(t.of.group), known)
}

// learnShortages notes what the cloud did not serve, each cause once.
func (s *launchAnswers) learnShortages(offering Offering, known []*outcome) {
	marked := map[string]bool{}
	for _, o := range known {
		err, fault := o.answer.Err, o.answer.Instance.Fault
		if o.verdict == isLaunched && errors.Is(fault, cloud.ErrUnfit) {
			s.blockers.noteNotStarted(o.e.cell(), fault)
		}
		if o.verdict == isLaunched && isShortage(fault) {
			err = fault
		} else if !effects[o.verdict].mayBeShort {
			continue
		}
		// These say nothing of what the cloud has.
		if errors.Is(err, cloud.ErrMismatch) || errors.Is(err, cloud.ErrUnauthorised) && !denied(err) || errors.Is(err, errExpired) ||
			errors.Is(err, cloud.ErrStale) || errors.Is(err, cloud.ErrNotYet) || errors.Is(err, cloud.ErrUnfit) || ofDisks(err) ||
			ofTheCell(o.e.cell(), err) || marked[err.Error()] {
			continue
		}
		marked[err.Error()] = true
		s.shortages.Mark(offering, err)
	}
}
