package aws

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// anAccountWithQuotas has some quotas, of which Kip does not use one, and two subnets whose addresses are counted.
func anAccountWithQuotas() ec2.Config {
	account := anAccount(sim.Knobs{StoppedKeepsAddresses: true})
	account.Subnets[0].Bits, account.Subnets[1].Bits = 28, 26
	account.PageSize = 2
	account.Quotas = map[string]float64{
		"L-1216C47A": 64, "L-34B43A08": 32, "L-7212CCBC": 8, "L-C4BD4855": 192, "L-DB2E81BA": 0, "L-0263D0A3": 5,
	}
	return account
}

// boundsOf are the bounds of an owner.
func boundsOf(t *testing.T, c *Cloud, owner string) catalog.Bounds {
	t.Helper()
	b, err := c.Bounds(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBoundsAreFreeAddressesAndQuotasLessWhatOthersRun(t *testing.T) {
	model, url := serve(t, anAccountWithQuotas())
	c := open(t, settings(url))
	standard, spot := catalog.Class{Family: "standard"}, catalog.Class{Family: "standard", Spot: true}
	want := catalog.Bounds{
		Machines: map[string]int64{"subnet-a1": (16 - 5) / 2, "subnet-a2": (64 - 5) / 2, privateSubnet: (4096 - 5) / 2},
		MilliCPU: map[catalog.Class]int64{
			standard: 64_000, spot: 32_000, {Family: "p", Spot: true}: 200_000, {Family: "g and vt"}: 0,
		},
	}
	check := func(what string, b catalog.Bounds) {
		t.Helper()
		if !maps.Equal(b.Machines, want.Machines) || !maps.Equal(b.MilliCPU, want.MilliCPU) {
			t.Errorf("%s: %+v, want %+v", what, b, want)
		}
	}
	check("at first", boundsOf(t, c, owner))
	if err := c.Launch(t.Context(), resolved(t, c, request("t", 3))).Err(); err != nil { // two vCPUs each, in subnet-a1
		t.Fatal(err)
	}
	check("with machines of its own", boundsOf(t, c, owner))
	// To another Kip of the account they are another's, with their addresses and what they run.
	want.MilliCPU[standard], want.Machines["subnet-a1"] = 58_000, (16-5-6)/2
	check("another Kip", boundsOf(t, c, "another"))
	all := model.Machines().Truth()
	if err := c.Stop(t.Context(), all[0].ID).Err(); err != nil {
		t.Fatal(err)
	}
	want.MilliCPU[standard] = 60_000 // a stopped instance keeps its addresses, and no vCPU
	check("another Kip, when one is stopped", boundsOf(t, c, "another"))
}

func TestQuotasThatCannotBeReadAreThoseThatWereReadLast(t *testing.T) {
	model, url := serve(t, anAccountWithQuotas())
	cfg, log := settings(url), &bytes.Buffer{}
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	c := open(t, cfg)
	model.Quotas.Fail("AccessDeniedException")
	for range 2 {
		if b := boundsOf(t, c, owner); len(b.MilliCPU) > 0 || len(b.Machines) != 3 {
			t.Errorf("without a right to quotas: %+v", b)
		}
	}
	if n := strings.Count(log.String(), "quotas of vCPUs are not read"); n != 1 {
		t.Errorf("it was told %d times:\n%s", n, log)
	}
	model.Quotas.Fail("")
	before := boundsOf(t, c, owner).MilliCPU
	model.Quotas.Fail("ServiceException")
	if after := boundsOf(t, c, owner).MilliCPU; len(before) == 0 || !maps.Equal(before, after) {
		t.Errorf("after a fault: %v, want %v", after, before)
	}
	model.Quotas.Fail("")
	model.Change(func(cfg *ec2.Config) { cfg.Quotas = nil })
	if b := boundsOf(t, c, owner); len(b.MilliCPU) > 0 {
		t.Errorf("of no quotas: %+v", b)
	}
}

func TestWhatOthersRunIsWhatWasReadLastIfTheirListFails(t *testing.T) {
	model, url := serve(t, anAccountWithQuotas())
	cfg, log := settings(url), &bytes.Buffer{}
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	c := open(t, cfg)
	fail := func() catalog.Bounds {
		t.Helper()
		if err := model.FailCall(cloudmodel.Failure{Call: cloud.CallList, Nth: 2, Code: "InternalError"}); err != nil { // after that of its own
			t.Fatal(err)
		}
		return boundsOf(t, c, "another")
	}
	standard := catalog.Class{Family: "standard"}
	if b := fail(); b.MilliCPU[standard] != 64_000 || len(b.Machines) != 3 {
		t.Errorf("before any list: %+v", b)
	}
	if err := c.Launch(t.Context(), resolved(t, c, request("t", 1))).Err(); err != nil { // two vCPUs
		t.Fatal(err)
	}
	want := boundsOf(t, c, "another")
	for range 2 {
		if b := fail(); want.MilliCPU[standard] != 62_000 || !maps.Equal(b.MilliCPU, want.MilliCPU) || !maps.Equal(b.Machines, want.Machines) {
			t.Errorf("after a fault: %+v, want %+v", b, want)
		}
	}
	if n := strings.Count(log.String(), "list what others in the account run"); n != 2 { // before and after a list that was whole
		t.Errorf("it was told %d times:\n%s", n, log)
	}
}

func TestWithoutEC2ThereAreNoBounds(t *testing.T) {
	model, url := serve(t, anAccountWithQuotas())
	c := open(t, settings(url))
	boundsOf(t, c, owner)
	if err := model.FailCall(cloudmodel.Failure{Call: cloud.CallList, Nth: 1, Code: "UnauthorizedOperation"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Bounds(t.Context(), owner); !errors.Is(err, cloud.ErrUnauthorised) {
		t.Errorf("the error is %v", err)
	}
	model.Change(func(cfg *ec2.Config) { cfg.Subnets = nil })
	if b := boundsOf(t, c, owner); len(b.Machines) > 0 {
		t.Errorf("of no subnets: %+v", b)
	}
}
