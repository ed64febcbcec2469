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
}

func (c *Controller) wireOutfit(cfg Config) {
	c.waits = &waits{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		events:      c.events,
		connections: c.connections,
		evacuating:  c.evacuating,
	}
	c.keptAgents = &keptAgents{
		table:       c.table,
		loop:        c.loop,
		events:      c.events,
		connections: c.connections,
		inventory:   c.inventory,
	}
	c.renaming = &renaming{
		table:       c.table,
		loop:        c.loop,
		nodeNames:   c.nodeNames,
		connections: c.connections,
		ends:        c.ends,
	}
	c.disks = &disks{
		table:  c.table,
		loop:   c.loop,
		calls:  cfg.Calls,
		agents: c.agents,
		events: c.events,
		waits:  c.waits,
	}
	c.routes = &routes{
		table: c.table,
		loop:  c.loop,
		calls: cfg.Calls,
		waits: c.waits,
	}
	c.plugins = &plugins{
		loop:   c.loop,
		agents: c.agents,
		waits:  c.waits,
	}
	c.devices = &devices{
		loop:  c.loop,
		waits: c.waits,
		ends:  c.ends,
	}
}

// machines has the steps of machines until they have their pods, and while they have them.
type machines struct {
	stopping     *stopping
	starting     *starting
	idling       *idling
	addressing   *addressing
	bootFailures *bootFailures
	contacting   *contacting
	arriving     *arriving
	joining      *joining
	sole         *sole
	reconnecting *reconnecting
	binding      *binding
	watching     *watching
}

func (c *Controller) wireMachines(cfg Config) {
	c.wireIdling(cfg)
	c.addressing = &addressing{
		table:     c.table,
		records:   c.records,
		calls:     cfg.Calls,
		inventory: c.inventory,
	}
	c.bootFailures = &bootFailures{
		table:     c.table,
		bootTimes: c.bootTimes,
		events:    c.events,
		blockers:  c.blockers,
		consoles:  c.consoles,
		ends:      c.ends,
	}
	c.contacting = &contacting{
		loop:        c.loop,
		records:     c.records,
		connections: c.connections,
		failures:    c.bootFailures,
	}
	c.arriving = &arriving{
		clock:     cfg.Clock,
		records:   c.records,
		observers: c.observers,
		failures:  c.bootFailures,
		reserved:  cfg.ReservedMemoryBytes,
	}
	c.joining = &joining{
		clock:      cfg.Clock,
		generation: c.generation,
		evacuating: c.evacuating,
		failures:   c.bootFailures,
		stages:     []preparation{c.addressing, c.contacting, c.arriving},
	}
	c.sole = &sole{
		table:      c.table,
		generation: c.generation,
		excluding:  c.excluding,
		inventory:  c.inventory,
	}
	c.reconnecting = &reconnecting{
		table:       c.table,
		connections: c.connections,
	}
	c.binding = &binding{
		table:      c.table,
		clock:      cfg.Clock,
		records:    c.records,
		evacuating: c.evacuating,
		idling:     c.idling,
		ends:       c.ends,
		preparations: []preparation{
			c.sole, c.keptAgents, c.renaming, c.disks, c.routes, c.plugins, c.devices, c.reconnecting,
		},
	}
	c.watching = &watching{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		inventory:   c.inventory,
		connections: c.connections,
		evacuating:  c.evacuating,
	}
}

// wireIdling makes what standby cells do until they are taken.
func (c *Controller) wireIdling(cfg Config) {
	c.stopping = &stopping{
		loop:      c.loop,
		records:   c.records,
		inventory: c.inventory,
	}
	c.starting = &starting{
		loop:    c.loop,
		records: c.records,
		calls:   cfg.Calls,
		rights:  c.rights,
		failures: &startFailures{
			loop:      c.loop,
			rights:    c.rights,
			ends:      c.ends,
			events:    c.events,
			shortages: cfg.Shortages,
		},
	}
	c.idling = &idling{
		calls:       cfg.Calls,
		pools:       c.pools,
		inventory:   c.inventory,
		connections: c.connections,
		stopping:    c.stopping,
		starting:    c.starting,
	}
}
