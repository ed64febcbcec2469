package aws

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// tagDisk holds the token by which a disk was made. EC2 does not say for how long it keeps
// a ClientToken; and by this tag the disks of PersistentVolumes are told from the root disks
// of cells, which have the owner's, too.
const tagDisk = "KipDisk"

// ebsDriver is the CSI driver of EBS volumes, and ebsDriverTag the tag that its controller gives
// to all that it makes, with the value "true".
const ebsDriver, ebsDriverTag = "ebs.csi.aws.com", "ebs.csi.aws.com/cluster"

const (
	// maxGiB is the size of the largest gp3 volume (EBS User Guide, "General Purpose SSD volumes").
	maxGiB = 65536
	// maxTagValue is in characters (EC2 User Guide, "Tag restrictions").
	maxTagValue = 256
)

// podDisks are the disks of pods: EBS volumes.
type podDisks struct {
	*volumes
	*diskMaking
	*attachments
	*growing
}

// diskMaking makes disks.
type diskMaking struct {
	*base
	volumes *volumes

	mu       sync.Mutex
	attempts map[string]attempt // of disks that EC2 fails to make, by token
}

// CreateDisk implements cloud.Disks: an encrypted gp3 volume. It is looked for by its tag
// first, since the token may be older than EC2 remembers.
func (e *diskMaking) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	v, err := e.createVolume(ctx, r)
	if err != nil {
		return cloud.Disk{}, fmt.Errorf("create a disk in %s: %w", r.Zone, err)
	}
	return diskOf(v), nil
}

func (e *diskMaking) createVolume(ctx context.Context, r cloud.DiskRequest) (types.Volume, error) {
	size := (r.SizeBytes + gib - 1) / gib
	switch {
	case r.Token == "" || len(r.Token) > maxToken:
		return types.Volume{}, refused("token %q: want 1 to %d characters", r.Token, maxToken)
	case r.SizeBytes <= 0 || size > maxGiB:
		return types.Volume{}, refused("the size is %d bytes: want more than 0 and at most %d GiB", r.SizeBytes, maxGiB)
	case r.Zone == "":
		return types.Volume{}, refused("there is no zone: want that of the instances that can have the disk")
	case r.Tags[cloud.TagOwner] == "":
		return types.Volume{}, refused("the tags have no %s: without it no list shows the disk", cloud.TagOwner)
	}
	asked := e.cfg.Clock.Now()
	made, err := e.volumes.volumes(ctx, filter("tag:"+tagDisk, r.Token), filter("tag:"+cloud.TagOwner, r.Tags[cloud.TagOwner]), existing)
	if err != nil {
		return types.Volume{}, unsure(err) // an earlier try may have made it
	}
	if len(made) == 0 {
		return e.newVolume(ctx, r, int32(size), asked)
	}
	v := made[max(0, slices.IndexFunc(made, func(v types.Volume) bool { return v.State != types.VolumeStateError }))]
	// One that came to nothing is deleted, and the next may be of another size and elsewhere.
	fits := int64(aws.ToInt32(v.Size)) >= size && aws.ToString(v.AvailabilityZone) == r.Zone
	if !fits && v.State != types.VolumeStateError {
		return types.Volume{}, refused("the token %q has made %s of %d GiB in %s, and cannot make one of %d GiB", r.Token,
			aws.ToString(v.VolumeId), aws.ToInt32(v.Size), aws.ToString(v.AvailabilityZone), size)
	}
	return e.whole(ctx, r.Token, aws.ToString(v.VolumeId), false)
}

const (
	// shownWithin is how long EC2 may take to show what it has made, which is seconds (EC2 API
	// reference, "Eventual consistency"). A volume that it does not show then is none.
	shownWithin = 2 * time.Minute
	// confirmations are the looks, one after the other, that have to say that a volume is lost.
	confirmations = 2
	// mostNumbers bounds the ClientTokens that one call tries.
	mostNumbers = 30
	// mostAttempts bounds the tokens of which it is remembered how far they have come.
	mostAttempts = 1000
)

// attempt is how far the making of a token's disk has come. EC2 accepts a volume whose KMS key it
// then cannot use, and to the same ClientToken it names that one for ever; so the next volume has
// a ClientToken with a number. A process that does not remember it goes through the numbers again.
type attempt struct {
	number int
	lost   string // the volume of the number before
	// differs is when EC2 first said that one of the token's ClientTokens has made a volume with other tags, or another
	// key: those of an earlier configuration.
	differs time.Time
}

func (e *diskMaking) attemptAt(token string) attempt {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.attempts[token]
}

