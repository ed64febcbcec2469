package components

import (
	"fmt"
	"os"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins" // every plugin that the configuration can name
	"github.com/containerd/containerd/v2/cmd/containerd/command"
)

// Containerd runs the upstream containerd's command line and returns its exit code.
func Containerd() int {
	if err := command.App().Run(os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "containerd: %s\n", err)
		return 1
	}
	return 0
}
