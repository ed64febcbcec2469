package aws

import (
	"slices"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/sim"
)

func TestMachinesAreImpairedThatFailACheckOfTheirsOrOfTheirHosts(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.PageSize = 1
	model, url := serve(t, account)
	c := open(t, settings(url))
	launched, err := resolveAndLaunch(t.Context(), c, request("t", 3)).All()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for n, check := range []ec2.Check{ec2.CheckSystem, "", ec2.CheckInstance} {
		model.Impair(launched[n].ID, check)
		if check != "" {
			ids = append(ids, launched[n].ID)
		}
	}
	slices.Sort(ids)
	if got, err := c.Impaired(t.Context()); err != nil || !slices.Equal(got, ids) {
		t.Errorf("impaired are %q (%v), want %q", got, err, ids)
	}
	for _, id := range ids {
		model.Impair(id, "")
	}
	if got, err := c.Impaired(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("when all are well again: %q (%v)", got, err)
	}
}
