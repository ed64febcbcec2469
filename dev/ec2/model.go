package ec2

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud"
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

// Model is EC2. It is safe for concurrent use.
type Model struct {
	*cloudmodel.Model

	cfg Config
	sim *sim.Cloud // the Machines
	key [32]byte   // signs the tokens of the metadata service

	services []*queryService // EC2 is the first

	sessions cloudmodel.Grants[*Policy] // by sessionSecret: what the role may do, and the session's own policy allows
	tokens   cloudmodel.Grants[*Policy] // of ECR: nil for everything

	repositories map[string]http.Handler // by name
	upstreams    map[string]http.Handler // of Config.Upstreams, by name

	// mu guards what follows. Machines are called under no lock of the model's own: what they call back, such as effects of calls, takes mu
	// while the machines are locked.
	mu       sync.Mutex
	launches map[string]*launch // by the sim's token
	subnets  []Subnet
	groups   []Group
	images   []Image

	reserving    sync.Mutex // holds one who looks for room in a reservation or on a host, and takes it
	reservations []Reservation
	hosts        []Host
	noSpotRole   bool
	sold         Plan

	loneSecondaries        bool
	loneCode, noneTogether string

	snapshots map[string]*Snapshot // by ID
	volumes   []*volume            // all that ever were
	// fileSystems and mountTargets are of EFS.
	fileSystems  []FileSystem
	mountTargets []MountTarget
	routes       []Route                // made by calls
	forwards     map[string]bool        // instances without a check of source and destination
	made         int                    // groups, images, snapshots and volumes, ever
	reasons      map[string]StateReason // of ends that the model was told, by instance
	roles        map[string]assumable   // by ARN
	iamRoles     map[string]IAMRole     // by name
	// associations are those of EKS Pod Identity that calls have made, by cluster.
	associations map[string][]Association
	risks        map[string]time.Time // when it was recommended to leave an instance
	prices       PriceFaults
	quotas       map[string]float64
	quotaCode    string // with which Service Quotas refuses

	credits map[string]creditsNow // that were changed, by instance

	given    []Route                   // of Config
	networks map[string][]netip.Prefix // by VPC
	lists    map[string][]netip.Prefix // by ID

	maintenance map[string]Maintenance // by instance

	imported map[string]bool              // the upstreams that were pulled from
	partTags map[string]map[string]string // that were written on root disks and interfaces, by ID

	composes    bool // user data, with what others have
	hideVolumes bool // from descriptions
	fate        Fate // of the volumes that are made
}

// New makes a model without instances. Close it.
func New(cfg Config) (*Model, error) {
	cfg.Region, cfg.Account = cmp.Or(cfg.Region, "us-east-1"), cmp.Or(cfg.Account, "123456789012")
	cfg.PageSize = cmp.Or(cfg.PageSize, 1000)
	cfg.Sim.LikeEC2, cfg.Sim.SharedUserData = true, true
	if !cfg.Sim.PodCIDR.IsValid() {
		cfg.Sim.PodCIDR = netip.MustParsePrefix("10.64.0.0/12")
	}
	if !cfg.Pods.IsValid() {
		cfg.Pods = netip.MustParsePrefix("100.64.0.0/10")
	}
	m := &Model{
		cfg:      cfg,
		launches: map[string]*launch{},
		subnets:  slices.Clone(cfg.Subnets),
		groups:   slices.Clone(cfg.Groups),
		images:   slices.Clone(cfg.Images),

		reservations: slices.Clone(cfg.Reservations),
		hosts:        slices.Clone(cfg.Hosts),
		noSpotRole:   cfg.NoSpotRole,
		sold:         cfg.Plan,
		given:        slices.Clone(cfg.Routes),
		networks:     maps.Clone(cfg.Networks),
		lists:        maps.Clone(cfg.PrefixLists),
		quotas:       maps.Clone(cfg.Quotas),

		loneSecondaries: cfg.LoneSecondaries,
		loneCode:        cfg.LoneCode,
		noneTogether:    cfg.NoneTogether,

		snapshots: map[string]*Snapshot{},
		forwards:  map[string]bool{},
		reasons:   map[string]StateReason{},
		roles:     map[string]assumable{},
		iamRoles:  map[string]IAMRole{},

		associations: map[string][]Association{},
		risks:        map[string]time.Time{},
		partTags:     map[string]map[string]string{},

		repositories: cloudmodel.NewRepositories(cfg.Repositories),
		upstreams:    cloudmodel.NewRepositories(cfg.Upstreams),
		imported:     map[string]bool{},

		credits: map[string]creditsNow{},

		maintenance: map[string]Maintenance{},
	}
	for arn, policy := range cfg.Roles {
		m.roles[arn] = assumable{policy: policy}
	}
	rand.Read(m.key[:])
	m.services = []*queryService{m.ec2(), m.sts(), m.iam()}
	var err error
	m.Model, err = cloudmodel.New(cloudmodel.Config{
		Sim:     cfg.Sim,
		Words:   words,
		Knows:   m.knows,
		Refusal: refusal,
		Ways:    []cloudmodel.Way{WayMetadata, WayRequest},
	})
	if err != nil {
		return nil, err
	}
	m.sim = m.Machines()
	return m, nil
}

