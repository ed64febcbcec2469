//go:build e2e

package boot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/test/tier"
)

// onARM64 runs what of the image is built or chosen for an architecture: programs in C and with libraries, file systems, rules
// of nft, and the driver of EC2's network cards, which has no card here.
const onARM64 = `#cloud-config
runcmd:
- exec >/dev/console 2>&1
- set -ex
- test "$(uname -m)" = aarch64
- runc --version
- kubelet --version
- containerd --version
- modprobe ena
- nft add table inet kip-test && nft delete table inet kip-test
- mkdir /var/tmp/xfs && truncate -s 320M /var/tmp/disk && mkfs.xfs -q /var/tmp/disk && mount -t xfs -o loop /var/tmp/disk /var/tmp/xfs
- umount /var/tmp/xfs && xfs_repair -n /var/tmp/disk
- mkfs.ext4 -q -F /var/tmp/disk && e2fsck -n /var/tmp/disk && blkid /var/tmp/disk
- mount.nfs -V
`

// TestARM64BootsJoinsAndRunsTheKubelet boots the image for arm64 as EC2's Graviton2 does: by UEFI, from an NVMe disk, with a
// console that the firmware names (SPCR). The agent joins, runs a cloud-init file, containerd and the kubelet, and obeys the
// power button. It does not show EC2's own devices, nor a pod.
func TestARM64BootsJoinsAndRunsTheKubelet(t *testing.T) {
	tier.All(t)
	k := newKip(t)
	what := describe(t, diskOf(t, imageFor(t, vm.ARM64)), k.userData(), true)
	what.Arch, what.Root = vm.ARM64, vm.NVMe
	what.Variables = variables(t, t.TempDir(), vm.FirmwareVariablesARM64)
	m := run(t, what)
	begins := m.says("the agent begins")
	agent, leave := k.join(m, k.token)
	defer leave()
	t.Logf("since the kernel started, in seconds: init %.1f, user space %.1f, agent %.1f",
		at(t, m.says("init begins")), at(t, m.says("first life")), at(t, begins))

	m.until("run a cloud-init file", func(ctx context.Context) error {
		failures, err := agent.PutCloudInit(ctx, []byte(onARM64))
		if err == nil && len(failures) > 0 {
			t.Fatalf("the cloud-init file failed: %q\n%s", failures, m.Console())
		}
		return err
	})
	m.until("take the configuration", func(ctx context.Context) error {
		_, err := agent.PutConfig(ctx, agentapi.Config{
			NodeName:            "kip-0",
			NodeIP:              netip.MustParseAddr("10.0.2.15"), // QEMU's first lease
			PodIP:               netip.MustParseAddr("10.0.2.77"),
			ClusterDomain:       "cluster.local",
			ReservedMemoryBytes: 64 << 20,
		})
		return err
	})
	m.until("run containerd and the kubelet", func(ctx context.Context) error {
		status, err := agent.Status(ctx)
		if err != nil {
			return err
		}
		running := 0
		for _, c := range status.Components {
			if c.PID != 0 && c.Restarts == 0 {
				running++
			}
		}
		if running != 2 {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	m.press()
	m.ends()
	m.says("the power button was pressed")
	m.says("power off")
}

// until does something again until it succeeds, or the agent refuses it.
func (m machine) until(what string, do func(ctx context.Context) error) {
	m.t.Helper()
	ctx := within(m.t)
	for err := do(ctx); err != nil; err = do(ctx) {
		if said, ok := errors.AsType[*agentapi.StatusError](err); ok && !errors.Is(err, agentapi.ErrNotYet) {
			m.t.Fatalf("%s: %v\n%s", what, said, m.Console())
		}
		select {
		case <-m.Ended():
			m.t.Fatalf("%s: %v; the machine has ended:\n%s", what, err, m.Console())
		case <-ctx.Done():
			m.t.Fatalf("%s: %v\n%s", what, err, m.Console())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
