package aws

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

var (
	_ cloud.Cloud       = (*Cloud)(nil)
	_ cloud.Stopper     = (*Cloud)(nil)
	_ cloud.Interrupter = (*Cloud)(nil)
	_ cloud.Console     = (*Cloud)(nil)
	_ cloud.Parts       = (*Cloud)(nil)
	_ cloud.Tagger      = (*Cloud)(nil)
	_ cloud.Admitter    = (*Cloud)(nil)
	_ cloud.Resolver    = (*Cloud)(nil)
	_ cloud.Registries  = (*Cloud)(nil)
	_ cloud.Disks       = (*Cloud)(nil)
	_ cloud.Egress      = (*Cloud)(nil)
	_ cloud.Bounder     = (*Cloud)(nil)
	_ cloud.Owners      = (*Cloud)(nil)
)

// Cloud is EC2 in one region. It is safe for concurrent use.
type Cloud struct {
	cfg        Config
	api        *ec2.Client
	sts        *sts.Client
	sdk        aws.Config      // of which the clients of registries are made
	pricing    *pricing.Client // nil where there is none to ask
	quotas     *servicequotas.Client
	dialPublic bool
	onInstance bool // Kip runs on one in the VPC
	unlocated  bool // no metadata service answered: Kip is outside, or that was silent for a moment

	// mu guards what was read of EC2 and is read again with the catalogue, and kipGroups.
	mu           sync.Mutex
	network      *network
	located      bool            // it was read before
	zones        map[string]bool // of all subnets of the cells that were read since Kip began
	images       map[string]image
	groups       map[string]string     // IDs by name
	own          map[string]cellsGroup // by owner
	shown        map[string]time.Time  // what EC2 has shown, and since when it does not; zero while it does
	kipGroups    []string              // of the instance that Kip runs on, where that is in the VPC
	opened       bool                  // the catalogue was read before
	pricesDenied bool                  // it was told that Kip may not read prices
	dedicated    map[string]price      // of dedicated instances, as they were told last

	// The quotas, and what others in the account run, as they were read last; nil before; under mu.
	quotasRead, othersRead map[catalog.Class]int64

	unexplained map[string]bool   // codes that were told of; under mu
	told        map[string]string // what was told last, by its subject; under mu
	unreadLists sync.Map          // prefix lists that could not be read, by ID, and were told of

	// How EC2 sells each type, until when the account counts as one of the Free plan, whether the catalogue
	// has not shown that yet, and the images that the account may not use. All under mu.
	terms         map[string]terms
	freePlanUntil time.Time
	planChanged   bool
	barred        map[string]barred

	// What is sold, without the offerings of reservations, and when it was read; and the reservations
	// by their IDs, with what was told of those that are of no use. All under mu.
	sold        []catalog.InstanceType
	soldAt      time.Time
	reserved    map[string]*reservation
	uselessTold string

	making chan struct{} // holds one who makes a cells' group, or changes its rules
	next   *look         // that of volumes which is to be made; under mu
	looks  chan struct{} // holds one who makes it

	attempts map[string]attempt // of disks that EC2 fails to make, by token; under mu

	trials map[[sha256.Size]byte]trial // by what was asked for; under mu

	seen sightings
}

// Name implements cloud.Cloud.
func (c *Cloud) Name() string { return "aws" }

// Sizes of calls. Sources: EC2 API reference (2016-11-15), "DescribeInstances" (MaxResults
// at most 1,000; 200 values a filter, of "Filter your resources"), "TerminateInstances"
// (at most 1,000, and fewer are recommended).
const (
	pageSize      = 1000
	filterValues  = 200
	idsCall       = filterValues // the IDs of one description are a filter's values too
	instancesCall = 500
	// maxPages bounds what is read of one list: a million things.
	maxPages = 1000
)

