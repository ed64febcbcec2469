package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
)

// limited skips on hosts that cannot make disks.
func limited(t testing.TB) {
	t.Helper()
	if _, err := findMkfs(); err != nil {
		t.Skipf("machines' disks have no limit on this host: %v", err)
	}
}

func TestMachineIsHeldToItsDisk(t *testing.T) {
	limited(t)
	cfg := testHost(t)
	c := open(t, cfg)
	full, other := launch(t, c, request("full")), launch(t, c, request("other"))
	const fill = "dd if=/dev/zero of=/var/lib/kubelet/big bs=1M count=%d 2>&1 | grep -c 'No space left' || true"
	if got := run(t, full.ManagementIP, fmt.Sprintf(fill, 100)); got != "1" {
		t.Errorf("100 MiB on a disk of 64: %q", got)
	}
	if got := run(t, full.ManagementIP, "df -k /var/lib/containerd | tail -1 | awk '{print ($2 <= 65536), ($4 < 1024)}'"); got != "1 1" {
		t.Errorf("at most 64 MiB, and less than one of it free: %q", got)
	}
	if got := run(t, other.ManagementIP, fmt.Sprintf(fill, 40)); got != "0" {
		t.Errorf("40 MiB on another disk of 64: %q", got)
	}
	// It is still full when it comes back, and can be mended.
	stop(t, c, full.ID)
	start(t, c, full.ID)
	if got := run(t, full.ManagementIP, "df -k /var/lib/kubelet | tail -1 | awk '{print ($4 < 1024)}'"); got != "1" {
		t.Errorf("less than 1 MiB free after a boot: %q", got)
	}
	run(t, full.ManagementIP, "rm /var/lib/kubelet/big")
	if got := run(t, full.ManagementIP, fmt.Sprintf(fill, 40)); got != "0" {
		t.Errorf("40 MiB on the emptied disk: %q", got)
	}
	left, err := Leftovers(context.Background(), cfg)
	if err != nil || strings.Count(strings.Join(left, "\n"), "loop device loop") != 2 {
		t.Errorf("left of two machines with disks: %q, %v", left, err)
	}
}

func TestDiskWithoutLimitIsTheHosts(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	c.kind.mkfs = ""
	i := launch(t, c, request("a"))
	writeEverywhere(t, i)
	if got := run(t, i.ManagementIP, "df -m /var/lib/kubelet | tail -1 | awk '{print ($2 > 100)}'"); got != "1" {
		t.Errorf("more than 100 MiB: %q", got)
	}
	stop(t, c, i.ID)
	start(t, c, i.ID)
	readEverywhere(t, i)
}

// While the kernel still has a machine's disk, it has not stopped: mounted a
// second time the disk would be destroyed.
func TestMachineIsStoppedWhenItsDiskIsFree(t *testing.T) {
	limited(t)
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	writeEverywhere(t, i)
	loops, err := host.LoopsOf(cfg.MachineDir(i.ID))
	if err != nil || len(loops) != 1 {
		t.Fatalf("loop devices of one machine: %q, %v", loops, err)
	}
	held, err := os.Open("/dev/" + loops[0])
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.Stop(ctx, i.ID).Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped with its disk in use: %v", err)
	}
	if got := only(t, c); got.State != cloud.Stopping {
		t.Errorf("its disk is in use: %+v", got)
	}
	held.Close()
	stop(t, c, i.ID)
	start(t, c, i.ID)
	readEverywhere(t, i)
}
