package aws

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// attachments attaches disks to instances.
type attachments struct {
	*base
	volumes *volumes
}

// AttachDisk implements cloud.Disks. It does not wait until EC2 says attached, and no longer
// attaching: that is when the machine shows the device, which its agent sees sooner.
func (e *attachments) AttachDisk(ctx context.Context, id, instance string) error {
	if err := e.attach(ctx, id, instance); err != nil {
		return fmt.Errorf("attach disk %s to %s: %w", id, instance, err)
	}
	return nil
}

// CheckDisk implements cloud.DiskChecker. All who ask at a time share a call.
func (e *attachments) CheckDisk(ctx context.Context, id, zone string) error {
	v, err := e.usable(ctx, id)
	has, _ := holderOf(v)
	switch {
	case err != nil:
	case zone != "" && aws.ToString(v.AvailabilityZone) != zone:
		err = refused("the volume is in %s, and instances in %s cannot have it", aws.ToString(v.AvailabilityZone), zone)
	case has != "":
		err = &cloud.InUseError{Disk: id, Instance: has}
	case v.State == types.VolumeStateCreating:
		err = cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("EC2 is making the volume"))
	}
	if err != nil {
		return fmt.Errorf("check disk %s: %w", id, err)
	}
	return nil
}

// usable reads a volume, and returns an error for one that no instance can have, whatever is waited for.
func (e *attachments) usable(ctx context.Context, id string) (types.Volume, error) {
	if !volumeID.MatchString(id) {
		return types.Volume{}, cloud.No(cloud.ErrNotFound, cloud.Scope{}, errNoVolume)
	}
	v, shown, err := e.volumes.volume(ctx, id)
	switch {
	case err != nil:
		return v, err
	case !shown:
		return v, cloud.No(cloud.ErrNotFound, cloud.Scope{}, errNoVolume)
	case aws.ToBool(v.MultiAttachEnabled):
		// EC2 would give it to several instances, whose file systems know nothing of each other.
		return v, refused("Multi-Attach is enabled for the volume: a disk is on one cell at a time, want one without")
	case v.State == types.VolumeStateError, v.State == types.VolumeStateDeleting, v.State == types.VolumeStateDeleted:
		return v, refused("EC2 has the volume in state %q, in which no instance is given it: want a volume that is %q",
			v.State, types.VolumeStateAvailable)
	}
	return v, nil
}

func (e *attachments) attach(ctx context.Context, id, instance string) error {
	v, err := e.usable(ctx, id)
	has, leaving := holderOf(v)
	switch {
	case err != nil:
		return err
	case has == instance && !leaving:
		return nil
	case has != "":
		return &cloud.InUseError{Disk: id, Instance: has}
	}
	device := deviceNames[hashOf(id)%uint32(len(deviceNames))]
	err = e.attachAs(ctx, id, instance, device)
	if slices.Contains(codesName, codeOf(err)) {
		free, looked := e.freeDevice(ctx, instance, device)
		if looked != nil {
			return looked
		}
		if free != device {
			err = e.attachAs(ctx, id, instance, free)
		}
	}
	switch {
	case err == nil:
		return nil
	case codeOf(err) == codeInUse, codeOf(err) == codeState:
		return e.whyNot(ctx, id, instance, err)
	}
	return classify(err, cloud.Scope{})
}

func (e *attachments) attachAs(ctx context.Context, id, instance, device string) error {
	_, err := e.api.AttachVolume(ctx, &ec2.AttachVolumeInput{
		VolumeId:   aws.String(id),
		InstanceId: aws.String(instance),
		Device:     aws.String(device),
	})
	return err
}

// deviceNames are names that EC2 takes for a disk, of which each instance has one once. They
// have no meaning on the machine: its devices are NVMe, and known by the volume's ID. Source:
// EC2 User Guide, "Device names for volumes on Amazon EC2 instances".
var deviceNames = func() (all []string) {
	for a := 'a'; a <= 'd'; a++ {
		for b := 'a'; b <= 'z'; b++ {
			all = append(all, "/dev/xvd"+string(a)+string(b))
		}
	}
	return all
}()

func hashOf(id string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // it never fails
	return h.Sum32()
}

// freeDevice is the name that was tried, if the instance has no disk of that name, or one that
// it does not have.
func (e *attachments) freeDevice(ctx context.Context, instance, tried string) (string, error) {
	has, err := e.volumes.volumes(ctx, filter("attachment.instance-id", instance))
	if err != nil {
		return "", err
	}
	taken := map[string]bool{}
	for _, v := range has {
		for _, a := range v.Attachments {
			taken[aws.ToString(a.Device)] = true
		}
	}
	if !taken[tried] {
		return tried, nil
	}
	n := slices.IndexFunc(deviceNames, func(name string) bool { return !taken[name] })
	if n < 0 {
		return "", refused("the instance has %d disks, and EC2 no more names for devices", len(has))
	}
	return deviceNames[n], nil
}

// whyNot says what it means that a volume, or the instance, is in another state than for an
// attachment: nil where the instance has it.
func (e *attachments) whyNot(ctx context.Context, id, instance string, said error) error {
	v, err := e.usable(ctx, id)
	if err != nil {
		return err
	}
	has, leaving := holderOf(v)
	switch {
	case has == instance && !leaving:
		return nil
	case has != "":
		return &cloud.InUseError{Disk: id, Instance: has}
	case codeOf(said) == codeInUse || v.State != types.VolumeStateAvailable:
		return cloud.No(cloud.ErrNotYet, cloud.Scope{}, saidOf(said))
	}
	return cloud.No(cloud.ErrNotFound, cloud.Scope{}, saidOf(said)) // the instance does not run
}

// DetachDisk implements cloud.Disks.
func (e *attachments) DetachDisk(ctx context.Context, id, instance string) error {
	if err := e.detach(ctx, id, instance); err != nil {
		return fmt.Errorf("detach disk %s from %s: %w", id, instance, err)
	}
	return nil
}

func (e *attachments) detach(ctx context.Context, id, instance string) error {
	if !volumeID.MatchString(id) {
		return nil
	}
	_, said := e.api.DetachVolume(ctx, &ec2.DetachVolumeInput{VolumeId: aws.String(id), InstanceId: aws.String(instance)})
	switch code := codeOf(said); {
	case said == nil, code == codeState, code == codeNotHolding:
	case code == codeNoVolume:
		return nil
	default:
		return classify(said, cloud.Scope{})
	}
	return e.volumes.until(ctx, id, func(v types.Volume, shown bool) (bool, error) {
		has, leaving := holderOf(v)
		if !shown || has != instance {
			return true, nil
		}
		if said != nil && !leaving {
			return false, classify(said, cloud.Scope{})
		}
		return false, nil
	})
}
