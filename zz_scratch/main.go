// Scratch.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/elotl/kip/internal/cellimage"
)

func main() {
	fmt.Println(cellimage.Build(context.Background(), cellimage.Options{Dir: os.Args[1], Itzo: "/tmp/agent/bin/itzo", ItzoLite: "/tmp/agent/bin/itzo-lite", Runc: "/tmp/agent/bin/runc", Busybox: "/bin/busybox", Pause: "/tmp/agent/bin/pause"}))
}
