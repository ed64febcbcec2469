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
func (t *term) openCloud(ctx context.Context) (cloudSide, error) {
	sealer, err := cellca.OpenSealer(t.cfg.Etcd.EncryptionKeyFiles)
	if err != nil {
		return cloudSide{}, err
	}
	ca, err := cellca.Load(ctx, t.store, sealer, t.clock, t.Log)
	if err != nil {
		return cloudSide{}, err
	}
	facts, err := loadFacts(ctx, t.store, t.clock, t.Log)
	if err != nil {
		return cloudSide{}, err
	}
	bare, err := t.openBareCloud(ctx, facts)
	if err != nil {
		return cloudSide{}, err
	}
	generation := cells.NewStoreGeneration(t.store, bare.Capabilities().ListLag)
	ends := guard.New(guard.Config{
		Behind: generation.Behind,
		Limit:  guard.Limit(t.cfg.Cells.EndLimit),
		Store:  t.store,
		Clock:  t.clock,
	})
	machines := pipe.New(pipe.Config{
		Cloud:    bare,
		Guard:    ends.Intercept,
		Leads:    t.store.Leads,
		Meter:    t.metrics,
		Watchdog: t.watchdog,
		Clock:    t.clock,
	})
	if err := t.checkRegion(ctx, machines); err != nil {
		return cloudSide{}, err
	}
	types, err := t.openInstanceTypes(ctx, machines)
	if err != nil {
		return cloudSide{}, err
	}
	shortages, err := loadShortages(ctx, t.store, t.clock, t.Log)
	if err != nil {
		return cloudSide{}, err
	}
	return cloudSide{
		sealer:        sealer,
		ca:            ca,
		facts:         facts,
		machines:      machines,
		generation:    generation,
		guard:         ends,
		disks:         machines.Optional().Disks,
		instanceTypes: types,
		shortages:     shortages,
	}, nil
}

// openBareCloud returns the cloud that provider.yaml names, until this process leads no more. No call to it is guarded.
func (t *term) openBareCloud(ctx context.Context, facts cloud.Facts) (cloud.Cloud, error) {
	bare, closeIt, err := t.Clouds.Open(ctx, t.cfg, clouds.By{
		Owner: t.controllerID,
		Facts: facts,
		AgentsOpen: func(group string, port int, rules string) {
			t.ofNode.Report(events.NewAgentPortOpen(group, port, rules))
		},
	}, t.Log)
	if err != nil {
		return nil, err
	}
	t.atEnd(func() {
		if err := closeIt(); err != nil {
			t.Log.Warn("close the cloud", "err", err)
		}
	})
	return bare, nil
}

// cloudDriver is the cloud's own CSI driver, if it has one whose disks Kip can attach.
func (l cloudSide) cloudDriver() volumes.CloudDriver {
	if l.disks == nil {
		return volumes.CloudDriver{}
	}
	return volumes.CloudDriver(l.machines.Capabilities().DiskDriver)
}

// openInstanceTypes makes what knows what can be launched, and at what price.
func (t *term) openInstanceTypes(ctx context.Context, machines *pipe.Pipe) (*instancetypes.Provider, error) {
	rates, err := pricelists.Rates(machines.Name(), machines.Capabilities().Region)
	if err != nil {
		return nil, err
	}
	types, err := instancetypes.Open(ctx, instancetypes.Config{
		Cloud: machines,
		Store: t.store,
		Placement: placement.Config{
			DefaultInstanceType: t.cfg.Cells.DefaultInstanceType,
			DefaultArch:         runtime.GOARCH,
			ReservedMemoryBytes: t.cfg.Cells.ReservedMemory.Value(),
			DefaultDiskBytes:    t.cfg.Cells.DefaultVolumeSize.Value(),
			PrivateIPOnly:       t.cfg.Cells.PrivateIPOnly,
			SharedKernel:        machines.Capabilities().SharedKernel,
			SpotSpread:          float64(t.cfg.Cells.SpotSpread) / 100,
			Rates:               rates,
		},
		Data:  t.data,
		Terms: terms(t.cfg),
		Image: imageName(launchOptions(t.cfg)),

		InterruptionShare: float64(t.cfg.Cells.InterruptionPenalty) / 100,

		Clock: t.clock,
		Log:   t.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.ProviderConfig, err)
	}
	return types, nil
}
