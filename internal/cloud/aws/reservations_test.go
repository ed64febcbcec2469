package aws

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// anAccountThatReserves has reserved three c5.large in a zone, and a block of GPUs there, which ends
// after a day. What all accounts share of these types is used up.
func anAccountThatReserves() ec2.Config {
	none := func(instanceType string) sim.Capacity {
		return sim.Capacity{Pool: sim.Pool{InstanceType: instanceType}}
	}
	cfg := anAccount(sim.Knobs{Capacity: []sim.Capacity{none("c5.large"), none("g5.xlarge")}})
	team := map[string]string{"team": "a", "use": "cells"}
	cfg.Reservations = []ec2.Reservation{
		{ID: "cr-1", Type: "c5.large", Zone: "us-east-1a", Total: 3},
		{ID: "cr-block", Type: "g5.xlarge", Zone: "us-east-1a", Total: 2, Block: true, End: time.Now().Add(24 * time.Hour), Tags: team},
		{ID: "cr-another", Type: "c5.large", Zone: "us-east-1a", Total: 9, Tags: map[string]string{"team": "a"}},
		{ID: "cr-windows", Type: "c5.large", Zone: "us-east-1a", Total: 9, Platform: "Windows", Tags: team},
		{ID: "cr-over", Type: "c5.large", Zone: "us-east-1a", Total: 9, State: "expired", Tags: team},
		{ID: "cr-hosts", Type: "c5.large", Zone: "us-east-1b", Total: 1, Dedicated: true, Tags: team},
	}
	return cfg
}

// reserving is a driver that may use cr-1, and all of a team's that are for cells.
func reserving(t *testing.T, change func(*Config)) (*Cloud, *ec2.Model) {
	t.Helper()
	model, url := serve(t, anAccountThatReserves())
	s := settings(url)
	s.Subnets = []string{"subnet-a1", "subnet-a2", privateSubnet}
	s.Reservations = Choice{IDs: []string{"cr-1", "cr-none"}, Tags: map[string]string{"team": "a", "use": "cells"}}
	if change != nil {
		change(&s)
	}
	return open(t, s), model
}

// reservedOf are the offerings of reservations that a catalogue has, by type.
func reservedOf(t *testing.T, c *Cloud) map[string][]catalog.PurchaseOption {
	t.Helper()
	list, err := c.Catalogue(t.Context())
	if err == nil {
		err = catalog.Validate(list)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]catalog.PurchaseOption{}
	for _, typ := range list {
		for _, o := range typ.Offerings {
			if o.Reservation != "" {
				all[typ.Name] = append(all[typ.Name], o)
			}
		}
	}
	return all
}

func TestTheCatalogueHasWhatIsFreeOfReservations(t *testing.T) {
	var log bytes.Buffer
	clock := clocktesting.NewFakeClock(time.Now())
	c, model := reserving(t, func(s *Config) { s.Log, s.Clock = slog.New(slog.NewTextHandler(&log, nil)), clock })
	if every := c.Capabilities().CatalogueEvery; every != reservationsEvery {
		t.Errorf("it is read every %v", every)
	}
	got := reservedOf(t, c)
	offering := func(zone, subnet, id string, dedicated bool, price float64) catalog.PurchaseOption {
		return catalog.PurchaseOption{
			Zone:         zone,
			Subnet:       subnet,
			Dedicated:    dedicated,
			Reservation:  id,
			PricePerHour: price,
			Unpriced:     price == 0,
		}
	}
	want := []catalog.PurchaseOption{
		offering("us-east-1a", "subnet-a1", "cr-1", false, 0.08),
		offering("us-east-1a", "subnet-a2", "cr-1", false, 0.08),
		offering("us-east-1b", privateSubnet, "cr-hosts", true, 0),
	}
	if !slices.Equal(got["c5.large"], want) {
		t.Errorf("c5.large is reserved at %+v, want %+v", got["c5.large"], want)
	}
	want = []catalog.PurchaseOption{
		offering("us-east-1a", "subnet-a1", "cr-block", false, 0), // it was paid in advance
		offering("us-east-1a", "subnet-a2", "cr-block", false, 0),
	}
	if !slices.Equal(got["g5.xlarge"], want) {
		t.Errorf("g5.xlarge is reserved at %+v, want %+v", got["g5.xlarge"], want)
	}
	const told = "cr-windows: its platform is Windows: want Linux/UNIX; cr-none: EC2 shows none that is active"
	if text := log.String(); strings.Count(text, told) != 1 || strings.Contains(text, "cr-another") {
		t.Errorf("the log has %s", text)
	}
	// What is full, and a block that is about to end, are no offerings. What else is sold is not read again.
	model.Change(func(cfg *ec2.Config) {
		cfg.Reservations[0].Total = 0
		cfg.Reservations[1].End = clock.Now().Add(blockNotice + blockLead)
	})
	before := model.Calls()
	if got = reservedOf(t, c); len(got["c5.large"]) != 1 || len(got["g5.xlarge"]) != 0 {
		t.Errorf("%+v", got)
	}
	after := model.Calls()
	if after["DescribeInstanceTypes"] != before["DescribeInstanceTypes"] || strings.Count(log.String(), told) != 1 {
		t.Errorf("%v, and before %v; the log has %s", after, before, log.String())
	}
	clock.Step(soldEvery)
	reservedOf(t, c)
	if again := model.Calls(); again["DescribeInstanceTypes"] == after["DescribeInstanceTypes"] {
		t.Error("after half a day what is sold is not read again")
	}
}

