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
	shortages Shortages
}

// launchTries are the calls of one launch, as far as they were answered.
type launchTries struct {
	of        *launch
	offering  Offering
	began     time.Time
	tries     int
	unsure    []bool // by place: a call may have started the machine
	throttled int    // the last so many were, as a whole
	marked    bool   // the offering, since the cloud has not said why it fails
}

// begin returns the tries of a launch before the first. sent says that an earlier Kip may have made a call.
func (s *launchAnswers) begin(l *launch, sent bool) *launchTries {
	return &launchTries{
		of:       l,
		offering: l.group[l.open()[0]].cell().Offering(),
		began:    s.clock.Now(),
		unsure:   slices.Repeat([]bool{sent}, len(l.group)),
	}
}

// read takes the answers to a try. It returns what they mean for each machine of which the outcome is known by now, by its place,
// and the error of one of the others.
func (s *launchAnswers) read(t *launchTries, results cloud.LaunchResults) (known map[int]verdict, failed error) {
	l := t.of
	t.tries++
	// A launch without labels tells whose fault it is.
	labels := l.labelled() && slices.ContainsFunc(results, func(r cloud.LaunchResult) bool { return mayBeLabels(r.Err) })
	if !labels {
		s.rights.noteAnswer(keyOf(t.offering), results)
	}
	if t.throttled++; slices.ContainsFunc(results, func(r cloud.LaunchResult) bool { return !errors.Is(r.Err, cloud.ErrThrottled) }) {
		t.throttled = 0
	}
	bounded := s.calls.Capabilities().Budgets[cloud.CallLaunch].Resources != cloud.Bucket{}
	tooMany := bounded && len(l.group) > 1 && t.throttled >= s.sizes.throttledTries()
	giveUp := t.tries >= giveUpTries && s.clock.Since(t.began) >= giveUpAfter
	known = map[int]verdict{}
	for _, n := range l.open() {
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
			known[n] = is
			continue
		}
		t.unsure[n] = t.unsure[n] || !cloud.NothingDone(err)
		failed = err
	}
	return known, failed
}

// learn notes what the answers to a try mean for other launches.
func (s *launchAnswers) learn(t *launchTries, known map[int]verdict, failed error) {
	if errors.Is(failed, cloud.ErrUnexplained) && !t.marked {
		// This call has to be sent again, whatever it was. Others need not meet the same.
		t.marked = true
		s.shortages.Mark(t.offering, failed)
	}
	s.sizes.note(t.offering, len(t.of.group), known)
}

// verdict is what the answer to a launch means for one cell.
type verdict string

const (
	isLaunched  verdict = "launched"
	isRefused   verdict = "refused"   // there surely is no instance: the next offering
	isForbidden verdict = "forbidden" // there surely is none, nor of any other offering
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
