package cells

import (
	"cmp"
	"slices"

	"github.com/elotl/kip/internal/agentlimit"
)

// core is what all steps stand on: the cells, their records, and the loop.
type core struct {
	table        *table
	loop         *loop
	records      *records
	additions    *additions
	events       *reporter
	observers    *observers
	limits       limits
	recipe       *recipe
	authorities  authorities
	agents       *asking
	launches     *launchQueue
	ledger       *ledger
	pools        *pools
	inventory    *inventory
	generation   *StoreGeneration
	terminations *terminations
}

func (c *Controller) wireCore(cfg Config) {
	c.table = newTable()
	c.loop = newLoop(cfg, c.table)
	c.limits = cfg.Budgets
	c.events = &reporter{pods: cfg.Events, log: cfg.Log}
	c.observers = new(observers(slices.Clone(cfg.Observers)))
	c.recipe = &recipe{settings: cfg.Template, file: cfg.CloudInit, agent: cfg.Agent, nameTag: cfg.NameTag, standby: cfg.Options}
	c.authorities = authorities{now: cfg.CAHash, old: cfg.OldCAHash}
	c.agents = &asking{limiter: agentlimit.New()}
	c.launches = newLaunchQueue()
	c.ledger = newLedgerOf(cfg.Store)
	c.pools = newPools(cfg.Pools, cfg.RefillDelay, c.recipe, cfg.Clock, cfg.Random)
	c.inventory = newInventory(cfg.Health, cfg.ListLag)
	c.generation = cmp.Or(cfg.Generation, NewStoreGeneration(cfg.Store, cfg.ListLag))
	c.terminations = newTerminations(cfg)
	c.records = &records{
		clock:     cfg.Clock,
		store:     cfg.Store,
		ledger:    c.ledger,
		bills:     bills{limits: c.limits, meter: cfg.Meter},
		adoptions: &adoptions{table: c.table, pools: c.pools, terminations: c.terminations},
		observers: c.observers,
	}
	c.additions = &additions{
		table:     c.table,
		loop:      c.loop,
		store:     cfg.Store,
		observers: c.observers,
	}
}

// shared is what the steps share.
type shared struct {
	listening *listening
	nodeNames *nodeNames
	costs     *totalCosts
	budgets   *budgets
	rights    *rights
	blockers  *blockers
	ends      *cellEnds
	holds     *holds
	losses    *losses
	lost      *lostInstances
	versions  *versions
}

func (c *Controller) wireShared(cfg Config) {
	c.listening = &listening{late: cfg.Late, termBegan: cfg.TermBegan}
	c.nodeNames = &nodeNames{
		nodes: cfg.Nodes,
		one:   cfg.NodeName,
	}
	c.costs = &totalCosts{
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
		byKind:  map[launchKind]*launchBlocker{},
	}
	c.ends = &cellEnds{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		events:  c.events,
	}
	c.holds = &holds{
		table:     c.table,
		clock:     cfg.Clock,
		records:   c.records,
		events:    c.events,
		guard:     cfg.Guard,
		inventory: c.inventory,
	}
	c.losses = &losses{
		table:     c.table,
		ends:      c.ends,
		holds:     c.holds,
		blockers:  c.blockers,
		shortages: cfg.Shortages,
	}
	c.lost = &lostInstances{
		table:     c.table,
		loop:      c.loop,
		inventory: c.inventory,
		listening: c.listening,
		holds:     c.holds,
		losses:    c.losses,
	}
	c.versions = &versions{
		node: nodeReporter{events: cfg.NodeEvents, node: cfg.NodeName},
		own:  cfg.Version,
		told: map[launchKind]bool{},
	}
}
