//go:build e2e

package aws

import (
	"net/http"
	"slices"
	"testing"

	"github.com/elotl/kip/dev/ec2/machines"
)

// The last: it looks back at all others.
func TestKipAskedForNothingThatThePolicyForbids(t *testing.T) {
	s := newSpace(t)
	if status, answer := s.ask(t.Context(), http.MethodPost, "/?Action=DescribeInstances", nil); status == http.StatusOK {
		t.Errorf("somebody without a key is answered: %s", answer)
	}
	state := s.state(t.Context())
	unused, is := state.Unused[machines.AccessKeyID]
	if len(state.Refused) > 0 || !is {
		t.Errorf("refused: %v; the policies are those of %v", state.Refused, state.Unused)
	}
	// The others: no instance has a role.
	for _, sid := range []string{"KipReads", "KipLaunches", "KipLaunchesFrom", "KipTagsWhatItMakes", "KipTagsCells", "KipEnds",
		"KipMakesAGroup", "KipMakesAGroupIn", "KipKeepsItsGroup", "KipSweeps", "KipMakesDisks", "KipMovesDisks",
		"KipMovesDisksOfTheDriver", "KipRoutes", "KipLetsCellsForward", "KipHearsOfInterruptions", "KipLendsPulls"} {
		if slices.Contains(unused, sid) {
			t.Errorf("nothing that Kip did needed %s", sid)
		}
	}
}
