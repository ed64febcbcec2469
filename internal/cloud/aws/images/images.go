package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ebs"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	smithytime "github.com/aws/smithy-go/time"
)

// Tags of images and their snapshots.
const (
	// TagArch marks what this package made, with the image's architecture and its variant: "amd64",
	// "amd64-nvidia". So no image of another kind is taken for an older one.
	TagArch = "KipImage"
	// TagGPUs has the models of GPUs that an image with a driver drives, with spaces between them.
	TagGPUs = "KipImageGPUs"
	// TagDigest is the SHA-256 of the disk, in hex, and TagVersion Kip's version.
	TagDigest  = "KipImageDigest"
	TagVersion = "KipImageVersion"
)

const (
	// rootDevice is what images call their root disk.
	rootDevice = "/dev/xvda"
	// lookEvery is the pause between two looks whether something is done, and lookLimit how
	// long that may take: EC2 makes a snapshot of some hundred megabytes in a minute or two.
	lookEvery = 5 * time.Second
	lookLimit = time.Hour
	// uploadLimit is how old an upload is that nobody goes on with.
	uploadLimit = time.Hour
	// tries is how often the SDK sends a call that EC2 throttles, or fails.
	tries = 10
)

// architectures are Kip's words for them, and EC2's.
var architectures = map[string]types.ArchitectureValues{
	"amd64": types.ArchitectureValuesX8664,
	"arm64": types.ArchitectureValuesArm64,
}

// Config of a Publisher.
type Config struct {
	// Region is where the images are; the SDK's own settings say it where it is empty.
	Region string
	// Endpoint is another address than AWS's, for all that is asked.
	Endpoint string
	// Say tells of each thing that is done.
	Say func(format string, args ...any)
	// Now is the time, and Pause waits; nil for the real ones.
	Now   func() time.Time
	Pause func(ctx context.Context, d time.Duration) error
	// Transport is for tests; nil for the SDK's own.
	Transport http.RoundTripper
}

// Publisher publishes images in one region.
type Publisher struct {
	cfg    Config
	api    *ec2.Client
	blocks *ebs.Client
}

// Image is a disk that is to be an image.
type Image struct {
	// File is the raw disk, or an archive of it (.tar.gz). SHA256 is what the disk must have, in hex.
	File, SHA256 string
	// Packed opens an archive of the disk that is elsewhere, and returns its size; nil if File is here. File is then what it is called.
	Packed func(context.Context) (io.ReadCloser, int64, error)

	Arch    string // amd64 or arm64
	Version string // Kip's
	// Variant is what it has besides, and GPUs what it drives then; "" for nothing.
	Variant string
	GPUs    []string
}

// Kind returns the image's architecture and its variant, as TagArch has them.
func (i Image) Kind() string {
	if i.Variant != "" {
		return i.Arch + "-" + i.Variant
	}
	return i.Arch
}

// New reads the settings of AWS, and asks nothing yet.
func New(ctx context.Context, cfg Config) (*Publisher, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Pause == nil {
		cfg.Pause = smithytime.SleepWithContext
	}
	retryer := func() aws.Retryer { return retry.AddWithMaxAttempts(retry.NewStandard(), tries) }
	load := []func(*config.LoadOptions) error{config.WithRetryer(retryer)}
	if cfg.Region != "" {
		load = append(load, config.WithRegion(cfg.Region))
	}
	if cfg.Endpoint != "" {
		load = append(load, config.WithEC2IMDSClientEnableState(imds.ClientDisabled),
			config.WithBaseEndpoint(strings.TrimSuffix(cfg.Endpoint, "/")))
	}
	sdk, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("read the settings of AWS: %w", err)
	}
	if sdk.Region == "" {
		return nil, errors.New("no region: want --region, or AWS_REGION, or one in AWS's configuration")
	}
	if cfg.Transport != nil {
		sdk.HTTPClient = &http.Client{Transport: cfg.Transport}
	}
	return &Publisher{
		cfg: cfg,
		api: ec2.NewFromConfig(sdk),
		blocks: ebs.NewFromConfig(sdk, func(o *ebs.Options) {
			// A snapshot that was just started is not known everywhere at once.
			o.Retryer = retry.AddWithErrorCodes(o.Retryer, "ResourceNotFoundException")
		}),
	}, nil
}

