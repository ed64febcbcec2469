package cells

// requestSteps takes what pods and pools ask for.
type requestSteps struct {
	matching     *matching
	standbys     *standbys
	requests     *requests
	launchDelays *launchDelays
	enqueuing    *enqueuing
	refilling    *refilling
}

func (c *Controller) wireRequests(cfg Config) {
	c.matching = &matching{
		table:     c.table,
		pools:     c.pools,
		recipe:    c.recipe,
		nodeNames: c.nodeNames,
		first:     &firstConnections{clock: cfg.Clock, generation: c.generation, listening: c.listening},
		reserved:  cfg.ReservedMemoryBytes,
	}
	c.standbys = &standbys{
		table:    c.table,
		loop:     c.loop,
		records:  c.records,
		pools:    c.pools,
		matching: c.matching,
		tagging:  c.tagging,
	}
	c.requests = &requests{
		table:     c.table,
		additions: c.additions,
		budgets:   c.budgets,
		standbys:  c.standbys,
		recipe:    c.recipe,
		clock:     cfg.Clock,
	}
	c.launchDelays = &launchDelays{
		clock:     cfg.Clock,
		excluding: c.excluding,
		rights:    c.rights,
	}
	c.enqueuing = &enqueuing{
		table:    c.table,
		delays:   c.launchDelays,
		blockers: c.blockers,
		rights:   c.rights,
		launches: c.launches,
		removals: c.removals,
	}
	c.refilling = &refilling{
		table:      c.table,
		loop:       c.loop,
		additions:  c.additions,
		pools:      c.pools,
		recipe:     c.recipe,
		generation: c.generation,
	}
}

// launchSteps has the steps of launches.
type launchSteps struct {
	launchCalls *launchCalls
	outcomes    *outcomes
	sending     *sending
	wanted      *wanted
	intents     *intents
	dispatching *dispatching
	unresolved  *unresolved
	resolving   *resolving
	launching   *launching
	resuming    *resuming
}

func (c *Controller) wireLaunches(cfg Config) {
	c.launchCalls = &launchCalls{
		owner:  cfg.ControllerID,
		ca:     cfg.CAHash,
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
	c.wanted = &wanted{
		table:  c.table,
		loop:   c.loop,
		rights: c.rights,
	}
	c.intents = &intents{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		generation:  c.generation,
		calls:       cfg.Calls,
		launchCalls: c.launchCalls,
	}
	c.dispatching = &dispatching{
		table:   c.table,
		loop:    c.loop,
		calls:   cfg.Calls,
		intents: c.intents,
		sending: c.sending,
	}
	c.unresolved = &unresolved{
		loop:     c.loop,
		rights:   c.rights,
		outcomes: c.outcomes,
		blockers: c.blockers,
		events:   c.events,
	}
	c.resolving = &resolving{
		loop:        c.loop,
		calls:       cfg.Calls,
		launchCalls: c.launchCalls,
		wanted:      c.wanted,
		dispatching: c.dispatching,
		unresolved:  c.unresolved,
	}
	c.launching = &launching{
		loop:      c.loop,
		calls:     cfg.Calls,
		queue:     c.launches,
		sizes:     c.batchSizes,
		wanted:    c.wanted,
		resolving: c.resolving,
	}
	c.resuming = &resuming{
		table:      c.table,
		loop:       c.loop,
		generation: c.generation,
		calls:      &storedCalls{loop: c.loop, records: c.records, store: cfg.Store},
		sending:    c.sending,
		outcomes:   c.outcomes,
	}
}
