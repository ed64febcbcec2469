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
	c.draining = &draining{
		loop:        c.loop,
		records:     c.records,
		calls:       cfg.Calls,
		agents:      c.agents,
		events:      c.events,
		connections: c.connections,
		ends:        c.ends,
		logs:        cfg.Logs,
		places:      keyed.NewPlaces[string](logsSaved, logsOfOne),
		letting:     keyed.NewPlaces[string](lettingGo, lettingOfOne),
	}
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
