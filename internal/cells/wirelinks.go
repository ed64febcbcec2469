package cells

// links has what connections to cells lead to.
type links struct {
	upgrades      *upgrades
	cloudInits    *cloudInits
	interruptions *interruptions
	announcements *announcements
	evacuating    *evacuating
	notices       *notices
}

func newLinks(cfg Config, c core, s shared) links {
	upgrades := &upgrades{
		table:    c.table,
		agents:   c.agents,
		blockers: s.blockers,
		clock:    cfg.Clock,
	}
	cloudInits := &cloudInits{
		agents:   c.agents,
		blockers: s.blockers,
		events:   c.events,
		file:     cfg.CloudInit,
	}
	interruptions := &interruptions{
		loop:      c.loop,
		records:   c.records,
		guard:     cfg.Guard,
		events:    c.events,
		observers: c.observers,
	}
	announcements := &announcements{
		table:         c.table,
		loop:          c.loop,
		calls:         cfg.Calls,
		interruptions: interruptions,
	}
	evacuating := &evacuating{
		clock:         cfg.Clock,
		observers:     c.observers,
		ends:          c.ends,
		holds:         s.holds,
		lost:          s.lost,
		interruptions: interruptions,
	}
	notices := &notices{
		loop:          c.loop,
		interruptions: interruptions,
		events:        c.events,
	}
	return links{upgrades, cloudInits, interruptions, announcements, evacuating, notices}
}

// connecting has what connects to cells.
type connecting struct {
	bootTimes         *bootTimes
	tokens            *tokens
	cellAPIs          *cellAPIs
	dialling          *dialling
	configuring       *configuring
	connectionReports *connectionReports
	connections       *connections
}

func newConnecting(cfg Config, c core, s shared, l links) connecting {
	bootTimes := &bootTimes{
		generation: c.generation,
		loop:       c.loop,
	}
	tokens := &tokens{
		table:     c.table,
		records:   c.records,
		bootTimes: bootTimes,
	}
	cellAPIs := &cellAPIs{
		table:     c.table,
		apis:      cfg.APIs,
		nodeNames: s.nodeNames,
		notices:   l.notices,
		reserved:  cfg.ReservedMemoryBytes,
	}
	dialling := &dialling{
		table:   c.table,
		loop:    c.loop,
		calls:   cfg.Calls,
		tunnels: cfg.Tunnels,
		tokens:  tokens,
	}
	configuring := &configuring{
		table:      c.table,
		agents:     c.agents,
		upgrades:   l.upgrades,
		cloudInits: l.cloudInits,
		blockers:   s.blockers,
		configs:    newAgentConfigs(cfg),
	}
	connectionReports := &connectionReports{
		table:      c.table,
		loop:       c.loop,
		records:    c.records,
		observers:  c.observers,
		cloudInits: l.cloudInits,
		versions:   s.versions,
	}
	connections := &connections{
		table:       c.table,
		loop:        c.loop,
		apis:        cellAPIs,
		dialling:    dialling,
		configuring: configuring,
		reports:     connectionReports,
	}
	return connecting{bootTimes, tokens, cellAPIs, dialling, configuring, connectionReports, connections}
}
