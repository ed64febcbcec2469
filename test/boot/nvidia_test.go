//go:build e2e

package boot

import (
	"context"
	"testing"

	"github.com/elotl/kip/image/nvidia"
	"github.com/elotl/kip/test/tier"
)

// withoutGPU asks the kernel for the driver, which begins and finds no GPU, and a program that looks for one by the
// driver's library.
const withoutGPU = `#cloud-config
runcmd:
- exec >/dev/console 2>&1
- modprobe nvidia || echo "modprobe has failed"
- nvidia-smi || echo "nvidia-smi has failed"
`

// TestNVIDIAModulesAreOfTheImagesKernel boots the image with NVIDIA's driver, on a machine without a GPU. The kernel runs the
// module, so that all its symbols are there and of the kernel's version, and the driver ends by itself: "no such device" (ENODEV).
// A module of another kernel would be no program (ENOEXEC), or lack a symbol (ENOENT).
func TestNVIDIAModulesAreOfTheImagesKernel(t *testing.T) {
	tier.All(t)
	k := newKip(t)
	m := start(t, diskOf(t, imageFor(t, nvidia.Arch+"-"+nvidia.Variant)), k.userData(), true)
	m.says("the agent begins")
	agent, leave := k.join(m, k.token)
	defer leave()
	m.until("run a cloud-init file", func(ctx context.Context) error {
		_, err := agent.PutCloudInit(ctx, []byte(withoutGPU))
		return err
	})
	m.says("(updates/nvidia.ko): No such device")
	m.says("couldn't communicate with the NVIDIA driver")
	m.press()
	m.ends()
}
