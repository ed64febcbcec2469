package aws

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// onHosts is a driver that may use the hosts h-1 and h-none, and all of a team's.
func onHosts(t *testing.T, log *bytes.Buffer) (*Cloud, *ec2.Model) {
	t.Helper()
	account := anAccount(sim.Knobs{})
	team := map[string]string{"team": "a"}
	account.Hosts = []ec2.Host{
		{ID: "h-1", Family: "c5", Zone: "us-east-1a", VCPUs: 8},
		{ID: "h-far", Type: "c5.large", Zone: "us-east-1b", VCPUs: 4, Tags: team},
		{ID: "h-ill", Family: "c5", Zone: "us-east-1a", VCPUs: 8, State: "under-assessment", Tags: team},
		{ID: "h-group", Family: "c5", Zone: "us-east-1a", VCPUs: 8, Group: true, Tags: team},
		{ID: "h-another", Family: "c5", Zone: "us-east-1a", VCPUs: 8},
	}
	model, url := serve(t, account)
	s := settings(url)
	s.Subnets = []string{"subnet-a1", privateSubnet}
	s.Hosts = Choice{IDs: []string{"h-1", "h-none"}, Tags: team}
	s.Log = slog.New(slog.NewTextHandler(log, nil))
	return open(t, s), model
}

func ontoHost(token, host string, n int) cloud.LaunchRequest {
	r := into(token, host, n)
	r.CapacityType = cloud.Dedicated
	return r
}

func TestTheCatalogueHasTheRoomOfHosts(t *testing.T) {
	var log bytes.Buffer
	c, model := onHosts(t, &log)
	if every := c.Capabilities().CatalogueEvery; every != reservationsEvery {
		t.Errorf("it is read every %v", every)
	}
	on := func(zone, subnet, id string) catalog.PurchaseOption {
		return catalog.PurchaseOption{
			Zone:        zone,
			Subnet:      subnet,
			Dedicated:   true,
			Reservation: id,
			Unpriced:    true, // the host is paid for, not what is on it
		}
	}
	got := reservedOf(t, c)
	want := []catalog.PurchaseOption{on("us-east-1a", "subnet-a1", "h-1"), on("us-east-1b", privateSubnet, "h-far")}
	if !slices.Equal(got["c5.large"], want) || len(got["c5.2xlarge"]) > 1 || len(got["g5.xlarge"]) > 0 {
		t.Errorf("there are %+v, want of c5.large %+v", got, want)
	}
	const told = "h-group: it is in a host resource group, which places instances by itself; h-ill: it is under-assessment; " +
		"h-none: EC2 shows none that is active"
	if text := log.String(); strings.Count(text, told) != 1 || strings.Contains(text, "h-another") {
		t.Errorf("the log has %s", text)
	}
	if n := model.Calls()["DescribeCapacityReservations"]; n > 0 {
		t.Errorf("reservations, of which none is configured, were asked for %d times", n)
	}
}

func TestALaunchTakesTheRoomOfItsHost(t *testing.T) {
	c, model := onHosts(t, new(bytes.Buffer))
	full := func(err error) bool {
		return errors.Is(err, cloud.ErrCapacity) && cloud.NothingDone(err) && cloud.ScopeOf(err).Pool == "h-1"
	}
	results := runLaunch(t.Context(), c, ontoHost("first", "h-1", 5))
	for n, r := range results {
		if (r.Err == nil) != (n < 4) || r.Err != nil && !full(r.Err) {
			t.Errorf("%d: %v", n, r.Err)
		}
	}
	if err := runLaunch(t.Context(), c, ontoHost("second", "h-1", 1)).Err(); !full(err) || model.Calls()["RunInstances"] != 1 {
		t.Errorf("%v after %d calls", err, model.Calls()["RunInstances"])
	}
	list, err := c.List(t.Context(), owner)
	if err != nil || len(list.Instances) != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got, want := list.Instances[0].Origin, (cloud.Origin{Token: "first", Dedicated: true, Reservation: "h-1"}); got != want {
		t.Errorf("it is of %+v, want %+v", got, want)
	}
	// One ends, and another account takes its room before Kip has read of it.
	if err := c.Terminate(t.Context(), results[0].Instance.ID).Err(); err != nil {
		t.Fatal(err)
	}
	reservedOf(t, c)
	model.Change(func(cfg *ec2.Config) { cfg.Hosts[0].VCPUs = 6 })
	if err := runLaunch(t.Context(), c, ontoHost("third", "h-1", 1)).Err(); !full(err) || !strings.Contains(err.Error(), codeHostFull) {
		t.Errorf("%v", err)
	}
	// What ails, or is released, is a shortage of that host.
	for _, one := range []struct {
		code   string
		change func(*ec2.Host)
	}{
		{"InvalidHostState", func(h *ec2.Host) { h.State = "under-assessment" }},
		{"InvalidHostID.NotFound", func(h *ec2.Host) { h.ID = "h-0" }},
	} {
		model.Change(func(cfg *ec2.Config) { cfg.Hosts[0].VCPUs, cfg.Hosts[0].State = 8, "" })
		reservedOf(t, c)
		model.Change(func(cfg *ec2.Config) { one.change(&cfg.Hosts[0]) })
		if err := runLaunch(t.Context(), c, ontoHost("at "+one.code, "h-1", 1)).Err(); !full(err) || !strings.Contains(err.Error(), one.code) {
			t.Errorf("%s: %v", one.code, err)
		}
	}
}