// Traits implements cloud.Cloud. The buckets are those that AWS documents for each account
// and region ("Request throttling for the Amazon EC2 API"); what else uses the account
// takes from them too.
func (c *Cloud) Traits() cloud.Traits {
	describe := cloud.Budget{Requests: cloud.Bucket{Capacity: 100, Refill: 20}}
	mutate := cloud.Budget{Requests: cloud.Bucket{Capacity: 50, Refill: 5}}
	begin := cloud.Budget{Requests: cloud.Bucket{Capacity: 5, Refill: 2}, Resources: cloud.Bucket{Capacity: 1000, Refill: 2}}
	// Far below the 600 calls a second that STS takes of an account (IAM User Guide, "IAM and
	// AWS STS quotas"), and the 500 of ECR: other programs use them, too.
	lend := cloud.Budget{Requests: cloud.Bucket{Capacity: 50, Refill: 20}}
	return cloud.Traits{
		ListLag:        20 * time.Second,
		Poll:           2 * time.Second,
		Region:         c.cfg.Region,
		DialPublic:     c.dialPublic,
		SharedUserData: true,
		CatalogueEvery: c.catalogueEvery(),
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
			cloud.CallListParts:   describe,
			cloud.CallDeleteParts: mutate,
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

// Features implements cloud.Cloud.
func (c *Cloud) Features() cloud.Features {
	return cloud.Features{
		Stopper:     c,
		Interrupter: c,
		Disks:       c,
		DiskChecker: c,
		Router:      c,
		DiskGrower:  c,
		Console:     c,
		Parts:       c,
		Tagger:      c,
		Admitter:    c,
		Resolver:    c,
		Registries:  c,
		Booster:     c,
		Egress:      c,
		Bounder:     c,
		Owners:      c,
	}
}

// filter is one of a describing call.
func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: values}
}

// living are the states of instances that a list shows.
var living = filter("instance-state-name", "pending", "running", "shutting-down", "stopping", "stopped")

var errTooLong = fmt.Errorf("the answer has no end: more than %d pages", maxPages)

// paginator is one of the SDK's.
type paginator[Answer any] interface {
	HasMorePages() bool
	NextPage(context.Context, ...func(*ec2.Options)) (Answer, error)
}

// eachPage hands on all pages of an answer. Its error is classified.
func eachPage[Answer any](ctx context.Context, pages paginator[Answer], take func(Answer)) error {
	for n := 0; pages.HasMorePages(); n++ {
		if n == maxPages {
			return classify(errTooLong, cloud.Scope{})
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return classify(err, cloud.Scope{})
		}
		take(page)
	}
	return nil
}

// states are EC2's, as far as Kip cares.
var states = map[types.InstanceStateName]cloud.State{
	types.InstanceStateNamePending:      cloud.Pending,
	types.InstanceStateNameRunning:      cloud.Running,
	types.InstanceStateNameShuttingDown: cloud.Terminating,
	types.InstanceStateNameTerminated:   cloud.Gone,
	types.InstanceStateNameStopping:     cloud.Stopping,
	types.InstanceStateNameStopped:      cloud.Stopped,
}

