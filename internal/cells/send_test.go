package cells

import (
	"errors"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

func TestAStoredLaunchIsSentOnceInATurn(t *testing.T) {
	for name, tc := range map[string]struct {
		own    bool          // the turn is given
		until  time.Duration // when the secret expires; 0 for never
		shared bool
		answer func(cloud.Instance) cloud.Instance
		calls  int
		err    error // of the first; nil for an instance
		fails  bool
	}{
		"in its turn":                       {own: true, calls: 1},
		"in a turn that it waits for":       {calls: 1},
		"before its secret expires":         {own: true, until: time.Second, calls: 1},
		"not after that":                    {own: true, until: -time.Second, err: errExpired, fails: true},
		"nor in a turn that comes too late": {until: -time.Second, err: errExpired, fails: true},
		"without an instance's ID": {own: true, calls: 1, fails: true, answer: func(i cloud.Instance) cloud.Instance {
			i.ID = ""
			return i
		}},
		"at another place": {own: true, shared: true, calls: 1, fails: true, answer: func(i cloud.Instance) cloud.Instance {
			i.Place = "another"
			return i
		}},
	} {
		b := newBench(t)
		b.cloud.capabilities.SharedUserData = tc.shared
		b.cloud.answer = tc.answer
		l := b.under("c")
		l.until = time.Time{}
		if tc.until != 0 {
			l.until = b.clock.Now().Add(tc.until)
		}
		if tc.own {
			l.turn = b.turn()
		}
		s := &sending{clock: b.clock, calls: b.calls}
		results := s.send(t.Context(), l)
		err := results[0].Err
		if len(results) != 1 || len(b.cloud.launches) != tc.calls || (err != nil) != tc.fails || tc.err != nil && !errors.Is(err, tc.err) {
			t.Errorf("%s: %d calls, answered with %+v", name, len(b.cloud.launches), results)
		}
	}
}
