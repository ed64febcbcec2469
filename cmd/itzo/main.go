package main

import (
	"os"
	"path/filepath"

	"github.com/elotl/kip/internal/agent/components"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "kubelet":
		os.Exit(components.Kubelet())
	case "containerd":
		os.Exit(components.Containerd())
	}
}