// lose notes that a volume of the token came to nothing, however often it is noted.
func (e *diskMaking) lose(token, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.attempts[token]
	if was.lost == id {
		return
	}
	e.remember(token, attempt{was.number + 1, id, was.differs})
}

// remember notes how far a token has come. The caller holds mu.
func (e *diskMaking) remember(token string, a attempt) {
	if _, known := e.attempts[token]; !known && len(e.attempts) >= mostAttempts {
		clear(e.attempts)
	}
	e.attempts[token] = a
}

// differs notes that a ClientToken has made a volume by an earlier configuration, and reports whether the next one is to
// be tried. A look by the tag has shown no volume at the time asked: EC2 may show it soon, and then it is the token's disk.
// What EC2 has known for long and does not show has failed, or was deleted.
func (e *diskMaking) differs(token string, asked time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.attempts[token]
	if a.differs.IsZero() {
		a.differs = e.cfg.Clock.Now()
	}
	next := asked.Sub(a.differs) >= shownWithin
	if next {
		a.number++
	}
	e.remember(token, a)
	return next
}

// clientToken is that of an attempt. The name of a PersistentVolume has no slash, so that no
// other token is the same.
func clientToken(token string, number int) string {
	if number == 0 {
		return token
	}
	numbered := fmt.Sprintf("%s/%d", token, number)
	if len(numbered) > maxToken {
		numbered = fmt.Sprintf("%x", sha256.Sum256([]byte(numbered)))
	}
	return numbered
}

// newVolume makes a volume, or is told again of that which the token has made. A look by the tag has shown none at the
// time asked.
func (e *diskMaking) newVolume(ctx context.Context, r cloud.DiskRequest, size int32, asked time.Time) (types.Volume, error) {
	tags := cut(append(tagsOf(merged(e.cfg.configuredTags(), r.Tags)), types.Tag{Key: aws.String(tagDisk), Value: aws.String(r.Token)}))
	var key *string
	if e.cfg.KMSKey != "" {
		key = aws.String(e.cfg.KMSKey)
	}
	id := ""
	for range mostNumbers {
		out, err := e.api.CreateVolume(ctx, &ec2.CreateVolumeInput{
			ClientToken:       aws.String(clientToken(r.Token, e.attemptAt(r.Token).number)),
			AvailabilityZone:  aws.String(r.Zone),
			Size:              aws.Int32(size),
			VolumeType:        types.VolumeTypeGp3,
			Encrypted:         aws.Bool(true),
			KmsKeyId:          key,
			TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeVolume, Tags: tags}},
		})
		if err != nil {
			no := classify(err, cloud.Scope{})
			if errors.Is(no, cloud.ErrMismatch) {
				if e.differs(r.Token, asked) {
					continue
				}
				return types.Volume{}, fmt.Errorf("wait %v for EC2 to show the volume that an earlier configuration has made: %w", shownWithin, no)
			}
			if cloud.ScopeOf(no).Disks {
				// EC2 says so, too, to a token that has made a volume. Source:
				// https://github.com/kubernetes-sigs/aws-ebs-csi-driver, pkg/cloud/cloud.go, at VolumeLimitExceeded.
				no = unsure(no)
			}
			return types.Volume{}, no
		}
		id = aws.ToString(out.VolumeId)
		if v, err := e.whole(ctx, r.Token, id, longMade(out)); !errors.Is(err, errGone) {
			return v, err
		}
	}
	return types.Volume{}, fmt.Errorf("EC2 has none of %d volumes any more that it has made one after another, the last of them %q: %s",
		mostNumbers, id, wantKey)
}

// longMade says that EC2 should show a volume by now, by its own clock.
func longMade(out *ec2.CreateVolumeOutput) bool {
	now, is := middleware.GetServerTime(out.ResultMetadata)
	return is && out.CreateTime != nil && now.Sub(*out.CreateTime) >= shownWithin
}

// whole waits for a volume that the token has made. The next call makes another where EC2 could
// not make it, or has it no more: the error is a *cloud.FailedDiskError, or errGone.
func (e *diskMaking) whole(ctx context.Context, token, id string, long bool) (types.Volume, error) {
	v, err := e.volumes.available(ctx, id, long)
	_, failed := errors.AsType[*cloud.FailedDiskError](err)
	switch {
	case err == nil:
		e.mu.Lock()
		delete(e.attempts, token)
		e.mu.Unlock()
	case failed, errors.Is(err, errGone):
		e.lose(token, id)
	}
	return v, err
}
