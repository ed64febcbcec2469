package ec2

import (
	"testing"

	"github.com/elotl/kip/internal/cloud/sim"
)

// Source: EC2 API reference, "DescribeInstances".
func TestADisruptedZoneFailsCallsThatMayBeAboutIt(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	one, two := c.idOf(c.ask("RunInstances", run()...)), c.idOf(c.ask("RunInstances", run("NetworkInterface.1.SubnetId=subnet-2")...))
	if err := c.model.Machines().Change(func(k *sim.Knobs) { k.BlindZones = []string{"z1"} }); err != nil {
		t.Fatal(err)
	}
	const zone = "Filter.1.Name=availability-zone"
	for what, tc := range map[string]struct {
		action, want string
		parameters   []string
	}{
		"all":                   {"DescribeInstances", "Unavailable", nil},
		"the other zone's":      {"DescribeInstances", "Unavailable", []string{zone, "Filter.1.Value.1=z2"}},
		"by a filter of IDs":    {"DescribeInstances", "Unavailable", []string{"Filter.1.Name=instance-id", "Filter.1.Value.1=" + two}},
		"one of the zone":       {"DescribeInstances", "Unavailable", []string{"InstanceId.1=" + one}},
		"one of each":           {"DescribeInstances", "Unavailable", []string{"InstanceId.1=" + two, "InstanceId.2=" + one}},
		"one of the other zone": {"DescribeInstances", "", []string{"InstanceId.1=" + two}},
		"that, and an unknown one": {"DescribeInstances", "InvalidInstanceID.NotFound",
			[]string{"InstanceId.1=" + two, "InstanceId.2=i-0123456789abcdef0"}},
		"its interface": {"DescribeNetworkInterfaces", "",
			[]string{"Filter.1.Name=attachment.instance-id", "Filter.1.Value.1=" + one}},
	} {
		if code, body := c.ask(tc.action, tc.parameters...); code != tc.want {
			t.Errorf("%s: %s %s, want %q", what, code, body, tc.want)
		}
	}
}
