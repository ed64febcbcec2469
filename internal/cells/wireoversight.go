package cells

// oversight has the parts that watch over all cells.
type oversight struct {
	generationChecks *generationChecks
	health           *health
	queries          *queries
	loading          *loading
	foreign          *foreign
	lister           *lister
}

func newOversight(cfg Config, c core, s shared, u upkeep, l links, e endSteps) oversight {
	generationChecks := &generationChecks{
		loop:       c.loop,
		store:      cfg.Store,
		generation: c.generation,
		inventory:  c.inventory,
	}
	foreign := &foreign{
		log:   cfg.Log,
		owner: cfg.ControllerID,
	}
	return oversight{
		generationChecks: generationChecks,
		health: &health{
			loop:      c.loop,
			observers: c.observers,
			surveys:   &surveys{table: c.table, inventory: c.inventory, listening: s.listening, rules: cfg.Health},
			refusals:  &refusalReports{loop: c.loop, events: c.events, listening: s.listening},
			holds:     s.holds,
			lostCells: s.lostCells,
			rules:     cfg.Health,
		},
		queries: &queries{table: c.table, nodeNames: s.nodeNames},
		loading: &loading{
			clock:     cfg.Clock,
			listening: s.listening,
			parts: []loader{
				generationChecks,
				&births{clock: cfg.Clock, store: cfg.Store, inventory: c.inventory},
				storedCosts{c.ledger},
				&storedCells{table: c.table, loop: c.loop, store: cfg.Store, guard: cfg.Guard, ends: c.ends},
				&storedNotices{table: c.table, interruptions: l.interruptions},
				&orphanCalls{table: c.table, store: cfg.Store},
			},
		},
		foreign: foreign,
		lister: &lister{
			loop:        c.loop,
			calls:       cfg.Calls,
			inventory:   c.inventory,
			silentZones: u.silentZones,
			comparing:   newComparing(cfg, c, s.lost, u, e.orphans, foreign, generationChecks),
			owner:       cfg.ControllerID,
			interval:    cfg.Health.pollInterval(),
			soonest:     cfg.SoonPoll,
		},
	}
}

// newComparing returns what compares the cloud's list with the cells, and acts on that.
func newComparing(
	cfg Config, c core, lost *lostInstances, u upkeep, orphans *orphanTerminations, foreign *foreign, checks *generationChecks,
) *comparing {
	return &comparing{
		known: &knownCells{
			table:        c.table,
			loop:         c.loop,
			calls:        cfg.Calls,
			terminations: c.terminations,
		},
		foreign:          foreign,
		inventory:        c.inventory,
		generationChecks: checks,
		describing: &describing{
			calls: cfg.Calls,
			log:   cfg.Log,
		},
		consequences: &consequences{
			loop:      c.loop,
			observers: c.observers,
			orphans:   orphans,
			tagging:   u.tagging,
			boosting:  u.boosting,
			lost:      lost,
			owner:     cfg.ControllerID,
		},
	}
}
