package local

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/elotl/kip/internal/agent/gpus"
)

// drivers is /proc/devices of a host with NVIDIA's driver, and what a machine is to see of it.
const (
	drivers = `Character devices:
  1 mem
  5 /dev/tty
195 nvidia
195 nvidia-modeset
195 nvidiactl
234 nvidia-nvswitch
235 nvidia-caps-imex-channels
236 nvidia-nvlink
237 nvidia-uvm
254 device-nvidia

Block devices:
  7 loop
253 device-mapper
`
	driversShown = `Character devices:
  1 mem
  5 /dev/tty
254 device-nvidia

Block devices:
  7 loop
253 device-mapper
`
)

// The agent of a machine with stand-ins makes no node of the host's driver beside them.
func TestAMachineSeesNoDriverOfItsHostsGPUs(t *testing.T) {
	if got := withoutGPUs(drivers); got != driversShown {
		t.Errorf("it sees\n%s", got)
	}
	for list, want := range map[string][]string{
		drivers:              {"nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"}, // else the test shows nothing
		withoutGPUs(drivers): nil,
	} {
		root := t.TempDir()
		for path, content := range map[string]string{"proc/devices": list, "dev/null": ""} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		made := map[string]bool{}
		if err := (gpus.Machine{Root: root}).MakeNodes(); err != nil && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		nodes, err := filepath.Glob(filepath.Join(root, "dev/nvidia*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range nodes {
			made[filepath.Base(node)] = true
		}
		if got := slices.Sorted(maps.Keys(made)); os.Geteuid() == 0 && !slices.Equal(got, want) {
			t.Errorf("the agent makes %q, want %q", got, want)
		}
	}
}
