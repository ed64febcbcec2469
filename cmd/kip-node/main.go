// Command kip-node is the first process of an ordinary node's machine in the
// development cluster. It does not ship.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/internal/agent/cloudinit"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	c, err := node.Read(cloudinit.SeedFile)
	if err == nil {
		err = node.Run(ctx, c, log)
	}
	stop()
	if err != nil {
		log.Error("the node ends", "err", err)
		os.Exit(1)
	}
}
