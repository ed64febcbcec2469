//go:build !linux

package clouds

import (
	"context"
	"log/slog"
	"runtime"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/config"
)

// openHost refuses the clouds on a host, which runs Linux.
func openHost(_ context.Context, cfg *config.Config, _ By, _ *slog.Logger) (cloud.Cloud, func() error, error) {
	return nil, nil, cfg.Problem("cloud."+cfg.Cloud.Name(),
		"cells are machines of the Linux host that Kip runs on, and this is %s: want this command on that host", runtime.GOOS)
}
