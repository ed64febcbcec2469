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

// What EC2 says of a volume that it does not change now, and when Kip tries again. EC2 changes a volume up to four times
// within a rolling 24-hour period, each time after the last change is completed (EC2 API reference, "ModifyVolume"). A change that is
// under way takes minutes to hours. After four, only the message says when the next one is possible.
const (
	codeChanging      = "IncorrectModificationState"
	changingRetry     = time.Minute
	codeChangedOften  = "VolumeModificationRateExceeded"
	changedOftenRetry = 30 * time.Minute
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

// growing makes disks larger.
type growing struct {
	*base
	volumes     *volumes
	attachments *attachments
}

// GrowDisk implements cloud.DiskGrower.
func (e *growing) GrowDisk(ctx context.Context, id string, bytes int64) (cloud.Disk, error) {
	v, err := e.grow(ctx, id, bytes)
	if err != nil {
		return cloud.Disk{}, fmt.Errorf("grow disk %s to %d bytes: %w", id, bytes, err)
	}
	return diskOf(v), nil
}

func (e *growing) grow(ctx context.Context, id string, bytes int64) (types.Volume, error) {
	v, err := e.attachments.usable(ctx, id)
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
	_, err = e.api.ModifyVolume(ctx, &ec2.ModifyVolumeInput{VolumeId: aws.String(id), Size: aws.Int32(int32(size))})
	switch code := codeOf(err); {
	case err == nil:
	case code == codeChanging, code == codeChangedOften:
		if done, err := e.isChanged(ctx, id, size, err); !done {
			return v, err
		}
	case code == codeState:
		return v, cloud.No(cloud.ErrNotYet, cloud.Scope{}, saidOf(err))
	default:
		return v, classify(err, cloud.Scope{})
	}
	return e.grown(ctx, id, size)
}

// change is the last one of a volume; nil for none.
func (e *growing) change(ctx context.Context, id string) (last *types.VolumeModification, err error) {
	pages := ec2.NewDescribeVolumesModificationsPaginator(e.api, &ec2.DescribeVolumesModificationsInput{
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

// isChanged reports whether a volume that EC2 does not change now gets the size all the same, by a call whose answer was
// lost. If it does not, the error says what Kip waits for.
func (e *growing) isChanged(ctx context.Context, id string, size int64, said error) (is bool, err error) {
	last, err := e.change(ctx, id)
	if err != nil {
		return false, unsure(err)
	}
	if last != nil && int64(aws.ToInt32(last.TargetSize)) >= size && last.ModificationState != types.VolumeModificationStateFailed {
		return true, nil
	}
	no := cloud.No(cloud.ErrNotYet, cloud.Scope{}, saidOf(said))
	if no.RetryAfter = changedOftenRetry; codeOf(said) == codeChanging {
		no.RetryAfter = changingRetry
	}
	if last != nil && codeOf(said) == codeChanging {
		no.Err = fmt.Errorf("EC2 has not completed the last change of the volume, which is %s: %w", last.ModificationState, saidOf(said))
	}
	return false, no
}

// grown waits until a volume has the size, of which EC2 says that the instance sees it when the
// change is optimizing (EBS User Guide, "Monitor the progress of EBS volume modifications").
func (e *growing) grown(ctx context.Context, id string, size int64) (grown types.Volume, err error) {
	err = e.volumes.until(ctx, id, func(v types.Volume, shown bool) (bool, error) {
		switch {
		case shown && int64(aws.ToInt32(v.Size)) >= size:
			grown = v
			return true, nil
		case !shown:
			return false, nil
		}
		last, err := e.change(ctx, id)
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
