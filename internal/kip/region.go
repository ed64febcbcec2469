package kip

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/volumes"
)

// checkRegion returns an error where this Kip has cells or volumes in another region than the cloud's. The lists of that region lack them
// all, so Kip would launch other cells for their pods, and never end these. It would let the volumes of deleted claims go without their
// disks.
func (t *term) checkRegion(ctx context.Context, machines *pipe.Pipe) error {
	name, region := machines.Name(), machines.Capabilities().Region
	was, err := instancetypes.StoredRegion(ctx, t.store, name)
	if err != nil || was == "" || region == "" || was == region {
		return err
	}
	refuse := func(why string) error {
		return t.cfg.Refuse(map[string]string{"cloud." + name + ".region": region + " is not valid: this Kip has " + why})
	}
	there := 0
	err = cells.Stored(ctx, t.store, func(cell cells.Cell) {
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
	left, err := t.volumesOutside(ctx, region)
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
func (t *term) volumesOutside(ctx context.Context, region string) (names []string, err error) {
	all, err := t.api.asProvisioner.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the PersistentVolumes with disks of this Kip: %w", err)
	}
	for _, pv := range all.Items {
		csi := pv.Spec.CSI
		if csi != nil && csi.Driver == volumes.Driver && csi.VolumeAttributes[volumes.AttributeNode] == t.NodeName &&
			!strings.HasPrefix(csi.VolumeAttributes[volumes.AttributeZone], region) {
			names = append(names, pv.Name)
		}
	}
	return names, nil
}
