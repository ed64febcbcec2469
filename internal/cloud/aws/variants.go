package aws

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// What a published image of Kip's has in its tags, as images.TagArch and images.TagGPUs say. Accounts do
// not see the tags of each other's.
const (
	tagKipImage     = "KipImage"
	tagKipImageGPUs = "KipImageGPUs"
)

// making is what the tags of an image say of it.
type making struct {
	kips    bool     // it is Kip's own
	variant string   // what it has besides: "nvidia"
	gpus    []string // the models that its driver drives
}

func madeAs(i types.Image) (k making) {
	tags := mapOf(i.Tags)
	value, kips := tags[tagKipImage]
	_, variant, _ := strings.Cut(value, "-")
	return making{kips: kips, variant: variant, gpus: strings.Fields(tags[tagKipImageGPUs])}
}

// newestOf returns the best of images; its ID is nil if there is none. Of Kip's own, those with a driver are for machines
// with devices, and those without one for all others: one of the wrong kind is taken only if there is no other. Of these,
// one that is not deprecated is better, and then the newest.
func newestOf(all []types.Image, devices bool, now time.Time) types.Image {
	fits := func(i types.Image) int {
		if k := madeAs(i); !k.kips || (k.variant != "") == devices {
			return 1
		}
		return 0
	}
	kept := func(i types.Image) int {
		if deprecated(i, now) {
			return 0
		}
		return 1
	}
	if len(all) == 0 {
		return types.Image{}
	}
	return slices.MaxFunc(all, func(a, b types.Image) int {
		return cmp.Or(
			fits(a)-fits(b),
			kept(a)-kept(b),
			// The times are all of one form, RFC 3339 in UTC.
			cmp.Compare(aws.ToString(a.CreationDate), aws.ToString(b.CreationDate)),
		)
	})
}

// ofParts are the families whose machines have a part of a GPU, which NVIDIA's GRID driver alone drives. Source: EC2 User
// Guide, "NVIDIA drivers for your Amazon EC2 instance", the table of drivers by instance type, as quoted in
// github.com/awslabs/amazon-eks-ami/issues/2443.
var ofParts = []string{"g6f", "gr6f"}

// checkDriver refuses a launch whose pod asks for devices if the image is Kip's own and does not drive them.
func (e *bootImages) checkDriver(boot image, s cloud.LaunchSpec) error {
	if !s.Devices || !boot.kips {
		return nil
	}
	t, known := e.sold.typeNamed(s.InstanceType)
	models := map[string]bool{}
	for _, g := range t.GPUs {
		models[g.Model] = true
	}
	unfit := func(format string, args ...any) error {
		return cloud.No(cloud.ErrUnfit, cloud.Scope{InstanceType: s.InstanceType}, fmt.Errorf(format, args...))
	}
	ownImage := "an image of your own that has it (docs/own-image.md)"
	switch {
	case known && len(models) == 0:
		return unfit("image %s, which is Kip's own, has no driver of the accelerators of %s: want %s", boot.id, s.InstanceType, ownImage)
	case boot.variant == "" && s.Arch == "arm64":
		return unfit("image %s, which is Kip's own, has no driver of GPUs, and there is none of Kip's for arm64 that has: want %s",
			boot.id, ownImage)
	case boot.variant == "":
		return unfit("image %s, which is Kip's own, has no driver of GPUs: run make image VARIANT=nvidia IMAGE_FORMATS=raw and"+
			" bin/kipctl image publish --variant nvidia, and name the images in cells.bootImageSpec such that it is found,"+
			" as kip-cell-* does (docs/gpus.md); or want %s", boot.id, ownImage)
	}
	another := func(has string) error {
		return cloud.No(cloud.ErrRefused, cloud.Scope{InstanceType: s.InstanceType}, fmt.Errorf("image %s, which is Kip's own, has a driver"+
			" of whole GPUs of the models %s, and %s has %s: want another type, or %s", boot.id, strings.Join(boot.gpus, ", "), s.InstanceType,
			has, ownImage))
	}
	if family, _, _ := strings.Cut(s.InstanceType, "."); slices.Contains(ofParts, family) {
		return another("a part of one")
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		if !slices.Contains(boot.gpus, model) {
			return another(model)
		}
	}
	return nil
}
