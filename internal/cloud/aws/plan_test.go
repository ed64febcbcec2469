package aws

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

func TestATypeIsOfferedAsEC2SellsIt(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Plan.Sold = map[string][]string{
		"c5.large":  {"on-demand"},
		"g5.xlarge": {"capacity-block"},
		"t3.small":  {"on-demand", "spot", "capacity-block"},
		"c7g.large": {"spot"},
	}
	account.Reservations = []ec2.Reservation{{
		ID: "cr-block", Type: "g5.xlarge", Zone: "us-east-1a", Total: 1, Block: true, End: time.Now().Add(24 * time.Hour),
	}}
	model, url := serve(t, account)
	s := settings(url)
	s.Dedicated = true
	c := open(t, s)
	markets := func(c *Cloud) map[string]string {
		all, err := c.Catalogue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		of := map[string]string{}
		for _, one := range all {
			seen := map[string]bool{}
			for _, o := range one.Offerings {
				seen[fmt.Sprint(map[bool]string{true: "spot", false: "on-demand"}[o.Spot], " ", o.Pool())] = true
			}
			for _, market := range slices.Sorted(maps.Keys(seen)) {
				of[one.Name] += strings.TrimSpace(market) + ";"
			}
		}
		return of
	}
	want := map[string]string{
		"c5.large":  "on-demand;on-demand dedicated;",
		"c7g.large": "spot;",
		"t3.small":  "on-demand;on-demand dedicated;spot;",
	}
	if got := markets(c); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("it offers %v, want %v", got, want)
	}
	// What is sold in Capacity Blocks is offered in one.
	s.Dedicated, s.Reservations = false, Choice{IDs: []string{"cr-block"}}
	if got := markets(open(t, s)); got["g5.xlarge"] != "on-demand cr-block;" {
		t.Errorf("with a block it offers %v", got)
	}
	// A catalogue that is out of date is no fault of the pod's.
	r := request("t", 1)
	r.InstanceType = "g5.xlarge"
	err := c.Launch(t.Context(), r).Err()
	if scope := cloud.ScopeOf(err); cloud.CauseOf(err) != cloud.ErrRefused || scope.InstanceType != "g5.xlarge" || scope.Spot == nil || *scope.Spot {
		t.Errorf("%v for %+v: want that type, on demand", err, cloud.ScopeOf(err))
	}
	if n := len(model.Machines().Truth()); n != 0 {
		t.Errorf("%d run", n)
	}
}

func TestTheQuotaOfStorageIsTheAccounts(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Plan.MostGiB = 20
	model, url := serve(t, account)
	c := open(t, settings(url))
	large := request("large", 1)
	large.RootDiskBytes = 30 * gibi
	err := c.Launch(t.Context(), large).Err()
	if scope := cloud.ScopeOf(err); cloud.CauseOf(err) != cloud.ErrQuota || scope != (cloud.Scope{Disks: true}) || !cloud.NothingDone(err) {
		t.Errorf("%v for %+v: want a quota of disks", err, scope)
	}
	if err := c.Launch(t.Context(), request("small", 1)).Err(); err != nil { // of 6 GiB
		t.Errorf("a smaller disk: %v", err)
	}
	if _, err := tryDisk(t, c, model, "too large"); err != nil {
		t.Errorf("a volume for which there is room: %v", err)
	}
	r := diskRequest("large")
	r.SizeBytes = 30 * gibi
	if _, err := c.CreateDisk(t.Context(), r); cloud.CauseOf(err) != cloud.ErrQuota {
		t.Errorf("a volume for which there is none: %v", err)
	}
}

// EC2 counts before it looks at tokens: its no is none to a volume that an earlier call has made.
func TestAVolumeThatWasMadeIsNotRefusedForTheQuota(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Plan.MostGiB = 1
	model, url := serve(t, account)
	c := open(t, settings(url))
	if err := model.Lose(ec2.Loss{Call: cloud.CallCreateDisk, Nth: 1, After: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateDisk(t.Context(), diskRequest("a")); err == nil || cloud.NothingDone(err) {
		t.Fatalf("the lost answer is %v", err)
	}
	model.HideVolumes(true) // as EC2 may for a while
	if _, err := c.CreateDisk(t.Context(), diskRequest("a")); cloud.CauseOf(err) != cloud.ErrQuota || cloud.NothingDone(err) {
		t.Errorf("while lists do not show it: %v, nothing done %t", err, cloud.NothingDone(err))
	}
	model.HideVolumes(false)
	if disk, err := c.CreateDisk(t.Context(), diskRequest("a")); err != nil || disk.ID == "" || len(model.Volumes()) != 1 {
		t.Errorf("once they do: %+v, %v; there are %v", disk, err, model.Volumes())
	}
}
