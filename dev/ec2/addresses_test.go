package ec2

import (
	"fmt"
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
