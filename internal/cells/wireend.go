package cells

import "github.com/elotl/kip/internal/keyed"

// endSteps has the steps to the end of cells.
type endSteps struct {
	draining       *draining
	orphans        *orphanTerminations
	terminateCalls *terminateCalls
	removals       *removals
	terminating    *terminating
	duplicates     *duplicates
	duplicateWaits *duplicateWaits
	releases       *releases
}

func newEndSteps(cfg Config, c core, s shared, l links) endSteps {
	orphans := &orphanTerminations{
		inventory:    c.inventory,
		terminations: c.terminations,
	}
	removals := &removals{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		connections: l.connections,
	}
	duplicates := &duplicates{
		table:      c.table,
		generation: c.generation,
		inventory:  c.inventory,
		orphans:    orphans,
	}
	releases := &releases{
		table:  c.table,
		loop:   c.loop,
		holds:  s.holds,
		ends:   c.ends,
		events: c.events,
	}
	return endSteps{
		draining: newDraining(cfg, c, s.routes, l.connections, releases),
		orphans:  orphans,
		terminateCalls: &terminateCalls{
			loop:         c.loop,
			calls:        cfg.Calls,
			guard:        cfg.Guard,
			holds:        s.holds,
			terminations: c.terminations,
			answers: &terminateAnswers{
				loop:         c.loop,
				terminations: c.terminations,
				inventory:    c.inventory,
				routes:       s.routes,
				events:       c.events,
				observers:    c.observers,
			},
		},
		removals: removals,
		terminating: &terminating{
			inventory:    c.inventory,
			terminations: c.terminations,
			connections:  l.connections,
			routes:       s.routes,
			abandoned: &abandoned{
				loop:      c.loop,
				records:   c.records,
				inventory: c.inventory,
				removals:  removals,
				listLag:   cfg.ListLag,
			},
			removals: removals,
		},
		duplicates: duplicates,
		duplicateWaits: &duplicateWaits{
			clock:      cfg.Clock,
			events:     c.events,
			listening:  s.listening,
			duplicates: duplicates,
		},
		releases: releases,
	}
}

// newDraining returns what saves what must outlive cells.
func newDraining(cfg Config, c core, r *routes, n *connections, lets *releases) *draining {
	return &draining{
		loop:        c.loop,
		connections: n,
		logs:        cfg.Logs,
		saving: &savingLogs{
			clock:       cfg.Clock,
			records:     c.records,
			connections: n,
			logs:        cfg.Logs,
			events:      c.events,
			places:      keyed.NewPlaces[string](logsSaved, logsOfOne),
		},
		volumes: &freeingVolumes{
			loop:        c.loop,
			calls:       cfg.Calls,
			agents:      c.agents,
			connections: n,
			events:      c.events,
			places:      keyed.NewPlaces[string](lettingGo, lettingOfOne),
		},
		keeping: &keeping{
			loop:        c.loop,
			records:     c.records,
			inventory:   c.inventory,
			connections: n,
			routes:      r,
			events:      c.events,
			releases:    lets,
		},
		ends: c.ends,
	}
}
