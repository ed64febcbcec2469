package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

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

// untoldError is of a volume of which the cloud has not told yet: it is an [ErrUntold], too.
type untoldError struct{ *NotReadyError }

func (e untoldError) Unwrap() []error { return []error{e.NotReadyError, ErrUntold} }

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
	// Owned says whether the disk that a volume of Kip's driver names was made for it: the
	// error is a *ForeignDiskError if not, and ErrUntold where the cloud takes its time. nil
	// where the cloud has no disks.
	Owned func(context.Context, *corev1.PersistentVolume) error
	// CloudDriver is the cloud's own, if the cloud has disks. Others says then that a disk which a
	// volume of that driver names is none that Kip has made: the errors are those of Owned.
	CloudDriver CloudDriver
	Others      func(context.Context, *corev1.PersistentVolume) error
	Drivers     Drivers
	// Attachable says whether the cloud would give a disk to an instance in its zone: the errors
	// are a *HeldDiskError, an *UnusableDiskError and ErrUntold; others say what it waits for. OurInstance says that an instance is a cell's,
	// which is told by cells what it waits for. Both are nil where the cloud has no disks.
	Attachable  func(context.Context, Disk) error
	OurInstance func(instance string) bool
}

// ForeignDiskError is of a volume that names a disk which was not made for it. Who may
// make volumes could have anybody's data by it, or have it deleted.
type ForeignDiskError struct{ Volume, Disk string }

func (e *ForeignDiskError) Error() string {
	return fmt.Sprintf("PersistentVolume %s names disk %s, which Kip has not made for that volume and a claim of its namespace", e.Volume, e.Disk)
}

// HeldDiskError is of a disk that an instance has.
type HeldDiskError struct{ Disk, Instance string }

func (e *HeldDiskError) Error() string {
	return fmt.Sprintf("it waits until instance %s, which is no cell, no longer has disk %s", e.Instance, e.Disk)
}

// UnusableDiskError is of a disk that no instance in its zone can be given, whatever is waited for.
type UnusableDiskError struct {
	Disk string
	Why  error // the cloud's
}

func (e *UnusableDiskError) Error() string { return e.Why.Error() }
func (e *UnusableDiskError) Unwrap() error { return e.Why }

// ErrUntold is that the cloud has not told yet whose a disk is, and whether it can be attached.
var ErrUntold = errors.New("the cloud has not told of its disk yet")

// Needs is what a pod's machine must have for its volumes.
type Needs struct {
	Disks   []Disk
	Plugins []Plugin
}

// Needs returns what a pod's volumes need on its machine. The error is an
// *UnsupportedError or a *NotReadyError where the pod must wait.
func (r Resolver) Needs(ctx context.Context, pod *corev1.Pod) (Needs, error) {
	// What can be told without a question first, for the pod waits for nothing then.
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if ClaimOf(pod, v) != "" {
			continue
		}
		if err := r.Drivers.checkInline(v); err != nil {
			return Needs{}, err
		}
	}
	var needs Needs
	var untold error // all are asked about at once, else the answer about the first may count no more when the last is told of
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		driver := ""
		if v.CSI != nil {
			driver = v.CSI.Driver
		}
		if name := ClaimOf(pod, v); name != "" {
			pv, err := r.volumeOf(ctx, pod, v, name)
			if err != nil {
				return Needs{}, err
			}
			if err := r.check(v.Name, pv); err != nil {
				return Needs{}, err
			}
			switch {
			case r.CloudDriver.Attached(pv):
				err := r.entitled(ctx, v.Name, pv)
				if err != nil && !errors.Is(err, ErrUntold) {
					return Needs{}, err
				}
				entitled := err == nil
				untold = cmp.Or(untold, err)
				disk := r.CloudDriver.diskOf(pv)
				if err := needs.add(v.Name, disk); err != nil {
					return Needs{}, err
				}
				if !entitled {
					continue // what is said of a disk is for those that may have it
				}
				if err = r.attachable(ctx, v.Name, disk); err != nil && !errors.Is(err, ErrUntold) {
					return Needs{}, err
				}
				untold = cmp.Or(untold, err)
			case pv.Spec.CSI != nil:
				driver = pv.Spec.CSI.Driver
			}
		}
		if driver == "" || seen[driver] {
			continue
		}
		seen[driver] = true
		plugin, err := r.Drivers.plugin(ctx, v.Name, driver)
		if err != nil {
			return Needs{}, err
		}
		needs.Plugins = append(needs.Plugins, plugin)
	}
	if untold != nil {
		return Needs{}, untold
	}
	return needs, nil
}

