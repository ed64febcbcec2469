package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestEachPartOfABootHasATimeOfItsOwn(t *testing.T) {
	launched := time.Unix(1e9, 0)
	clk := clocktesting.NewFakeClock(launched.Add(3 * time.Minute))
	s := &bootTimes{generation: &StoreGeneration{}, loop: &loop{clock: clk}}
	for name, tc := range map[string]struct {
		steps map[string]time.Duration // since the launch
		held  time.Duration            // as long Kip kept it waiting; 0 for never
		left  time.Duration
		what  string
	}{
		"nothing is heard yet": {nil, 0, 7 * time.Minute, "join"},
		"Kip kept it waiting":  {nil, time.Minute, 8 * time.Minute, "join"},
		"its cloud-init file is being carried out": {
			map[string]time.Duration{apiv1.StepCloudInit: 2 * time.Minute}, 0, 9 * time.Minute, "finish its cloud-init file",
		},
		"it has joined":       {map[string]time.Duration{apiv1.StepJoined: time.Minute}, 0, 0, "become ready"},
		"its join took long":  {map[string]time.Duration{apiv1.StepJoined: 150 * time.Second}, 0, 2 * time.Minute, "become ready"},
		"it was started anew": {map[string]time.Duration{apiv1.StepJoined: -time.Minute}, 0, 7 * time.Minute, "join"},
	} {
		cell := Cell{Instance: &cloud.Instance{Launched: launched}, Offerings: []Offering{{BootTimeout: 10 * time.Minute}}}
		for step, after := range tc.steps {
			cell.step(step, launched.Add(after))
		}
		session := &modelLink{}
		if tc.held != 0 {
			session.held = launched.Add(tc.held)
		}
		if left, what := s.left(&entry{}, &cell, agentSession{session}); left != tc.left || what != tc.what {
			t.Errorf("%s: %s are left until it is %s, want %s until it is %s", name, left, what, tc.left, tc.what)
		}
	}
}
