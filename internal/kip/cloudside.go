package kip

import (
	"context"
	"fmt"
	"runtime"

	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/cellca"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
)

// cloudSide is what reaches the cloud, and what is known of it.
type cloudSide struct {
	term
	sealer        *pki.Sealer
	ca            cellca.Stored
	facts         *storedFacts // of the cloud's account
	machines      *pipe.Pipe
	generation    *cells.StoreGeneration
	guard         *guard.Guard // guards machines
	disks         cloud.Disks  // nil where the cloud has none
	instanceTypes *instancetypes.Provider
	shortages     *storedShortages
}

// openCloud makes what reaches the cloud.
func (t term) openCloud(ctx context.Context) (l cloudSide, err error) {
	l.term = t
	if l.sealer, err = cellca.OpenSealer(l.cfg.Etcd.EncryptionKeyFiles); err != nil {
		return l, err
	}
	if l.ca, err = cellca.Load(ctx, l.store, l.sealer, l.clock, l.Log); err != nil {
		return l, err
	}
	if l.facts, err = loadFacts(ctx, l.store, l.clock, l.Log); err != nil {
		return l, err
	}
	bare, closeIt, err := l.Clouds.Open(ctx, l.cfg, clouds.By{
		Owner: l.controllerID,
		Facts: l.facts,
		AgentsOpen: func(group string, port int, rules string) {
			t.ofNode.Report(events.NewAgentPortOpen(group, port, rules))
		},
	}, l.Log)
	if err != nil {
		return l, err
	}
	l.atEnd(func() {
		if err := closeIt(); err != nil {
			t.Log.Warn("close the cloud", "err", err)
		}
	})
	l.generation = cells.NewStoreGeneration(l.store, bare.Capabilities().ListLag)
	l.guard = guard.New(guard.Config{
		Behind: l.generation.Behind,
		Limit:  guard.Limit(l.cfg.Cells.EndLimit),
		Store:  l.store,
		Clock:  l.clock,
	})
	l.machines = pipe.New(pipe.Config{
		Cloud:    bare,
		Guard:    l.guard.Intercept,
		Leads:    l.store.Leads,
		Meter:    l.metrics,
		Watchdog: l.watchdog,
		Clock:    l.clock,
	})
	l.disks = l.machines.Optional().Disks
	if err := l.checkRegion(ctx); err != nil {
		return l, err
	}
	if l.instanceTypes, err = l.openInstanceTypes(ctx); err != nil {
		return l, err
	}
	l.shortages, err = loadShortages(ctx, l.store, l.clock, l.Log)
	return l, err
}

// cloudDriver is the cloud's own CSI driver, if it has one whose disks Kip can attach.
func (l *cloudSide) cloudDriver() volumes.CloudDriver {
	if l.disks == nil {
		return volumes.CloudDriver{}
	}
	return volumes.CloudDriver(l.machines.Capabilities().DiskDriver)
}

// openInstanceTypes makes what knows what can be launched, and at what price.
func (l *cloudSide) openInstanceTypes(ctx context.Context) (*instancetypes.Provider, error) {
	rates, err := pricelists.Rates(l.machines.Name(), l.machines.Capabilities().Region)
	if err != nil {
		return nil, err
	}
	types, err := instancetypes.Open(ctx, instancetypes.Config{
		Cloud: l.machines,
		Store: l.store,
		Placement: placement.Config{
			DefaultInstanceType: l.cfg.Cells.DefaultInstanceType,
			DefaultArch:         runtime.GOARCH,
			ReservedMemoryBytes: l.cfg.Cells.ReservedMemory.Value(),
			DefaultDiskBytes:    l.cfg.Cells.DefaultVolumeSize.Value(),
			PrivateIPOnly:       l.cfg.Cells.PrivateIPOnly,
			SpotSpread:          float64(l.cfg.Cells.SpotSpread) / 100,
			Rates:               rates,
		},
		Data:  l.data,
		Terms: terms(l.cfg),
		Image: imageName(launchOptions(l.cfg)),

		InterruptionShare: float64(l.cfg.Cells.InterruptionPenalty) / 100,

		Clock: l.clock,
		Log:   l.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.ProviderConfig, err)
	}
	return types, nil
}
