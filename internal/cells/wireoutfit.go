package cells

// outfit gives cells what they have before their pods.
type outfit struct {
	waits      *waits
	keptAgents *keptAgents
	renaming   *renaming
	disks      *disks
	routes     *routes
	plugins    *plugins
	devices    *devices
	kernels    *kernels
}

func newOutfit(cfg Config, c core, s shared, n connecting) outfit {
	waits := &waits{
		table:   c.table,
		loop:    c.loop,
		records: c.records,
		events:  c.events,
		ends:    c.ends,
	}
	keptAgents := &keptAgents{
		table:       c.table,
		loop:        c.loop,
		ends:        c.ends,
		connections: n.connections,
		inventory:   c.inventory,
	}
	renaming := &renaming{
		loop:        c.loop,
		nodeNames:   s.nodeNames,
		connections: n.connections,
		ends:        c.ends,
	}
	disks := &disks{
		table:  c.table,
		loop:   c.loop,
		calls:  cfg.Calls,
		agents: c.agents,
		events: c.events,
		waits:  waits,
	}
	routes := &routes{
		table: c.table,
		loop:  c.loop,
		calls: cfg.Calls,
		waits: waits,
	}
	plugins := &plugins{
		loop:   c.loop,
		agents: c.agents,
		waits:  waits,
	}
	devices := &devices{
		loop:  c.loop,
		waits: waits,
		ends:  c.ends,
	}
	kernels := &kernels{
		loop:   c.loop,
		agents: c.agents,
		ends:   c.ends,
		waits:  waits,
	}
	return outfit{waits, keptAgents, renaming, disks, routes, plugins, devices, kernels}
}

// machines has the steps of machines until they have their pods, and while they have them.
type machines struct {
	addressing    *addressing
	bootFailures  *bootFailures
	contacting    *contacting
	readying      *readying
	joining       *joining
	exclusiveBind *exclusiveBind
	reconnecting  *reconnecting
	binding       *binding
	watching      *watching
}

func newMachines(cfg Config, c core, s shared, u upkeep, l links, n connecting, o outfit, e endSteps, b standbySteps) machines {
	addressing := &addressing{
		table:     c.table,
		records:   c.records,
		calls:     cfg.Calls,
		inventory: c.inventory,
	}
	bootFailures := &bootFailures{
		table:     c.table,
		bootTimes: n.bootTimes,
		blockers:  s.blockers,
		consoles:  u.consoles,
		ends:      c.ends,
	}
	contacting := &contacting{
		loop:        c.loop,
		records:     c.records,
		connections: n.connections,
		failures:    bootFailures,
	}
	readying := &readying{
		clock:     cfg.Clock,
		records:   c.records,
		observers: c.observers,
		failures:  bootFailures,
		reserved:  cfg.ReservedMemoryBytes,
	}
	joining := &joining{
		clock:      cfg.Clock,
		generation: c.generation,
		evacuating: l.evacuating,
		failures:   bootFailures,
		stages:     preparations{table: c.table, list: []preparation{addressing, contacting, readying}},
	}
	exclusiveBind := &exclusiveBind{
		generation:     c.generation,
		exclusionWaits: e.exclusionWaits,
		inventory:      c.inventory,
	}
	reconnecting := &reconnecting{connections: n.connections}
	binding := &binding{
		table:   c.table,
		clock:   cfg.Clock,
		records: c.records,
		idling:  b.idling,
		ends:    c.ends,
		preparations: preparations{table: c.table, list: []preparation{
			exclusiveBind, unlessStopped{}, o.keptAgents, o.renaming, reconnecting, l.evacuating,
			o.disks, o.routes, o.plugins, o.devices, o.kernels,
		}},
	}
	watching := &watching{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		inventory:   c.inventory,
		connections: n.connections,
		evacuating:  l.evacuating,
	}
	return machines{addressing, bootFailures, contacting, readying, joining, exclusiveBind, reconnecting, binding, watching}
}

// standbySteps has the steps of standby cells until they are taken.
type standbySteps struct {
	stopping *stopping
	starting *starting
	idling   *idling
}

func newStandbySteps(cfg Config, c core, s shared, n connecting) standbySteps {
	stopping := &stopping{
		loop:      c.loop,
		records:   c.records,
		inventory: c.inventory,
	}
	starting := &starting{
		loop:    c.loop,
		records: c.records,
		calls:   cfg.Calls,
		rights:  s.rights,
		failures: &startFailures{
			loop:      c.loop,
			rights:    s.rights,
			ends:      c.ends,
			events:    c.events,
			shortages: cfg.Shortages,
		},
	}
	idling := &idling{
		calls:       cfg.Calls,
		pools:       c.pools,
		inventory:   c.inventory,
		connections: n.connections,
		stopping:    stopping,
		starting:    starting,
	}
	return standbySteps{stopping, starting, idling}
}
