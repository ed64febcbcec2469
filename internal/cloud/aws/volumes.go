package aws

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// volumeID is the form of all that can be a volume: EC2 finds fault with the parameter
// otherwise, as it does with others.
var volumeID = regexp.MustCompile(`^vol-[0-9a-f]{8,17}$`)

var errNoVolume = errors.New("there is no such volume")

var errGone = errors.New("EC2 has it no more")

// wantKey is what EC2 does not say of a volume that it cannot make.
const wantKey = "mostly it is the KMS key: want one that is enabled, and that Kip's role may use (" + wantKeyRights + ")"

// volumes reads EBS volumes, and deletes them.
type volumes struct {
	*base
	looks chan struct{} // holds one who makes a look

	mu   sync.Mutex
	next *look // that is to be made
}

// available waits until a volume is more than begun. EC2 may take some seconds to show it at all,
// but for one that was made long ago. That a volume is lost is believed when two looks have said so.
func (e *volumes) available(ctx context.Context, id string, long bool) (v types.Volume, err error) {
	shown, looks := false, 0
	err = e.until(ctx, id, func(now types.Volume, is bool) (bool, error) {
		v, shown = now, is
		broken := is && v.State == types.VolumeStateError
		gone := !is && long || is && (v.State == types.VolumeStateDeleting || v.State == types.VolumeStateDeleted)
		if !broken && !gone {
			looks = 0
			return is && v.State != types.VolumeStateCreating, nil
		}
		switch looks++; {
		case looks < confirmations:
			return false, nil
		case broken:
			return false, &cloud.FailedDiskError{Disk: id, State: string(v.State), Why: wantKey}
		}
		return false, fmt.Errorf("volume %s: %w", id, errGone)
	})
	if err != nil && !shown && ctx.Err() != nil {
		return v, fmt.Errorf("EC2 does not show %s, which it has made; where that lasts, %s: %w", id, wantKey, err)
	}
	return v, err
}

// until looks at a volume again and again, until it is as it should be, or ctx ends.
func (e *volumes) until(ctx context.Context, id string, done func(v types.Volume, shown bool) (bool, error)) error {
	for {
		v, shown, err := e.volume(ctx, id)
		if err != nil {
			return unsure(err)
		}
		if is, err := done(v, shown); is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for volume %s, which is %q: %w", id, v.State, ctx.Err())
		case <-e.cfg.Clock.After(e.cfg.VolumesEvery):
		}
	}
}

// unsure is an error of looking: EC2 refused the look, and what is looked for may be there.
func unsure(err error) error {
	no, is := errors.AsType[*cloud.Error](err)
	if !is || !no.NothingDone {
		return err
	}
	looked := *no
	looked.NothingDone = false
	return &looked
}

// volumesTimeout bounds one call for volumes: others wait for its answer.
const volumesTimeout = 10 * time.Second

// look is one question about the volumes that several ask about.
type look struct {
	ids   []string
	done  chan struct{}
	found []types.Volume
	err   error
}

// volume reads one. Who asks while a question is on its way shares the next one with all others who
// do: a thousand pods that end together cost EC2 a few calls a second.
func (e *volumes) volume(ctx context.Context, id string) (v types.Volume, shown bool, err error) {
	for {
		e.mu.Lock()
		if e.next == nil {
			e.next = &look{done: make(chan struct{})}
		}
		l := e.next
		l.ids = append(l.ids, id)
		e.mu.Unlock()
		if err := e.take(ctx, l); err != nil {
			return v, false, err
		}
		if ended := errors.Is(l.err, context.Canceled) || errors.Is(l.err, context.DeadlineExceeded); ended && ctx.Err() == nil {
			continue // it was somebody else's time that was over
		}
		n := slices.IndexFunc(l.found, func(v types.Volume) bool { return aws.ToString(v.VolumeId) == id })
		if l.err != nil || n < 0 {
			return v, false, l.err
		}
		return l.found[n], true, nil
	}
}

