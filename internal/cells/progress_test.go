package cells

import (
	"context"
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestAWaitIsAtMostAsLongAsItMay(t *testing.T) {
	for name, tc := range map[string]struct {
		is    progress
		again time.Duration
		want  time.Duration
	}{
		"something wakes it":              {await("a pod"), time.Minute, time.Minute},
		"it is longer":                    {waitFor("a pod", time.Hour), time.Minute, time.Minute},
		"it is shorter":                   {waitFor("a pod", time.Second), time.Minute, time.Second},
		"it may be as long as it is":      {waitFor("a pod", time.Hour), 0, time.Hour},
		"something is done aside":         {underWay("stop"), time.Minute, time.Minute},
		"it does not wait":                {done, time.Minute, 0},
		"it does not wait, since it ends": {leave, time.Minute, 0},
	} {
		if got := tc.is.atMost(tc.again); got.again != tc.want || got.state != tc.is.state || got.why != tc.is.why {
			t.Errorf("%s: %+v, want again after %s", name, got, tc.want)
		}
	}
}

// A step that waits, or is to run again, is queued by its progress; one that has failed backs off until another has not.
func TestTheProgressOfAStepSaysWhenItRunsAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		got    progress
		err    error
		queued bool // at once
		failed int  // how often a step counts as failed in a row, once before this one
	}{
		"it is done":             {got: done},
		"it waits":               {got: await("a pod")},
		"it is under way":        {got: underWay("stop"), failed: 1},
		"it is to run anew":      {got: anew, queued: true, failed: 1},
		"it has failed":          {err: errors.New("no answer"), failed: 2},
		"its record has moved":   {err: errMoved, queued: true, failed: 1},
		"its cell has no record": {err: errGone, failed: 1},
	} {
		b := newBench(t)
		e := b.requested("c")[0]
		b.loop.queue.AddRateLimited(e.id)
		id, _ := b.loop.queue.Get()
		b.loop.queue.Done(id)
		b.loop.process(t.Context(), e.id, func(apiv1.Phase) step { return stepOnce{tc.got, tc.err} })
		if queued := b.loop.queue.Len() == 1; queued != tc.queued && tc.failed < 2 || b.loop.queue.NumRequeues(e.id) != tc.failed {
			t.Errorf("%s: queued %t, after %d failures", name, queued, b.loop.queue.NumRequeues(e.id))
		}
	}
}

// stepOnce is a step with one outcome.
type stepOnce struct {
	got progress
	err error
}

func (stepOnce) waitsForLocked(*entry) string { return "" }

func (s stepOnce) Step(context.Context, *entry) (progress, error) { return s.got, s.err }
