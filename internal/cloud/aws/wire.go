package aws

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// New returns EC2 in one region. It asks the metadata service where Kip runs, and
// nothing of EC2.
func New(ctx context.Context, cfg Config) (*Cloud, error) {
	cfg.setDefaults()
	sdk, err := loadSDK(ctx, cfg)
	if err != nil {
		return nil, err
	}
	here, unlocated := whereabouts{}, false
	if cfg.Endpoint == "" && (!cfg.EndsOnly || cmp.Or(cfg.Region, sdk.Region) == "") {
		if here, err = whereIsKip(ctx, cfg.metadata); err != nil {
			unlocated = true
			cfg.Log.Info("the metadata service of EC2 does not answer: Kip is taken to run outside of it", "err", err)
		}
	}
	if err := cfg.locate(sdk.Region, here); err != nil {
		return nil, err
	}
	if cfg.UseFIPS && strings.HasPrefix(cfg.Region, "cn-") {
		return nil, fmt.Errorf("cloud.aws.useFIPS: true is not valid in region %s: want false, since AWS has no such endpoints in China", cfg.Region)
	}
	cfg.CPUCredits = cmp.Or(cfg.CPUCredits, creditsBoot)
	if err := cfg.checkCredits(); err != nil {
		return nil, err
	}
	if currencyOf(cfg.Region) == yuan {
		cfg.Log.Warn("prices in China are in yuan: so is all that is shown, counted and bounded as dollars", "region", cfg.Region)
	}
	b := &base{cfg: cfg, api: newAPI(sdk, cfg), unlocated: unlocated}
	// Who is elsewhere reaches instances at their public addresses only.
	inside := cfg.Endpoint != "" || here.vpc != "" && (cfg.VPC == "" || cfg.VPC == here.vpc || cfg.VPC == defaultVPC)
	b.dialPublic = !inside && !cfg.PrivateOnly && !cfg.EndsOnly
	b.onInstance = inside && cfg.Endpoint == ""
	if b.dialPublic && len(cfg.ExtraCIDRs) == 0 && !slices.ContainsFunc(cfg.KipSources, isPublic) {
		return nil, fmt.Errorf("cells.extraCIDRs: there is no value, nor of cloud.aws.kipSources, and Kip runs %s: want the addresses from which "+
			"it dials them, such as 203.0.113.7/32", b.outside("the cells' VPC"))
	}
	c := wireCloud(b, sdk)
	if b.onInstance {
		c.rules.kipGroups = here.groups
	}
	if cfg.EndsOnly {
		if _, err := sdk.Credentials.Retrieve(ctx); err != nil {
			return nil, fmt.Errorf("%w: want AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile of ~/.aws (AWS_PROFILE), "+
				"or cloud.aws.accessKeyID and cloud.aws.secretAccessKey: %w", errNoCredentials, err)
		}
		return c, nil
	}
	if err := c.rules.checkRules(); err != nil {
		return nil, err
	}
	return c, nil
}

// wireCloud makes the areas of EC2, each of those that it depends on.
func wireCloud(b *base, sdk aws.Config) *Cloud {
	c := &Cloud{base: b}
	c.networks = &networks{base: b, zones: map[string]bool{}, shown: map[string]time.Time{}}
	c.sold = &soldTypes{}
	c.plan = &freePlan{base: b}
	c.prices = &priceList{base: b, pricing: newPricing(sdk, b.cfg)}
	c.trials = &addressTrials{base: b, trials: map[[sha256.Size]byte]trial{}}
	c.reservations = &reservations{base: b}
	c.quotas = &quotas{base: b, serviceQuotas: newQuotas(sdk, b.cfg)}
	c.tagging, c.consoles = &tagging{b}, &consoles{b}
	c.routing = &routing{base: b, networks: c.networks}
	c.egress = &egress{base: b, networks: c.networks}
	c.bounds = &bounds{base: b, networks: c.networks, quotas: c.quotas}
	c.registries = &registries{base: b, sts: newSTS(sdk, b.cfg), sdk: sdk}
	c.wireInstances(b)
	c.wireLaunches(b)
	c.wireDisks(b)
	c.ownedResources = &ownedResources{base: b, volumes: c.podDisks.volumes, caches: c.caches}
	return c
}

// wireInstances wires what shows and ends instances.
func (c *Cloud) wireInstances(b *base) {
	c.instances = &instances{base: b, networks: c.networks, seen: &sightings{}}
	c.ending = &ending{base: b, instances: c.instances}
	c.cpuCredits = &cpuCredits{base: b, instances: c.instances}
	c.blocks = &capacityBlocks{base: b, reservations: c.reservations, instances: c.instances}
	c.interruptions = &interruptions{base: b, blocks: c.blocks}
}

// wireLaunches wires what a launch goes through, from the catalogue on.
func (c *Cloud) wireLaunches(b *base) {
	c.images = &bootImages{
		base:     b,
		networks: c.networks,
		sold:     c.sold,
		images:   map[string]image{},
		barred:   map[string]barred{},
	}
	c.securityGroups = &securityGroups{
		base:     b,
		networks: c.networks,
		rules:    &groupRules{base: b},
		making:   make(chan struct{}, 1),
		groups:   map[inVPC]string{},
		own:      map[inVPC]cellsGroup{},
	}
	c.caches = &caches{networks: c.networks, images: c.images, groups: c.securityGroups, sold: c.sold}
	c.catalogues = &catalogues{
		base:         b,
		networks:     c.networks,
		images:       c.images,
		prices:       c.prices,
		plan:         c.plan,
		reservations: c.reservations,
		sold:         c.sold,
		caches:       c.caches,
	}
	c.resolving = &resolving{
		base:         b,
		networks:     c.networks,
		images:       c.images,
		groups:       c.securityGroups,
		sold:         c.sold,
		plan:         c.plan,
		reservations: c.reservations,
		credits:      c.cpuCredits,
		trials:       c.trials,
	}
	c.launches = &launches{
		base:         b,
		instances:    c.instances,
		images:       c.images,
		groups:       c.securityGroups,
		plan:         c.plan,
		reservations: c.reservations,
		trials:       c.trials,
		caches:       c.caches,
		unexplained:  map[string]bool{},
	}
}

// wireDisks wires what makes, attaches and grows disks.
func (c *Cloud) wireDisks(b *base) {
	c.podDisks.volumes = &volumes{base: b, looks: make(chan struct{}, 1)}
	c.podDisks.diskMaking = &diskMaking{base: b, volumes: c.podDisks.volumes, attempts: map[string]attempt{}}
	c.podDisks.attachments = &attachments{base: b, volumes: c.podDisks.volumes}
	c.podDisks.growing = &growing{base: b, volumes: c.podDisks.volumes, attachments: c.podDisks.attachments}
}