// Publish has the region have the image, and returns its ID. One that is there, by its digest, is left as it is, and the disk is not read.
func (p *Publisher) Publish(ctx context.Context, i Image) (id string, err error) {
	if architectures[i.Arch] == "" {
		return "", fmt.Errorf("publish an image for %s: EC2 has amd64 and arm64", i.Arch)
	}
	if id, err = p.publish(ctx, i); err != nil {
		return "", fmt.Errorf("publish %s: %w", i.File, err)
	}
	return id, nil
}

func (p *Publisher) publish(ctx context.Context, i Image) (string, error) {
	same := tag(TagDigest, i.SHA256)
	known, err := p.images(ctx, tag(TagArch, i.Kind()), same)
	if err != nil {
		return "", err
	}
	for _, k := range known {
		if id := aws.ToString(k.ImageId); k.State == types.ImageStateAvailable || k.State == types.ImageStatePending {
			p.cfg.Say("%s is the image %s already", i.File, id)
			return id, p.available(ctx, id)
		}
	}
	tags := map[string]string{TagArch: i.Kind(), TagDigest: i.SHA256, TagVersion: i.Version, "Name": name(i)}
	if len(i.GPUs) > 0 {
		tags[TagGPUs] = strings.Join(i.GPUs, " ")
	}
	snapshot, err := p.snapshotOf(ctx, same, tag(TagArch, i.Kind()))
	if err == nil && snapshot == "" {
		snapshot, err = p.fromDisk(ctx, i, tags)
	}
	if err != nil {
		return "", err
	}
	out, err := p.api.RegisterImage(ctx, &ec2.RegisterImageInput{
		Name:               aws.String(name(i)),
		Description:        aws.String("Kip " + i.Version + ", the boot image of cells"),
		Architecture:       architectures[i.Arch],
		VirtualizationType: aws.String("hvm"),
		BootMode:           types.BootModeValuesUefi,
		EnaSupport:         aws.Bool(true),
		ImdsSupport:        types.ImdsSupportValuesV20,
		RootDeviceName:     aws.String(rootDevice),
		BlockDeviceMappings: []types.BlockDeviceMapping{{
			DeviceName: aws.String(rootDevice),
			Ebs: &types.EbsBlockDevice{
				SnapshotId:          aws.String(snapshot),
				VolumeType:          types.VolumeTypeGp3,
				DeleteOnTermination: aws.Bool(true),
			},
		}},
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeImage, Tags: tagList(tags)}},
	})
	if err != nil {
		return "", fmt.Errorf("register the snapshot %s: %w", snapshot, err)
	}
	id := aws.ToString(out.ImageId)
	p.cfg.Say("registered the image %s, %s", id, name(i))
	return id, p.available(ctx, id)
}

// fromDisk makes the snapshot of an image whose disk is as its manifest says.
func (p *Publisher) fromDisk(ctx context.Context, i Image, tags map[string]string) (snapshot string, err error) {
	disk, done, err := p.open(ctx, i)
	if err != nil {
		return "", err
	}
	defer done()
	about, err := disk.Stat()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, p.reading(ctx, disk, about.Size(), "comparing the disk with its manifest")); err != nil {
		return "", err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != i.SHA256 {
		return "", fmt.Errorf("it has the digest %s, and its manifest says %s: it is not whole, or another's", got, i.SHA256)
	}
	// Somebody else may have begun meanwhile.
	snapshot, err = p.snapshotOf(ctx, tag(TagDigest, i.SHA256), tag(TagArch, i.Kind()))
	if err != nil || snapshot != "" {
		return snapshot, err
	}
	return p.upload(ctx, disk, about.Size(), tags)
}