// Change changes what the account has: the Subnets, the Groups, the Images, the Reservations, the Hosts, the Plan, the
// Quotas, the Networks, the Routes, the PrefixLists, LoneSecondaries, LoneCode and NoneTogether of its Config. What else change does to
// that has no effect.
func (m *Model) Change(change func(*Config)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := Config{
		Subnets:      slices.Clone(m.subnets),
		Groups:       slices.Clone(m.groups),
		Images:       slices.Clone(m.images),
		Reservations: slices.Clone(m.reservations),
		Hosts:        slices.Clone(m.hosts),
		Plan:         m.sold,
		Networks:     maps.Clone(m.networks),
		Routes:       slices.Clone(m.given),
		PrefixLists:  maps.Clone(m.lists),
		Quotas:       maps.Clone(m.quotas),

		LoneSecondaries: m.loneSecondaries,
		LoneCode:        m.loneCode,
		NoneTogether:    m.noneTogether,
	}
	change(&now)
	m.sold = now.Plan
	m.subnets, m.groups, m.images, m.reservations, m.hosts = now.Subnets, now.Groups, now.Images, now.Reservations, now.Hosts
	m.loneSecondaries, m.loneCode, m.noneTogether = now.LoneSecondaries, now.LoneCode, now.NoneTogether
	m.quotas = now.Quotas
	m.networks, m.given, m.lists = now.Networks, now.Routes, now.PrefixLists
}

// Subnets are those that there are.
func (m *Model) Subnets() []Subnet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.subnets)
}

// apiError is an answer of EC2's that is no success.
type apiError struct {
	status        int
	code, message string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func bad(code, format string, args ...any) error {
	return &apiError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// dryRun is the answer to a call that would have succeeded, and was to have no effect.
var dryRun = &apiError{http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set."}

// request is one call.
type request struct {
	ctx context.Context
	*form
	action string
	caller
}

// caller is who calls.
type caller struct {
	policy *Policy // nil for one who may do everything
	key    string  // the access key
}

// maxRequest bounds a call in bytes: user data is 16 KiB.
const maxRequest = 1 << 20

var accessKey = regexp.MustCompile(`Credential=([^/,]+)/`)

// sessionHeader has the token of a session.
const sessionHeader = "X-Amz-Security-Token"

// Public is the part of the model that asks for a proof of who calls, and believes no key: images,
// and STS' AssumeRoleWithWebIdentity. So it may be served where pods reach it.
func (m *Model) Public() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, cloudmodel.ImagesPath) {
			r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
			if err := r.ParseForm(); err != nil || r.PostForm.Get("Version") != stsVersion || r.PostForm.Get("Action") != byWebIdentity ||
				r.Header.Get("X-Amz-Target") != "" || r.URL.Path != "/" {
				http.Error(w, "here are images, and STS' "+byWebIdentity, http.StatusNotFound)
				return
			}
		}
		m.ServeHTTP(w, r)
	})
}