// take waits for the answer to a question, or asks it, if nobody else does.
func (e *volumes) take(ctx context.Context, l *look) error {
	for {
		select {
		case <-l.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case e.looks <- struct{}{}:
		}
		e.mu.Lock()
		mine := e.next == l
		if mine {
			e.next = nil
		}
		e.mu.Unlock()
		if mine {
			for some := range slices.Chunk(l.ids, filterValues) {
				asked, cancel := context.WithTimeout(ctx, volumesTimeout)
				found, err := e.volumes(asked, filter("volume-id", some...))
				cancel()
				if l.found, l.err = append(l.found, found...), err; err != nil {
					break
				}
			}
			close(l.done)
		}
		<-e.looks
	}
}

// existing are the states of volumes that are not about to be gone.
var existing = filter("status", "creating", "available", "in-use", "error")

// volumes reads all that match.
func (e *volumes) volumes(ctx context.Context, filters ...types.Filter) ([]types.Volume, error) {
	var all []types.Volume
	pages := ec2.NewDescribeVolumesPaginator(e.api, &ec2.DescribeVolumesInput{Filters: filters, MaxResults: aws.Int32(pageSize)})
	err := eachPage(ctx, pages, func(page *ec2.DescribeVolumesOutput) { all = append(all, page.Volumes...) })
	return all, err
}

// diskOf is a volume in Kip's words.
func diskOf(v types.Volume) cloud.Disk {
	d := cloud.Disk{
		ID:        aws.ToString(v.VolumeId),
		SizeBytes: int64(aws.ToInt32(v.Size)) * gib,
		Zone:      aws.ToString(v.AvailabilityZone),
		Tags:      mapOf(v.Tags),
	}
	d.Instance, _ = holderOf(v)
	return d
}

// holderOf is the instance that has a volume, or is being given it, and whether it is being
// taken from that one; "" for none.
func holderOf(v types.Volume) (instance string, leaving bool) {
	for _, a := range v.Attachments {
		if a.State != types.VolumeAttachmentStateDetached {
			return aws.ToString(a.InstanceId), a.State == types.VolumeAttachmentStateDetaching
		}
	}
	return "", false
}

// ListDisks implements cloud.Disks.
func (e *volumes) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	if owner == "" {
		return nil, refused("owner is empty: want the value of tag %s", cloud.TagOwner)
	}
	found, err := e.volumes(ctx, filter("tag:"+cloud.TagOwner, owner), filter("tag-key", tagDisk), existing)
	if err != nil {
		return nil, fmt.Errorf("list the disks of %s: %w", owner, err)
	}
	var all []cloud.Disk
	for _, v := range found {
		all = append(all, diskOf(v))
	}
	return all, nil
}

// DeleteDisk implements cloud.Disks.
func (e *volumes) DeleteDisk(ctx context.Context, id string) error {
	if !volumeID.MatchString(id) {
		return nil
	}
	_, err := e.api.DeleteVolume(ctx, &ec2.DeleteVolumeInput{VolumeId: aws.String(id)})
	code := codeOf(err)
	if err == nil || code == codeNoVolume {
		return nil
	}
	if code == codeInUse || code == codeState {
		v, shown, looked := e.volume(ctx, id)
		instance, _ := holderOf(v)
		switch {
		case looked != nil:
			return fmt.Errorf("delete disk %s: %w", id, errors.Join(classify(err, cloud.Scope{}), looked))
		case shown && (v.State == types.VolumeStateDeleting || v.State == types.VolumeStateDeleted):
			return nil // what is not shown is there, since EC2 has just said how it is
		case code == codeInUse || instance != "":
			return fmt.Errorf("delete disk: %w", &cloud.InUseError{Disk: id, Instance: instance})
		}
	}
	return fmt.Errorf("delete disk %s: %w", id, classify(err, cloud.Scope{}))
}
