package cells

import "github.com/elotl/kip/internal/keyed"

// endSteps has the steps to the end of cells.
type endSteps struct {
	draining         *draining
	orphans          *orphanTerminations
	terminateAnswers *terminateAnswers
	terminateCalls   *terminateCalls
	removals         *removals
	abandoned        *abandoned
	terminating      *terminating
	exclusion        *exclusion
	exclusionWaits   *exclusionWaits
	releases         *releases
}

func newEndSteps(cfg Config, c core, s shared, n connecting, o outfit) endSteps {
	draining := newDraining(cfg, c, s, n, o.routes)
	orphans := &orphanTerminations{
		inventory:    c.inventory,
		terminations: c.terminations,
	}
	terminateAnswers := &terminateAnswers{
		loop:         c.loop,
		terminations: c.terminations,
		inventory:    c.inventory,
		routes:       o.routes,
		events:       c.events,
		observers:    c.observers,
	}
	terminateCalls := &terminateCalls{
		loop:         c.loop,
		calls:        cfg.Calls,
		guard:        cfg.Guard,
		holds:        s.holds,
		terminations: c.terminations,
		answers:      terminateAnswers,
	}
	removals := &removals{
		table:       c.table,
		loop:        c.loop,
		records:     c.records,
		connections: n.connections,
	}
	abandoned := &abandoned{
		loop:      c.loop,
		records:   c.records,
		inventory: c.inventory,
		removals:  removals,
		listLag:   cfg.ListLag,
	}
	terminating := &terminating{
		inventory:    c.inventory,
		terminations: c.terminations,
		connections:  n.connections,
		routes:       o.routes,
		abandoned:    abandoned,
		removals:     removals,
	}
	exclusion := &exclusion{
		table:      c.table,
		generation: c.generation,
		inventory:  c.inventory,
		orphans:    orphans,
	}
	exclusionWaits := &exclusionWaits{
		clock:     cfg.Clock,
		events:    c.events,
		listening: s.listening,
		exclusion: exclusion,
	}
	releases := &releases{
		table:  c.table,
		loop:   c.loop,
		holds:  s.holds,
		ends:   c.ends,
		events: c.events,
	}
	return endSteps{
		draining, orphans, terminateAnswers, terminateCalls, removals, abandoned, terminating, exclusion, exclusionWaits,
		releases,
	}
}

// newDraining returns what saves what must outlive cells.
func newDraining(cfg Config, c core, s shared, n connecting, r *routes) *draining {
	return &draining{
		loop:        c.loop,
		connections: n.connections,
		logs:        cfg.Logs,
		saving: &savingLogs{
			clock:       cfg.Clock,
			records:     c.records,
			connections: n.connections,
			logs:        cfg.Logs,
			events:      c.events,
			places:      keyed.NewPlaces[string](logsSaved, logsOfOne),
		},
		volumes: &freeingVolumes{
			loop:        c.loop,
			calls:       cfg.Calls,
			agents:      c.agents,
			connections: n.connections,
			events:      c.events,
			places:      keyed.NewPlaces[string](lettingGo, lettingOfOne),
		},
		keeping: &keeping{
			table:       c.table,
			loop:        c.loop,
			records:     c.records,
			inventory:   c.inventory,
			connections: n.connections,
			routes:      r,
			events:      c.events,
		},
		ends: c.ends,
	}
}
