package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// bootImages finds what cells boot, and knows which images the account may not use.
type bootImages struct {
	*base
	networks *networks
	sold     *soldTypes

	mu     sync.Mutex
	images map[string]image
	barred map[string]barred // by image
}

// image is what machines boot.
type image struct {
	id         string
	rootDevice string
	gib        int32  // the least size of its disk
	bios       bool   // it boots by a BIOS alone
	uefi       bool   // it boots by UEFI alone
	paid       bool   // EC2 calls it not eligible for AWS' Free plan
	created    string // when, RFC 3339
	deprecated string // since when its owner says that nobody should use it, RFC 3339; "" for not yet
	making
}

// image finds what a launch boots: by its ID, or the newest that is called so, of an owner
// or of the account itself, for its type's architecture and its devices. It is remembered until the next catalogue.
func (e *bootImages) image(ctx context.Context, of cloud.LaunchSpec) (image, error) {
	spec, arch := of.Image, of.Arch
	in, err := findImages(spec, arch)
	if err != nil {
		return image{}, cloud.No(cloud.ErrRefused, cloud.Scope{}, fmt.Errorf("cells.bootImageSpec: %w", err))
	}
	devices := e.sold.wantsDriver(of)
	key := fmt.Sprint(spec, " ", arch, " ", devices) // in the order of its keys
	e.mu.Lock()
	known, ok := e.images[key]
	e.mu.Unlock()
	if ok {
		return known, nil
	}
	out, err := e.api.DescribeImages(ctx, in)
	if err != nil {
		return image{}, fmt.Errorf("find the image %v: %w", spec, classify(err, cloud.Scope{}))
	}
	newest := newestOf(out.Images, devices, e.cfg.Clock.Now())
	unfit := func(format string, args ...any) error {
		return cloud.No(cloud.ErrUnfit, cloud.Scope{InstanceType: of.InstanceType}, fmt.Errorf(format, args...))
	}
	has := architectures[types.ArchitectureType(newest.Architecture)]
	switch {
	case newest.ImageId == nil && arch == "":
		return image{}, fmt.Errorf("find the image %v: %w", spec, e.networks.notShown(key, refused("EC2 shows none")))
	case newest.ImageId == nil:
		return image{}, fmt.Errorf("find the image %v: %w", spec, e.networks.notShown(key, unfit("EC2 shows none for %s:"+
			" want one of this account, or one that is shared with it", arch)))
	case arch != "" && has != arch:
		return image{}, unfit("cells.bootImageSpec: image %s is for %s, and %s is wanted: want a name, which images of each architecture have",
			*newest.ImageId, newest.Architecture, arch)
	}
	found := image{
		id:         *newest.ImageId,
		rootDevice: aws.ToString(newest.RootDeviceName),
		bios:       newest.BootMode == types.BootModeValuesLegacyBios, // without a mode, too, on Intel and AMD, where its type can
		uefi:       newest.BootMode == types.BootModeValuesUefi,
		paid:       newest.FreeTierEligible != nil && !*newest.FreeTierEligible,
		created:    aws.ToString(newest.CreationDate),
		making:     madeAs(newest),
	}
	if deprecated(newest, e.cfg.Clock.Now()) {
		found.deprecated = aws.ToString(newest.DeprecationTime)
		e.cfg.Log.Warn("the image of cells is deprecated: its owner may remove it at any time; name another image in cells.bootImageSpec",
			"image", found.id, "since", aws.ToString(newest.DeprecationTime))
	}
	for _, d := range newest.BlockDeviceMappings {
		switch name := aws.ToString(d.DeviceName); {
		case d.Ebs == nil:
		case name == found.rootDevice:
			found.gib = aws.ToInt32(d.Ebs.VolumeSize)
		case !aws.ToBool(d.Ebs.DeleteOnTermination):
			// Each cell would leave one, which has no tag by which a sweep finds it.
			return image{}, fmt.Errorf("find the image %v: %w", spec, refused("the volume %s of %s stays when an instance ends: "+
				"want an image without it, or one made with its DeleteOnTermination", name, found.id))
		}
	}
	e.networks.saw(key)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.images[key] = found
	return found, nil
}

// forget has images found again.
func (e *bootImages) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.images)
}

// barredFor is how long Kip launches no image that the account may not use. After that one launch shows
// whether the account may use it now.
const barredFor = 5 * time.Minute

// barred is why the account may not use an image.
type barred struct {
	why   string
	until time.Time
}

// bar has no cell boot an image for a while.
func (e *bootImages) bar(image, why string) {
	now := e.cfg.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.barred, func(_ string, b barred) bool { return !now.Before(b.until) })
	e.barred[image] = barred{why: why, until: now.Add(barredFor)}
}

// mayBoot returns an error if the account may not use an image.
func (e *bootImages) mayBoot(image, instanceType string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	b, is := e.barred[image]
	if !is || !e.cfg.Clock.Now().Before(b.until) {
		return nil
	}
	return cloud.No(cloud.ErrUnfit, cloud.Scope{InstanceType: instanceType}, errors.New(b.why))
}
