package aws

import (
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

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