// instanceOf is an instance in Kip's words. What EC2 leaves out stays empty; a state that
// nobody knows is Unknown, which proves nothing.
func instanceOf(i types.Instance) cloud.Instance {
	out := cloud.Instance{
		ID:           aws.ToString(i.InstanceId),
		InstanceType: string(i.InstanceType),
		Subnet:       aws.ToString(i.SubnetId),
		Spot:         i.InstanceLifecycle == types.InstanceLifecycleTypeSpot,
		State:        cloud.Unknown,
		ManagementIP: address(i.PrivateIpAddress),
		PublicIP:     address(i.PublicIpAddress),
		PodIP:        podAddress(i.NetworkInterfaces),
		Launched:     aws.ToTime(i.LaunchTime),
		Tags:         mapOf(i.Tags),
		Parts:        partsOf(i),
		PartsLate:    lacksRootDisk(i),
		Origin:       cloud.Origin{Token: aws.ToString(i.ClientToken), Reservation: aws.ToString(i.CapacityReservationId)},
	}
	if i.Placement != nil {
		out.Zone = aws.ToString(i.Placement.AvailabilityZone)
		out.Origin.Dedicated = i.Placement.Tenancy == types.TenancyDedicated || i.Placement.Tenancy == types.TenancyHost
		if i.Placement.Tenancy == types.TenancyHost {
			out.Origin.Reservation = aws.ToString(i.Placement.HostId)
		}
	}
	if i.State != nil && states[i.State.Name] != "" {
		out.State = states[i.State.Name]
	}
	if i.AmiLaunchIndex != nil {
		out.Place = cloud.PlaceOf(int(*i.AmiLaunchIndex))
	}
	// EC2 stops again what it has started without capacity.
	if out.State == cloud.Gone || out.State == cloud.Terminating || out.State == cloud.Stopped {
		asked := cloud.LaunchSpec{InstanceType: out.InstanceType, Zone: out.Zone, Reservation: out.Origin.Reservation}
		if out.Origin.Dedicated {
			asked.CapacityType = cloud.Dedicated
		}
		out.Fault = faultOf(i.StateReason, cloud.Scope{
			InstanceType: out.InstanceType,
			Zone:         out.Zone,
			Spot:         &out.Spot,
			Pool:         asked.Pool(),
		})
	}
	return out
}

func address(text *string) netip.Addr {
	a, err := netip.ParseAddr(aws.ToString(text))
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// podAddress is the pod's of the first interface: its secondary address, or the first one
// of its prefix.
func podAddress(all []types.InstanceNetworkInterface) netip.Addr {
	for _, n := range all {
		if n.Attachment == nil || aws.ToInt32(n.Attachment.DeviceIndex) != 0 {
			continue
		}
		for _, a := range n.PrivateIpAddresses {
			if !aws.ToBool(a.Primary) {
				return address(a.PrivateIpAddress)
			}
		}
		for _, p := range n.Ipv4Prefixes {
			if prefix, err := netip.ParsePrefix(aws.ToString(p.Ipv4Prefix)); err == nil {
				return prefix.Addr()
			}
		}
	}
	return netip.Addr{}
}

// Console implements cloud.Console. EC2 keeps the last 64 KiB.
func (c *Cloud) Console(ctx context.Context, id string) ([]byte, error) {
	out, err := c.api.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: aws.String(id), Latest: aws.Bool(true)})
	if err != nil {
		return nil, fmt.Errorf("read the console of %s: %w", id, classify(err, cloud.Scope{}))
	}
	text, err := base64.StdEncoding.DecodeString(aws.ToString(out.Output))
	if err != nil {
		return nil, fmt.Errorf("read the console of %s: %w", id, err)
	}
	return text, nil
}

// forget lets the next launch be resolved by what EC2 says then.
func (c *Cloud) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.network = nil
	clear(c.images)
	clear(c.groups)
	clear(c.own)
	c.sold, c.soldAt = nil, time.Time{}
}

// soldEvery is how often is read what EC2 sells.
const soldEvery = 12 * time.Hour

// catalogueEvery is how long a catalogue counts. One that withholds types counts as long as they are withheld.
func (c *Cloud) catalogueEvery() time.Duration {
	if c.cfg.reserves() {
		return reservationsEvery
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if withheld := c.freePlanUntil.Sub(c.cfg.Clock.Now()); withheld > 0 {
		return min(withheld, soldEvery)
	}
	return soldEvery
}

// Catalogue implements cloud.Cloud. It also reads anew where instances can be launched,
// and what images and groups are called; but where reservations are configured, most times it
// reads these alone. Where the account's plan has turned out to lack types, it reads nothing.
func (c *Cloud) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	c.mu.Lock()
	again := !c.planChanged && (!c.cfg.reserves() || c.cfg.Clock.Since(c.soldAt) >= soldEvery)
	c.planChanged = false
	c.mu.Unlock()
	if again {
		c.forget()
	}
	list, err := c.catalogue(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what EC2 sells in %s: %w", c.cfg.Region, err)
	}
	return list, nil
}
