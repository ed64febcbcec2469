// Command itzo is the agent of a cell, and every other program that a cell
// needs but runc: the kubelet, containerd, its shim, the CNI plugin. The name
// that it is called by, or its first argument, says which.
package main

import (
	"os"

	"github.com/elotl/kip/internal/agent/command"
	"github.com/elotl/kip/internal/agent/components"
)

func main() {
	os.Exit(command.Main(map[string]func() int{
		"kubelet":       components.Kubelet,
		"kube-proxy":    components.KubeProxy,
		"containerd":    components.Containerd,
		"import-images": components.ImportImages,
		"stop-pods":     components.StopPods,
	}))
}
