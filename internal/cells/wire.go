package cells

import (
	"github.com/elotl/kip/internal/agentlimit"
	"github.com/elotl/kip/internal/cells/ledger"
	"github.com/elotl/kip/internal/offering"
)

// The parts of a Controller are made in groups: core, shared, upkeep (wireupkeep.go), links (wirelinks.go), endSteps (wireend.go), machines
// (wiremachines.go), launchSteps (wirelaunch.go) and oversight (wireoversight.go). Each group is made of those before it. A group names the
// parts that others ask for. A part that one other alone uses stands in the literal of that one.

// core is what all steps stand on: the cells, their records, and the loop.
type core struct {
	table        *table
	loop         *loop
	records      *records
	additions    *additions
	events       *reporter
	node         nodeReporter
	observers    *observers
	limits       limits
	ends         *cellEnds
	recipe       *recipe
	authorities  authorities
	agents       *asking
	launchQueue  *launchQueue
	ledger       *ledger.Ledger
	budgets      *budgets
	pools        *pools
	inventory    *inventory
	generation   *StoreGeneration
	terminations *terminations
}

func newCore(cfg Config) core {
	table := newTable()
	loop := newLoop(cfg, table)
	limits := limits(cfg.Budgets)
	events := &reporter{pods: cfg.Events, log: cfg.Log}
	observers := &observers{}
	recipe := &recipe{settings: cfg.Template, file: cfg.CloudInit, agent: cfg.Agent, nameTag: cfg.NameTag, standby: cfg.Options,
		reserved: cfg.ReservedMemoryBytes}
	ledger := ledger.New(cfg.Store)
	budgets := &budgets{
		table:  table,
		ledger: ledger,
		limits: limits,
		clock:  cfg.Clock,
	}
	pools := newPools(cfg, recipe)
	generation := cfg.Generation
	if generation == nil {
		generation = NewStoreGeneration(cfg.Store, cfg.ListLag)
	}
	terminations := newTerminations(cfg)
	records := &records{
		clock:     cfg.Clock,
		store:     cfg.Store,
		ledger:    ledger,
		bills:     bills{limits: limits, meter: cfg.Meter},
		adoptions: &adoptions{table: table, budgets: budgets, pools: pools, terminations: terminations},
		observers: observers,
	}
	ends := &cellEnds{
		table:   table,
		loop:    loop,
		records: records,
		events:  events,
	}
	return core{
		table:   table,
		loop:    loop,
		records: records,
		additions: &additions{
			table:     table,
			loop:      loop,
			ends:      ends,
			store:     cfg.Store,
			observers: observers,
		},
		events:       events,
		node:         nodeReporter{events: cfg.NodeEvents, node: cfg.NodeName},
		observers:    observers,
		limits:       limits,
		ends:         ends,
		recipe:       recipe,
		authorities:  authorities{now: cfg.CAHash, old: cfg.OldCAHash},
		agents:       &asking{limiter: agentlimit.New()},
		launchQueue:  newLaunchQueue(),
		ledger:       ledger,
		budgets:      budgets,
		pools:        pools,
		inventory:    newInventory(cfg.Health, cfg.ListLag),
		generation:   generation,
		terminations: terminations,
	}
}

// shared is what the steps share.
type shared struct {
	listening *listening
	nodeNames *nodeNames
	costs     *totalCosts
	rights    *rights
	retries   *resolveRetries
	blockers  *blockers
	upgrades  *upgrades
	holds     *holds
	lostCells *lostCells
	lost      *lostInstances
	versions  *versions
	waits     *bindWaits
	routes    *routes
}

func newShared(cfg Config, c core) shared {
	listening := &listening{late: cfg.Late, termBegan: cfg.TermBegan}
	retries := &resolveRetries{clock: cfg.Clock, random: cfg.Random}
	blockers := &blockers{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		recipe:  c.recipe,
		events:  c.events,
		node:    c.node,
		byKind:  map[launchKind]*launchBlocker{},
		retries: retries,
	}
	holds := &holds{
		table:     c.table,
		clock:     cfg.Clock,
		records:   c.records,
		events:    c.events,
		guard:     cfg.Guard,
		inventory: c.inventory,
	}
	lostCells := &lostCells{
		table:     c.table,
		ends:      c.ends,
		holds:     holds,
		blockers:  blockers,
		shortages: cfg.Shortages,
	}
	waits := &bindWaits{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		events:  c.events,
		ends:    c.ends,
	}
	return shared{
		listening: listening,
		nodeNames: &nodeNames{nodes: cfg.Nodes, one: cfg.NodeName},
		costs:     &totalCosts{table: c.table, ledger: c.ledger, meter: cfg.Meter, clock: cfg.Clock},
		rights:    &rights{table: c.table, loop: c.loop, events: c.events, calls: cfg.Calls, denied: map[offering.Key]bool{}},
		retries:   retries,
		blockers:  blockers,
		upgrades:  &upgrades{table: c.table, agents: c.agents, blockers: blockers, clock: cfg.Clock},
		holds:     holds,
		lostCells: lostCells,
		lost: &lostInstances{
			table:     c.table,
			loop:      c.loop,
			inventory: c.inventory,
			listening: listening,
			holds:     holds,
			lostCells: lostCells,
		},
		versions: &versions{node: c.node, own: cfg.Version, reported: map[launchKind]bool{}},
		waits:    waits,
		routes:   &routes{table: c.table, loop: c.loop, calls: cfg.Calls, waits: waits},
	}
}
