package cells

import (
	"cmp"

	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/lanes"
)

// core is what all steps stand on: the cells, their records, and the loop.
type core struct {
	table       *table
	loop        *loop
	records     *records
	events      *reporter
	observers   *observers
	limits      limits
	recipe      *recipe
	authorities authorities
	agents      *asking
	launches    *launchQueue
	ledger      *ledger
	pools       *pools
	inventory   *inventory
	lineage     *lineage
	endings     *endings
}

func (c *Controller) wireCore(cfg Config) {
	c.table = newTable()
	c.loop = newLoop(cfg, c.table)
	c.limits = cfg.Budgets
	c.events = &reporter{pods: cfg.Events, log: cfg.Log}
	c.observers = &observers{}
	c.recipe = &recipe{settings: cfg.Template, file: cfg.CloudInit, agent: cfg.Agent, nameTag: cfg.NameTag}
	c.authorities = authorities{now: cfg.CAHash, old: cfg.OldCAHash}
	c.agents = &asking{lanes: lanes.New()}
	c.launches = newLaunchQueue()
	c.ledger = newLedgerOf(cfg.Store)
	c.pools = newPools(cfg.Pools, cfg.RefillDelay, c.recipe, cfg.Clock, cfg.Random)
	c.inventory = newInventory(cfg.Health, cfg.ListLag)
	c.lineage = cmp.Or(cfg.Lineage, NewLineage(cfg.Store, cfg.ListLag))
	c.endings = &endings{guard: cfg.Guard, byInstance: map[string]*termination{}}
	c.records = &records{
		table:     c.table,
		loop:      c.loop,
		store:     cfg.Store,
		ledger:    c.ledger,
		limits:    c.limits,
		meter:     cfg.Meter,
		pools:     c.pools,
		endings:   c.endings,
		observers: c.observers,
	}
}

// shared is what the steps share.
type shared struct {
	listening *listening
	nodeNames *nodeNames
	costs     *costs
	budgets   *budgets
	rights    *rights
	blockers  *blockers
	ends      *ends
	versions  *versions
}

func (c *Controller) wireShared(cfg Config) {
	c.listening = &listening{late: cfg.Late, termBegan: cfg.TermBegan}
	c.nodeNames = &nodeNames{
		nodes: cfg.Nodes,
		one:   cfg.NodeName,
	}
	c.costs = &costs{
		table:  c.table,
		store:  cfg.Store,
		ledger: c.ledger,
		meter:  cfg.Meter,
		clock:  cfg.Clock,
	}
	c.budgets = &budgets{
		table:  c.table,
		ledger: c.ledger,
		limits: c.limits,
		clock:  cfg.Clock,
	}
	c.rights = &rights{
		table:  c.table,
		loop:   c.loop,
		events: c.events,
		calls:  cfg.Calls,
		denied: map[offeringKey]bool{},
	}
	c.blockers = &blockers{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		recipe:  c.recipe,
		events:  c.events,
		node:    nodeReporter{events: cfg.NodeEvents, node: cfg.NodeName},
		unfits:  map[ingredients]*unfit{},
	}
	c.ends = &ends{
		table:     c.table,
		loop:      c.loop,
		records:   c.records,
		events:    c.events,
		guard:     cfg.Guard,
		inventory: c.inventory,
		blockers:  c.blockers,
		shortages: cfg.Shortages,
	}
	c.versions = &versions{
		node: nodeReporter{events: cfg.NodeEvents, node: cfg.NodeName},
		own:  cfg.Version,
		told: map[ingredients]bool{},
	}
}

// upkeep asks the cloud for what is beside the life of cells.
type upkeep struct {
	silentZones *silentZones
	consoles    *consoles
	ingress     *ingress
	sweeping    *sweeping
	batchSizes  *batchSizes
	boosting    *boosting
	tagging     *tagging
	trust       *trust
}

