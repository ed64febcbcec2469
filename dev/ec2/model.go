package ec2

import (
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
)

// Model is EC2. It is safe for concurrent use. Each area of it is a struct with the few others that it depends on, in a file
// of its own, and has methods for those who look from outside and change what is there.
type Model struct {
	*cloudmodel.Model
	base *base

	// The areas that tests and other programs ask.
	Launched      *launched
	Networks      *networks
	Routing       *routing
	Groups        *groups
	Snapshots     *snapshots
	Images        *images
	Volumes       *volumes
	Reservations  *reservations
	Hosts         *hosts
	Instances     *instances
	Parts         *parts
	Credits       *credits
	Announcements *announcements
	Quotas        *quotas
	Prices        *prices
	Roles         *roles
	MountTargets  *mountTargets
	FileSystems   *fileSystems
	Registry      *registry
	Metadata      *metadata

	// The areas that calls alone ask.
	callers       *callers
	plan          *accountPlan
	making        *volumeMaking
	attaching     *attaching
	modifications *modifications
	tagging       *tagging
	interfaces    *interfaceRules
	rights        *launchRights
	launches      *launches
	types         *instanceTypes
	iam           *iamService
	sts           *stsService
	eks           *eksService
	queries       *queries
}

// New makes a model without instances. Close it.
func New(cfg Config) (*Model, error) {
	cfg.setDefaults()
	m := wireModel(&base{cfg: cfg})
	rand.Read(m.base.key[:])
	shared, err := cloudmodel.New(cloudmodel.Config{
		Sim:     cfg.Sim,
		Words:   words,
		Knows:   m.queries.knows,
		Refusal: refusal,
		Ways:    []cloudmodel.Way{WayMetadata, WayRequest},
	})
	if err != nil {
		return nil, err
	}
	m.Model, m.base.model, m.base.sim = shared, shared, shared.Machines()
	return m, nil
}

// wireModel makes the areas, each of those that it depends on.
func wireModel(b *base) *Model {
	m := &Model{base: b}
	m.callers = &callers{base: b}
	m.Launched = &launched{base: b, byToken: map[string]*launch{}}
	m.Roles = &roles{base: b, byARN: map[string]assumable{}, byName: map[string]IAMRole{}}
	for arn, policy := range b.cfg.Roles {
		m.Roles.byARN[arn] = assumable{policy: policy}
	}
	m.wireNetworks(b)
	m.wireDisks(b)
	m.wireInstances(b)
	m.wireServices(b)
	m.queries = &queries{base: b, callers: m.callers, reservations: m.Reservations}
	m.queries.services = []*queryService{m.ec2(), m.sts.service(), m.iam.service()}
	return m
}

// wireNetworks wires what instances are in.
func (m *Model) wireNetworks(b *base) {
	m.Networks = &networks{base: b, launched: m.Launched, subnets: slices.Clone(b.cfg.Subnets), cidrs: maps.Clone(b.cfg.Networks)}
	m.Routing = &routing{
		base:     b,
		networks: m.Networks,
		launched: m.Launched,
		given:    slices.Clone(b.cfg.Routes),
		lists:    maps.Clone(b.cfg.PrefixLists),
		forwards: map[string]bool{},
	}
	m.MountTargets = &mountTargets{base: b}
	m.Groups = &groups{
		base:         b,
		networks:     m.Networks,
		launched:     m.Launched,
		mountTargets: m.MountTargets,
		all:          slices.Clone(b.cfg.Groups),
	}
	m.FileSystems = &fileSystems{base: b, callers: m.callers, networks: m.Networks, groups: m.Groups, mountTargets: m.MountTargets}
}

// wireDisks wires volumes, and the images and snapshots of disks.
func (m *Model) wireDisks(b *base) {
	m.Volumes = &volumes{base: b}
	m.plan = &accountPlan{base: b, launched: m.Launched, volumes: m.Volumes, sold: b.cfg.Plan}
	m.making = &volumeMaking{base: b, networks: m.Networks, plan: m.plan, volumes: m.Volumes}
	m.attaching = &attaching{base: b, volumes: m.Volumes}
	m.modifications = &modifications{base: b, volumes: m.Volumes}
	m.Snapshots = &snapshots{base: b, callers: m.callers, byID: map[string]*Snapshot{}}
	m.Images = &images{base: b, snapshots: m.Snapshots, plan: m.plan, all: slices.Clone(b.cfg.Images)}
}

