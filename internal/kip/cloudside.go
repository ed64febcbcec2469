package kip

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
)

// cloudSide is what reaches the cloud, and what is known of it.
type cloudSide struct {
	term
	ca            ca
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
	if l.ca, err = l.loadCA(ctx); err != nil {
		return l, err
	}
	if l.facts, err = loadFacts(ctx, l.store, l.clock, l.Log); err != nil {
		return l, err
	}
	bare, closeIt, err := l.Clouds.Open(ctx, l.cfg, clouds.By{
		Owner:      l.controllerID,
		Facts:      l.facts,
		AgentsOpen: func(group string, port int, rules string) { t.sayOfNode(events.NewAgentPortOpen(group, port, rules)) },
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

// checkRegion returns an error where this Kip has cells or volumes in another region than the cloud's. The lists of that region lack them
// all, so Kip would launch other cells for their pods, and never end these. It would let the volumes of deleted claims go without their
// disks.
func (l *cloudSide) checkRegion(ctx context.Context) error {
	name, region := l.machines.Name(), l.machines.Capabilities().Region
	was, err := instancetypes.StoredRegion(ctx, l.store, name)
	if err != nil || was == "" || region == "" || was == region {
		return err
	}
	refuse := func(why string) error {
		return l.cfg.Refuse(map[string]string{"cloud." + name + ".region": region + " is not valid: this Kip has " + why})
	}
	there := 0
	err = cells.Stored(ctx, l.store, func(cell cells.Cell) {
		if cell.Phase != apiv1.Gone && (cell.Instance != nil || cell.Launch != nil) {
			there++
		}
	})
	if err != nil {
		return err
	}
	if there > 0 {
		return refuse(fmt.Sprintf("cells in %s (%d), and would launch others for their pods: want %s until they have ended", was, there, was))
	}
	left, err := l.volumesOutside(ctx, region)
	if err != nil {
		return fmt.Errorf("change cloud.%s.region from %s to %s: %w", name, was, region, err)
	}
	if len(left) > 0 {
		return refuse(fmt.Sprintf("PersistentVolumes with disks in %s (%d, such as %s), which would stay there when their claims are deleted: "+
			"want %s until these claims and PersistentVolumes are deleted", was, len(left), left[0], was))
	}
	return nil
}

// volumesOutside returns the names of the PersistentVolumes whose disks this Kip made, or is to delete, and that are in no zone whose name
// begins with the region's.
func (l *cloudSide) volumesOutside(ctx context.Context, region string) (names []string, err error) {
	all, err := l.api.asProvisioner.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the PersistentVolumes with disks of this Kip: %w", err)
	}
	for _, pv := range all.Items {
		csi := pv.Spec.CSI
		if csi != nil && csi.Driver == volumes.Driver && csi.VolumeAttributes[volumes.AttributeNode] == l.NodeName &&
			!strings.HasPrefix(csi.VolumeAttributes[volumes.AttributeZone], region) {
			names = append(names, pv.Name)
		}
	}
	return names, nil
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
