package ec2

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Config is what a model is made from.
type Config struct {
	Region  string // us-east-1 when empty
	Account string // 123456789012 when empty
	// Sim are the machines; the zones and subnets of its catalogue's offerings are
	// those of Subnets.
	Sim     sim.Config
	Subnets []Subnet
	// Zones are those of the region where the account has no subnet. It sees them all the same: EC2 API reference,
	// "DescribeAvailabilityZones".
	Zones  []string
	Groups []Group
	Images []Image
	// Reservations are those of capacity.
	Reservations []Reservation
	// Hosts are Dedicated Hosts.
	Hosts []Host
	// Plan is what EC2 sells to the account.
	Plan Plan
	// Quotas are what Service Quotas tells of EC2's, by their codes. They bound no launch: Knobs.Quotas of Sim do.
	Quotas map[string]float64
	// NoSpotRole says that the account has not got the role of EC2's own that spot instances need. Who
	// launches the first makes it.
	NoSpotRole bool
	// LoneSecondaries has a launch of more than one instance refused that asks for a number of secondary addresses.
	// Which EC2 does is not known. The reference once forbade it and no longer does (EC2 API reference,
	// "InstanceNetworkInterfaceSpecification", as of SDK ec2@v1.344.1), while it still forbids PrivateIpAddress and
	// PrivateIpAddresses. Nor is the wording of a refusal known, or its code: LoneCode is one, with a message that names no
	// address; when "" it is refused as the reference once had it.
	LoneSecondaries bool
	LoneCode        string
	// NoneTogether is the code by which each launch of more than one instance is refused for a cause that has nothing to do with its
	// addresses; "" for none.
	NoneTogether string
	// Policies are what the holders of access keys may do; who is not named is nobody.
	// When nil, everybody may do everything.
	Policies map[string]*Policy
	// Keys are the ARNs of the account's customer managed keys of KMS that can be used. DefaultKey is the one with which a volume is
	// encrypted whose call names none; "" for aws/ebs.
	Keys       []string
	DefaultKey string
	// KeyFault is why EC2 ends instances whose root disk's key it cannot use; the first of KeyFaults when unset.
	KeyFault StateReason
	// RightsFirst has CreateTags judge the caller's rights to a root disk before it knows the disk, and so without the disk's tags.
	// No source says which EC2 does first.
	RightsFirst bool
	// Organization is a service control policy of the account's organization: what it denies nobody may do. It allows
	// nothing; one of these needs a statement that allows all, which is left out here. Source: AWS Organizations User Guide,
	// "Example SCPs for tagging resources".
	Organization *Policy
	// Roles are what each role may do that can be assumed, by its ARN. PutRole makes others, and
	// those that Providers' tokens assume.
	Roles map[string]*Policy
	// Providers are whose tokens are taken by AssumeRoleWithWebIdentity.
	Providers []cloudmodel.Provider
	// Clusters are those of Amazon EKS.
	Clusters []Cluster
	// Profiles are the names of the account's instance profiles, each with a role of its name; any when nil.
	Profiles []string
	// Networks are those of each VPC, by its ID; 10.0.0.0/8 alone where there are none.
	Networks map[string][]netip.Prefix
	// Routes are those of the account's own, besides what calls make.
	Routes []Route
	// PrefixLists are the networks of each, by its ID.
	PrefixLists map[string][]netip.Prefix
	// Repositories are those of images that the account has.
	Repositories []string
	// Upstreams are repositories of which the account has none: a rule of its pull through cache has each imported from another
	// registry at the first pull. Upstream is that registry.
	Upstreams []string
	// RepositoryPolicies are what a repository itself allows to sessions that it names by
	// aws:PrincipalArn, with a wildcard as its principal: neither their own policy nor their
	// role has to allow it, too, and only what one of these denies stays denied. Source: IAM
	// User Guide, "AWS JSON policy elements: Principal".
	RepositoryPolicies map[string]*Policy
	// Pods is where the addresses of pods are from: each instance has a /28, of which the
	// first is its secondary address where it has no prefix. 100.64.0.0/10 when unset.
	Pods netip.Prefix
	// Console returns what an instance wrote to its console; a line when nil.
	Console func(instance string) ([]byte, error)
	// PageSize is the most that a page has of anything; EC2's 1000 when 0.
	PageSize int
	// Disks are what stands behind volumes; nothing when nil.
	Disks cloudmodel.Disks
	// VolumeStep is how long a volume is unknown once it was made, and then creating,
	// attaching, detaching and deleting, each.
	VolumeStep time.Duration
	// FileSystemStep is how long a file system of EFS, and a mount target, are creating.
	FileSystemStep time.Duration
}

// setDefaults fills in what is empty.
func (cfg *Config) setDefaults() {
	cfg.Region, cfg.Account = cmp.Or(cfg.Region, "us-east-1"), cmp.Or(cfg.Account, "123456789012")
	cfg.PageSize = cmp.Or(cfg.PageSize, 1000)
	cfg.Sim.LikeEC2, cfg.Sim.SharedUserData = true, true
	if !cfg.Sim.PodCIDR.IsValid() {
		cfg.Sim.PodCIDR = netip.MustParsePrefix("10.64.0.0/12")
	}
	if !cfg.Pods.IsValid() {
		cfg.Pods = netip.MustParsePrefix("100.64.0.0/10")
	}
}

// Subnet is one of a VPC's.
type Subnet struct {
	ID, VPC, Zone string
	// Public says that it has a route to an internet gateway.
	Public bool
	// MapPublic says that it gives instances public addresses by itself, as one of a default VPC does.
	MapPublic bool
	// Bits is the length of the prefix that its IPv4 network has, by which its addresses are counted:
	// unbounded when 0.
	Bits int
	// Fragmented says that no /28 of it is free in one piece, while addresses are.
	Fragmented bool
	// Default says that it is that of its zone in the account's default VPC.
	Default bool
	// ZoneType is that of its zone: availability-zone when empty, local-zone or wavelength-zone.
	ZoneType string
	// Outpost is the ARN of the Outpost that it is on.
	Outpost string
	Tags    map[string]string
}

// Group is a security group.
type Group struct {
	ID, Name, VPC string
	Tags          map[string]string
	// Rules are who may reach its members.
	Rules []Rule
}

// Rule lets one source, a network or a group, reach some ports.
type Rule struct {
	Protocol string
	From, To int
	Source   string
	// Description is for people and tools: it is no part of what tells rules apart.
	Description string
}

// Image is an AMI of the account's own, or of another owner.
type Image struct {
	ID, Name, Owner string
	Created         string // RFC 3339
	RootDevice      string
	GiB             int
	// Further is the device of a volume beside the root's, Ends whether that ends with its instance.
	Further string
	Ends    bool
	// What else an image has that was registered.
	Architecture, BootMode, IMDS, Snapshot string
	ENA                                    bool
	Tags                                   map[string]string
	// Deprecated is since when its owner says that nobody should use it, RFC 3339; "" for never.
	Deprecated string
	// Withdrawn says that its owner shares it with the account no more; Listed, that lists show it all the same.
	Withdrawn, Listed bool
	// Product is one of AWS Marketplace to which the account has not subscribed; "" for none.
	Product string
	// Paid says that the Free plan does not have it.
	Paid bool
	// CalledPaid says that lists call it not eligible for the Free plan, which has it. No source says whether EC2 goes by what
	// lists say, nor what they say of an image of the account's own.
	CalledPaid bool

	fresh bool // no list has shown it
}