// What cannot be read now was perhaps read before; what may not be read says nothing of launches.
func TestReservationsThatCannotBeReadHoldNothingElseUp(t *testing.T) {
	account := anAccountThatReserves()
	blind, err := ec2.ParsePolicy([]byte(strings.ReplaceAll(string(Policy()), "ec2:DescribeCapacityReservations", "ec2:DescribeFleets")))
	if err != nil {
		t.Fatal(err)
	}
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": blind}
	account.Sim.Knobs.Capacity = nil
	_, url := serve(t, account)
	var log bytes.Buffer
	s := settings(url)
	s.Reservations.IDs, s.Log = []string{"cr-1"}, slog.New(slog.NewTextHandler(&log, nil))
	c := open(t, s)
	if got := reservedOf(t, c); len(got) > 0 || !strings.Contains(log.String(), "those that were known before") ||
		!strings.Contains(log.String(), "UnauthorizedOperation") {
		t.Errorf("the catalogue has %v; the log is %s", got, &log)
	}
	err = runLaunch(t.Context(), c, into("blind", "cr-1", 1)).Err()
	if !errors.Is(err, cloud.ErrCapacity) || cloud.ScopeOf(err).Pool != "cr-1" || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("into it: %v", err)
	}
	if err := runLaunch(t.Context(), c, request("beside", 1)).Err(); err != nil {
		t.Errorf("beside it: %v", err)
	}
	// Not read yet, for another reason than a right that is missing: the launch is to be asked for again.
	c, model := reserving(t, nil)
	if err := runLaunch(t.Context(), c, request("beside", 1)).Err(); !errors.Is(err, cloud.ErrCapacity) {
		t.Errorf("beside it, where all is used up: %v", err)
	}
	model.Machines().FailNth(sim.KindCatalogue, 1, sim.Fault{Before: sim.ErrInternal})
	err = runLaunch(t.Context(), c, into("again", "cr-1", 1)).Err()
	if err == nil || errors.Is(err, cloud.ErrCapacity) || !strings.Contains(err.Error(), "read the capacity reservations") {
		t.Errorf("into one that could not be read: %v", err)
	}
	if got := reservedOf(t, c)["c5.large"]; len(got) == 0 {
		t.Errorf("now that it is read: %v", got)
	}
	model.Machines().FailNth(sim.KindCatalogue, 1, sim.Fault{Before: sim.ErrInternal})
	if got := reservedOf(t, c)["c5.large"]; len(got) == 0 {
		t.Errorf("what was known before: %v", got)
	}
}

func TestReservationsAreReadForNobodyWhoHasNone(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	if got := reservedOf(t, c); len(got) > 0 || model.Calls()["DescribeCapacityReservations"] > 0 ||
		c.Capabilities().CatalogueEvery != soldEvery {
		t.Errorf("%+v, %v", got, model.Calls())
	}
}

