package cells

import (
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
	node         nodeReporter
	observers    *observers
	limits       limits
	ends         *cellEnds
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

func newCore(cfg Config) core {
	table := newTable()
	loop := newLoop(cfg, table)
	limits := limits(cfg.Budgets)
	events := &reporter{pods: cfg.Events, log: cfg.Log}
	node := nodeReporter{events: cfg.NodeEvents, node: cfg.NodeName}
	observers := new(observers(slices.Clone(cfg.Observers)))
	recipe := &recipe{settings: cfg.Template, file: cfg.CloudInit, agent: cfg.Agent, nameTag: cfg.NameTag, standby: cfg.Options}
	authorities := authorities{now: cfg.CAHash, old: cfg.OldCAHash}
	agents := &asking{limiter: agentlimit.New()}
	launches := newLaunchQueue()
	ledger := newLedgerOf(cfg.Store)
	pools := newPools(cfg.Pools, cfg.RefillDelay, recipe, cfg.Clock, cfg.Random)
	pools.maxAge = cfg.MaxAge
	inventory := newInventory(cfg.Health, cfg.ListLag)
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
		adoptions: &adoptions{table: table, pools: pools, terminations: terminations},
		observers: observers,
	}
	ends := &cellEnds{
		table:   table,
		loop:    loop,
		records: records,
		events:  events,
	}
	additions := &additions{
		table:     table,
		loop:      loop,
		ends:      ends,
		store:     cfg.Store,
		observers: observers,
	}
	return core{
		table, loop, records, additions, events, node, observers, limits, ends, recipe, authorities, agents, launches, ledger,
		pools, inventory, generation, terminations,
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
	holds     *holds
	lostCells *lostCells
	lost      *lostInstances
	versions  *versions
}

func newShared(cfg Config, c core) shared {
	listening := &listening{late: cfg.Late, termBegan: cfg.TermBegan}
	nodeNames := &nodeNames{
		nodes: cfg.Nodes,
		one:   cfg.NodeName,
	}
	costs := &totalCosts{
		table:  c.table,
		store:  cfg.Store,
		ledger: c.ledger,
		meter:  cfg.Meter,
		clock:  cfg.Clock,
	}
	budgets := &budgets{
		table:  c.table,
		ledger: c.ledger,
		limits: c.limits,
		clock:  cfg.Clock,
	}
	rights := &rights{
		table:  c.table,
		loop:   c.loop,
		events: c.events,
		calls:  cfg.Calls,
		denied: map[offeringKey]bool{},
	}
	blockers := &blockers{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		recipe:  c.recipe,
		events:  c.events,
		node:    c.node,
		byKind:  map[launchKind]*launchBlocker{},
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
	lost := &lostInstances{
		table:     c.table,
		loop:      c.loop,
		inventory: c.inventory,
		listening: listening,
		holds:     holds,
		lostCells: lostCells,
	}
	versions := &versions{
		node: c.node,
		own:  cfg.Version,
		told: map[launchKind]bool{},
	}
	return shared{listening, nodeNames, costs, budgets, rights, blockers, holds, lostCells, lost, versions}
}
