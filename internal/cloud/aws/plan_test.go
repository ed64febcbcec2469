package aws

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// offers are the names of the types that a catalogue sells, and why it withholds others.
func offerings(t *testing.T, c *Cloud) (sells []string, withheld map[string]string) {
	t.Helper()
	all, err := c.Catalogue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := catalog.Validate(all); err != nil {
		t.Error(err)
	}
	withheld = map[string]string{}
	for _, one := range all {
		if len(one.Offerings) > 0 {
			sells = append(sells, one.Name)
		}
		if one.Withheld != "" {
			withheld[one.Name] = one.Withheld
		}
	}
	return sells, withheld
}

func TestAnAccountOnTheFreePlanIsSoldWhatThatHas(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Plan = ec2.Plan{Free: true, Eligible: []string{"t3.small"}}
	model, url := serve(t, account)
	clk := clocktesting.NewFakeClock(time.Now())
	s := settings(url)
	s.Clock = clk
	c := open(t, s)
	all := []string{"c5.large", "c7g.large", "g5.xlarge", "t3.small"}
	if sells, withheld := offerings(t, c); !slices.Equal(sells, all) || len(withheld) > 0 {
		t.Fatalf("before anything is launched: it sells %v, withholds %v", sells, withheld)
	}
	launch := func(instanceType string) error {
		r := request("t-"+instanceType, 1)
		r.InstanceType = instanceType
		return runLaunch(t.Context(), c, r).Err()
	}
	refused := func(err error, tellsCatalogue bool) {
		t.Helper()
		no, is := errors.AsType[*cloud.Error](err)
		scope := cloud.ScopeOf(err)
		if !is || no.Cause != cloud.ErrQuota || !no.NothingDone || scope.InstanceType == "" || scope.Zone != "" || scope.Account {
			t.Fatalf("%v for %+v: want a quota of that type", err, scope)
		}
		if text := err.Error(); !strings.Contains(text, "t3.small") || !strings.Contains(text, "upgrade the account") {
			t.Errorf("it does not say what to do: %s", text)
		}
		if no.Catalogue != tellsCatalogue {
			t.Errorf("it says that the catalogue has changed: %t, want %t", no.Catalogue, tellsCatalogue)
		}
	}
	refused(launch("c5.large"), true)

	// Pods that were placed before cost no call each.
	calls := model.Calls()["RunInstances"]
	r := request("u", 1)
	r.InstanceType = "g5.xlarge"
	_, err := c.Resolve(t.Context(), r.LaunchSpec)
	refused(err, false)
	read := model.Calls()["DescribeInstanceTypes"]
	sells, withheld := offerings(t, c)
	if !slices.Equal(sells, []string{"t3.small"}) || len(withheld) != 3 || !strings.Contains(withheld["c5.large"], "t3.small") {
		t.Errorf("it sells %v, withholds %v", sells, withheld)
	}
	if model.Calls()["RunInstances"] != calls || model.Calls()["DescribeInstanceTypes"] != read {
		t.Errorf("EC2 was asked again for what it has said: %v", model.Calls())
	}
	if err := launch("t3.small"); err != nil {
		t.Errorf("what the plan has: %v", err)
	}

	// The account is upgraded, which EC2 does not say.
	model.Change(func(cfg *ec2.Config) { cfg.Plan.Free = false })
	clk.Step(time.Minute)
	next := c.Capabilities().CatalogueEvery
	if next <= 0 || next > freePlanFor {
		t.Errorf("the catalogue counts for %s more", next)
	}
	clk.Step(next)
	if sells, withheld := offerings(t, c); !slices.Equal(sells, all) || len(withheld) > 0 {
		t.Errorf("after the upgrade: it sells %v, withholds %v", sells, withheld)
	}
	if err := launch("c5.large"); err != nil {
		t.Errorf("after the upgrade: %v", err)
	}
}

