package volumes

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/agentapi"
)

// Driver is the name of Kip's own disks: the provisioner of their StorageClasses
// and the driver of their PersistentVolumes, the same for all Kips of a cluster.
const Driver = "disk.kip.elotl.co"

// Attributes of a PersistentVolume on a disk of the cloud.
const (
	// AttributeZone is where the disk is.
	AttributeZone = "zone"
	// AttributeNode is the virtual node whose Kip has the disk.
	AttributeNode = "node"
)

// FileSystem is what disks are formatted with: what cells have the tools for.
const FileSystem = "ext4"

// readOnly is the mount option of a volume that nobody may write.
const readOnly = "ro"

// OnCell returns a volume as the kubelet of its pod's cell sees it. One that is on
// a disk of the cloud, Kip's own or of the cloud's driver, is a local volume there, at the
// device that Kip attached: the kubelet checks it, formats it if it is blank, mounts it and does all else that
// it does with volumes, or maps it for the pod if it is a block volume. Any other is returned as it is.
func OnCell(pv *corev1.PersistentVolume, driver CloudDriver) *corev1.PersistentVolume {
	if !driver.Attached(pv) {
		return pv
	}
	shown := pv.DeepCopy()
	if driver.of(pv) {
		// The driver's controller may have expanded it. A kubelet that sees that grows the file system before it
		// mounts, and goes on failing to, since it may not write the claim's status.
		delete(shown.Spec.Capacity, corev1.ResourceStorage)
	}
	if pv.Spec.CSI.ReadOnly && !slices.Contains(shown.Spec.MountOptions, readOnly) {
		shown.Spec.MountOptions = append(shown.Spec.MountOptions, readOnly)
	}
	local := &corev1.LocalVolumeSource{Path: agentapi.DiskPath(pv.Spec.CSI.VolumeHandle)}
	if mode := pv.Spec.VolumeMode; mode == nil || *mode == corev1.PersistentVolumeFilesystem {
		format := cmp.Or(pv.Spec.CSI.FSType, FileSystem)
		local.FSType = &format
	}
	shown.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: local}
	return shown
}

func ours(pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == Driver
}
