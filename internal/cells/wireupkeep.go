package cells

import "github.com/elotl/kip/internal/keyed"

// upkeep asks the cloud for what is no step of a cell's life.
type upkeep struct {
	silentZones *silentZones
	consoles    *consoles
	ingress     *ingress
	sweeping    *sweeping
	batchSizes  *batchSizes
	boosting    *boosting
	tagging     *tagging
	trust       *trust
}

func newUpkeep(cfg Config, c core) upkeep {
	return upkeep{
		silentZones: &silentZones{
			loop:      c.loop,
			shortages: cfg.Shortages,
			health:    cfg.Health,
		},
		consoles: &consoles{
			loop:   c.loop,
			calls:  cfg.Calls,
			events: c.events,
			places: keyed.NewPlaces[string](consolesAtOnce, consolesOfOne),
		},
		ingress: &ingress{
			loop:  c.loop,
			calls: cfg.Calls,
			owner: cfg.ControllerID,
		},
		sweeping: &sweeping{
			table:      c.table,
			loop:       c.loop,
			calls:      cfg.Calls,
			inventory:  c.inventory,
			generation: c.generation,
			observers:  c.observers,
			owner:      cfg.ControllerID,
		},
		batchSizes: &batchSizes{
			clock: cfg.Clock,
			apart: map[location]fewer{},
		},
		boosting: &boosting{
			table:   c.table,
			loop:    c.loop,
			records: c.records,
			calls:   cfg.Calls,
			due:     newGather[*entry](),
		},
		tagging: &tagging{
			table:     c.table,
			loop:      c.loop,
			calls:     cfg.Calls,
			inventory: c.inventory,
			listLag:   cfg.ListLag,
			due:       newGather[*entry](),
		},
		trust: &trust{
			table:       c.table,
			loop:        c.loop,
			records:     c.records,
			agents:      c.agents,
			ends:        c.ends,
			authorities: c.authorities,
		},
	}
}