// ServeHTTP answers one call.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	most := int64(maxRequest)
	if strings.HasPrefix(r.URL.Path, cloudmodel.ImagesPath) {
		most = cloudmodel.MaxLayer
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	below := func(path string) bool { return r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/") }
	switch target := r.Header.Get("X-Amz-Target"); {
	case strings.HasPrefix(r.URL.Path, cloudmodel.ImagesPath):
		m.serveRegistry(w, r)
	case below(snapshotsPath):
		m.serveEBS(w, r)
	case below(clustersPath):
		m.serveEKS(w, r)
	case below(efsPath):
		m.serveEFS(w, r)
	case strings.HasPrefix(target, ecrTarget):
		m.serveECR(w, r)
	case strings.HasPrefix(target, pricingTarget):
		m.servePricing(w, r)
	case strings.HasPrefix(target, quotasTarget):
		m.serveQuotas(w, r)
	default:
		m.serveQuery(w, r)
	}
}

// callerOf returns who signed a call, with a session's token if the key is one's.
func (m *Model) callerOf(r *http.Request) (caller, error) {
	c := caller{}
	if key := accessKey.FindStringSubmatch(r.Header.Get("Authorization")); key != nil {
		c.key = key[1]
	}
	var err error
	switch {
	case strings.HasPrefix(c.key, sessionKey):
		c.policy, err = m.sessionOf(c.key, r.Header.Get(sessionHeader))
	case m.cfg.Policies == nil:
	case m.cfg.Policies[c.key] == nil:
		err = errStranger
	default:
		c.policy = m.cfg.Policies[c.key]
	}
	return c, err
}

var errStranger = &apiError{http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials"}

// apiErrorOf is what EC2 says of an error of the machines; nil for nothing at all.
func apiErrorOf(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	code, hasCode := errors.AsType[sim.Code](err)
	switch {
	case errors.Is(err, sim.ErrLost), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nil
	case errors.Is(err, cloud.ErrThrottled):
		return &apiError{http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."}
	case errors.Is(err, cloud.ErrMismatch):
		return &apiError{http.StatusBadRequest, "IdempotentParameterMismatch", "The request uses the same client token as a previous, but non-identical request."}
	case errors.Is(err, cloud.ErrUnauthorised):
		return errStranger
	case code == sim.CodeVCPULimit && cloud.ScopeOf(err).Spot != nil && *cloud.ScopeOf(err).Spot:
		return &apiError{http.StatusBadRequest, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"}
	case code == sim.CodeInsufficientCapacity:
		return &apiError{http.StatusInternalServerError, string(code), err.Error()}
	case hasCode:
		return &apiError{http.StatusBadRequest, string(code), err.Error()}
	case errors.Is(err, cloud.ErrRefused):
		return &apiError{http.StatusBadRequest, "InvalidParameterValue", err.Error()}
	}
	return &apiError{http.StatusInternalServerError, "InternalError", "An internal error has occurred"}
}

// partition is the account's, by its region (AWS Fault Isolation Boundaries, "Partitions"), and
// the name of EC2 in it as a service that roles are passed to.
func (m *Model) partition() (name, service string) {
	switch {
	case strings.HasPrefix(m.cfg.Region, "cn-"):
		return "aws-cn", "ec2.amazonaws.com.cn"
	case strings.HasPrefix(m.cfg.Region, "us-gov-"):
		return "aws-us-gov", "ec2.amazonaws.com"
	}
	return "aws", "ec2.amazonaws.com"
}

// arn is that of a resource of EC2.
func (m *Model) arn(resource string) string {
	return m.arnOf("ec2", m.cfg.Region, m.cfg.Account, resource)
}

// publicARN is that of a resource of EC2 which may be another account's.
func (m *Model) publicARN(resource string) string { return m.arnOf("ec2", m.cfg.Region, "", resource) }

func (m *Model) arnOf(service, region, account, resource string) string {
	partition, _ := m.partition()
	return strings.Join([]string{"arn", partition, service, region, account, resource}, ":")
}

// may refuses an action on a resource that the caller's policy does not allow, or the organization denies.
func (m *Model) may(r *request, action, resource string, about map[string][]string) error {
	about = maps.Clone(about)
	if about == nil {
		about = map[string][]string{}
	}
	about["aws:RequestedRegion"] = []string{m.cfg.Region}
	forbidden := m.cfg.Organization != nil && m.cfg.Organization.denies(action, resource, about)
	if !forbidden && (r.policy == nil || r.policy.allows(action, resource, about)) {
		return nil
	}
	m.CountRefused(r.action)
	return &apiError{http.StatusForbidden, "UnauthorizedOperation", fmt.Sprintf("You are not authorized to perform this operation. "+
		"The caller is not authorized to perform: %s on resource: %s", action, resource) + m.encoded(r, action, resource, about)}
}

// tagged is the context of tags, in a request or on a resource.
func tagged(of string, tags map[string]string) map[string][]string {
	about := map[string][]string{}
	for k, v := range tags {
		about["aws:"+of+"/"+k] = []string{v}
		if of == "ResourceTag" {
			about["ec2:ResourceTag/"+k] = []string{v}
		}
	}
	if of == "RequestTag" {
		about["aws:TagKeys"] = sortedKeys(tags)
	}
	return about
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// describe lets a describing call of a kind arrive, which no policy limits to some resources.
func (m *Model) describe(r *request, kind sim.Kind) error {
	if err := m.may(r, "ec2:"+r.action, "*", nil); err != nil {
		return err
	}
	return m.Arrive(r.ctx, kind, nil)
}
