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
	excluding        *excluding
	releases         *releases
}

func (c *Controller) wireEndSteps(cfg Config) {
	c.wireDraining(cfg)
	c.orphans = &orphanTerminations{
		inventory:    c.inventory,
		terminations: c.terminations,
	}
	c.terminateAnswers = &terminateAnswers{
		loop:         c.loop,
		terminations: c.terminations,
		inventory:    c.inventory,
		routes:       c.routes,
		events:       c.events,
		observers:    c.observers,
	}
	c.terminateCalls = &terminateCalls{
		loop:         c.loop,
		calls:        cfg.Calls,
		guard:        cfg.Guard,
		holds:        c.holds,
		terminations: c.terminations,
		answers:      c.terminateAnswers,
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
	c.terminating = &terminating{
		inventory:    c.inventory,
		terminations: c.terminations,
		connections:  c.connections,
		routes:       c.routes,
		abandoned:    c.abandoned,
		removals:     c.removals,
	}
	c.exclusion = &exclusion{
		table:      c.table,
		generation: c.generation,
		inventory:  c.inventory,
		orphans:    c.orphans,
	}
	c.excluding = &excluding{
		clock:     cfg.Clock,
		events:    c.events,
		inventory: c.inventory,
		listening: c.listening,
		exclusion: c.exclusion,
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