// wireInstances wires what launches, shows and ends instances.
func (m *Model) wireInstances(b *base) {
	m.Reservations = &reservations{base: b, launched: m.Launched, all: slices.Clone(b.cfg.Reservations)}
	m.Hosts = &hosts{base: b, launched: m.Launched, all: slices.Clone(b.cfg.Hosts)}
	m.types = &instanceTypes{base: b, plan: m.plan}
	m.Instances = &instances{base: b, launched: m.Launched, volumes: m.Volumes, reasons: map[string]StateReason{}}
	m.Parts = &parts{base: b, launched: m.Launched, instances: m.Instances, tags: map[string]map[string]string{}}
	m.tagging = &tagging{base: b, groups: m.Groups, parts: m.Parts}
	m.Credits = &credits{base: b, launched: m.Launched, changed: map[string]creditsNow{}}
	m.Announcements = &announcements{base: b, launched: m.Launched, risks: map[string]time.Time{}, maintenance: map[string]Maintenance{}}
	m.Metadata = &metadata{base: b, launched: m.Launched, instances: m.Instances, announcements: m.Announcements}
	m.interfaces = &interfaceRules{
		base:            b,
		loneSecondaries: b.cfg.LoneSecondaries,
		loneCode:        b.cfg.LoneCode,
		noneTogether:    b.cfg.NoneTogether,
	}
	m.rights = &launchRights{base: b, images: m.Images, noSpotRole: b.cfg.NoSpotRole}
	m.launches = &launches{
		base:       b,
		interfaces: m.interfaces,
		rights:     m.rights,
		checks:     &launchChecks{base: b, networks: m.Networks, images: m.Images, groups: m.Groups, plan: m.plan},
		supply:     &supply{networks: m.Networks, reservations: m.Reservations, hosts: m.Hosts},
		launched:   m.Launched,
		instances:  m.Instances,
	}
}

// wireServices wires the services beside EC2.
func (m *Model) wireServices(b *base) {
	m.Quotas = &quotas{base: b, callers: m.callers, values: maps.Clone(b.cfg.Quotas)}
	m.Prices = &prices{base: b, callers: m.callers}
	m.iam = &iamService{base: b, roles: m.Roles}
	m.sts = &stsService{base: b, callers: m.callers, roles: m.Roles}
	m.eks = &eksService{base: b, callers: m.callers, roles: m.Roles, associations: map[string][]Association{}}
	m.Registry = &registry{
		base:         b,
		callers:      m.callers,
		repositories: cloudmodel.NewRepositories(b.cfg.Repositories),
		upstreams:    cloudmodel.NewRepositories(b.cfg.Upstreams),
		imported:     map[string]bool{},
	}
}

// Change changes what the account has: the Subnets, the Groups, the Images, the Reservations, the Hosts, the Plan, the
// Quotas, the Networks, the Routes, the PrefixLists, LoneSecondaries, LoneCode and NoneTogether of its Config. What else change does to
// that has no effect.
func (m *Model) Change(change func(*Config)) {
	m.base.mu.Lock()
	defer m.base.mu.Unlock()
	now := Config{
		Subnets:      slices.Clone(m.Networks.subnets),
		Groups:       slices.Clone(m.Groups.all),
		Images:       slices.Clone(m.Images.all),
		Reservations: slices.Clone(m.Reservations.all),
		Hosts:        slices.Clone(m.Hosts.all),
		Plan:         m.plan.sold,
		Networks:     maps.Clone(m.Networks.cidrs),
		Routes:       slices.Clone(m.Routing.given),
		PrefixLists:  maps.Clone(m.Routing.lists),
		Quotas:       maps.Clone(m.Quotas.values),

		LoneSecondaries: m.interfaces.loneSecondaries,
		LoneCode:        m.interfaces.loneCode,
		NoneTogether:    m.interfaces.noneTogether,
	}
	change(&now)
	m.plan.sold = now.Plan
	m.Networks.subnets, m.Groups.all, m.Images.all = now.Subnets, now.Groups, now.Images
	m.Reservations.all, m.Hosts.all = now.Reservations, now.Hosts
	m.interfaces.loneSecondaries, m.interfaces.loneCode, m.interfaces.noneTogether = now.LoneSecondaries, now.LoneCode, now.NoneTogether
	m.Quotas.values = now.Quotas
	m.Networks.cidrs, m.Routing.given, m.Routing.lists = now.Networks, now.Routes, now.PrefixLists
}

// OutboundOf returns what of an instance reaches the internet, and whether there is such an instance.
func (m *Model) OutboundOf(instance string) (cloudmodel.Outbound, bool) {
	return m.Routing.OutboundOf(instance)
}