func (c *Controller) wireUpkeep(cfg Config) {
	c.silentZones = &silentZones{
		loop:      c.loop,
		shortages: cfg.Shortages,
		health:    cfg.Health,
	}
	c.consoles = &consoles{
		loop:   c.loop,
		calls:  cfg.Calls,
		events: c.events,
		places: keyed.NewPlaces[string](consolesAtOnce, consolesOfOne),
	}
	c.ingress = &ingress{
		loop:  c.loop,
		calls: cfg.Calls,
		owner: cfg.ControllerID,
	}
	c.sweeping = &sweeping{
		table:     c.table,
		loop:      c.loop,
		calls:     cfg.Calls,
		inventory: c.inventory,
		lineage:   c.lineage,
		observers: c.observers,
		owner:     cfg.ControllerID,
	}
	c.batchSizes = &batchSizes{
		clock: cfg.Clock,
		apart: map[location]fewer{},
	}
	c.boosting = &boosting{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		calls:   cfg.Calls,
		due:     newGather[*entry](),
	}
	c.tagging = &tagging{
		table:     c.table,
		loop:      c.loop,
		calls:     cfg.Calls,
		inventory: c.inventory,
		listLag:   cfg.ListLag,
		due:       newGather[*entry](),
	}
	c.trust = &trust{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		agents:      c.agents,
		ends:        c.ends,
		authorities: c.authorities,
	}
}

// links connects to cells.
type links struct {
	upgrades      *upgrades
	setups        *setups
	interruptions *interruptions
	notices       *notices
	connections   *connections
}

func (c *Controller) wireLinks(cfg Config) {
	c.upgrades = &upgrades{
		table:    c.table,
		agents:   c.agents,
		blockers: c.blockers,
		clock:    cfg.Clock,
	}
	c.setups = &setups{
		agents:   c.agents,
		blockers: c.blockers,
		events:   c.events,
		file:     cfg.CloudInit,
	}
	c.interruptions = &interruptions{
		table:     c.table,
		loop:      c.loop,
		records:   c.records,
		calls:     cfg.Calls,
		guard:     cfg.Guard,
		events:    c.events,
		observers: c.observers,
		inventory: c.inventory,
		listening: c.listening,
		ends:      c.ends,
	}
	c.notices = &notices{
		loop:          c.loop,
		interruptions: c.interruptions,
		events:        c.events,
	}
	c.connections = &connections{
		table:     c.table,
		loop:      c.loop,
		records:   c.records,
		calls:     cfg.Calls,
		tunnels:   cfg.Tunnels,
		apis:      cfg.APIs,
		agents:    c.agents,
		dns:       cfg.ClusterDNS,
		config:    agentConfigOf(cfg),
		nodeNames: c.nodeNames,
		lineage:   c.lineage,
		notices:   c.notices,
		blockers:  c.blockers,
		upgrades:  c.upgrades,
		setups:    c.setups,
		versions:  c.versions,
		observers: c.observers,
	}
}

// outfit gives cells what they have before their pods.
type outfit struct {
	waits      *waits
	keptAgents *keptAgents
	renaming   *renaming
	disks      *disks
	routes     *routes
	plugins    *plugins
	devices    *devices
}

func (c *Controller) wireOutfit(cfg Config) {
	c.waits = &waits{
		table:         c.table,
		loop:          c.loop,
		records:       c.records,
		events:        c.events,
		connections:   c.connections,
		interruptions: c.interruptions,
	}
	c.keptAgents = &keptAgents{
		table:       c.table,
		loop:        c.loop,
		events:      c.events,
		connections: c.connections,
		inventory:   c.inventory,
	}
	c.renaming = &renaming{
		table:       c.table,
		loop:        c.loop,
		nodeNames:   c.nodeNames,
		connections: c.connections,
		ends:        c.ends,
	}
	c.disks = &disks{
		table:  c.table,
		loop:   c.loop,
		calls:  cfg.Calls,
		agents: c.agents,
		events: c.events,
		waits:  c.waits,
	}
	c.routes = &routes{
		table: c.table,
		loop:  c.loop,
		calls: cfg.Calls,
		waits: c.waits,
	}
	c.plugins = &plugins{
		loop:   c.loop,
		agents: c.agents,
		waits:  c.waits,
	}
	c.devices = &devices{
		loop:  c.loop,
		waits: c.waits,
		ends:  c.ends,
	}
}

