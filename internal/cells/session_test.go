package cells

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/elotl/kip/internal/tunnel"
)

func TestWhatIsAskedOfASessionIsAnsweredWithoutOneToo(t *testing.T) {
	broken, now := errors.New("broken"), time.Unix(1e9, 0)
	for name, tc := range map[string]struct {
		session                   agentSession
		opened, connected, cutOff bool
		err                       error
		heard                     time.Time
	}{
		"there is none":   {},
		"it dials":        {session: agentSession{&modelLink{}}, opened: true, cutOff: true},
		"it is broken":    {session: agentSession{&modelLink{err: broken}}, opened: true, cutOff: true, err: broken},
		"it is connected": {session: agentSession{&modelLink{connected: true, heard: now}}, opened: true, connected: true, heard: now},
	} {
		s := tc.session
		if s.opened() != tc.opened || s.connected() != tc.connected || s.cutOff() != tc.cutOff || !errors.Is(s.lastError(), tc.err) {
			t.Errorf("%s: opened %t, connected %t, cut off %t (%v)", name, s.opened(), s.connected(), s.cutOff(), s.lastError())
		}
		if !s.lastHeard().Equal(tc.heard) || !s.heldBack().IsZero() || s.ca() != "" || s.refusal() != nil {
			t.Errorf("%s: heard at %s, held back until %s, knows CA %q, refuses for %v", name, s.lastHeard(), s.heldBack(), s.ca(), s.refusal())
		}
		s.close()
	}
	if s := (agentSession{&modelLink{err: &tunnel.FollowedError{Term: 7}}}); s.refusal() == nil {
		t.Error("a cell that another Kip has connected to is taken for one that obeys")
	}
	first, second := agentSession{&modelLink{}}, agentSession{&modelLink{}}
	if same := first; same != first || first == second {
		t.Error("a session is not told from the next one")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	waits := agentSession{&modelLink{ready: ready}}
	if cancel(); waits.ready(ctx) {
		t.Error("it is ready, though it was never connected")
	}
	if close(ready); !waits.ready(t.Context()) {
		t.Error("it is not ready, though it is connected")
	}
}
