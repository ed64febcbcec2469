package cells

// machines has the steps of machines until they have their pods, and while they have them.
type machines struct {
	joining  *joining
	binding  *binding
	watching *watching
}

func newMachines(cfg Config, c core, s shared, consoles *consoles, l links, e endSteps) machines {
	return machines{
		joining: newJoining(cfg, c, s, consoles, l),
		binding: newBinding(cfg, c, s, l, e),
		watching: &watching{
			loop:        c.loop,
			records:     c.records,
			inventory:   c.inventory,
			connections: l.connections,
			evacuating:  l.evacuating,
			releases:    e.releases,
		},
	}
}

// newJoining returns the step of a machine until it is ready.
func newJoining(cfg Config, c core, s shared, consoles *consoles, l links) *joining {
	failures := &bootFailures{
		table:     c.table,
		bootTimes: l.bootTimes,
		blockers:  s.blockers,
		consoles:  consoles,
		ends:      c.ends,
		upgrades:  s.upgrades,
	}
	return &joining{
		clock:      cfg.Clock,
		generation: c.generation,
		evacuating: l.evacuating,
		failures:   failures,
		stages: preparations{table: c.table, list: []preparation{
			&addressing{
				table:     c.table,
				records:   c.records,
				calls:     cfg.Calls,
				inventory: c.inventory,
			},
			&contacting{
				loop:        c.loop,
				records:     c.records,
				connections: l.connections,
				failures:    failures,
			},
			&readying{
				clock:     cfg.Clock,
				records:   c.records,
				observers: c.observers,
				failures:  failures,
				reserved:  cfg.ReservedMemoryBytes,
			},
		}},
	}
}

// newBinding returns the step of a ready machine until it has its pod.
func newBinding(cfg Config, c core, s shared, l links, e endSteps) *binding {
	return &binding{
		records:  c.records,
		idling:   newIdling(cfg, c, s.rights, l.connections),
		ends:     c.ends,
		releases: e.releases,
		waits:    s.waits,
		preparations: preparations{table: c.table, list: []preparation{
			&exclusiveBind{
				generation:     c.generation,
				exclusionWaits: e.exclusionWaits,
				inventory:      c.inventory,
			},
			unlessStopped{},
			&keptAgents{
				table:       c.table,
				loop:        c.loop,
				ends:        c.ends,
				connections: l.connections,
				inventory:   c.inventory,
				upgrades:    s.upgrades,
			},
			&renaming{
				loop:        c.loop,
				nodeNames:   s.nodeNames,
				connections: l.connections,
				ends:        c.ends,
			},
			&reconnecting{connections: l.connections},
			l.evacuating,
			&disks{
				table:  c.table,
				loop:   c.loop,
				calls:  cfg.Calls,
				agents: c.agents,
				events: c.events,
				waits:  s.waits,
			},
			s.routes,
			&plugins{loop: c.loop, agents: c.agents, waits: s.waits},
			&hugePages{
				table:       c.table,
				loop:        c.loop,
				ends:        c.ends,
				waits:       s.waits,
				configuring: l.connections.configuring,
				reports:     l.connections.reports,
				reserved:    cfg.ReservedMemoryBytes,
			},
			&devices{loop: c.loop, waits: s.waits, ends: c.ends},
			&kernels{
				loop:   c.loop,
				agents: c.agents,
				ends:   c.ends,
				waits:  s.waits,
			},
		}},
	}
}

// newIdling returns what standby cells do until they are taken.
func newIdling(cfg Config, c core, r *rights, n *connections) *idling {
	return &idling{
		calls:       cfg.Calls,
		pools:       c.pools,
		inventory:   c.inventory,
		connections: n,
		stopping: &stopping{
			loop:      c.loop,
			records:   c.records,
			inventory: c.inventory,
		},
		starting: &starting{
			loop:    c.loop,
			records: c.records,
			calls:   cfg.Calls,
			rights:  r,
			failures: &startFailures{
				loop:      c.loop,
				rights:    r,
				ends:      c.ends,
				events:    c.events,
				shortages: cfg.Shortages,
			},
		},
	}
}