// ending has the steps to the end of cells.
type ending struct {
	draining     *draining
	terminations *terminations
	exclusion    *exclusion
	releases     *releases
}

func (c *Controller) wireEnding(cfg Config) {
	c.draining = &draining{
		loop:        c.loop,
		records:     c.records,
		calls:       cfg.Calls,
		agents:      c.agents,
		events:      c.events,
		connections: c.connections,
		ends:        c.ends,
		logs:        cfg.Logs,
		places:      keyed.NewPlaces[string](logsSaved, logsOfOne),
		letting:     keyed.NewPlaces[string](lettingGo, lettingOfOne),
	}
	c.terminations = &terminations{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		calls:       cfg.Calls,
		guard:       cfg.Guard,
		events:      c.events,
		observers:   c.observers,
		inventory:   c.inventory,
		endings:     c.endings,
		ends:        c.ends,
		routes:      c.routes,
		connections: c.connections,
		listLag:     cfg.ListLag,
		queued:      newGather[*termination](),
	}
	c.exclusion = &exclusion{
		table:        c.table,
		loop:         c.loop,
		events:       c.events,
		lineage:      c.lineage,
		inventory:    c.inventory,
		listening:    c.listening,
		terminations: c.terminations,
	}
	c.releases = &releases{
		table: c.table,
		loop:  c.loop,
		ends:  c.ends,
	}
}

// machines has the steps of machines until they have their pods, and while they have them.
type machines struct {
	idling   *idling
	joining  *joining
	binding  *binding
	watching *watching
}

func (c *Controller) wireMachines(cfg Config) {
	c.idling = &idling{
		loop:        c.loop,
		records:     c.records,
		calls:       cfg.Calls,
		pools:       c.pools,
		inventory:   c.inventory,
		connections: c.connections,
		rights:      c.rights,
		ends:        c.ends,
		events:      c.events,
		shortages:   cfg.Shortages,
	}
	c.joining = &joining{
		table:         c.table,
		loop:          c.loop,
		records:       c.records,
		events:        c.events,
		observers:     c.observers,
		inventory:     c.inventory,
		lineage:       c.lineage,
		connections:   c.connections,
		interruptions: c.interruptions,
		blockers:      c.blockers,
		consoles:      c.consoles,
		ends:          c.ends,
		reserved:      cfg.ReservedMemoryBytes,
	}
	c.binding = &binding{
		table:         c.table,
		loop:          c.loop,
		records:       c.records,
		inventory:     c.inventory,
		lineage:       c.lineage,
		exclusion:     c.exclusion,
		connections:   c.connections,
		interruptions: c.interruptions,
		idling:        c.idling,
		ends:          c.ends,
		preparations:  []preparation{c.keptAgents, c.renaming, c.disks, c.routes, c.plugins, c.devices},
	}
	c.watching = &watching{
		table:         c.table,
		loop:          c.loop,
		records:       c.records,
		inventory:     c.inventory,
		connections:   c.connections,
		interruptions: c.interruptions,
	}
}

// launchSteps has the steps of launches.
type launchSteps struct {
	launchCalls *launchCalls
	outcomes    *outcomes
	sending     *sending
	launching   *launching
	resuming    *resuming
}

