package volumes

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// CloudDriver is the cloud's own CSI driver: its controller makes disks, and Kip attaches them
// to cells. The zero value is of a cloud without one, or without disks.
type CloudDriver struct {
	// Name is that in PersistentVolumes.
	Name string
	// ZoneKey is the label by which its volumes select nodes in their zone.
	ZoneKey string
}

// of says whether a volume is the driver's.
func (d CloudDriver) of(pv *corev1.PersistentVolume) bool {
	return d.Name != "" && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == d.Name
}

// Attached says whether Kip attaches the disk of a volume: its own, or one of the driver's.
func (d CloudDriver) Attached(pv *corev1.PersistentVolume) bool { return ours(pv) || d.of(pv) }

// check returns an *UnsupportedError for a volume of the driver that no cell can have.
func (d CloudDriver) check(name string, pv *corev1.PersistentVolume) error {
	no := func(format string, args ...any) error {
		return &UnsupportedError{name, fmt.Sprintf("PersistentVolume %s ", pv.Name) + fmt.Sprintf(format, args...)}
	}
	for _, mode := range pv.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return no("has the access mode %s: a disk is on one cell at a time, and each pod has its own. A disk that several machines "+
				"share, as io2 with Multi-Attach, is not attached; want %s or %s", mode, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
		}
	}
	csi := pv.Spec.CSI
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
	switch {
	case !block && csi.FSType != "" && csi.FSType != FileSystem:
		return no("has the file system %q: cells have the tools for %s", csi.FSType, FileSystem)
	case block && csi.ReadOnly:
		return no("is a block volume with readOnly: a cell's kubelet maps devices for reading and writing")
	case len(d.zonesOf(pv)) != 1:
		return no("selects nodes of %d zones by the label %s: want the one in which its disk is", len(d.zonesOf(pv)), d.ZoneKey)
	}
	return nil
}

// zonesOf are the zones by which a volume selects nodes.
func (d CloudDriver) zonesOf(pv *corev1.PersistentVolume) (zones []string) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, r := range term.MatchExpressions {
			if r.Operator == corev1.NodeSelectorOpIn && (r.Key == d.ZoneKey || r.Key == corev1.LabelTopologyZone) {
				zones = append(zones, r.Values...)
			}
		}
	}
	slices.Sort(zones)
	return slices.Compact(zones)
}

// diskOf is the disk of a volume that can be on a cell.
func (d CloudDriver) diskOf(pv *corev1.PersistentVolume) Disk {
	disk := Disk{ID: pv.Spec.CSI.VolumeHandle, Volume: pv.Name, Zone: pv.Spec.CSI.VolumeAttributes[AttributeZone]}
	if d.of(pv) {
		disk.Zone = d.zonesOf(pv)[0]
	}
	return disk
}
