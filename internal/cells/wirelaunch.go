package cells

// launchSteps take what pods and pools ask for, and launch it.
type launchSteps struct {
	requests  *requests
	standbys  *standbys
	enqueuing *enqueuing
	refilling *refilling
	launching *launching
	resuming  *resuming
}

func newLaunchSteps(cfg Config, c core, s shared, u upkeep, e endSteps) launchSteps {
	standbys := &standbys{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		matching: &matching{
			table:     c.table,
			pools:     c.pools,
			recipe:    c.recipe,
			nodeNames: s.nodeNames,
			first:     &firstConnections{clock: cfg.Clock, generation: c.generation, listening: s.listening},
			upgrades:  s.upgrades,
		},
		tagging: u.tagging,
		ends:    c.ends,
	}
	launching := newLaunching(cfg, c, s, u.batchSizes)
	return launchSteps{
		requests: &requests{
			table:     c.table,
			additions: c.additions,
			budgets:   c.budgets,
			standbys:  standbys,
			recipe:    c.recipe,
			clock:     cfg.Clock,
		},
		standbys: standbys,
		enqueuing: &enqueuing{
			table:    c.table,
			calls:    cfg.Calls,
			breakers: launchBreakers{rights: s.rights, blockers: s.blockers},
			launches: c.launchQueue,
			removals: e.removals,
			preparations: preparations{table: c.table, list: []preparation{
				// First: asks nobody.
				s.retries,
				// Last: it is to hold when the cell is queued for its launch.
				&launchDuplicates{duplicateWaits: e.duplicateWaits, inventory: c.inventory},
			}},
		},
		refilling: &refilling{
			table:      c.table,
			loop:       c.loop,
			additions:  c.additions,
			pools:      c.pools,
			ends:       c.ends,
			generation: c.generation,
		},
		launching: launching,
		resuming: &resuming{
			table:      c.table,
			generation: c.generation,
			calls:      &storedCalls{loop: c.loop, records: c.records, store: cfg.Store},
			launching:  launching,
		},
	}
}

// newLaunching returns what launches cells of the queue.
func newLaunching(cfg Config, c core, s shared, sizes *batchSizes) *launching {
	builder := &callBuilder{
		owner:  cfg.ControllerID,
		ca:     cfg.CAHash,
		recipe: c.recipe,
	}
	answers := &launchAnswers{
		clock:     cfg.Clock,
		calls:     cfg.Calls,
		sizes:     sizes,
		rights:    s.rights,
		blockers:  s.blockers,
		shortages: cfg.Shortages,
	}
	return &launching{
		table: c.table,
		loop:  c.loop,
		batching: &batching{
			table: c.table,
			calls: cfg.Calls,
			queue: c.launchQueue,
			sizes: sizes,
		},
		resolving: &resolving{
			calls:   cfg.Calls,
			builder: builder,
			retries: s.retries,
			unresolved: &unresolved{
				loop:     c.loop,
				rights:   s.rights,
				answers:  answers,
				blockers: s.blockers,
				events:   c.events,
				retries:  s.retries,
			},
		},
		intents: &intents{
			table:      c.table,
			clock:      cfg.Clock,
			records:    c.records,
			generation: c.generation,
			calls:      cfg.Calls,
			builder:    builder,
		},
		sending: &sending{
			clock: cfg.Clock,
			calls: cfg.Calls,
		},
		evaluating: &evaluating{
			loop:    c.loop,
			answers: answers,
			events:  c.events,
		},
		recording: &recording{
			loop:      c.loop,
			records:   c.records,
			budgets:   c.budgets,
			events:    c.events,
			shortages: cfg.Shortages,
		},
	}
}