func (c *Controller) wireLaunches(cfg Config) {
	c.launchCalls = &launchCalls{
		owner:  cfg.ControllerID,
		recipe: c.recipe,
	}
	c.outcomes = &outcomes{
		loop:      c.loop,
		records:   c.records,
		budgets:   c.budgets,
		blockers:  c.blockers,
		events:    c.events,
		shortages: cfg.Shortages,
	}
	c.sending = &sending{
		loop:      c.loop,
		calls:     cfg.Calls,
		outcomes:  c.outcomes,
		sizes:     c.batchSizes,
		rights:    c.rights,
		events:    c.events,
		shortages: cfg.Shortages,
	}
	c.launching = &launching{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		events:      c.events,
		calls:       cfg.Calls,
		lineage:     c.lineage,
		launchCalls: c.launchCalls,
		recipe:      c.recipe,
		rights:      c.rights,
		blockers:    c.blockers,
		outcomes:    c.outcomes,
		sending:     c.sending,
		sizes:       c.batchSizes,
		authorities: c.authorities,
		queue:       c.launches,
	}
	c.resuming = &resuming{
		table:    c.table,
		loop:     c.loop,
		records:  c.records,
		store:    cfg.Store,
		lineage:  c.lineage,
		sending:  c.sending,
		outcomes: c.outcomes,
	}
}

// requestSteps takes what pods and pools ask for.
type requestSteps struct {
	standbys   *standbys
	requests   *requests
	requesting *requesting
	refilling  *refilling
}

func (c *Controller) wireRequests(cfg Config) {
	c.standbys = &standbys{
		table:     c.table,
		loop:      c.loop,
		records:   c.records,
		pools:     c.pools,
		recipe:    c.recipe,
		nodeNames: c.nodeNames,
		lineage:   c.lineage,
		listening: c.listening,
		tagging:   c.tagging,
		reserved:  cfg.ReservedMemoryBytes,
	}
	c.requests = &requests{
		table:    c.table,
		records:  c.records,
		budgets:  c.budgets,
		standbys: c.standbys,
		recipe:   c.recipe,
		clock:    cfg.Clock,
	}
	c.requesting = &requesting{
		table:        c.table,
		loop:         c.loop,
		events:       c.events,
		lineage:      c.lineage,
		inventory:    c.inventory,
		exclusion:    c.exclusion,
		rights:       c.rights,
		blockers:     c.blockers,
		launches:     c.launches,
		terminations: c.terminations,
	}
	c.refilling = &refilling{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		pools:   c.pools,
		recipe:  c.recipe,
		lineage: c.lineage,
		options: cfg.Options,
	}
}

// looks looks after all cells.
type looks struct {
	generations *generations
	lister      *lister
	health      *health
	queries     *queries
	loading     *loading
}

func (c *Controller) wireLooks(cfg Config) {
	c.generations = &generations{
		loop:      c.loop,
		store:     cfg.Store,
		lineage:   c.lineage,
		inventory: c.inventory,
	}
	c.lister = &lister{
		table:        c.table,
		loop:         c.loop,
		calls:        cfg.Calls,
		observers:    c.observers,
		inventory:    c.inventory,
		generations:  c.generations,
		lineage:      c.lineage,
		exclusion:    c.exclusion,
		listening:    c.listening,
		connections:  c.connections,
		silentZones:  c.silentZones,
		endings:      c.endings,
		terminations: c.terminations,
		ends:         c.ends,
		tagging:      c.tagging,
		boosting:     c.boosting,
		owner:        cfg.ControllerID,
		interval:     cfg.Health.pollInterval(),
		soonest:      cfg.SoonPoll,
	}
	c.health = &health{
		table:     c.table,
		loop:      c.loop,
		events:    c.events,
		observers: c.observers,
		inventory: c.inventory,
		listening: c.listening,
		ends:      c.ends,
		rules:     cfg.Health,
	}
	c.queries = &queries{
		table:     c.table,
		calls:     cfg.Calls,
		lineage:   c.lineage,
		exclusion: c.exclusion,
		endings:   c.endings,
		nodeNames: c.nodeNames,
	}
	c.loading = &loading{
		table:       c.table,
		loop:        c.loop,
		store:       cfg.Store,
		ledger:      c.ledger,
		guard:       cfg.Guard,
		generations: c.generations,
		listening:   c.listening,
		exclusion:   c.exclusion,
	}
}
