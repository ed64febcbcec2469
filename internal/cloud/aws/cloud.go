package aws

import (
	"time"

	"github.com/elotl/kip/internal/cloud"
)

var (
	_ cloud.Cloud          = (*Cloud)(nil)
	_ cloud.Stopper        = (*ending)(nil)
	_ cloud.Interrupter    = (*interruptions)(nil)
	_ cloud.Console        = (*consoles)(nil)
	_ cloud.OwnedResources = (*ownedResources)(nil)
	_ cloud.Tagger         = (*tagging)(nil)
	_ cloud.Admitter       = (*securityGroups)(nil)
	_ cloud.Resolver       = (*resolving)(nil)
	_ cloud.Registries     = (*registries)(nil)
	_ cloud.Disks          = podDisks{}
	_ cloud.DiskChecker    = podDisks{}
	_ cloud.DiskGrower     = podDisks{}
	_ cloud.Router         = (*routing)(nil)
	_ cloud.Booster        = (*cpuCredits)(nil)
	_ cloud.Egress         = (*egress)(nil)
	_ cloud.Bounder        = (*bounds)(nil)
	_ cloud.Owners         = (*ownedResources)(nil)
)

// cloudName is the name of this cloud.
const cloudName = "aws"

// Cloud is EC2 in one region. It is safe for concurrent use. Each area of EC2 is a struct with the few others that
// it depends on, in a file of its own.
type Cloud struct {
	*base

	// The areas that package cloud asks for.
	*launches
	*resolving
	*instances
	*ending
	*catalogues
	*interruptions
	*cpuCredits
	*securityGroups
	*tagging
	*consoles
	*ownedResources
	*routing
	*egress
	*bounds
	*registries
	podDisks

	// What these share.
	networks     *networks
	images       *bootImages
	sold         *soldTypes
	plan         *freePlan
	prices       *priceList
	reservations *reservations
	blocks       *capacityBlocks
	trials       *addressTrials
	quotas       *quotas
	caches       *caches
}

// Name implements cloud.Cloud.
func (c *Cloud) Name() string { return cloudName }

// Capabilities implements cloud.Cloud. The buckets are those that AWS documents for each account
// and region ("Request throttling for the Amazon EC2 API"); what else uses the account
// takes from them too.
func (c *Cloud) Capabilities() cloud.Capabilities {
	describe := cloud.Budget{Requests: cloud.Bucket{Capacity: 100, Refill: 20}}
	mutate := cloud.Budget{Requests: cloud.Bucket{Capacity: 50, Refill: 5}}
	begin := cloud.Budget{Requests: cloud.Bucket{Capacity: 5, Refill: 2}, Resources: cloud.Bucket{Capacity: 1000, Refill: 2}}
	// Far below the 600 calls a second that STS takes of an account (IAM User Guide, "IAM and
	// AWS STS quotas"), and the 500 of ECR: other programs use them, too.
	lend := cloud.Budget{Requests: cloud.Bucket{Capacity: 50, Refill: 20}}
	return cloud.Capabilities{
		ListLag:        20 * time.Second,
		Poll:           2 * time.Second,
		Region:         c.cfg.Region,
		DialPublic:     c.dialPublic,
		SharedUserData: true,
		CatalogueEvery: c.catalogues.catalogueEvery(),
		DiskDriver:     cloud.DiskDriver{Name: ebsDriver, ZoneKey: "topology." + ebsDriver + "/zone"},
		Budgets: map[cloud.Call]cloud.Budget{
			cloud.CallLaunch: begin,
			cloud.CallStart:  begin,
			cloud.CallTerminate: {
				Requests:  cloud.Bucket{Capacity: 100, Refill: 5},
				Resources: cloud.Bucket{Capacity: 1000, Refill: 20},
			},
			cloud.CallStop:        {Requests: mutate.Requests, Resources: cloud.Bucket{Capacity: 1000, Refill: 20}},
			cloud.CallTag:         {Requests: cloud.Bucket{Capacity: 100, Refill: 10}},
			cloud.CallList:        describe,
			cloud.CallDescribe:    describe,
			cloud.CallCatalogue:   describe,
			cloud.CallRoute:       mutate,
			cloud.CallUnroute:     mutate,
			cloud.CallListOwned:   describe,
			cloud.CallDeleteOwned: mutate,
			cloud.CallAdmit:       mutate,
			cloud.CallResolve:     mutate,
			cloud.CallConsole:     describe,
			cloud.CallCreateDisk:  mutate,
			cloud.CallDeleteDisk:  mutate,
			cloud.CallAttachDisk:  mutate,
			cloud.CallDetachDisk:  mutate,
			cloud.CallGrowDisk:    mutate,
			cloud.CallListDisks:   describe,

			cloud.CallInterruptions: describe,
			cloud.CallEndBoost:      mutate,
			cloud.CallEgress:        describe,
			cloud.CallBounds:        describe,

			cloud.CallPullCredentials: lend,
		},
	}
}

// Optional implements cloud.Cloud.
func (c *Cloud) Optional() cloud.Optional {
	return cloud.Optional{
		Stopper:        c.ending,
		Interrupter:    c.interruptions,
		Disks:          c.podDisks,
		DiskChecker:    c.podDisks,
		Router:         c.routing,
		DiskGrower:     c.podDisks,
		Console:        c.consoles,
		OwnedResources: c.ownedResources,
		Tagger:         c.tagging,
		Admitter:       c.securityGroups,
		Resolver:       c.resolving,
		Registries:     c.registries,
		Booster:        c.cpuCredits,
		Egress:         c.egress,
		Bounder:        c.bounds,
		Owners:         c.ownedResources,
	}
}
