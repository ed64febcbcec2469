//go:build e2e

// Package awsvm proves the whole way of a pod on EC2 on real parts: the boot image is published as
// an AMI, RunInstances has UEFI boot a virtual machine from what was uploaded, the machine gets its
// address by DHCP and its user data by IMDSv2, its agent joins, and its kubelet runs the pod. EC2's
// API is a model's, and the hypervisor QEMU.
package awsvm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

var world *harness.World

func TestMain(m *testing.M) {
	o := harness.Options{
		Network:  harness.MustClaim("awsvm"),
		Stderr:   os.Stderr,
		DevArgs:  []string{"--cloud", "aws-vm"},
		Patience: 30 * time.Minute, // machines are emulated, on one core beside the other worlds
	}
	os.Exit(harness.Main(o, &world, m.Run))
}

const pod = `apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'echo started; trap "exit 0" TERM; while :; do sleep 0.1; done']
`

// state is what the account has.
func state(ctx context.Context, t *testing.T) (s ec2.State) {
	t.Helper()
	if err := world.Model().State(ctx, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAPodRunsOnAMachineThatBootedThePublishedImage(t *testing.T) {
	s := namespace.New(t, world)
	began := time.Now()
	s.Apply(pod)
	p := s.WaitReady("one")
	t.Logf("the pod is Ready after %v", time.Since(began).Round(time.Second))

	all := state(t.Context(), t).Instances
	if len(all) != 1 || all[0].ManagementIP.String() != p.Status.HostIP {
		t.Fatalf("the instances are %+v; the pod is on %s", all, p.Status.HostIP)
	}
	machines, err := host.Recorded(host.Config{StateDir: filepath.Join(world.State, "cloud")})
	if err != nil || len(machines) != 1 || machines[0].ManagementIP != all[0].ManagementIP || machines[0].Tags[cloud.TagName] != all[0].ID {
		t.Fatalf("behind instance %s stand %+v, %v", all[0].ID, machines, err)
	}
	console, err := os.ReadFile(filepath.Join(world.State, "cloud", "machines", machines[0].ID, "console.log"))
	if err != nil {
		t.Fatal(err)
	}
	// Its hardware's clock is wrong by years, and no certificate valid before it has asked EC2's.
	for _, want := range []string{"UEFI", "EC2", "the clock was wrong by "} {
		if !strings.Contains(string(console), want) {
			t.Errorf("the console says nothing of %s:\n%s", want, console)
		}
	}
	here, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Kubectl("exec", "one", "--", "cat", "/proc/sys/kernel/random/boot_id"); got == string(here) {
		t.Error("the pod runs on this host's kernel")
	}
	if got := s.Kubectl("logs", "one"); got != "started\n" {
		t.Errorf("the log is %q", got)
	}
	s.Kubectl("delete", "pod", "one", "--wait=false")
	s.Eventually("the cell and its instance are gone", func(ctx context.Context) error {
		if err := s.NoCells(ctx); err != nil {
			return err
		}
		for _, i := range state(ctx, t).Instances {
			if i.Ended.IsZero() {
				return fmt.Errorf("instance %s is %s", i.ID, i.State)
			}
		}
		return nil
	})
	if err := world.Empty(t.Context()); err != nil {
		t.Error(err)
	}
}
