// Command simkip is Kip for tests and benchmarks: it can also open cloud.sim, a cloud that a test serves on a socket.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/remote"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/kip/command"
)

func main() {
	os.Exit(command.Main(append(clouds.Shipped(), clouds.Driver{Name: "sim", Open: dial})))
}

// dial opens the cloud that is served on the socket of cloud.sim.
func dial(_ context.Context, cfg *config.Config, _ clouds.By, _ *slog.Logger) (cloud.Cloud, func() error, error) {
	served := remote.Dial("sim", cfg.Cloud.Sim.Socket)
	return served, served.Close, nil
}