// Whether EC2 refuses an image that it calls not eligible is not known, so Kip tries.
func TestAnImageThatTheFreePlanMayLackIsToldOnce(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Plan = ec2.Plan{Free: true, Eligible: []string{"t3.small"}}
	account.Images[1].CalledPaid = true
	_, url := serve(t, account)
	var log bytes.Buffer
	s := settings(url)
	s.Log = slog.New(slog.NewTextHandler(&log, nil))
	c := open(t, s)
	told := func() int { return strings.Count(log.String(), "image=ami-2") }
	launch := func(token, instanceType string) error {
		r := request(token, 1)
		r.InstanceType = instanceType
		return runLaunch(t.Context(), c, r).Err()
	}
	if err := launch("a", "t3.small"); err != nil || told() > 0 {
		t.Errorf("before the plan is known: %v, %s", err, log.String())
	}
	if err := launch("b", "c5.large"); cloud.CauseOf(err) != cloud.ErrQuota {
		t.Fatal(err)
	}
	for n := range 2 {
		c.caches.forget()
		if err := launch(fmt.Sprint("c", n), "t3.small"); err != nil {
			t.Error(err)
		}
	}
	if text := log.String(); told() != 1 || !strings.Contains(text, "cells.bootImageSpec") || !strings.Contains(text, "upgrade the account") {
		t.Errorf("it is told %d times: %s", told(), text)
	}
	model, url := serve(t, anAccount(sim.Knobs{}))
	model.Change(func(cfg *ec2.Config) { cfg.Plan = account.Plan })
	log.Reset()
	s.Endpoint = url
	c = open(t, s)
	if err := launch("d", "c5.large"); cloud.CauseOf(err) != cloud.ErrQuota {
		t.Fatal(err)
	}
	if err := launch("e", "t3.small"); err != nil || told() > 0 {
		t.Errorf("an image that is eligible: %v, %s", err, log.String())
	}
}

// Another endpoint may have EC2's message, and name no type that is eligible.
func TestNoTypeIsWithheldWhereNoneIsSaidToBeEligible(t *testing.T) {
	const words = "The specified instance type is not eligible for Free Tier."
	c := answering(t, "RunInstances", 400, "InvalidParameterCombination", words)
	before, _ := offerings(t, c)
	err := runLaunch(t.Context(), c, request("t", 1)).Err()
	if cloud.CauseOf(err) != cloud.ErrQuota || cloud.ScopeOf(err).InstanceType != "c5.large" {
		t.Errorf("%v for %+v", err, cloud.ScopeOf(err))
	}
	if sells, withheld := offerings(t, c); !slices.Equal(sells, before) || len(withheld) > 0 {
		t.Errorf("it sells %v, withholds %v", sells, withheld)
	}
}

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
	capacityTypes := func(c *Cloud) map[string]string {
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
			for _, capacityType := range slices.Sorted(maps.Keys(seen)) {
				of[one.Name] += strings.TrimSpace(capacityType) + ";"
			}
		}
		return of
	}
	want := map[string]string{
		"c5.large":  "on-demand;on-demand dedicated;",
		"c7g.large": "spot;",
		"t3.small":  "on-demand;on-demand dedicated;spot;",
	}
	if got := capacityTypes(c); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("it offers %v, want %v", got, want)
	}
	// What is sold in Capacity Blocks is offered in one.
	s.Dedicated, s.Reservations = false, Choice{IDs: []string{"cr-block"}}
	if got := capacityTypes(open(t, s)); got["g5.xlarge"] != "on-demand cr-block;" {
		t.Errorf("with a block it offers %v", got)
	}
	// A catalogue that is out of date is no fault of the pod's.
	r := request("t", 1)
	r.InstanceType = "g5.xlarge"
	err := runLaunch(t.Context(), c, r).Err()
	scope := cloud.ScopeOf(err)
	if cloud.CauseOf(err) != cloud.ErrRefused || scope.InstanceType != "g5.xlarge" || scope.Spot == nil || *scope.Spot {
		t.Errorf("%v for %+v: want that type, on demand", err, scope)
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
	err := runLaunch(t.Context(), c, large).Err()
	if scope := cloud.ScopeOf(err); cloud.CauseOf(err) != cloud.ErrQuota || scope != (cloud.Scope{Disks: true}) || !cloud.NothingDone(err) {
		t.Errorf("%v for %+v: want a quota of disks", err, scope)
	}
	if err := runLaunch(t.Context(), c, request("small", 1)).Err(); err != nil { // of 6 GiB
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
	if err := model.Lose(cloudmodel.Loss{Call: cloud.CallCreateDisk, Nth: 1, After: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateDisk(t.Context(), diskRequest("a")); err == nil || cloud.NothingDone(err) {
		t.Fatalf("the lost answer is %v", err)
	}
	model.Volumes.Hide(true) // as EC2 may for a while
	if _, err := c.CreateDisk(t.Context(), diskRequest("a")); cloud.CauseOf(err) != cloud.ErrQuota || cloud.NothingDone(err) {
		t.Errorf("while lists do not show it: %v, nothing done %t", err, cloud.NothingDone(err))
	}
	model.Volumes.Hide(false)
	if disk, err := c.CreateDisk(t.Context(), diskRequest("a")); err != nil || disk.ID == "" || len(model.Volumes.All()) != 1 {
		t.Errorf("once they do: %+v, %v; there are %v", disk, err, model.Volumes.All())
	}
}
