package cells

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

func TestWhatACellIsNotSetUpWithYetIsAskedForAgain(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		err       error
		cloudInit string
		again     time.Duration
		phase     apiv1.Phase
		fails     bool
	}{
		"its file is being carried out":      {agentapi.ErrNotYet, "digest", firstSetUpPoll, apiv1.Booting, false},
		"something else is not ready":        {agentapi.ErrNotYet, "", 0, apiv1.Booting, true},
		"its agent cannot be had":            {errNoAgent, "", 0, apiv1.Terminating, false},
		"its file cannot be carried out":     {errNoCloudInit, "digest", 0, apiv1.Terminating, false},
		"it cannot be asked for some reason": {broken, "", 0, apiv1.Booting, true},
	} {
		b := newBench(t)
		s := &contacting{loop: b.loop, records: b.records, failures: b.failing()}
		e := b.booting("c")
		launched := e.cell().clone()
		launched.Launch = &Launch{ID: "l", CloudInit: tc.cloudInit}
		e.current.Store(&launched)
		want := waitFor("", tc.again)
		if tc.phase == apiv1.Terminating {
			want = leave
		}
		got, err := bare(s.handleFailure(t.Context(), e, tc.err))
		if (err != nil) != tc.fails || tc.fails && !errors.Is(err, tc.err) || got != want || e.cell().Phase != tc.phase {
			t.Errorf("%s: it is %s, %+v (%v)", name, e.cell().Phase, got, err)
		}
		if begun := e.cell().StepTime(apiv1.StepCloudInit); begun.IsZero() == (tc.again == firstSetUpPoll) {
			t.Errorf("%s: its file was begun at %s", name, begun)
		}
	}
}

func TestACellWaitsWhileItsAgentIsBeingFetched(t *testing.T) {
	b := newBench(t)
	e := b.booting("c")
	b.linked(e)
	e.async.now = &asyncOp{what: "configure", ended: true, err: fmt.Errorf("go over: %w: %w", errAgentFetched, agentapi.ErrNotYet)}
	s := &contacting{loop: b.loop, records: b.records, connections: b.connecting(), failures: b.failing()}
	if got, err := bare(s.prepare(t.Context(), e)); got != waitFor("", agentPoll) || err != nil || e.cell().Phase != apiv1.Booting {
		t.Errorf("it is %s, %+v (%v)", e.cell().Phase, got, err)
	}
}
