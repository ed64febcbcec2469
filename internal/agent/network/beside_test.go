package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/elotl/kip/internal/agentapi"
)

func TestAPodBesideTheCellsGetsAnAddressOfTheMachineAlone(t *testing.T) {
	machine(t)
	gates := t.TempDir()
	added := func(container, uid string) (device string, ip netip.Addr) {
		t.Helper()
		args := pod(t, container)
		args.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_UID=" + uid
		args.StdinData = fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"kip","type":"itzo-cni","podIP":%q,"nodeIP":%q,"gateDir":%q}`, podIP, nodeIP, gates)
		before, _ := netlink.LinkList()
		known := map[string]bool{}
		for _, l := range before {
			known[l.Attrs().Name] = true
		}
		if err := add(args); err != nil {
			t.Fatal(err)
		}
		if err := check(args); err != nil {
			t.Error(err)
		}
		t.Cleanup(func() { _ = del(args) })
		after, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range after {
			if !known[l.Attrs().Name] {
				device = l.Attrs().Name
				routes, err := netlink.RouteList(l, netlink.FAMILY_V4)
				if err != nil || len(routes) != 1 {
					t.Fatalf("routes of %s: %v, %v", device, routes, err)
				}
				ip, _ = netip.AddrFromSlice(routes[0].Dst.IP)
				if !routes[0].Src.Equal(nodeIP.AsSlice()) {
					t.Errorf("the machine reaches %s from %s", ip, routes[0].Src)
				}
			}
		}
		return device, ip.Unmap()
	}
	// Before anything is said of others, there is one pod.
	if device, ip := added("alone", "own"); !strings.HasPrefix(device, "pod") || ip != podIP {
		t.Errorf("the pod has %s at %s", ip, device)
	}
	if err := NamePod(gates, "own"); err != nil {
		t.Fatal(err)
	}
	if device, ip := added("again", "own"); !strings.HasPrefix(device, "pod") || ip != podIP {
		t.Errorf("the pod has %s at %s", ip, device)
	}
	seen := map[netip.Addr]bool{}
	for _, container := range []string{"a", "b", "c"} {
		device, ip := added(container, "set-"+container)
		if !strings.HasPrefix(device, "dset") || !agentapi.BesideNetwork.Contains(ip) || seen[ip] {
			t.Errorf("a pod beside it has %s at %s", ip, device)
		}
		seen[ip] = true
	}
	if device, _ := routeTo(t, podIP); device != hostVeth("again", "eth0") {
		t.Errorf("the pod's address leads to %s", device)
	}
	unknown := pod(t, "unknown")
	unknown.StdinData = fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"kip","type":"itzo-cni","podIP":%q,"nodeIP":%q,"gateDir":%q}`, podIP, nodeIP, gates)
	if err := add(unknown); err == nil || !strings.Contains(err.Error(), "K8S_POD_UID") {
		t.Errorf("a pod without a UID: %v", err)
	}
	if err := NamePod(gates, ""); err != nil {
		t.Fatal(err)
	}
	if beside, err := isBeside(gates, "K8S_POD_UID=other"); err != nil || beside {
		t.Errorf("nothing runs beside the pod any more: %t, %v", beside, err)
	}
}
