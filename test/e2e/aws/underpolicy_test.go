//go:build e2e

package aws

import (
	"net/http"
	"slices"
	"testing"
)

// The last: it looks back at all others.
func TestKipAskedForNothingThatThePolicyForbids(t *testing.T) {
	s := newSpace(t)
	if status, answer := s.ask(t.Context(), http.MethodPost, "/?Action=DescribeInstances", nil); status == http.StatusOK {
		t.Errorf("somebody without a key is answered: %s", answer)
	}
	state := s.state(t.Context())
	if len(state.Refused) > 0 || len(state.Unused) != 1 {
		t.Errorf("refused: %v; the policies are those of %v", state.Refused, state.Unused)
	}
	for key, unused := range state.Unused {
		for _, sid := range []string{"KipReads", "KipLaunches", "KipLaunchesFrom", "KipTagsCells", "KipEnds", "KipMakesAGroup",
			"KipMakesDisks", "KipMovesDisks", "KipRoutes", "KipLetsCellsForward", "KipLendsPulls"} {
			if slices.Contains(unused, sid) {
				t.Errorf("nothing that %s did needed %s", key, sid)
			}
		}
	}
}
