// Command itzo-lite is itzo without the kubelet and containerd: the agent, the
// shim and the CNI plugin. A machine's root has it beside the whole itzo,
// because linking those two costs every process 10 MB of memory and 35 ms of
// start, and a pod starts some six short ones.
package main

import (
	"os"

	"github.com/elotl/kip/internal/agent/command"
)

func main() { os.Exit(command.Main(nil)) }
