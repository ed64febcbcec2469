package aws

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// betweenChanges is how long EC2 changes a volume no more that it has changed (EC2 API reference,
// "ModifyVolume").
const betweenChanges = 6 * time.Hour

// What EC2 says of a volume that was changed a short while ago, or is being changed.
const (
	codeChangedOften = "VolumeModificationRateExceeded"
	codeChanging     = "IncorrectModificationState"
)

// mostGiB are the sizes of the largest volumes of each type that can be changed in size. Source:
// EBS User Guide, "Amazon EBS volume types".
var mostGiB = map[types.VolumeType]int64{
	types.VolumeTypeGp3: maxGiB,
	types.VolumeTypeGp2: 16384,
	types.VolumeTypeIo1: 16384,
	types.VolumeTypeIo2: 65536,
	types.VolumeTypeSt1: 16384,
	types.VolumeTypeSc1: 16384,
}

// GrowDisk implements cloud.DiskGrower.
func (c *Cloud) GrowDisk(ctx context.Context, id string, bytes int64) (cloud.Disk, error) {
	v, err := c.grow(ctx, id, bytes)
	if err != nil {
		return cloud.Disk{}, fmt.Errorf("grow disk %s to %d bytes: %w", id, bytes, err)
	}
	return diskOf(v), nil
}

func (c *Cloud) grow(ctx context.Context, id string, bytes int64) (types.Volume, error) {
	v, err := c.usable(ctx, id)
	if err != nil {
		return v, err
	}
	size, most := (max(bytes, 1)-1)/gib+1, mostGiB[v.VolumeType]
	if size <= int64(aws.ToInt32(v.Size)) {
		return v, nil
	}
	switch {
	case most == 0:
		return v, refused("the volume is of type %q, whose size cannot be changed", v.VolumeType)
	case size > most:
		return v, refused("%d GiB are asked for: want at most %d GiB, as volumes of type %s have", size, most, v.VolumeType)
	case v.State == types.VolumeStateCreating:
		return v, cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("EC2 is making the volume"))
	}
	_, err = c.api.ModifyVolume(ctx, &ec2.ModifyVolumeInput{VolumeId: aws.String(id), Size: aws.Int32(int32(size))})
	switch code := codeOf(err); {
	case err == nil:
	case code == codeChanging, code == codeChangedOften:
		if done, err := c.whenChanged(ctx, id, size, err); !done {
			return v, err
		}
	case code == codeState:
		return v, cloud.No(cloud.ErrNotYet, cloud.Scope{}, saidOf(err))
	default:
		return v, classify(err, cloud.Scope{})
	}
	return c.grown(ctx, id, size)
}

// change is the last one of a volume; nil for none.
func (c *Cloud) change(ctx context.Context, id string) (last *types.VolumeModification, err error) {
	pages := ec2.NewDescribeVolumesModificationsPaginator(c.api, &ec2.DescribeVolumesModificationsInput{
		Filters: []types.Filter{filter("volume-id", id)},
	})
	err = eachPage(ctx, pages, func(page *ec2.DescribeVolumesModificationsOutput) {
		for _, m := range page.VolumesModifications {
			if last == nil || aws.ToTime(m.StartTime).After(aws.ToTime(last.StartTime)) {
				last = &m
			}
		}
	})
	return last, err
}

// whenChanged says of a volume that EC2 does not change now whether it is getting the size all the
// same, by a call whose answer was lost; else the error says until when EC2 changes it no more.
func (c *Cloud) whenChanged(ctx context.Context, id string, size int64, said error) (is bool, err error) {
	last, err := c.change(ctx, id)
	if err != nil {
		return false, unsure(err)
	}
	no := cloud.No(cloud.ErrNotYet, cloud.Scope{}, saidOf(said))
	if last == nil || last.StartTime == nil {
		return false, no
	}
	if int64(aws.ToInt32(last.TargetSize)) >= size && last.ModificationState != types.VolumeModificationStateFailed {
		return true, nil
	}
	until := last.StartTime.Add(betweenChanges)
	no.RetryAfter = max(0, until.Sub(c.cfg.Clock.Now()))
	no.Err = fmt.Errorf("EC2 has changed the volume at %s, and changes it again from %s on: %w", last.StartTime.UTC().Format(time.RFC3339),
		until.UTC().Format(time.RFC3339), saidOf(said))
	return false, no
}

// grown waits until a volume has the size, of which EC2 says that the instance sees it when the
// change is optimizing (EBS User Guide, "Monitor the progress of EBS volume modifications").
func (c *Cloud) grown(ctx context.Context, id string, size int64) (grown types.Volume, err error) {
	err = c.until(ctx, id, func(v types.Volume, shown bool) (bool, error) {
		switch {
		case shown && int64(aws.ToInt32(v.Size)) >= size:
			grown = v
			return true, nil
		case !shown:
			return false, nil
		}
		last, err := c.change(ctx, id)
		switch {
		case err != nil:
			return false, unsure(err)
		case last != nil && last.ModificationState == types.VolumeModificationStateFailed && int64(aws.ToInt32(last.TargetSize)) == size:
			return false, refused("EC2 has failed to change it: %s", aws.ToString(last.StatusMessage))
		}
		return false, nil
	})
	return grown, err
}
