package ec2

import (
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/sim"
)

// What EC2's reference says of CPU credits: which a launch has by itself, whose may be changed and when, and what is charged.
func TestCPUCreditsAreThoseOfTheReference(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	offerings := []catalog.PurchaseOption{{Zone: "z1", Subnet: "subnet-1"}}
	kind := func(name string) catalog.InstanceType {
		return catalog.InstanceType{Name: name, MilliCPU: 2000, MemoryBytes: 4 << 30, Arch: "amd64", Offerings: offerings}
	}
	c := newClientOf(t, Config{
		Sim:     sim.Config{Catalogue: []catalog.InstanceType{kind("c5.large"), kind("t3.small"), kind("t2.small")}, Clock: clock},
		Subnets: []Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "z1"}},
		Images:  []Image{{ID: "ami-1", RootDevice: "/dev/xvda", GiB: 8}},
	})
	launch := func(more ...string) sim.Instance {
		t.Helper()
		if code, body := c.ask("RunInstances", run(more...)...); code != "" {
			t.Fatalf("%v: %s: %s", more, code, body)
		}
		all := c.model.Machines().Truth()
		return all[len(all)-1]
	}
	const asked = "CreditSpecification.CpuCredits="
	for _, tc := range []struct {
		more []string
		want Credits
	}{
		{[]string{"InstanceType=c5.large"}, Credits{}},
		{[]string{"InstanceType=t3.small"}, Credits{Option: "unlimited"}},
		{[]string{"InstanceType=t3.small", asked + "standard"}, Credits{Option: "standard"}}, // which has none at its start
		{[]string{"InstanceType=t2.small"}, Credits{Option: "standard", Start: 60}},
	} {
		if got := c.model.Credits.Of(launch(tc.more...)); got != tc.want {
			t.Errorf("%v has %+v, want %+v", tc.more, got, tc.want)
		}
	}
	change := func(id, option string) string {
		t.Helper()
		code, body := c.ask("ModifyInstanceCreditSpecification", "InstanceCreditSpecification.1.InstanceId="+id,
			"InstanceCreditSpecification.1.CpuCredits="+option)
		_, after, failed := strings.Cut(body, "<code>")
		if said, _, _ := strings.Cut(after, "<"); failed && code == "" {
			return said
		}
		return code
	}
	plain, burst := launch("InstanceType=c5.large"), launch("InstanceType=t3.small", asked+"unlimited")
	for _, step := range []struct {
		what, id, option, want string
	}{
		{"a type without", plain.ID, "standard", "InstanceCreditSpecification.NotSupported"},
		{"one that is not there", "i-00000000000000009", "standard", "InvalidInstanceID.NotFound"},
		{"credits of nobody's", burst.ID, "free", "InvalidParameterValue"},
	} {
		if got := change(step.id, step.option); got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
	if code, _ := c.ask("ModifyInstanceCreditSpecification"); code != "MissingParameter" {
		t.Errorf("no instance: %q", code)
	}
	// It is charged while it is unlimited, and no longer.
	clock.Step(time.Minute)
	for range 2 {
		if got := change(burst.ID, "standard"); got != "" {
			t.Fatal(got)
		}
		clock.Step(time.Hour)
	}
	if got, want := c.model.Credits.Of(burst), (Credits{Option: "standard", Charged: time.Minute}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if code, _ := c.ask("TerminateInstances", "InstanceId.1="+burst.ID); code != "" {
		t.Fatal(code)
	}
	if got := change(burst.ID, "standard"); got != "IncorrectInstanceState" && got != "InvalidInstanceID.NotFound" {
		t.Errorf("of one that ends: %q", got)
	}
}