// check returns an *UnsupportedError for a volume that cannot work.
func (r Resolver) check(name string, pv *corev1.PersistentVolume) error {
	if r.CloudDriver.of(pv) {
		return r.CloudDriver.check(name, pv)
	}
	return r.Drivers.checkPersistent(name, pv, r.Owned != nil)
}

// entitled returns an error for a volume that is on a disk which its pod may not have, or not yet.
func (r Resolver) entitled(ctx context.Context, name string, pv *corev1.PersistentVolume) error {
	may := r.Owned
	if r.CloudDriver.of(pv) {
		may = r.Others
	}
	err := may(ctx, pv)
	foreign, is := errors.AsType[*ForeignDiskError](err)
	switch {
	case is:
		return &UnsupportedError{name, foreign.Error()}
	case errors.Is(err, ErrUntold):
		return untoldError{&NotReadyError{name, fmt.Sprintf("PersistentVolume %s: %v", pv.Name, err)}}
	case err != nil:
		return fmt.Errorf("look whose disk PersistentVolume %s names: %w", pv.Name, err)
	}
	return nil
}

// attachable returns an error for a disk that no cell would be given now: none is launched, and paid
// for, in vain.
func (r Resolver) attachable(ctx context.Context, name string, disk Disk) error {
	if r.Attachable == nil {
		return nil
	}
	err := r.Attachable(ctx, disk)
	held, isHeld := errors.AsType[*HeldDiskError](err)
	unusable, isUnusable := errors.AsType[*UnusableDiskError](err)
	switch {
	case err == nil, isHeld && r.OurInstance(held.Instance):
		return nil
	case isUnusable:
		return &UnsupportedError{name, fmt.Sprintf("PersistentVolume %s: %v", disk.Volume, unusable)}
	case errors.Is(err, ErrUntold):
		return untoldError{&NotReadyError{name, fmt.Sprintf("PersistentVolume %s: %v", disk.Volume, err)}}
	}
	return &NotReadyError{name, fmt.Sprintf("PersistentVolume %s: %v", disk.Volume, err)}
}

// add adds the disk of a volume, once.
func (n *Needs) add(name string, disk Disk) error {
	switch {
	case slices.ContainsFunc(n.Disks, func(d Disk) bool { return d.ID == disk.ID }):
		return nil
	case len(n.Disks) > 0 && n.Disks[0].Zone != disk.Zone:
		return &UnsupportedError{name, fmt.Sprintf("its disk is in zone %s, and that of PersistentVolume %s in %s: no machine can have both",
			disk.Zone, n.Disks[0].Volume, n.Disks[0].Zone)}
	}
	n.Disks = append(n.Disks, disk)
	return nil
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
		return nil,
			&NotReadyError{v.Name,
				fmt.Sprintf("PersistentVolumeClaim %s is %s, not bound to a volume: `kubectl describe pvc %s` says why. A claim that waits for its first consumer needs a pod that the scheduler has placed",
					name, claim.Status.Phase, name)}
	}
	pv, err := OfClaim(ctx, r.Client, claim)
	var unbound *UnboundError
	switch {
	case errors.As(err, &unbound):
		return nil, &NotReadyError{v.Name, unbound.Error()}
	case apierrors.IsNotFound(err):
		return nil, &NotReadyError{v.Name, "there is no PersistentVolume " + claim.Spec.VolumeName}
	case err != nil:
		return nil, fmt.Errorf("read volume %s: %w", claim.Spec.VolumeName, err)
	}
	return pv, nil
}

// UnboundError is of a claim and a volume that are not bound to each other.
type UnboundError struct{ Claim, Volume string }

func (e *UnboundError) Error() string {
	if e.Volume == "" {
		return fmt.Sprintf("PersistentVolumeClaim %s has no volume", e.Claim)
	}
	return fmt.Sprintf("PersistentVolume %s, which PersistentVolumeClaim %s names, does not name it in its claimRef", e.Volume, e.Claim)
}

// OfClaim reads the volume that a claim is bound to. Both must say so, or the error
// is an *UnboundError: anybody who makes claims can name a volume. Other errors are
// those of the API server.
func OfClaim(ctx context.Context, client corev1client.PersistentVolumesGetter,
	claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	name := claim.Spec.VolumeName
	if name == "" {
		return nil, &UnboundError{Claim: claim.Name}
	}
	pv, err := client.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Namespace != claim.Namespace || ref.Name != claim.Name || ref.UID != claim.UID {
		return nil, &UnboundError{Claim: claim.Name, Volume: name}
	}
	return pv, nil
}
