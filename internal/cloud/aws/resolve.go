package aws

import (
	"context"
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/cloud"
)

// resolving finds what a launch is made of.
type resolving struct {
	*base
	networks     *networks
	images       *bootImages
	groups       *securityGroups
	sold         *soldTypes
	plan         *freePlan
	reservations *reservations
	credits      *cpuCredits
	trials       *addressTrials
}

// Resolve implements cloud.Resolver: the image and its disk, the security groups, whether
// instances get a public address, and for how many a reservation has room. The group of the cells is made where there is none.
func (e *resolving) Resolve(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	resolved, err := e.lookUp(ctx, s)
	if err != nil {
		return cloud.Resolved{}, fmt.Errorf("resolve a launch of %s in %s: %w", s.InstanceType, s.Subnet, err)
	}
	return resolved, nil
}

func (e *resolving) lookUp(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	owner := s.Tags[cloud.TagOwner]
	if owner == "" {
		return cloud.Resolved{}, cloud.No(cloud.ErrRefused, cloud.Scope{}, errNoOwner)
	}
	if err := e.plan.mayHave(s); err != nil {
		return cloud.Resolved{}, err
	}
	n, err := e.networks.where(ctx)
	if err != nil {
		return cloud.Resolved{}, err
	}
	in, ok := n.subnets[s.Subnet]
	switch {
	case !ok:
		return cloud.Resolved{}, e.networks.notShown(s.Subnet, cloud.No(cloud.ErrRefused, cloud.Scope{Subnet: s.Subnet},
			fmt.Errorf("subnet %s is none of the cells'", s.Subnet)))
	case in.zone != s.Zone:
		return cloud.Resolved{}, cloud.No(cloud.ErrRefused, cloud.Scope{Zone: s.Zone, Subnet: s.Subnet},
			fmt.Errorf("subnet %s is in zone %s, not in %q", s.Subnet, in.zone, s.Zone))
	case e.dialPublic && !in.public:
		return cloud.Resolved{}, cloud.No(cloud.ErrRefused, cloud.Scope{Zone: s.Zone, Subnet: s.Subnet},
			fmt.Errorf("from %s Kip reaches public addresses only: want a subnet with a route to an internet gateway", e.outside(n.vpc)))
	case e.dialPublic && s.PrivateIPOnly:
		return cloud.Resolved{}, refused("from %s Kip reaches public addresses only: want no private-ip-only", e.outside(n.vpc))
	}
	var resolved cloud.Resolved
	if s.Reservation != "" {
		if resolved, err = e.reservations.inReservation(ctx, s); err != nil {
			return cloud.Resolved{}, err
		}
	}
	boot, err := e.images.image(ctx, s)
	if err != nil {
		return cloud.Resolved{}, err
	}
	if err := e.images.mayBoot(boot.id, s.InstanceType); err != nil {
		return cloud.Resolved{}, err
	}
	e.plan.tellPaidImage(boot)
	if boot.bios && !e.sold.hasBIOS(s.InstanceType) {
		return cloud.Resolved{}, cloud.No(cloud.ErrRefused, cloud.Scope{InstanceType: s.InstanceType}, fmt.Errorf("cells.bootImageSpec: image %s"+
			" has the boot mode legacy-bios, and %s boots by UEFI alone: want an image with the boot mode uefi or uefi-preferred",
			boot.id, s.InstanceType))
	}
	if err := e.images.notThere(s, in, boot); err != nil {
		return cloud.Resolved{}, err
	}
	if s.Login && boot.kips {
		return cloud.Resolved{}, cloud.No(cloud.ErrUnfit, cloud.Scope{}, fmt.Errorf("nobody can log in on image %s, which is Kip's own,"+
			" and cells.cloudInitFile has users or their keys: want none, or an image of your own", boot.id))
	}
	if err := e.images.checkDriver(boot, s); err != nil {
		return cloud.Resolved{}, err
	}
	more, err := e.groups.groupIDs(ctx, n.vpc, s.SecurityGroups)
	if err != nil {
		return cloud.Resolved{}, err
	}
	own, err := e.groups.ownGroup(ctx, n.vpc, owner)
	if err != nil {
		return cloud.Resolved{}, err
	}
	resolved.Image, resolved.RootDevice, resolved.RootDiskBytes = boot.id, boot.rootDevice, int64(boot.gib)*gib
	resolved.RootDiskInitRate, resolved.Key = e.cfg.RootDiskInitRate, e.cfg.KMSKey
	resolved.SecurityGroups = append([]string{own}, slices.DeleteFunc(more, func(id string) bool { return id == own })...)
	resolved.PublicAddress = !s.PrivateIPOnly && (in.maps || in.public && (e.cfg.PublicAddress || e.dialPublic))
	resolved.CPUCredits, resolved.Boosted = e.credits.creditsOf(s)
	resolved.Tags = e.cfg.configuredTags()
	resolved.SecondaryAddress = !e.holds(factNoSecondaries) && !e.trials.onTrial(s, resolved)
	return resolved, nil
}
