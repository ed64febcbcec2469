// Command itzo-containerd is itzo with containerd and what asks it, and without
// the kubelet.
package main

import (
	"os"

	"github.com/elotl/kip/internal/agent/command"
	"github.com/elotl/kip/internal/agent/containerd"
)

func main() {
	os.Exit(command.Main(containerd.Programs))
}
