package ec2

import (
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
)

// Model is EC2. It is safe for concurrent use. Each area of it is a struct with the few others that it depends on, in a file
// of its own.
type Model struct {
	*base

	// The areas that tests and other programs ask for.
	*launched
	*networks
	*routing
	*groups
	*snapshots
	*images
	*volumes
	*reservations
	*hosts
	*instances
	*parts
	*credits
	*announcements
	*quotas
	*prices
	*roles
	*mountTargets
	*fileSystems
	*registry
	*metadata

	// The areas that calls alone ask for.
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
	rand.Read(m.key[:])
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
	m.base.Model, m.sim = shared, shared.Machines()
	return m, nil
}

// wireModel makes the areas, each of those that it depends on.
func wireModel(b *base) *Model {
	m := &Model{base: b}
	m.callers = &callers{base: b}
	m.launched = &launched{base: b, byToken: map[string]*launch{}}
	m.roles = &roles{base: b, byARN: map[string]assumable{}, byName: map[string]IAMRole{}}
	for arn, policy := range b.cfg.Roles {
		m.roles.byARN[arn] = assumable{policy: policy}
	}
	m.wireNetworks(b)
	m.wireDisks(b)
	m.wireInstances(b)
	m.wireServices(b)
	m.queries = &queries{base: b, callers: m.callers, reservations: m.reservations}
	m.queries.services = []*queryService{m.ec2(), m.sts.service(), m.iam.service()}
	return m
}

// wireNetworks wires what instances are in.
func (m *Model) wireNetworks(b *base) {
	m.networks = &networks{base: b, launched: m.launched, subnets: slices.Clone(b.cfg.Subnets), cidrs: maps.Clone(b.cfg.Networks)}
	m.routing = &routing{
		base:     b,
		networks: m.networks,
		launched: m.launched,
		given:    slices.Clone(b.cfg.Routes),
		lists:    maps.Clone(b.cfg.PrefixLists),
		forwards: map[string]bool{},
	}
	m.mountTargets = &mountTargets{base: b}
	m.groups = &groups{
		base:         b,
		networks:     m.networks,
		launched:     m.launched,
		mountTargets: m.mountTargets,
		all:          slices.Clone(b.cfg.Groups),
	}
	m.fileSystems = &fileSystems{base: b, callers: m.callers, networks: m.networks, groups: m.groups, mountTargets: m.mountTargets}
}

// wireDisks wires volumes, and the images and snapshots of disks.
func (m *Model) wireDisks(b *base) {
	m.volumes = &volumes{base: b}
	m.plan = &accountPlan{base: b, launched: m.launched, volumes: m.volumes, sold: b.cfg.Plan}
	m.making = &volumeMaking{base: b, networks: m.networks, plan: m.plan, volumes: m.volumes}
	m.attaching = &attaching{base: b, volumes: m.volumes}
	m.modifications = &modifications{base: b, volumes: m.volumes}
	m.snapshots = &snapshots{base: b, callers: m.callers, byID: map[string]*Snapshot{}}
	m.images = &images{base: b, snapshots: m.snapshots, plan: m.plan, all: slices.Clone(b.cfg.Images)}
}

// wireInstances wires what launches, shows and ends instances.
func (m *Model) wireInstances(b *base) {
	m.reservations = &reservations{base: b, launched: m.launched, all: slices.Clone(b.cfg.Reservations)}
	m.hosts = &hosts{base: b, launched: m.launched, all: slices.Clone(b.cfg.Hosts)}
	m.types = &instanceTypes{base: b, plan: m.plan}
	m.instances = &instances{base: b, launched: m.launched, volumes: m.volumes, reasons: map[string]StateReason{}}
	m.parts = &parts{base: b, launched: m.launched, instances: m.instances, tags: map[string]map[string]string{}}
	m.tagging = &tagging{base: b, groups: m.groups, parts: m.parts}
	m.credits = &credits{base: b, launched: m.launched, changed: map[string]creditsNow{}}
	m.announcements = &announcements{base: b, launched: m.launched, risks: map[string]time.Time{}, maintenance: map[string]Maintenance{}}
	m.metadata = &metadata{base: b, launched: m.launched, instances: m.instances, announcements: m.announcements}
	m.interfaces = &interfaceRules{
		base:            b,
		loneSecondaries: b.cfg.LoneSecondaries,
		loneCode:        b.cfg.LoneCode,
		noneTogether:    b.cfg.NoneTogether,
	}
	m.rights = &launchRights{base: b, images: m.images, noSpotRole: b.cfg.NoSpotRole}
	m.launches = &launches{
		base:       b,
		interfaces: m.interfaces,
		rights:     m.rights,
		checks:     &launchChecks{base: b, networks: m.networks, images: m.images, groups: m.groups, plan: m.plan},
		supply:     &supply{networks: m.networks, reservations: m.reservations, hosts: m.hosts},
		launched:   m.launched,
		instances:  m.instances,
	}
}

// wireServices wires the services beside EC2.
func (m *Model) wireServices(b *base) {
	m.quotas = &quotas{base: b, callers: m.callers, values: maps.Clone(b.cfg.Quotas)}
	m.prices = &prices{base: b, callers: m.callers}
	m.iam = &iamService{base: b, roles: m.roles}
	m.sts = &stsService{base: b, callers: m.callers, roles: m.roles}
	m.eks = &eksService{base: b, callers: m.callers, roles: m.roles, associations: map[string][]Association{}}
	m.registry = &registry{
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
	m.mu.Lock()
	defer m.mu.Unlock()
	now := Config{
		Subnets:      slices.Clone(m.networks.subnets),
		Groups:       slices.Clone(m.groups.all),
		Images:       slices.Clone(m.images.all),
		Reservations: slices.Clone(m.reservations.all),
		Hosts:        slices.Clone(m.hosts.all),
		Plan:         m.plan.sold,
		Networks:     maps.Clone(m.networks.cidrs),
		Routes:       slices.Clone(m.routing.given),
		PrefixLists:  maps.Clone(m.routing.lists),
		Quotas:       maps.Clone(m.quotas.values),

		LoneSecondaries: m.interfaces.loneSecondaries,
		LoneCode:        m.interfaces.loneCode,
		NoneTogether:    m.interfaces.noneTogether,
	}
	change(&now)
	m.plan.sold = now.Plan
	m.networks.subnets, m.groups.all, m.images.all = now.Subnets, now.Groups, now.Images
	m.reservations.all, m.hosts.all = now.Reservations, now.Hosts
	m.interfaces.loneSecondaries, m.interfaces.loneCode, m.interfaces.noneTogether = now.LoneSecondaries, now.LoneCode, now.NoneTogether
	m.quotas.values = now.Quotas
	m.networks.cidrs, m.routing.given, m.routing.lists = now.Networks, now.Routes, now.PrefixLists
}