func into(token, reservation string, n int) cloud.LaunchRequest {
	r := request(token, n)
	r.Reservation = reservation
	return r
}

// The driver knows how many have room: EC2 refuses the whole of a larger call. The next who comes is
// refused without one, so that it tries something else at once.
func TestALaunchTakesWhatAReservationHas(t *testing.T) {
	c, model := reserving(t, nil)
	scope := cloud.Scope{
		InstanceType: "c5.large",
		Zone:         "us-east-1a",
		Spot:         new(false),
		Pool:         "cr-1",
	}
	full := func(err error) bool {
		got := cloud.ScopeOf(err)
		return errors.Is(err, cloud.ErrCapacity) && cloud.NothingDone(err) && got.Spot != nil && got.String() == scope.String()
	}
	results := runLaunch(t.Context(), c, into("first", "cr-1", 5))
	for n, r := range results {
		if (r.Err == nil) != (n < 3) || r.Err != nil && !full(r.Err) {
			t.Errorf("%d: %v", n, r.Err)
		}
	}
	if err := runLaunch(t.Context(), c, into("second", "cr-1", 1)).Err(); !full(err) || model.Calls()["RunInstances"] != 1 {
		t.Errorf("%v after %d calls", err, model.Calls()["RunInstances"])
	}
	if err := runLaunch(t.Context(), c, request("beside", 1)).Err(); !errors.Is(err, cloud.ErrCapacity) || cloud.ScopeOf(err).Pool != "" {
		t.Errorf("what all share: %v", err)
	}
	// One ends, and another takes the place before Kip has read of it.
	if err := c.Terminate(t.Context(), results[0].Instance.ID).Err(); err != nil {
		t.Fatal(err)
	}
	if got := reservedOf(t, c)["c5.large"]; len(got) != 3 {
		t.Errorf("%+v", got)
	}
	model.Change(func(cfg *ec2.Config) { cfg.Reservations[0].Total = 2 })
	if err := runLaunch(t.Context(), c, into("third", "cr-1", 1)).Err(); !full(err) || !strings.Contains(err.Error(), codeReservationFull) {
		t.Errorf("%v", err)
	}
	calls := model.Calls()["RunInstances"]
	if err := runLaunch(t.Context(), c, into("fourth", "cr-1", 1)).Err(); !full(err) || model.Calls()["RunInstances"] != calls {
		t.Errorf("%v after %d calls more", err, model.Calls()["RunInstances"]-calls)
	}
	for _, id := range []string{"cr-another", "cr-gone"} { // which is nobody's business of Kip's
		if err := runLaunch(t.Context(), c, into("of "+id, id, 1)).Err(); !errors.Is(err, cloud.ErrCapacity) || cloud.ScopeOf(err).Pool != id {
			t.Errorf("%s: %v", id, err)
		}
	}
	spot := into("spot", "cr-1", 1)
	spot.CapacityType, spot.Resolved = cloud.Spot, &cloud.Resolved{}
	if err := c.Launch(t.Context(), spot).Err(); !errors.Is(err, cloud.ErrRefused) {
		t.Errorf("spot: %v", err)
	}
}

// A launch that was stored is sent as it was, whatever has room by then.
func TestALaunchIntoAReservationIsResolvedOnce(t *testing.T) {
	c, _ := reserving(t, nil)
	r := resolved(t, c, into("t", "cr-1", 5))
	in := runInstances(r)
	if target := in.CapacityReservationSpecification.CapacityReservationTarget; *in.MaxCount != 3 || *target.CapacityReservationId != "cr-1" ||
		in.InstanceMarketOptions != nil {
		t.Errorf("%d, %+v", *in.MaxCount, in)
	}
	if err := runLaunch(t.Context(), c, r).Err(); !errors.Is(err, cloud.ErrCapacity) { // of the two that are too many
		t.Fatal(err)
	}
	again := runLaunch(t.Context(), c, r)
	for n, one := range again {
		if (one.Err == nil) != (n < 3) {
			t.Errorf("%d: %v", n, one.Err)
		}
	}
}

