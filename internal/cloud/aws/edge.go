package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// site is where a subnet is, if that is not an Availability Zone of the region itself.
type site string

const (
	localZone      site = "a Local Zone"
	wavelengthZone site = "a Wavelength Zone"
	outpost        site = "an Outpost"
)

// sites are those of zone types in EC2's words (EC2 API reference, "AvailabilityZone").
var sites = map[string]site{"local-zone": localZone, "wavelength-zone": wavelengthZone}

// siteOf returns where a subnet is, by the types of zones.
func siteOf(s types.Subnet, zones []types.AvailabilityZone) site {
	if aws.ToString(s.OutpostArn) != "" {
		return outpost
	}
	for _, z := range zones {
		if aws.ToString(z.ZoneName) == aws.ToString(s.AvailabilityZone) {
			return sites[aws.ToString(z.ZoneType)]
		}
	}
	return ""
}

// bootsUEFI reports whether Kip launches x86 machines in a subnet that boot by UEFI alone. EC2 User Guide, "Instance launch
// behavior with Amazon EC2 boot modes", says: "UEFI boot is not supported in Wavelength Zones". It said so of Local Zones and
// Outposts, too, and today does not. Kip takes neither word: it leaves out such a subnet that it has found by a VPC or by tags, and
// uses one that is configured by its ID.
func (b *base) bootsUEFI(id string, at site) bool {
	return at == "" || at != wavelengthZone && slices.Contains(b.cfg.Subnets, id)
}

// withoutUEFI returns the subnets in which no x86 type is launched, since the image boots by UEFI alone.
func (e *catalogues) withoutUEFI(ctx context.Context, n *network) (map[string]site, error) {
	out := map[string]site{}
	edge := slices.DeleteFunc(slices.Sorted(maps.Keys(n.subnets)), func(id string) bool { return n.subnets[id].site == "" })
	if len(edge) == 0 || len(e.cfg.Image) == 0 {
		return out, nil
	}
	boot, err := e.images.image(ctx, cloud.LaunchSpec{Arch: archX86, Options: cloud.Options{Image: e.cfg.Image}})
	switch {
	case errors.Is(err, cloud.ErrUnfit), errors.Is(err, cloud.ErrRefused):
		return out, nil // there is none for x86
	case err != nil:
		return nil, err
	case !boot.uefi:
		return out, nil
	}
	for _, id := range edge {
		s := n.subnets[id]
		if e.bootsUEFI(id, s.site) {
			e.cfg.Log.Warn("x86 cells may not boot in a subnet: its image has the boot mode uefi, which EC2 may not support there",
				"subnet", id, "zone", s.zone, "is", s.site, "image", boot.id)
			continue
		}
		out[id] = s.site
		e.cfg.Log.Warn("no x86 cells are launched in a subnet: their image has the boot mode uefi, which EC2 does not support there",
			"subnet", id, "zone", s.zone, "is", s.site, "image", boot.id)
	}
	return out, nil
}

// archX86 is EC2's x86_64 in Kubernetes' words.
const archX86 = "amd64"

// unusable returns an error for a subnet that is configured by its ID, and in which nothing is left to launch.
func (e *catalogues) unusable(n *network, out map[string]site, kinds []catalog.InstanceType) error {
	for _, id := range e.cfg.Subnets {
		at, is := out[id]
		if !is || slices.ContainsFunc(kinds, func(t catalog.InstanceType) bool {
			return slices.ContainsFunc(t.Offerings, func(o catalog.PurchaseOption) bool { return o.Subnet == id })
		}) {
			continue
		}
		return refused("cloud.aws.subnetID: %s is in zone %s, %s, where x86 machines do not boot by UEFI: want a subnet of an Availability "+
			"Zone, or in cells.bootImageSpec an image with the boot mode uefi-preferred or legacy-bios", id, n.subnets[id].zone, at)
	}
	return nil
}

// notThere refuses a launch that does not boot where it is to be.
func (e *bootImages) notThere(s cloud.LaunchSpec, in subnet, boot image) error {
	if !boot.uefi || s.Arch != archX86 || e.bootsUEFI(s.Subnet, in.site) {
		return nil
	}
	return cloud.No(cloud.ErrRefused, cloud.Scope{InstanceType: s.InstanceType, Zone: s.Zone, Subnet: s.Subnet},
		fmt.Errorf("subnet %s is in %s, where x86 machines do not boot by UEFI, and image %s has the boot mode uefi: want another subnet, or in "+
			"cells.bootImageSpec an image with the boot mode uefi-preferred or legacy-bios", s.Subnet, in.site, boot.id))
}
