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
			// First: the next one dials the address.
			&addressing{
				table:     c.table,
				records:   c.records,
				calls:     cfg.Calls,
				inventory: c.inventory,
			},
			// Until its kubelet is ready, with this process's configuration.
			&contacting{
				loop:        c.loop,
				records:     c.records,
				connections: l.connections,
				failures:    failures,
			},
			// Last: needs the kubelet's node in e.api, and makes the cell Ready.
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
			// First: while another instance may run the pod, or the cell another pod, its kubelet must hear nothing.
			&bindDuplicates{
				generation:     c.generation,
				duplicateWaits: e.duplicateWaits,
				inventory:      c.inventory,
			},
			// Before all that needs a running machine.
			unlessStopped{},
			// Before anything is given to the agent: one that goes over to another begins anew.
			&keptAgents{
				table:       c.table,
				loop:        c.loop,
				ends:        c.ends,
				connections: l.connections,
				inventory:   c.inventory,
				upgrades:    s.upgrades,
			},
			// Before reconnecting: it drops e.api if that is of another node.
			&renaming{
				loop:        c.loop,
				nodeNames:   s.nodeNames,
				connections: l.connections,
				waits:       s.waits,
			},
			// Before all that needs e.api or the session.
			&reconnecting{connections: l.connections},
			// Before the calls to the cloud: an instance that is taken back needs no disk.
			l.evacuating,
			// After reconnecting: the agent shows the disks as devices.
			&disks{
				table:  c.table,
				loop:   c.loop,
				calls:  cfg.Calls,
				agents: c.agents,
				events: c.events,
				waits:  s.waits,
			},
			// Anywhere before the pod: needs the cloud alone.
			s.routes,
			// After reconnecting: needs the session, and e.api, which hears of drivers.
			&plugins{loop: c.loop, agents: c.agents, waits: s.waits},
			// After reconnecting: needs e.api, and what the agent answered to its configuration.
			&hugePages{
				table:       c.table,
				ends:        c.ends,
				waits:       s.waits,
				configuring: l.connections.configuring,
				reports:     l.connections.reports,
				reserved:    cfg.ReservedMemoryBytes,
			},
			// After reconnecting: needs what the agent answered to its configuration.
			&credentialProviders{
				table:   c.table,
				events:  c.events,
				reports: l.connections.reports,
				some:    len(cfg.CredentialProviders) > 0,
			},
			// After reconnecting: needs what the agent answered to its configuration.
			&swaps{table: c.table, ends: c.ends, configuring: l.connections.configuring, reports: l.connections.reports},
			// After reconnecting: needs e.api.
			&devices{waits: s.waits},
			// After reconnecting: needs the session.
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
