package local

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
)

// What can be done to a machine from its host side, and that it is what it says.
func TestMachineCanBeBrokenFromTheHost(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	run(t, i.ManagementIP, "echo hello > /srv/name")
	side, err := host.Inspect(cfg.Config, i.ID)
	if err != nil || side.State != cloud.Running {
		t.Fatalf("inspect: %+v, %v", side, err)
	}
	if name, err := os.ReadFile(side.Dir + "/upper/srv/name"); err != nil || string(name) != "hello\n" {
		t.Errorf("written in the machine: %q, %v", name, err)
	}

	// Off the bridge, nothing reaches it, and it does not notice.
	device, err := netlink.LinkByName(side.Device)
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := netlink.LinkByName(cfg.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNoMaster(device); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(i.ManagementIP, 8080).String(), 200*time.Millisecond); err == nil {
		conn.Close()
		t.Error("it answers though it is off the bridge")
	}
	if err := netlink.LinkSetMaster(device, bridge); err != nil {
		t.Fatal(err)
	}
	if got := run(t, i.ManagementIP, "cat /srv/name"); got != "hello" {
		t.Errorf("back on the bridge: %q", got)
	}

	if err := unix.Kill(side.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	within(t, "killed machine vanishes", func() error {
		if l := list(t, c); len(l) > 0 {
			return fmt.Errorf("listed: %q", l)
		}
		return nil
	})
	if _, err := host.Inspect(cfg.Config, i.ID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("inspect what is gone: %v", err)
	}
	onlyBridgeIsLeft(t, cfg)

	i = launch(t, c, request("b"))
	stop(t, c, i.ID)
	if side, err := host.Inspect(cfg.Config, i.ID); err != nil || side.State != cloud.Stopped || side.PID != 0 {
		t.Errorf("inspect a stopped machine: %+v, %v", side, err)
	}
}
