package cells

import "github.com/elotl/kip/internal/keyed"

// ending has the steps to the end of cells.
type ending struct {
	draining     *draining
	orphans      *orphanEnds
	endOutcomes  *endOutcomes
	endCalls     *endCalls
	removals     *removals
	abandoned    *abandoned
	terminations *terminations
	exclusion    *exclusion
	releases     *releases
}

func (c *Controller) wireEnding(cfg Config) {
	c.wireDraining(cfg)
	c.orphans = &orphanEnds{
		inventory: c.inventory,
		endings:   c.endings,
	}
	c.endOutcomes = &endOutcomes{
		loop:      c.loop,
		endings:   c.endings,
		inventory: c.inventory,
		routes:    c.routes,
		events:    c.events,
		observers: c.observers,
	}
	c.endCalls = &endCalls{
		loop:     c.loop,
		calls:    cfg.Calls,
		guard:    cfg.Guard,
		holds:    c.holds,
		endings:  c.endings,
		outcomes: c.endOutcomes,
	}
	c.removals = &removals{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		connections: c.connections,
	}
	c.abandoned = &abandoned{
		loop:      c.loop,
		records:   c.records,
		inventory: c.inventory,
		removals:  c.removals,
		listLag:   cfg.ListLag,
	}
	c.terminations = &terminations{
		inventory:   c.inventory,
		endings:     c.endings,
		connections: c.connections,
		routes:      c.routes,
		abandoned:   c.abandoned,
		removals:    c.removals,
	}
	c.exclusion = &exclusion{
		table:     c.table,
		loop:      c.loop,
		events:    c.events,
		lineage:   c.lineage,
		inventory: c.inventory,
		listening: c.listening,
		orphans:   c.orphans,
	}
	c.releases = &releases{
		table: c.table,
		loop:  c.loop,
		holds: c.holds,
	}
}

// wireDraining makes what saves what must outlive cells.
func (c *Controller) wireDraining(cfg Config) {
	c.draining = &draining{
		loop:        c.loop,
		connections: c.connections,
		logs:        cfg.Logs,
		saving: &savingLogs{
			clock:       cfg.Clock,
			records:     c.records,
			connections: c.connections,
			logs:        cfg.Logs,
			events:      c.events,
			places:      keyed.NewPlaces[string](logsSaved, logsOfOne),
		},
		volumes: &freeingVolumes{
			loop:        c.loop,
			calls:       cfg.Calls,
			agents:      c.agents,
			connections: c.connections,
			events:      c.events,
			places:      keyed.NewPlaces[string](lettingGo, lettingOfOne),
		},
		ends: c.ends,
	}
}