func TestInstancesOfABlockAreToldBeforeItEnds(t *testing.T) {
	c, model := reserving(t, nil)
	reservedOf(t, c)
	r := into("block", "cr-block", 2)
	r.InstanceType = "g5.xlarge"
	got, err := runLaunch(t.Context(), c, r).All()
	if err != nil {
		t.Fatal(err)
	}
	if beside := runLaunch(t.Context(), c, into("beside", "cr-1", 1)).Err(); beside != nil {
		t.Fatal(beside)
	}
	var told []cloud.Interruption
	w := watch{ec2: c.interruptions, l: cloud.Listener{
		Notify: func(i cloud.Interruption) { told = append(told, i) },
		Mine:   func(id string) bool { return id == got[0].ID },
	}}
	w.lookAtBlocks(t.Context(), t.Context())
	if len(told) > 0 {
		t.Errorf("a day before: %+v", told)
	}
	end := time.Now().Add(blockNotice + blockLead).Truncate(time.Millisecond).UTC()
	model.Change(func(cfg *ec2.Config) { cfg.Reservations[1].End = end })
	w.lookAtBlocks(t.Context(), t.Context())
	model.Machines().FailNth(sim.KindCatalogue, 1, sim.Fault{Before: sim.ErrInternal})
	w.lookAtBlocks(t.Context(), t.Context()) // which is refused, and ends nothing
	w.lookAtBlocks(t.Context(), t.Context())
	want := cloud.Interruption{InstanceID: got[0].ID, At: end.Add(-blockNotice), Reason: "the Capacity Block cr-block ends"}
	if len(told) != 1 || !told[0].At.Equal(want.At) || told[0].InstanceID != want.InstanceID || told[0].Reason != want.Reason {
		t.Errorf("%+v, want %+v", told, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	err = c.Interruptions(ctx, cloud.Listener{
		Send: func(ctx context.Context, call func(context.Context) error) error {
			looks++
			return call(ctx)
		},
		Notify: func(i cloud.Interruption) {
			if i.Reason == want.Reason {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) || looks < 3 {
		t.Errorf("%v after %d looks", err, looks)
	}
	model.Change(func(cfg *ec2.Config) { cfg.Reservations[1].End = time.Now().Add(blockNotice) })
	list, err := c.List(t.Context(), owner)
	if err != nil || len(list.Instances) != 1 || list.Instances[0].InstanceType != "c5.large" {
		t.Fatalf("when the block's time is over there are %+v, %v", list.Instances, err)
	}
	if got, want := list.Instances[0].Origin, (cloud.Origin{Token: "beside", Reservation: "cr-1"}); got != want {
		t.Errorf("the other is of %+v, want %+v", got, want)
	}
}

// A disruption of any zone, also of the block's own, takes nothing from the notice.
func TestInstancesOfABlockAreToldInADisruption(t *testing.T) {
	before, model := reserving(t, nil)
	reservedOf(t, before)
	r := into("block", "cr-block", 2)
	r.InstanceType = "g5.xlarge"
	got, err := runLaunch(t.Context(), before, r).All()
	if err != nil {
		t.Fatal(err)
	}
	if err := runLaunch(t.Context(), before, into("beside", "cr-1", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	if err := before.Terminate(t.Context(), got[1].ID).Err(); err != nil {
		t.Fatal(err)
	}
	model.Change(func(cfg *ec2.Config) { cfg.Reservations[1].End = time.Now().Add(blockNotice + blockLead) })
	fresh := open(t, before.cfg)
	for _, tc := range []struct {
		what, zone string
		c          *Cloud
		told       []string
	}{
		{"another zone's", "us-east-1b", before, []string{got[0].ID}},
		{"another zone's, and Kip is new", "us-east-1b", fresh, []string{got[0].ID}},
		{"its own zone's", r.Zone, before, []string{got[0].ID, got[1].ID}}, // that one has ended nobody can know
	} {
		disrupt(t, model, tc.zone)
		all, err := tc.c.blocks.inEndingBlocks(t.Context())
		var told []string
		for _, i := range all {
			told = append(told, i.InstanceID)
		}
		slices.Sort(told)
		if slices.Sort(tc.told); err != nil || !slices.Equal(told, tc.told) {
			t.Errorf("%s: it tells of %v, %v: want %v", tc.what, told, err, tc.told)
		}
	}
}
