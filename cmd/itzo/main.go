// Command itzo is the agent of a cell, and every other program that a cell
// needs but runc: the kubelet, containerd, its shim, the CNI plugin. The name
// that it is called by, or its first argument, says which.
package main

import (
	"maps"
	"os"

	"github.com/elotl/kip/internal/agent/command"
	"github.com/elotl/kip/internal/agent/components"
	"github.com/elotl/kip/internal/agent/containerd"
	"github.com/elotl/kip/internal/agent/deviceplugin"
)

func main() {
	programs := map[string]func() int{
		"kubelet":    components.Kubelet,
		"kube-proxy": components.KubeProxy,
	}
	maps.Copy(programs, containerd.Programs)
	maps.Copy(programs, deviceplugin.Programs)
	os.Exit(command.Main(programs))
}
