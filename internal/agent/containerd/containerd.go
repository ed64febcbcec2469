package containerd

import (
	"fmt"
	"os"

	// Every plugin that its configuration can name; the configuration (package
	// configs) says which run.
	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/command"
)

// Containerd runs containerd's command line, which it reads from os.Args, and
// returns its exit code.
func Containerd() int {
	if err := command.App().Run(os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "containerd: %s\n", err)
		return 1
	}
	return 0
}
