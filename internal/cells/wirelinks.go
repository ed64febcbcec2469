package cells

// links connects to cells.
type links struct {
	upgrades          *upgrades
	cloudInits        *cloudInits
	interruptions     *interruptions
	announcements     *announcements
	evacuating        *evacuating
	notices           *notices
	bootTimes         *bootTimes
	tokens            *tokens
	cellAPIs          *cellAPIs
	dialling          *dialling
	configuring       *configuring
	connectionReports *connectionReports
	connections       *connections
}

func (c *Controller) wireLinks(cfg Config) {
	c.upgrades = &upgrades{
		table:    c.table,
		agents:   c.agents,
		blockers: c.blockers,
		clock:    cfg.Clock,
	}
	c.cloudInits = &cloudInits{
		agents:   c.agents,
		blockers: c.blockers,
		events:   c.events,
		file:     cfg.CloudInit,
	}
	c.interruptions = &interruptions{
		loop:      c.loop,
		records:   c.records,
		guard:     cfg.Guard,
		events:    c.events,
		observers: c.observers,
	}
	c.announcements = &announcements{
		table:         c.table,
		loop:          c.loop,
		calls:         cfg.Calls,
		interruptions: c.interruptions,
	}
	c.evacuating = &evacuating{
		clock:         cfg.Clock,
		observers:     c.observers,
		ends:          c.ends,
		holds:         c.holds,
		lost:          c.lost,
		interruptions: c.interruptions,
	}
	c.notices = &notices{
		loop:          c.loop,
		interruptions: c.interruptions,
		events:        c.events,
	}
	c.wireConnections(cfg)
}

// wireConnections makes connections of their parts.
func (c *Controller) wireConnections(cfg Config) {
	c.bootTimes = &bootTimes{
		generation: c.generation,
		late:       cfg.Late,
		clock:      cfg.Clock,
	}
	c.tokens = &tokens{
		table:     c.table,
		records:   c.records,
		bootTimes: c.bootTimes,
	}
	c.cellAPIs = &cellAPIs{
		table:     c.table,
		apis:      cfg.APIs,
		nodeNames: c.nodeNames,
		notices:   c.notices,
		reserved:  cfg.ReservedMemoryBytes,
	}
	c.dialling = &dialling{
		table:   c.table,
		loop:    c.loop,
		calls:   cfg.Calls,
		tunnels: cfg.Tunnels,
		tokens:  c.tokens,
	}
	c.configuring = &configuring{
		table:      c.table,
		agents:     c.agents,
		upgrades:   c.upgrades,
		cloudInits: c.cloudInits,
		blockers:   c.blockers,
		configs:    newAgentConfigs(cfg),
	}
	c.connectionReports = &connectionReports{
		table:      c.table,
		loop:       c.loop,
		records:    c.records,
		observers:  c.observers,
		cloudInits: c.cloudInits,
		versions:   c.versions,
	}
	c.connections = &connections{
		table:       c.table,
		loop:        c.loop,
		apis:        c.cellAPIs,
		dialling:    c.dialling,
		configuring: c.configuring,
		reports:     c.connectionReports,
	}
}
