package machine

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// Azure has another card of the same address where networking is accelerated, and takes it away at times.
func TestAFunctionOfHyperVsCardIsNoCard(t *testing.T) {
	sys := t.TempDir()
	card := func(name, driver string, last byte) netlink.Link {
		dir := filepath.Join(sys, name, "device")
		to := filepath.Join("../../../bus/pci/drivers", driver)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(to, filepath.Join(dir, "driver"))); err != nil {
			t.Fatal(err)
		}
		return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: net.HardwareAddr{0, 0x0d, 0x3a, 0, 0, last}}}
	}
	names := func(all []netlink.Link) (names []string) {
		for _, l := range withoutFunctions(sys, all) {
			names = append(names, l.Attrs().Name)
		}
		return names
	}
	function, own := card("eth0", "mlx5_core", 1), card("eth1", "hv_netvsc", 1)
	passed, other := card("eth2", "mlx5_core", 2), card("eth3", "hv_netvsc", 3)
	if got := names([]netlink.Link{function, own, passed, other}); !slices.Equal(got, []string{"eth1", "eth2", "eth3"}) {
		t.Errorf("cards are %v", got)
	}
	// Elsewhere cards with one address are as they were.
	if got := names([]netlink.Link{function, card("eth4", "virtio_net", 1)}); !slices.Equal(got, []string{"eth0", "eth4"}) {
		t.Errorf("without Hyper-V cards are %v", got)
	}
}