// noName are characters that an image's name must not have.
var noName = regexp.MustCompile(`[^A-Za-z0-9()\[\]./'@_-]+`)

// maxVersion bounds what of a version is in a name, in bytes.
const maxVersion = 80

// name is the image's: of what its disk is, so that another has another.
func name(i Image) string {
	version := noName.ReplaceAllString(i.Version, "-")
	return fmt.Sprintf("kip-cell-%s-%s-%.12s", i.Kind(), version[:min(len(version), maxVersion)], i.SHA256)
}

// snapshotOf returns the complete snapshot of a disk that an earlier run has made, "" where
// there is none. What such a run has left in the middle is removed.
func (p *Publisher) snapshotOf(ctx context.Context, filters ...types.Filter) (string, error) {
	found, err := p.snapshots(ctx, filters...)
	if err != nil {
		return "", err
	}
	for _, s := range found {
		id := aws.ToString(s.SnapshotId)
		switch began := aws.ToTime(s.StartTime); {
		case s.State == types.SnapshotStateCompleted:
			p.cfg.Say("the snapshot %s has it already", id)
			return id, nil
		case s.State == types.SnapshotStatePending && p.cfg.Now().Sub(began) < uploadLimit:
			return "", fmt.Errorf("an upload of the same image began at %s, into the snapshot %s: wait until it is done, or delete that",
				began.Format(time.RFC3339), id)
		}
		if err := p.deleteSnapshot(ctx, id); err != nil {
			return "", err
		}
	}
	return "", nil
}

// available waits until an image can be launched.
func (p *Publisher) available(ctx context.Context, id string) error {
	return p.wait(ctx, "the image "+id, func() (bool, error) {
		found, err := p.images(ctx, types.Filter{Name: aws.String("image-id"), Values: []string{id}})
		if err != nil || len(found) == 0 { // a list is late
			return false, err
		}
		switch s := found[0].State; s {
		case types.ImageStateAvailable:
			return true, nil
		case types.ImageStatePending, types.ImageStateTransient:
			return false, nil
		default:
			return false, fmt.Errorf("EC2 says: %s", s)
		}
	})
}

// wait looks until what is waited for is done.
func (p *Publisher) wait(ctx context.Context, what string, look func() (done bool, err error)) error {
	for deadline := p.cfg.Now().Add(lookLimit); ; {
		done, err := look()
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if done {
			return nil
		}
		if p.cfg.Now().After(deadline) {
			return fmt.Errorf("wait for %s: it is not done after %v", what, lookLimit)
		}
		if err := p.cfg.Pause(ctx, lookEvery); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
	}
}

// RemoveOld removes the images of a kind that this package has published before
// one, but for those of which an instance is there, and then the snapshots that no image has.
func (p *Publisher) RemoveOld(ctx context.Context, kind, keep string) error {
	mine := tag(TagArch, kind)
	all, err := p.images(ctx, mine)
	if err != nil {
		return fmt.Errorf("remove older images: %w", err)
	}
	made := ""
	for _, i := range all {
		if aws.ToString(i.ImageId) == keep {
			made = aws.ToString(i.CreationDate)
		}
	}
	used := map[string]bool{}
	for _, i := range all {
		id, removed := aws.ToString(i.ImageId), false
		// The times are all of one form, RFC 3339 in UTC.
		if id != keep && aws.ToString(i.CreationDate) <= made {
			if removed, err = p.removeImage(ctx, id); err != nil {
				return fmt.Errorf("remove the image %s: %w", id, err)
			}
		}
		for _, d := range i.BlockDeviceMappings {
			if d.Ebs != nil && !removed {
				used[aws.ToString(d.Ebs.SnapshotId)] = true
			}
		}
	}
	snapshots, err := p.snapshots(ctx, mine)
	if err != nil {
		return fmt.Errorf("remove older images: %w", err)
	}
	for _, s := range snapshots {
		id := aws.ToString(s.SnapshotId)
		ofImage := slices.ContainsFunc(all, func(i types.Image) bool {
			return slices.ContainsFunc(i.BlockDeviceMappings, func(d types.BlockDeviceMapping) bool {
				return d.Ebs != nil && aws.ToString(d.Ebs.SnapshotId) == id
			})
		})
		// One that no image has may be that of an upload that is under way.
		if used[id] || !ofImage && p.cfg.Now().Sub(aws.ToTime(s.StartTime)) < uploadLimit {
			continue
		}
		if err := p.deleteSnapshot(ctx, id); err != nil {
			return fmt.Errorf("remove older images: %w", err)
		}
	}
	return nil
}

