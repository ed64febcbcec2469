//go:build e2e

package qemu

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/qemu"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/tier"
)

// runLimit bounds it: on emulated machines it takes a minute or two.
const runLimit = 8 * time.Minute

// TestARunOnVirtualMachinesEndsAsOneOnTheLocalCloud is `make run CLOUD=qemu ARGS=--once`, as
// docs/virtual-machines.md has it. Package tutorial has the same for the local cloud.
func TestARunOnVirtualMachinesEndsAsOneOnTheLocalCloud(t *testing.T) {
	tier.All(t)
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("make")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "run.log")
	// Beside any run of the user's own, and beside the world of the other tests.
	n, err := harness.Claim("qemurun")
	if err != nil {
		t.Fatal(err)
	}
	where := "--state=" + n.State + " --bridge=" + n.Bridge + " --cidr=" + n.CIDR.String()
	run, err := child.Start(child.Spec{
		Path:    program,
		Args:    []string{"run", "CLOUD=qemu", "ARGS=--once " + where},
		Dir:     root,
		LogFile: out,
		Death:   syscall.SIGTERM,
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-run.Done():
	case <-time.After(runLimit):
		t.Errorf("it has not ended after %v", runLimit)
		if err := syscall.Kill(-run.PID(), syscall.SIGINT); err != nil { // as a terminal sends it
			t.Error(err)
		}
		<-run.Done()
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	last := regexp.MustCompile(`(?m)^ok: pod hello succeeded on cell cell-\S+ .*; cell terminated; nothing left behind$`)
	if run.Err() != nil || !last.Match(text) {
		t.Errorf("it ended with %v, and said\n%s", run.Err(), text)
	}
	log, err := os.ReadFile(filepath.Join(n.State, "kip.log"))
	if err != nil {
		t.Error(err)
	}
	if amiss := harness.Amiss(log); len(amiss) > 0 || !strings.Contains(string(log), "cloud=qemu") {
		t.Errorf("Kip's log has %q, and is to be of the cloud qemu", amiss)
	}
	here := qemu.Config{Config: host.Config{
		StateDir: filepath.Join(n.State, "cloud"),
		Bridge:   n.Bridge,
		CIDR:     n.CIDR,
	}}
	if left, err := qemu.Leftovers(t.Context(), here); err != nil || len(left) > 0 {
		t.Errorf("it leaves %q, %v", left, err)
	}
}
