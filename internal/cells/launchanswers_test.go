package cells

import (
	"errors"
	"maps"
	"slices"
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
		s, group := b.answers(), b.requested("c", "d")
		tries := s.begin(&launch{group: group, sentBefore: tc.sent})
		var known map[int]verdict
		for _, results := range tc.tries {
			known = map[int]verdict{}
			for _, o := range s.read(tries, results) {
				known[slices.Index(group, o.e)] = o.verdict
			}
		}
		if !maps.Equal(known, tc.known) || (tries.failed != nil) != tc.fails {
			t.Errorf("%s: %v (%v), want %v", name, known, tries.failed, tc.known)
		}
	}
}

func TestAnOfferingThatFailsForNoReasonIsLeftAloneOnce(t *testing.T) {
	b := newBench(t)
	s, group := b.answers(), b.requested("c")
	tries := s.begin(&launch{group: group})
	tries.failed = cloud.No(cloud.ErrUnexplained, cloud.Scope{}, errors.New("no"))
	for range 2 {
		s.learn(tries, nil)
	}
	if s.learn(tries, outcomesOf(group, isApart, nil)); len(b.marked) != 1 || s.sizes.atMost()(tries.offering.Key()) != 1 {
		t.Errorf("marked %d times, %d are launched together", len(b.marked), s.sizes.atMost()(tries.offering.Key()))
	}
}
