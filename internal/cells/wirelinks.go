package cells

// links connects to cells, and has what notices of the cloud and of agents lead to.
type links struct {
	interruptions *interruptions
	announcements *announcements
	evacuating    *evacuating
	bootTimes     *bootTimes
	connections   *connections
}

func newLinks(cfg Config, c core, s shared) links {
	interruptions := &interruptions{
		loop:      c.loop,
		records:   c.records,
		guard:     cfg.Guard,
		events:    c.events,
		observers: c.observers,
	}
	bootTimes := &bootTimes{
		generation: c.generation,
		loop:       c.loop,
	}
	return links{
		interruptions: interruptions,
		announcements: &announcements{
			table:         c.table,
			loop:          c.loop,
			calls:         cfg.Calls,
			interruptions: interruptions,
		},
		evacuating: &evacuating{
			clock:         cfg.Clock,
			observers:     c.observers,
			ends:          c.ends,
			holds:         s.holds,
			lost:          s.lost,
			interruptions: interruptions,
		},
		bootTimes:   bootTimes,
		connections: newConnections(cfg, c, s, interruptions, bootTimes),
	}
}

// newConnections returns what connects to cells.
func newConnections(cfg Config, c core, s shared, i *interruptions, b *bootTimes) *connections {
	cloudInits := &cloudInits{
		agents:   c.agents,
		blockers: s.blockers,
		events:   c.events,
		file:     cfg.CloudInit,
	}
	reports := &connectionReports{
		table:      c.table,
		loop:       c.loop,
		records:    c.records,
		observers:  c.observers,
		cloudInits: cloudInits,
		versions:   s.versions,
	}
	return &connections{
		table: c.table,
		loop:  c.loop,
		apis: &cellAPIs{
			apis:      cfg.APIs,
			nodeNames: s.nodeNames,
			notices:   &notices{loop: c.loop, interruptions: i, events: c.events},
			reserved:  cfg.ReservedMemoryBytes,
		},
		dialling: &dialling{
			loop:    c.loop,
			calls:   cfg.Calls,
			tunnels: cfg.Tunnels,
			tokens:  &tokens{records: c.records, bootTimes: b},
		},
		configuring: &configuring{
			table:      c.table,
			agents:     c.agents,
			upgrades:   s.upgrades,
			cloudInits: cloudInits,
			blockers:   s.blockers,
			configs:    newAgentConfigs(cfg),
			reports:    reports,
		},
		reports: reports,
	}
}
