package volumes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Disk is a disk of the cloud that a pod has as a volume.
type Disk struct {
	ID     string // in the cloud
	Volume string // its PersistentVolume
	Zone   string
}

// NotReadyError says what a volume waits for; others see to that.
type NotReadyError struct{ Volume, Why string }

func (e *NotReadyError) Error() string { return fmt.Sprintf("volume %s: %s", e.Volume, e.Why) }

// Client reads claims and volumes.
type Client interface {
	corev1client.PersistentVolumeClaimsGetter
	corev1client.PersistentVolumesGetter
}

// Resolver finds what the volumes of pods are on.
type Resolver struct {
	// Client may read all claims and volumes: a node may read those of its pods
	// only a moment after they were bound to it.
	Client Client
	// HasDisks says that the cloud has disks.
	HasDisks bool
}

// Disks returns the disks that a pod needs on its machine. The error is an
// *UnsupportedError or a *NotReadyError where the pod must wait.
func (r Resolver) Disks(ctx context.Context, pod *corev1.Pod) ([]Disk, error) {
	// What can be told without a question first, for the pod waits for nothing then.
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if claimOf(pod, v) != "" {
			continue
		}
		if err := checkInline(v); err != nil {
			return nil, err
		}
	}
	var disks []Disk
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		name := claimOf(pod, v)
		if name == "" {
			continue
		}
		pv, err := r.volumeOf(ctx, pod, v, name)
		if err != nil {
			return nil, err
		}
		if err := checkPersistent(v.Name, pv, r.HasDisks); err != nil {
			return nil, err
		}
		if !ours(pv) || seen[pv.Spec.CSI.VolumeHandle] {
			continue
		}
		seen[pv.Spec.CSI.VolumeHandle] = true
		disk := Disk{ID: pv.Spec.CSI.VolumeHandle, Volume: pv.Name, Zone: pv.Spec.CSI.VolumeAttributes[AttributeZone]}
		if len(disks) > 0 && disks[0].Zone != disk.Zone {
			return nil, &UnsupportedError{v.Name, fmt.Sprintf("its disk is in zone %s, and that of PersistentVolume %s in %s: no machine can have both", disk.Zone, disks[0].Volume, disks[0].Zone)}
		}
		disks = append(disks, disk)
	}
	return disks, nil
}

// volumeOf returns the volume that a claim is bound to.
func (r Resolver) volumeOf(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, name string) (*corev1.PersistentVolume, error) {
	claim, err := r.Client.PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, &NotReadyError{v.Name, "there is no PersistentVolumeClaim " + name}
	case err != nil:
		return nil, fmt.Errorf("read claim %s/%s: %w", pod.Namespace, name, err)
	case v.Ephemeral != nil && !metav1.IsControlledBy(claim, pod):
		return nil, &NotReadyError{v.Name, fmt.Sprintf("PersistentVolumeClaim %s was not made for this pod", name)}
	case claim.DeletionTimestamp != nil:
		return nil, &NotReadyError{v.Name, fmt.Sprintf("PersistentVolumeClaim %s is being deleted", name)}
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, &NotReadyError{v.Name, fmt.Sprintf("PersistentVolumeClaim %s is %s, not bound to a volume: `kubectl describe pvc %s` says why. A claim that waits for its first consumer needs a pod that the scheduler has placed",
			name, claim.Status.Phase, name)}
	}
	pv, err := r.Client.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, &NotReadyError{v.Name, "there is no PersistentVolume " + claim.Spec.VolumeName}
	case err != nil:
		return nil, fmt.Errorf("read volume %s: %w", claim.Spec.VolumeName, err)
	}
	return pv, nil
}
