package pods

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The parts of a Controller are made in groups: core, shared, ends, attends and requests. Each group is made of those before it. A group
// names the parts that others ask for. A part that one other alone uses stands in the literal of that one.

// core is what all steps stand on: the loop, the pods, and why they wait.
type core struct {
	loop       *loop
	registry   *registry
	api        *apiServer
	history    *history
	waits      *waits
	duplicates *duplicates
	beside     *besides
	paused     *pause
}

func newCore(cfg Config) core {
	registry := newRegistry(cfg.Pods, cfg.Clock)
	api := &apiServer{nodes: cfg.Nodes, leadership: cfg.Leadership}
	history := &history{newNotes[past](registry)}
	waits := newWaits(registry, cfg.Events)
	loop := newLoop(cfg)
	return core{
		loop:       loop,
		registry:   registry,
		api:        api,
		history:    history,
		waits:      waits,
		duplicates: &duplicates{cells: cfg.Cells, api: api, history: history, waits: waits},
		beside:     newBesides(cfg, loop, registry),
		paused:     &pause{},
	}
}

// shared is what several steps hand over to.
type shared struct {
	choosing *choosing
	evicting *evicting
	failing  *failing
}

func newShared(cfg Config, c core) shared {
	return shared{
		choosing: &choosing{
			volumes: cfg.Volumes,
			fitting: &fitting{
				nodes: cfg.Nodes,
				policy: &requestPolicy{
					grants:       cfg.Grants,
					sharedKernel: cfg.SharedKernel,
					options:      cfg.Options,
					costLabels:   cfg.CostLabels,
				},
				history: c.history,
			},
			beside: c.beside,
			clock:  cfg.Clock,
		},
		evicting: &evicting{
			api:     c.api,
			events:  cfg.Events,
			noticed: newNotes[[causes]notice](c.registry),
		},
		failing: &failing{
			api:         c.api,
			duplicates:  c.duplicates,
			events:      cfg.Events,
			clock:       cfg.Clock,
			maxAttempts: cfg.MaxAttempts,
		},
	}
}

// ends watches pods, and sees out those that end.
type ends struct {
	watching   *watching
	releasing  *releasing
	deleting   *deleting
	completing *completing
}

func newEnds(cfg Config, c core) ends {
	releasing := &releasing{
		cells:     cfg.Cells,
		nodes:     cfg.Nodes,
		clock:     cfg.Clock,
		log:       cfg.Log,
		gone:      map[types.UID]bool{},
		forbidden: map[types.UID]time.Time{},
	}
	return ends{
		watching: &watching{
			loop:      c.loop,
			registry:  c.registry,
			cells:     cfg.Cells,
			history:   c.history,
			releasing: releasing,
			observer:  cfg.Observer,
		},
		releasing: releasing,
		deleting: &deleting{
			cells:      cfg.Cells,
			api:        c.api,
			duplicates: c.duplicates,
			events:     cfg.Events,
			clock:      cfg.Clock,
			graces:     newNotes[grace](c.registry),
			beside:     c.beside,
		},
		completing: &completing{
			cells:  cfg.Cells,
			grants: cfg.Grants,
			clock:  cfg.Clock,
			ended:  newNotes[time.Time](c.registry),
		},
	}
}

// attends sees to pods that run.
type attends struct {
	attending *attending
	moving    *movingBack
}

func newAttends(cfg Config, c core, s shared) attends {
	disrupting := &disrupting{
		cells:    cfg.Cells,
		choosing: s.choosing,
		evicting: s.evicting,
		evicted:  newNotes[ending](c.registry),
		random:   cfg.Random,
		clock:    cfg.Clock,
		paused:   c.paused,
		ofOwner:  map[route]time.Time{},
	}
	moving := &movingBack{
		choosing:   s.choosing,
		nodes:      cfg.Nodes,
		disrupting: disrupting,
		events:     cfg.Events,
		tried:      newNotes[time.Time](c.registry),
		random:     cfg.Random,
		clock:      cfg.Clock,
		ofOwner:    map[route]*move{},
	}
	return attends{
		attending: &attending{
			observer: cfg.Observer,
			waits:    c.waits,
			silences: &silences{
				api:      c.api,
				events:   cfg.Events,
				clock:    cfg.Clock,
				contacts: c.beside.contacts,
			},
			rescuing: &rescuing{
				evicting: s.evicting,
				clock:    cfg.Clock,
				contacts: c.beside.contacts,
			},
			disruptions: []disrupts{
				(&aging{maxAge: cfg.MaxAge, disrupting: disrupting, clock: cfg.Clock}).replace,
				moving.moveBack,
			},
			clock: cfg.Clock,
		},
		moving: moving,
	}
}

// requests sees to pods that have no cell yet, or none for good.
type requests struct {
	standing   *standing
	requesting *requesting
	bounding   *bounding
	returns    *returns
	volumes    *volumeWaits
}

func newRequests(cfg Config, c core, s shared) requests {
	returns := &returns{
		registry:   c.registry,
		clock:      cfg.Clock,
		departures: departures{},
		back:       newNotes[*departure](c.registry),
	}
	volumes := &volumeWaits{loop: c.loop, waits: c.waits, random: cfg.Random, clock: cfg.Clock}
	bounding := &bounding{
		cells:      cfg.Cells,
		choosing:   s.choosing,
		duplicates: c.duplicates,
		failing:    s.failing,
		waits:      c.waits,
		history:    c.history,
		clock:      cfg.Clock,
	}
	return requests{
		standing: &standing{
			grants:     cfg.Grants,
			beside:     c.beside,
			duplicates: c.duplicates,
			waits:      c.waits,
			api:        c.api,
			events:     cfg.Events,
			clock:      cfg.Clock,
			stood:      newNotes[time.Time](c.registry),
		},
		requesting: newRequesting(cfg, c, s, bounding, volumes, returns),
		bounding:   bounding,
		returns:    returns,
		volumes:    volumes,
	}
}

// newRequesting returns what asks for cells.
func newRequesting(cfg Config, c core, s shared, b *bounding, v *volumeWaits, r *returns) *requesting {
	return &requesting{
		bounding: b,
		asking: &asking{
			duplicates: c.duplicates,
			failing:    s.failing,
			waits:      c.waits,
			history:    c.history,
			paused:     c.paused,
			clock:      cfg.Clock,
		},
		placing: &placing{
			cells:    cfg.Cells,
			choosing: s.choosing,
			waits:    c.waits,
			unplaced: &unplaced{
				waits:   c.waits,
				volumes: v,
				leaving: &leaving{
					nodes:      cfg.Nodes,
					choosing:   s.choosing,
					duplicates: c.duplicates,
					evicting:   s.evicting,
					waits:      c.waits,
					returns:    r,
					clock:      cfg.Clock,
				},
				random: cfg.Random,
			},
			history: c.history,
			events:  cfg.Events,
			random:  cfg.Random,
		},
	}
}
