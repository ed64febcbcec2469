package cells

import (
	"errors"
	"maps"
	"testing"

	"github.com/elotl/kip/internal/cloud"
)

func TestAnAnswerToALaunchIsReadByWhatMayHaveStarted(t *testing.T) {
	none := func(cause cloud.Cause) error { return cloud.No(cause, cloud.Scope{}, errors.New("no")) }
	ok, lost := cloud.LaunchResult{Instance: cloud.Instance{ID: "i"}}, cloud.LaunchResult{Err: errors.New("no answer")}
	refused, busy := cloud.LaunchResult{Err: none(cloud.ErrCapacity)}, cloud.LaunchResult{Err: none(cloud.ErrThrottled)}
	for name, tc := range map[string]struct {
		sent  bool // by an earlier Kip, perhaps
		tries []cloud.LaunchResults
		known map[int]verdict // of the last
		fails bool            // others are open
	}{
		"one is launched, one refused":    {false, []cloud.LaunchResults{{ok, refused}}, map[int]verdict{0: isLaunched, 1: isRefused}, false},
		"it may have been started before": {true, []cloud.LaunchResults{{ok, refused}}, map[int]verdict{0: isLaunched, 1: isAbandoned}, false},
		"the answer to one is lost":       {false, []cloud.LaunchResults{{ok, lost}}, map[int]verdict{0: isLaunched}, true},
		"it is refused after a lost answer": {
			false, []cloud.LaunchResults{{lost, busy}, {refused, refused}}, map[int]verdict{0: isAbandoned, 1: isRefused}, false,
		},
	} {
		b := newBench(t)
		s := b.concluding().answers
		tries := s.begin(&launch{group: b.requested("c", "d")}, tc.sent)
		var known map[int]verdict
		var failed error
		for _, results := range tc.tries {
			known, failed = s.read(tries, results)
		}
		if !maps.Equal(known, tc.known) || (failed != nil) != tc.fails {
			t.Errorf("%s: %v (%v), want %v", name, known, failed, tc.known)
		}
	}
}

func TestAnOfferingThatFailsForNoReasonIsLeftAloneOnce(t *testing.T) {
	b := newBench(t)
	s := b.concluding().answers
	tries := s.begin(&launch{group: b.requested("c")}, false)
	for range 2 {
		s.learn(tries, nil, cloud.No(cloud.ErrUnexplained, cloud.Scope{}, errors.New("no")))
	}
	if s.learn(tries, map[int]verdict{0: isApart}, nil); len(b.marked) != 1 || s.sizes.atMost()(keyOf(tries.offering)) != 1 {
		t.Errorf("marked %d times, %d are launched together", len(b.marked), s.sizes.atMost()(keyOf(tries.offering)))
	}
}
