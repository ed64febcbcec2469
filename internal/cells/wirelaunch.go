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

func newRequestSteps(cfg Config, c core, s shared, u upkeep, e endSteps) requestSteps {
	matching := &matching{
		table:     c.table,
		pools:     c.pools,
		recipe:    c.recipe,
		nodeNames: s.nodeNames,
		first:     &firstConnections{clock: cfg.Clock, generation: c.generation, listening: s.listening},
		reserved:  cfg.ReservedMemoryBytes,
	}
	standbys := &standbys{
		table:    c.table,
		loop:     c.loop,
		records:  c.records,
		pools:    c.pools,
		matching: matching,
		tagging:  u.tagging,
	}
	requests := &requests{
		table:     c.table,
		additions: c.additions,
		budgets:   s.budgets,
		standbys:  standbys,
		recipe:    c.recipe,
		clock:     cfg.Clock,
	}
	launchDelays := &launchDelays{
		clock:     cfg.Clock,
		excluding: e.excluding,
	}
	enqueuing := &enqueuing{
		table:    c.table,
		delays:   launchDelays,
		blockers: s.blockers,
		rights:   s.rights,
		launches: c.launches,
		removals: e.removals,
	}
	refilling := &refilling{
		table:      c.table,
		loop:       c.loop,
		additions:  c.additions,
		pools:      c.pools,
		recipe:     c.recipe,
		generation: c.generation,
	}
	return requestSteps{matching, standbys, requests, launchDelays, enqueuing, refilling}
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

func newLaunchSteps(cfg Config, c core, s shared, u upkeep) launchSteps {
	launchCalls := &launchCalls{
		owner:  cfg.ControllerID,
		ca:     cfg.CAHash,
		recipe: c.recipe,
	}
	outcomes := &outcomes{
		loop:      c.loop,
		records:   c.records,
		budgets:   s.budgets,
		blockers:  s.blockers,
		events:    c.events,
		shortages: cfg.Shortages,
	}
	sending := &sending{
		loop:     c.loop,
		calls:    cfg.Calls,
		answers:  &launchAnswers{clock: cfg.Clock, calls: cfg.Calls, sizes: u.batchSizes, rights: s.rights, shortages: cfg.Shortages},
		outcomes: outcomes,
		events:   c.events,
	}
	wanted := &wanted{
		table: c.table,
		loop:  c.loop,
	}
	intents := &intents{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		generation:  c.generation,
		calls:       cfg.Calls,
		launchCalls: launchCalls,
	}
	dispatching := &dispatching{
		table:   c.table,
		loop:    c.loop,
		calls:   cfg.Calls,
		intents: intents,
		sending: sending,
	}
	unresolved := &unresolved{
		loop:     c.loop,
		rights:   s.rights,
		outcomes: outcomes,
		blockers: s.blockers,
		events:   c.events,
	}
	resolving := &resolving{
		loop:        c.loop,
		calls:       cfg.Calls,
		launchCalls: launchCalls,
		wanted:      wanted,
		dispatching: dispatching,
		unresolved:  unresolved,
	}
	launching := &launching{
		loop:      c.loop,
		calls:     cfg.Calls,
		queue:     c.launches,
		sizes:     u.batchSizes,
		wanted:    wanted,
		resolving: resolving,
	}
	resuming := &resuming{
		table:      c.table,
		loop:       c.loop,
		generation: c.generation,
		calls:      &storedCalls{loop: c.loop, records: c.records, store: cfg.Store},
		sending:    sending,
		outcomes:   outcomes,
	}
	return launchSteps{
		launchCalls, outcomes, sending, wanted, intents, dispatching, unresolved, resolving, launching, resuming,
	}
}
