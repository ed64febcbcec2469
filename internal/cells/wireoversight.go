package cells

// oversight has the parts that watch over all cells.
type oversight struct {
	generationChecks *generationChecks
	health           *health
	queries          *queries
	loading          *loading
}

func newOversight(cfg Config, c core, s shared, l links, e endSteps) oversight {
	generationChecks := &generationChecks{
		loop:       c.loop,
		store:      cfg.Store,
		generation: c.generation,
		inventory:  c.inventory,
	}
	health := &health{
		loop:      c.loop,
		observers: c.observers,
		surveys:   &surveys{table: c.table, inventory: c.inventory, listening: s.listening, rules: cfg.Health},
		refusals:  &refusalReports{loop: c.loop, events: c.events, listening: s.listening},
		holds:     s.holds,
		lostCells: s.lostCells,
		rules:     cfg.Health,
	}
	queries := &queries{
		table:        c.table,
		calls:        cfg.Calls,
		generation:   c.generation,
		exclusion:    e.exclusion,
		terminations: c.terminations,
		nodeNames:    s.nodeNames,
	}
	loading := &loading{
		clock:     cfg.Clock,
		listening: s.listening,
		parts: []loader{
			generationChecks,
			&births{clock: cfg.Clock, store: cfg.Store, inventory: c.inventory},
			c.ledger,
			&storedCells{table: c.table, loop: c.loop, store: cfg.Store, guard: cfg.Guard, ends: c.ends},
			&storedNotices{table: c.table, interruptions: l.interruptions},
			&orphanCalls{table: c.table, store: cfg.Store},
		},
	}
	return oversight{generationChecks, health, queries, loading}
}

// lists asks for the cloud's list, and acts on it.
type lists struct {
	known        *knownCells
	foreign      *foreign
	describing   *describing
	consequences *consequences
	comparing    *comparing
	lister       *lister
}

func newLists(cfg Config, c core, s shared, u upkeep, e endSteps, v oversight) lists {
	known := &knownCells{
		table:        c.table,
		loop:         c.loop,
		calls:        cfg.Calls,
		terminations: c.terminations,
	}
	foreign := &foreign{
		log:   cfg.Log,
		owner: cfg.ControllerID,
	}
	describing := &describing{
		calls: cfg.Calls,
		log:   cfg.Log,
	}
	consequences := &consequences{
		loop:      c.loop,
		observers: c.observers,
		orphans:   e.orphans,
		tagging:   u.tagging,
		boosting:  u.boosting,
		lost:      s.lost,
		owner:     cfg.ControllerID,
	}
	comparing := &comparing{
		known:            known,
		foreign:          foreign,
		inventory:        c.inventory,
		generationChecks: v.generationChecks,
		describing:       describing,
		consequences:     consequences,
	}
	lister := &lister{
		loop:        c.loop,
		calls:       cfg.Calls,
		inventory:   c.inventory,
		silentZones: u.silentZones,
		comparing:   comparing,
		owner:       cfg.ControllerID,
		interval:    cfg.Health.pollInterval(),
		soonest:     cfg.SoonPoll,
	}
	return lists{known, foreign, describing, consequences, comparing, lister}
}
