package aws

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
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

// volumeID is the form of all that can be a volume: EC2 finds fault with the parameter
// otherwise, as it does with others.
var volumeID = regexp.MustCompile(`^vol-[0-9a-f]{8,17}$`)

var errNoVolume = errors.New("there is no such volume")

// CreateDisk implements cloud.Disks: an encrypted gp3 volume. It is looked for by its tag
// first, since the token may be older than EC2 remembers.
func (c *Cloud) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	v, err := c.createVolume(ctx, r)
	if err != nil {
		return cloud.Disk{}, fmt.Errorf("create a disk in %s: %w", r.Zone, err)
	}
	return diskOf(v), nil
}

func (c *Cloud) createVolume(ctx context.Context, r cloud.DiskRequest) (types.Volume, error) {
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
	asked := c.cfg.Clock.Now()
	made, err := c.volumes(ctx, filter("tag:"+tagDisk, r.Token), filter("tag:"+cloud.TagOwner, r.Tags[cloud.TagOwner]), existing)
	if err != nil {
		return types.Volume{}, unsure(err) // an earlier try may have made it
	}
	if len(made) == 0 {
		return c.newVolume(ctx, r, int32(size), asked)
	}
	v := made[max(0, slices.IndexFunc(made, func(v types.Volume) bool { return v.State != types.VolumeStateError }))]
	// One that came to nothing is deleted, and the next may be of another size and elsewhere.
	fits := int64(aws.ToInt32(v.Size)) >= size && aws.ToString(v.AvailabilityZone) == r.Zone
	if !fits && v.State != types.VolumeStateError {
		return types.Volume{}, refused("the token %q has made %s of %d GiB in %s, and cannot make one of %d GiB", r.Token,
			aws.ToString(v.VolumeId), aws.ToInt32(v.Size), aws.ToString(v.AvailabilityZone), size)
	}
	return c.whole(ctx, r.Token, aws.ToString(v.VolumeId), false)
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

func (c *Cloud) attemptAt(token string) attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attempts[token]
}

// lose notes that a volume of the token came to nothing, however often it is noted.
func (c *Cloud) lose(token, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.attempts[token]
	if was.lost == id {
		return
	}
	c.remember(token, attempt{was.number + 1, id, was.differs})
}

// remember notes how far a token has come. The caller holds mu.
func (c *Cloud) remember(token string, a attempt) {
	if _, known := c.attempts[token]; !known && len(c.attempts) >= mostAttempts {
		clear(c.attempts)
	}
	c.attempts[token] = a
}

