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
// it does with volumes, or maps it for the pod if it is a block volume; and makes its file system as large as its
// capacity, if that is more than its claim has. Any other is returned as it is.
func OnCell(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, driver CloudDriver) *corev1.PersistentVolume {
	if !driver.Attached(pv) {
		return pv
	}
	shown := pv.DeepCopy()
	if pv.Spec.CSI.ReadOnly && !slices.Contains(shown.Spec.MountOptions, readOnly) {
		shown.Spec.MountOptions = append(shown.Spec.MountOptions, readOnly)
	}
	has := shown.Spec.Capacity[corev1.ResourceStorage]
	switch given, is := claim.Status.AllocatedResources[corev1.ResourceStorage]; {
	case slices.Contains(shown.Spec.MountOptions, readOnly):
		// No file system grows that is mounted so, and a kubelet would not go on before it has.
		delete(shown.Spec.Capacity, corev1.ResourceStorage)
	case is && given.Cmp(has) < 0:
		// A disk of whole GiB of a claim that asked for less. A kubelet gives the claim what is allocated, and would
		// compare that with the volume for ever, ten times a second.
		shown.Spec.Capacity[corev1.ResourceStorage] = given
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

// ResizeConditions are the conditions of a claim that say how far its expansion is.
var ResizeConditions = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
	corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
}