// The types of a host share its room: a launch of one leaves less to the others.
func TestTheTypesOfAHostShareItsRoom(t *testing.T) {
	c := &reservations{reserved: map[string]*reservation{"h-1": {free: map[string]int{"c5.large": 8, "c5.xlarge": 4, "c5.4xlarge": 1}}}}
	c.took("h-1", "c5.large", 2, false)
	c.took("h-2", "c5.large", 2, false)
	want := map[string]int{"c5.large": 6, "c5.xlarge": 3, "c5.4xlarge": 0}
	if got := c.reserved["h-1"].free; len(got) != 3 || got["c5.large"] != 6 || got["c5.xlarge"] != 3 || got["c5.4xlarge"] != 0 {
		t.Errorf("%v, want %v", got, want)
	}
	c.took("h-1", "c5.xlarge", 0, true) // which says nothing of smaller ones
	if got := c.reserved["h-1"].free; got["c5.large"] != 6 || got["c5.xlarge"] != 0 {
		t.Errorf("%v", got)
	}
}

// A right that is missing to read hosts, as with a policy from before there were any, takes no reservation away.
func TestHostsThatMayNotBeReadTakeNoReservationAway(t *testing.T) {
	account := anAccountThatReserves()
	account.Sim.Knobs.Capacity = nil
	blind, err := ec2.ParsePolicy([]byte(strings.ReplaceAll(string(Policy()), "ec2:DescribeHosts", "ec2:DescribeFleets")))
	if err != nil {
		t.Fatal(err)
	}
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": blind}
	model, url := serve(t, account)
	var log bytes.Buffer
	s := settings(url)
	s.Reservations, s.Hosts = Choice{IDs: []string{"cr-1", "cr-block"}}, Choice{IDs: []string{"h-1"}}
	s.Log = slog.New(slog.NewTextHandler(&log, nil))
	c := open(t, s)
	if got := reservedOf(t, c); len(got["c5.large"]) == 0 || !strings.Contains(log.String(), "ec2:DescribeHosts") {
		t.Errorf("the catalogue has %v; the log is %s", got, &log)
	}
	if err := runLaunch(t.Context(), c, into("reserved", "cr-1", 1)).Err(); err != nil {
		t.Error(err)
	}
	r := into("block", "cr-block", 1)
	r.InstanceType = "g5.xlarge"
	got, err := runLaunch(t.Context(), c, r).All()
	if err != nil {
		t.Fatal(err)
	}
	model.Change(func(cfg *ec2.Config) { cfg.Reservations[1].End = time.Now().Add(blockNotice + blockLead) })
	var told []cloud.Interruption
	w := watch{ec2: c.interruptions, l: cloud.Listener{Notify: func(i cloud.Interruption) { told = append(told, i) }}}
	w.lookAtBlocks(t.Context(), t.Context())
	if len(told) != 1 || told[0].InstanceID != got[0].ID {
		t.Errorf("told of %+v, want the end of the block", told)
	}
}

// What is wrong with a host is so for all of its types, and for nobody's launch elsewhere.
func TestAHostThatTakesNothingIsAskedOnce(t *testing.T) {
	c, model := onHosts(t, new(bytes.Buffer))
	reservedOf(t, c)
	model.Change(func(cfg *ec2.Config) { cfg.Hosts[0].State = "under-assessment" })
	for n, kind := range []string{"c5.large", "c5.2xlarge"} {
		r := ontoHost(kind, "h-1", 1)
		r.InstanceType = kind
		if err := runLaunch(t.Context(), c, r).Err(); !errors.Is(err, cloud.ErrCapacity) || cloud.ScopeOf(err).Pool != "h-1" {
			t.Errorf("%d: %v", n, err)
		}
	}
	if n := model.Calls()["RunInstances"]; n != 1 {
		t.Errorf("EC2 was asked %d times", n)
	}
}

func TestAnEndOnAHostIsOfThatHostAlone(t *testing.T) {
	end := instanceOf(types.Instance{
		InstanceId:   aws.String("i-1"),
		InstanceType: types.InstanceTypeC5Large,
		Placement:    &types.Placement{AvailabilityZone: aws.String("us-east-1a"), Tenancy: types.TenancyHost, HostId: aws.String("h-1")},
		State:        &types.InstanceState{Name: types.InstanceStateNameTerminated},
		StateReason:  &types.StateReason{Code: aws.String("Server.InsufficientInstanceCapacity"), Message: aws.String("none")},
	})
	if s := cloud.ScopeOf(end.Fault); s.Pool != "h-1" {
		t.Errorf("an end on a host is of %+v", s)
	}
}
