package cloud

import (
	"context"
	"errors"
	"fmt"
)

// Disks is a cloud with disks that outlive instances: what PersistentVolumes are
// made of. All methods are safe for concurrent use and return promptly when ctx
// ends; what was begun may then be done or not, and is to be repeated.
type Disks interface {
	// CreateDisk makes a blank disk. It is idempotent by r.Token: a second call
	// with the same token returns the disk of the first, also after a crash of
	// the caller, as long as that disk exists. The error is a *FailedDiskError where the
	// cloud has accepted the disk and then cannot make it.
	CreateDisk(ctx context.Context, r DiskRequest) (Disk, error)

	// DeleteDisk removes a disk and its data for good. It is idempotent: an
	// unknown ID is no error. ErrInUse while an instance has the disk.
	DeleteDisk(ctx context.Context, id string) error

	// ListDisks returns every disk that carries the tags of this owner.
	ListDisks(ctx context.Context, owner string) ([]Disk, error)

	// AttachDisk makes a disk a block device of a running instance. It returns
	// when the instance has the disk, which its system may be shown a little
	// later. It is idempotent. A disk has at most one instance: while another
	// has it the error is an *InUseError. ErrNotFound for a disk or a running
	// instance that is not there.
	//
	// The instance knows the device by the disk's ID: there is a link below
	// /dev/disk/by-id whose name ends in it, or it is the device's serial number.
	AttachDisk(ctx context.Context, id, instance string) error

	// DetachDisk takes a disk from an instance and returns when that is done. It
	// is idempotent: a disk that the instance does not have is no error. The
	// caller sees to it that no file system of the disk is mounted; a cloud that
	// can tell answers ErrInUse otherwise, and changes nothing.
	//
	// The end of an instance also frees its disks, with all that was written: from
	// the moment that List no longer shows it, another can have them. They are
	// never deleted with it.
	DetachDisk(ctx context.Context, id, instance string) error
}

// DiskChecker is a cloud that can tell of a disk, before a machine is launched for it, that it
// cannot be attached. Each question is a CallCheckDisk; those about many disks at a time share a
// request, so that the budget of the kind, if any, is of many.
type DiskChecker interface {
	// CheckDisk returns nil if a running instance in the zone could be given the disk, as far as
	// can be told. The errors are those of AttachDisk: ErrRefused where no wait helps, ErrNotYet
	// while the disk is being made, ErrNotFound, an *InUseError.
	CheckDisk(ctx context.Context, id, zone string) error
}

// DiskGrower is a cloud that can make a disk larger, also while an instance has it.
type DiskGrower interface {
	// GrowDisk gives a disk at least so many bytes, and returns it as it then is: the cloud may
	// round up. It returns when an instance that has the disk can see them. It is idempotent: a
	// disk that is as large is left as it is. What is on the disk stays, and no file system grows.
	//
	// ErrNotFound for a disk that is not there; ErrRefused for a size that no disk of its kind can
	// have; ErrNotYet while the cloud changes no size of this disk, with RetryAfter where it is
	// known for how long.
	GrowDisk(ctx context.Context, id string, bytes int64) (Disk, error)
}

// DiskRequest says what disk to make.
type DiskRequest struct {
	// Token makes the call idempotent; as in LaunchRequest.
	Token string
	// SizeBytes is the least size, above 0; a cloud may round it up.
	SizeBytes int64
	// Zone is where the instances are that can have it.
	Zone string
	// Tags include TagOwner.
	Tags map[string]string
}

// Disk is one disk.
type Disk struct {
	ID        string            `json:"id"`
	SizeBytes int64             `json:"sizeBytes"`
	Zone      string            `json:"zone,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	// Instance is the one that has the disk, or is being given it; "" for none.
	Instance string `json:"instance,omitempty"`
}

// TagVolume names the PersistentVolume of a disk.
const TagVolume = "KipVolume"

// ErrInUse says that somebody has the disk. Every *InUseError matches it.
var ErrInUse = errors.New("the disk is in use")

// FailedDiskError is of a disk that a cloud has accepted and then could not make, as it has
// said twice. There is nothing on the disk. Once it is deleted, its token makes another.
type FailedDiskError struct {
	Disk  string
	State string // the cloud's word for it
	Why   string // what it mostly is, and what is wanted
}

func (e *FailedDiskError) Error() string {
	return fmt.Sprintf("the cloud has disk %s in state %q: %s", e.Disk, e.State, e.Why)
}

// InUseError says which instance has a disk.
type InUseError struct{ Disk, Instance string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("disk %s is attached to instance %s", e.Disk, e.Instance)
}

func (e *InUseError) Unwrap() error { return ErrInUse }
