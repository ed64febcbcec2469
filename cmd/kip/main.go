// Command kip is a Virtual Kubelet provider: it registers virtual nodes, one if nothing else
// is configured, and gives every pod that is scheduled there a cloud instance of its own.
package main

import (
	"os"

	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/kip/command"
)

func main() { os.Exit(command.Main(clouds.Shipped())) }
