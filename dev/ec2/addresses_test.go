package ec2

import (
	"fmt"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cloud/sim"
)

// What docs/aws.md says of the size of subnets comes of what a cell takes.
func TestASubnetHasAsManyAddressesAsItsNetwork(t *testing.T) {
	const nic = "NetworkInterface.1."
	for bits, cells := range map[int]int{24: 14, 20: 240} {
		c := newClient(t, sim.Knobs{})
		c.model.Change(func(cfg *Config) { cfg.Subnets[0].Bits = bits })
		launch := func(n int, more string) string {
			code, _ := c.ask("RunInstances", run(fmt.Sprint("MaxCount=", n), nic+more)...)
			return code
		}
		const most = 10 // in a call
		for n := 0; n+most <= cells; n += most {
			if code := launch(most, "Ipv4PrefixCount=1"); code != "" {
				t.Fatalf("/%d: cells %d to %d with a /28 each: %q", bits, n, n+most, code)
			}
		}
		for range cells % most {
			if code := launch(1, "Ipv4PrefixCount=1"); code != "" {
				t.Fatalf("/%d: one of %d with a /28: %q", bits, cells, code)
			}
		}
		if code := launch(1, "Ipv4PrefixCount=1"); code != "InsufficientCidrBlocks" {
			t.Errorf("/%d: a cell more than %d with a /28: %q", bits, cells, code)
		}
		// What is left holds single ones, of two addresses each.
		left := (1<<(32-bits) - reservedAddresses - 17*cells) / 2
		for n := range left {
			if code := launch(1, "SecondaryPrivateIpAddressCount=1"); code != "" {
				t.Fatalf("/%d: single cell %d of %d: %q", bits, n, left, code)
			}
		}
		if code := launch(1, "SecondaryPrivateIpAddressCount=1"); code != "InsufficientFreeAddressesInSubnet" {
			t.Errorf("/%d: one more: %q", bits, code)
		}
	}
}

// AWS Load Balancer Controller finds a pod on an instance by its secondary address, and by no address of a prefix.
func TestAnInterfaceIsFoundByItsSecondaryAddressAndByNoneOfAPrefix(t *testing.T) {
	const nic = "NetworkInterface.1."
	c := newClient(t, sim.Knobs{})
	for parameter, found := range map[string]int{"SecondaryPrivateIpAddressCount=1": 2, "Ipv4PrefixCount=1": 0} {
		before := c.running()
		if code, body := c.ask("RunInstances", run("MaxCount=2", nic+parameter)...); code != "" {
			t.Fatalf("%s: %s: %s", parameter, code, body)
		}
		n := 0
		for _, i := range c.model.Machines().Truth()[before:] {
			pod := c.model.base.prefixOf(i.PodIP).Addr().String()
			_, body := c.ask("DescribeNetworkInterfaces", "Filter.1.Name=addresses.private-ip-address", "Filter.1.Value.1="+pod)
			n += strings.Count(body, "<instanceId>"+i.ID+"<")
			if all := strings.Count(body, "<networkInterfaceId>"); all > 1 {
				t.Errorf("%s: %d interfaces have the address %s: %s", parameter, all, pod, body)
			}
		}
		if n != found {
			t.Errorf("%s: the interfaces of %d pods are found, want %d", parameter, n, found)
		}
	}
	// The other answer that EC2 may have.
	c.model.Change(func(cfg *Config) { cfg.LoneSecondaries = true })
	before := c.running()
	if code, _ := c.ask("RunInstances", run("MaxCount=2", nic+"SecondaryPrivateIpAddressCount=1")...); code != "InvalidParameterCombination" {
		t.Errorf("secondary addresses of several: %q", code)
	}
	if code, _ := c.ask("RunInstances", run(nic+"SecondaryPrivateIpAddressCount=1")...); code != "" || c.running() != before+1 {
		t.Errorf("of one: %q", code)
	}
	c.model.Change(func(cfg *Config) { cfg.LoneCode = "SomethingNew" })
	if code, _ := c.ask("RunInstances", run("MaxCount=2", nic+"SecondaryPrivateIpAddressCount=1")...); code != "SomethingNew" {
		t.Errorf("secondary addresses of several, by another code: %q", code)
	}
	if code, _ := c.ask("RunInstances", run("MaxCount=2", nic+"Ipv4PrefixCount=1")...); code != "" {
		t.Errorf("prefixes of several: %q", code)
	}
	c.model.Change(func(cfg *Config) { cfg.NoneTogether = "SomethingElse" })
	if code, _ := c.ask("RunInstances", run("MaxCount=2", nic+"Ipv4PrefixCount=1")...); code != "SomethingElse" {
		t.Errorf("several, for another cause: %q", code)
	}
}
