package cells

// oversight has the parts that watch over all cells.
type oversight struct {
	generationChecks *generationChecks
	known            *knownCells
	foreign          *foreign
	describing       *describing
	consequences     *consequences
	comparing        *comparing
	lister           *lister
	health           *health
	queries          *queries
	loading          *loading
}

func (c *Controller) wireOversight(cfg Config) {
	c.generationChecks = &generationChecks{
		loop:       c.loop,
		store:      cfg.Store,
		generation: c.generation,
		inventory:  c.inventory,
	}
	c.wireLists(cfg)
	c.health = &health{
		loop:      c.loop,
		observers: c.observers,
		surveys:   &surveys{table: c.table, inventory: c.inventory, listening: c.listening, rules: cfg.Health},
		refusals:  &refusalReports{loop: c.loop, events: c.events, listening: c.listening},
		holds:     c.holds,
		losses:    c.losses,
		rules:     cfg.Health,
	}
	c.queries = &queries{
		table:        c.table,
		calls:        cfg.Calls,
		generation:   c.generation,
		exclusion:    c.exclusion,
		terminations: c.terminations,
		nodeNames:    c.nodeNames,
	}
	c.loading = &loading{
		clock:     cfg.Clock,
		listening: c.listening,
		parts: []loader{
			c.generationChecks,
			&births{clock: cfg.Clock, store: cfg.Store, inventory: c.inventory},
			c.ledger,
			&storedCells{table: c.table, loop: c.loop, store: cfg.Store, guard: cfg.Guard},
			&orphanCalls{table: c.table, store: cfg.Store},
		},
	}
}

// wireLists makes what asks for the cloud's list, and acts on it.
func (c *Controller) wireLists(cfg Config) {
	c.known = &knownCells{
		table:        c.table,
		loop:         c.loop,
		calls:        cfg.Calls,
		terminations: c.terminations,
	}
	c.foreign = &foreign{
		log:   cfg.Log,
		owner: cfg.ControllerID,
	}
	c.describing = &describing{
		calls: cfg.Calls,
		log:   cfg.Log,
	}
	c.consequences = &consequences{
		loop:      c.loop,
		observers: c.observers,
		orphans:   c.orphans,
		tagging:   c.tagging,
		boosting:  c.boosting,
		lost:      c.lost,
		owner:     cfg.ControllerID,
	}
	c.comparing = &comparing{
		known:            c.known,
		foreign:          c.foreign,
		inventory:        c.inventory,
		generationChecks: c.generationChecks,
		describing:       c.describing,
		consequences:     c.consequences,
	}
	c.lister = &lister{
		loop:        c.loop,
		calls:       cfg.Calls,
		inventory:   c.inventory,
		silentZones: c.silentZones,
		comparing:   c.comparing,
		owner:       cfg.ControllerID,
		interval:    cfg.Health.pollInterval(),
		soonest:     cfg.SoonPoll,
	}
}
