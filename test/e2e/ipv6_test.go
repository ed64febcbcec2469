//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// What no policy is about and no firewall rule counts, nobody must be able to use:
// in a cluster with IPv4 only neither pods nor cells nor the bridge have as much as a
// link-local address. Package dualstack has the rest.
func TestACellWithoutIPv6HasNoSideDoor(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("pod"))
	s.Apply(namespace.Bare("machine", `  hostNetwork: true
  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, "3600"]}
`))
	if pod := s.WaitReady("pod"); len(pod.Status.PodIPs) != 1 || len(pod.Status.HostIPs) != 1 {
		t.Errorf("addresses %v of the pod, %v of its host", pod.Status.PodIPs, pod.Status.HostIPs)
	}
	s.WaitReady("machine")
	for _, name := range []string{"pod", "machine"} { // the second sees what its cell has
		for line := range strings.Lines(s.Kubectl("exec", name, "--", "cat", "/proc/net/if_inet6")) {
			if fields := strings.Fields(line); len(fields) < 6 || fields[5] != "lo" {
				t.Errorf("%s has an IPv6 address: %s", name, line)
			}
		}
	}
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := netlink.AddrList(link, unix.AF_INET6); err != nil || len(all) > 0 {
		t.Errorf("the bridge has IPv6 addresses: %v, %v", all, err)
	}
}