// removeImage deregisters an image of which no instance is there.
func (p *Publisher) removeImage(ctx context.Context, id string) (removed bool, err error) {
	out, err := p.api.DescribeInstances(ctx, &ec2.DescribeInstancesInput{Filters: []types.Filter{
		{Name: aws.String("image-id"), Values: []string{id}},
		{Name: aws.String("instance-state-name"), Values: []string{"pending", "running", "shutting-down", "stopping", "stopped"}},
	}})
	if err != nil {
		return false, err
	}
	if len(out.Reservations) > 0 || out.NextToken != nil {
		p.cfg.Say("kept the image %s, of which there are instances", id)
		return false, nil
	}
	_, err = p.api.DeregisterImage(ctx, &ec2.DeregisterImageInput{ImageId: aws.String(id)})
	if err != nil && !is(err, "InvalidAMIID.NotFound") {
		return false, err
	}
	p.cfg.Say("removed the image %s", id)
	return true, nil
}

func (p *Publisher) deleteSnapshot(ctx context.Context, id string) error {
	_, err := p.api.DeleteSnapshot(ctx, &ec2.DeleteSnapshotInput{SnapshotId: aws.String(id)})
	switch {
	case is(err, "InvalidSnapshot.InUse"):
		p.cfg.Say("kept the snapshot %s, which is in use", id)
		return nil
	case err != nil && !is(err, "InvalidSnapshot.NotFound"):
		return fmt.Errorf("remove the snapshot %s: %w", id, err)
	}
	p.cfg.Say("removed the snapshot %s", id)
	return nil
}

// is says whether EC2 has answered with this code.
func is(err error, code string) bool {
	e, ok := errors.AsType[smithy.APIError](err)
	return ok && e.ErrorCode() == code
}

// images are the account's own that match.
func (p *Publisher) images(ctx context.Context, filters ...types.Filter) ([]types.Image, error) {
	out, err := p.api.DescribeImages(ctx, &ec2.DescribeImagesInput{Owners: []string{"self"}, Filters: filters})
	if err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	slices.SortFunc(out.Images, func(a, b types.Image) int { return cmp.Compare(aws.ToString(a.ImageId), aws.ToString(b.ImageId)) })
	return out.Images, nil
}

// snapshots are the account's own that match.
func (p *Publisher) snapshots(ctx context.Context, filters ...types.Filter) ([]types.Snapshot, error) {
	out, err := p.api.DescribeSnapshots(ctx, &ec2.DescribeSnapshotsInput{OwnerIds: []string{"self"}, Filters: filters})
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	return out.Snapshots, nil
}

func tag(key, value string) types.Filter {
	return types.Filter{Name: aws.String("tag:" + key), Values: []string{value}}
}

func tagList(tags map[string]string) (list []types.Tag) {
	for _, k := range keys(tags) {
		list = append(list, types.Tag{Key: aws.String(k), Value: aws.String(tags[k])})
	}
	return list
}

func keys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
