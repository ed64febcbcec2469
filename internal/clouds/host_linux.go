package clouds

import (
	"context"
	"log/slog"
	"runtime"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/cloud/qemu"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/version"
)

// openHost opens the cloud on this host that is configured.
func openHost(ctx context.Context, cfg *config.Config, _ By, log *slog.Logger) (cloud.Cloud, func() error, error) {
	if q := cfg.Cloud.QEMU; q != nil {
		machines, err := qemu.New(ctx, qemu.Config{
			Config: host.Config{
				StateDir: q.StateDir,
				Bridge:   q.Bridge,
				CIDR:     q.CIDR,
				IPv6CIDR: q.IPv6CIDR,
				// Of the same sizes as the local cloud's machines.
				Catalogue: sizes.Types(runtime.GOARCH, q.Zones...),
				Log:       log.With("cloud", "qemu"),
			},
			Image:       q.Image,
			Version:     version.String(),
			Nameservers: q.Nameservers,
			Accelerator: q.Accelerator,
			Hugepages:   q.Hugepages,
		})
		if err != nil {
			return nil, nil, err
		}
		return machines, machines.Close, nil
	}
	l := cfg.Cloud.Local
	machines, err := local.New(local.Config{
		Config: host.Config{
			StateDir: l.StateDir,
			Bridge:   l.Bridge,
			CIDR:     l.CIDR,
			IPv6CIDR: l.IPv6CIDR,
			Log:      log.With("cloud", "local"),
		},
		Zones:       l.Zones,
		GPUs:        l.GPUs,
		RootDir:     l.RootDir,
		Nameservers: l.Nameservers,
	})
	if err != nil {
		return nil, nil, err
	}
	return machines, machines.Close, nil
}
