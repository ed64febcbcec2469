// Command itzo-boot is the first process of a machine that boots Kip's image, and its
// modprobe. It is small, since firmware reads it and the kernel unpacks it.
package main

import (
	"os"
	"path/filepath"

	"github.com/elotl/kip/internal/agent/earlyboot"
)

func main() {
	if os.Getpid() != 1 || filepath.Base(os.Args[0]) == "modprobe" {
		os.Exit(earlyboot.Modprobe(os.Args[1:]))
	}
	earlyboot.Main()
}
