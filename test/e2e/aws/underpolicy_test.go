//go:build e2e

package aws

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2/machines"
)

// The last of those that go alone: it looks back at all of them.
func TestKipAskedForNothingThatThePolicyForbids(t *testing.T) {
	s := newSpace(t)
	resp, err := http.PostForm(s.model.URL, url.Values{"Action": {"DescribeInstances"}, "Version": {"2016-11-15"}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !strings.Contains(string(answer), "AuthFailure") {
		t.Errorf("somebody without a key is answered %d %s (%v)", resp.StatusCode, answer, err)
	}
	state := s.state(t.Context())
	unused, is := state.Unused[machines.AccessKeyID]
	if len(state.Refused) > 0 || !is {
		t.Errorf("refused: %v; the policies are those of %v", state.Refused, state.Unused)
	}
	if testing.Short() {
		return // of the tests that need most of the policy none has run
	}
	// The others: the account has the role of spot, and nothing is refused.
	for _, sid := range []string{"KipReads", "KipReadsPrices", "KipLaunches", "KipLaunchesFrom", "KipLaunchesImages",
		"KipLaunchesInReservations",
		"KipTagsWhatItMakes", "KipTagsCells", "KipEnds", "KipMakesAGroup", "KipMakesAGroupIn", "KipKeepsItsGroup", "KipSweeps",
		"KipMakesDisks", "KipMovesDisks", "KipAttachesToCells", "KipMovesDisksOfTheDriver", "KipRoutes",
		"KipLetsCellsForward", "KipEndsBootCredits", "KipPassesRoles", "KipLendsPulls"} {
		if slices.Contains(unused, sid) {
			t.Errorf("nothing that Kip did needed %s", sid)
		}
	}
}
