// Command itzo-containerd is itzo with containerd, what asks it, and what offers GPUs to the
// kubelet, and without the kubelet.
package main

import (
	"maps"
	"os"

	"github.com/elotl/kip/internal/agent/command"
	"github.com/elotl/kip/internal/agent/containerd"
	"github.com/elotl/kip/internal/agent/deviceplugin"
)

func main() {
	programs := maps.Clone(containerd.Programs)
	maps.Copy(programs, deviceplugin.Programs)
	os.Exit(command.Main(programs))
}