// differs notes that a ClientToken has made a volume by an earlier configuration, and reports whether the next one is to
// be tried. A look by the tag has shown no volume at the time asked: EC2 may show it soon, and then it is the token's disk.
// What EC2 has known for long and does not show has failed, or was deleted.
func (c *Cloud) differs(token string, asked time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.attempts[token]
	if a.differs.IsZero() {
		a.differs = c.cfg.Clock.Now()
	}
	next := asked.Sub(a.differs) >= shownWithin
	if next {
		a.number++
	}
	c.remember(token, a)
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
func (c *Cloud) newVolume(ctx context.Context, r cloud.DiskRequest, size int32, asked time.Time) (types.Volume, error) {
	tags := cut(append(tagsOf(merged(c.cfg.configuredTags(), r.Tags)), types.Tag{Key: aws.String(tagDisk), Value: aws.String(r.Token)}))
	var key *string
	if c.cfg.KMSKey != "" {
		key = aws.String(c.cfg.KMSKey)
	}
	id := ""
	for range mostNumbers {
		out, err := c.api.CreateVolume(ctx, &ec2.CreateVolumeInput{
			ClientToken:       aws.String(clientToken(r.Token, c.attemptAt(r.Token).number)),
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
				if c.differs(r.Token, asked) {
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
		if v, err := c.whole(ctx, r.Token, id, longMade(out)); !errors.Is(err, errGone) {
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
func (c *Cloud) whole(ctx context.Context, token, id string, long bool) (types.Volume, error) {
	v, err := c.available(ctx, id, long)
	_, failed := errors.AsType[*cloud.FailedDiskError](err)
	switch {
	case err == nil:
		c.mu.Lock()
		delete(c.attempts, token)
		c.mu.Unlock()
	case failed, errors.Is(err, errGone):
		c.lose(token, id)
	}
	return v, err
}

var errGone = errors.New("EC2 has it no more")

// wantKey is what EC2 does not say of a volume that it cannot make.
const wantKey = "mostly it is the KMS key: want one that is enabled, and that Kip's role may use (" + wantKeyRights + ")"

// available waits until a volume is more than begun. EC2 may take some seconds to show it at all,
// but for one that was made long ago. That a volume is lost is believed when two looks have said so.
func (c *Cloud) available(ctx context.Context, id string, long bool) (v types.Volume, err error) {
	shown, looks := false, 0
	err = c.until(ctx, id, func(now types.Volume, is bool) (bool, error) {
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
func (c *Cloud) until(ctx context.Context, id string, done func(v types.Volume, shown bool) (bool, error)) error {
	for {
		v, shown, err := c.volume(ctx, id)
		if err != nil {
			return unsure(err)
		}
		if is, err := done(v, shown); is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for volume %s, which is %q: %w", id, v.State, ctx.Err())
		case <-c.cfg.Clock.After(c.cfg.VolumesEvery):
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
func (c *Cloud) volume(ctx context.Context, id string) (v types.Volume, shown bool, err error) {
	for {
		c.mu.Lock()
		if c.next == nil {
			c.next = &look{done: make(chan struct{})}
		}
		l := c.next
		l.ids = append(l.ids, id)
		c.mu.Unlock()
		if err := c.take(ctx, l); err != nil {
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
func (c *Cloud) take(ctx context.Context, l *look) error {
	for {
		select {
		case <-l.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case c.looks <- struct{}{}:
		}
		c.mu.Lock()
		mine := c.next == l
		if mine {
			c.next = nil
		}
		c.mu.Unlock()
		if mine {
			for some := range slices.Chunk(l.ids, filterValues) {
				asked, cancel := context.WithTimeout(ctx, volumesTimeout)
				found, err := c.volumes(asked, filter("volume-id", some...))
				cancel()
				if l.found, l.err = append(l.found, found...), err; err != nil {
					break
				}
			}
			close(l.done)
		}
		<-c.looks
	}
}

// existing are the states of volumes that are not about to be gone.
var existing = filter("status", "creating", "available", "in-use", "error")

// volumes reads all that match.
func (c *Cloud) volumes(ctx context.Context, filters ...types.Filter) ([]types.Volume, error) {
	var all []types.Volume
	pages := ec2.NewDescribeVolumesPaginator(c.api, &ec2.DescribeVolumesInput{Filters: filters, MaxResults: aws.Int32(pageSize)})
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
func (c *Cloud) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	if owner == "" {
		return nil, refused("owner is empty: want the value of tag %s", cloud.TagOwner)
	}
	found, err := c.volumes(ctx, filter("tag:"+cloud.TagOwner, owner), filter("tag-key", tagDisk), existing)
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
func (c *Cloud) DeleteDisk(ctx context.Context, id string) error {
	if !volumeID.MatchString(id) {
		return nil
	}
	_, err := c.api.DeleteVolume(ctx, &ec2.DeleteVolumeInput{VolumeId: aws.String(id)})
	code := codeOf(err)
	if err == nil || code == codeNoVolume {
		return nil
	}
	if code == codeInUse || code == codeState {
		v, shown, looked := c.volume(ctx, id)
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

// AttachDisk implements cloud.Disks. It does not wait until EC2 says attached, and no longer
// attaching: that is when the machine shows the device, which its agent sees sooner.
func (c *Cloud) AttachDisk(ctx context.Context, id, instance string) error {
	if err := c.attach(ctx, id, instance); err != nil {
		return fmt.Errorf("attach disk %s to %s: %w", id, instance, err)
	}
	return nil
}

// CheckDisk implements cloud.DiskChecker. All who ask at a time share a call.
func (c *Cloud) CheckDisk(ctx context.Context, id, zone string) error {
	v, err := c.usable(ctx, id)
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
func (c *Cloud) usable(ctx context.Context, id string) (types.Volume, error) {
	if !volumeID.MatchString(id) {
		return types.Volume{}, cloud.No(cloud.ErrNotFound, cloud.Scope{}, errNoVolume)
	}
	v, shown, err := c.volume(ctx, id)
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

func (c *Cloud) attach(ctx context.Context, id, instance string) error {
	v, err := c.usable(ctx, id)
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
	err = c.attachAs(ctx, id, instance, device)
	if slices.Contains(codesName, codeOf(err)) {
		free, looked := c.freeDevice(ctx, instance, device)
		if looked != nil {
			return looked
		}
		if free != device {
			err = c.attachAs(ctx, id, instance, free)
		}
	}
	switch {
	case err == nil:
		return nil
	case codeOf(err) == codeInUse, codeOf(err) == codeState:
		return c.whyNot(ctx, id, instance, err)
	}
	return classify(err, cloud.Scope{})
}

func (c *Cloud) attachAs(ctx context.Context, id, instance, device string) error {
	_, err := c.api.AttachVolume(ctx, &ec2.AttachVolumeInput{
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
func (c *Cloud) freeDevice(ctx context.Context, instance, tried string) (string, error) {
	has, err := c.volumes(ctx, filter("attachment.instance-id", instance))
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
func (c *Cloud) whyNot(ctx context.Context, id, instance string, said error) error {
	v, err := c.usable(ctx, id)
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
func (c *Cloud) DetachDisk(ctx context.Context, id, instance string) error {
	if err := c.detach(ctx, id, instance); err != nil {
		return fmt.Errorf("detach disk %s from %s: %w", id, instance, err)
	}
	return nil
}

func (c *Cloud) detach(ctx context.Context, id, instance string) error {
	if !volumeID.MatchString(id) {
		return nil
	}
	_, said := c.api.DetachVolume(ctx, &ec2.DetachVolumeInput{VolumeId: aws.String(id), InstanceId: aws.String(instance)})
	switch code := codeOf(said); {
	case said == nil, code == codeState, code == codeNotHolding:
	case code == codeNoVolume:
		return nil
	default:
		return classify(said, cloud.Scope{})
	}
	return c.until(ctx, id, func(v types.Volume, shown bool) (bool, error) {
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
