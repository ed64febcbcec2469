package pods

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// core is what all steps stand on: the loop, the pods, and why they wait.
type core struct {
	loop      *loop
	registry  *registry
	api       *apiServer
	history   *history
	waits     *waits
	exclusion *exclusion
	beside    *besides
	paused    *pause
}

// steps are what reconcile chooses from, with the parts that they hand over to.
type steps struct {
	watching   *watching
	releasing  *releasing
	deleting   *deleting
	completing *completing
	attending  *attending
	evicting   *evicting
	disrupting *disrupting
	moving     *movingBack
	failing    *failing
	standing   *standing
	choosing   *choosing
	returns    *returns
	leaving    *leaving
	volumes    *volumeWaits
	requesting *requesting
	bounding   *bounding
}

func (c *Controller) wireCore(cfg Config) {
	c.loop = newLoop(cfg)
	c.registry = newRegistry(cfg.Pods, cfg.Clock)
	c.api = &apiServer{nodes: cfg.Nodes, leadership: cfg.Leadership}
	c.history = &history{newNotes[past](c.registry)}
	c.waits = newWaits(c.registry, cfg.Events)
	c.beside = &besides{
		rules:    cfg.DaemonSets,
		copies:   cfg.Copies,
		cells:    cfg.Cells,
		registry: c.registry,
		contacts: newNotes[contact](c.registry),
		clock:    cfg.Clock,
		began:    cfg.Clock.Now(),
		unknown:  map[types.UID]string{},
	}
	c.exclusion = &exclusion{cells: cfg.Cells, api: c.api, history: c.history, waits: c.waits}
	c.paused = &pause{}
}

// wireEnds wires what chooses for pods, and what becomes of those that end.
func (c *Controller) wireEnds(cfg Config) {
	c.choosing = &choosing{
		volumes:      cfg.Volumes,
		nodes:        cfg.Nodes,
		grants:       cfg.Grants,
		beside:       c.beside,
		clock:        cfg.Clock,
		sharedKernel: cfg.SharedKernel,
		options:      cfg.Options,
		costLabels:   cfg.CostLabels,
		history:      c.history,
	}
	c.releasing = &releasing{
		cells:     cfg.Cells,
		nodes:     cfg.Nodes,
		clock:     cfg.Clock,
		log:       cfg.Log,
		gone:      map[types.UID]bool{},
		forbidden: map[types.UID]time.Time{},
	}
	c.watching = &watching{
		loop:      c.loop,
		registry:  c.registry,
		cells:     cfg.Cells,
		history:   c.history,
		releasing: c.releasing,
		observer:  cfg.Observer,
	}
	c.deleting = &deleting{
		cells:     cfg.Cells,
		api:       c.api,
		exclusion: c.exclusion,
		events:    cfg.Events,
		clock:     cfg.Clock,
		graces:    newNotes[grace](c.registry),
		beside:    c.beside,
	}
	c.completing = &completing{
		cells:  cfg.Cells,
		grants: cfg.Grants,
		clock:  cfg.Clock,
		ended:  newNotes[time.Time](c.registry),
	}
	c.evicting = &evicting{
		api:     c.api,
		events:  cfg.Events,
		noticed: newNotes[[causes]notice](c.registry),
	}
	c.failing = &failing{
		api:         c.api,
		exclusion:   c.exclusion,
		events:      cfg.Events,
		clock:       cfg.Clock,
		maxAttempts: cfg.MaxAttempts,
	}
}

// wireAttending wires what becomes of pods that run.
func (c *Controller) wireAttending(cfg Config) {
	c.disrupting = &disrupting{
		cells:    cfg.Cells,
		choosing: c.choosing,
		evicting: c.evicting,
		evicted:  newNotes[ending](c.registry),
		random:   cfg.Random,
		clock:    cfg.Clock,
		paused:   c.paused,
		ofOwner:  map[route]time.Time{},
	}
	c.moving = &movingBack{
		choosing:   c.choosing,
		nodes:      cfg.Nodes,
		disrupting: c.disrupting,
		events:     cfg.Events,
		tried:      newNotes[time.Time](c.registry),
		random:     cfg.Random,
		clock:      cfg.Clock,
		ofOwner:    map[route]*move{},
	}
	c.attending = &attending{
		api:      c.api,
		observer: cfg.Observer,
		evicting: c.evicting,
		aging:    &aging{maxAge: cfg.MaxAge, disrupting: c.disrupting, clock: cfg.Clock},
		moving:   c.moving,
		waits:    c.waits,
		events:   cfg.Events,
		clock:    cfg.Clock,
		contacts: c.beside.contacts,
	}
}

// wireRequests wires what pods without a cell go through.
func (c *Controller) wireRequests(cfg Config) {
	c.standing = &standing{
		grants:    cfg.Grants,
		beside:    c.beside,
		exclusion: c.exclusion,
		waits:     c.waits,
		api:       c.api,
		events:    cfg.Events,
		clock:     cfg.Clock,
		stood:     newNotes[time.Time](c.registry),
	}
	c.returns = &returns{
		registry:   c.registry,
		clock:      cfg.Clock,
		departures: departures{},
		back:       newNotes[*departure](c.registry),
	}
	c.leaving = &leaving{
		nodes:     cfg.Nodes,
		choosing:  c.choosing,
		exclusion: c.exclusion,
		evicting:  c.evicting,
		waits:     c.waits,
		returns:   c.returns,
		clock:     cfg.Clock,
	}
	c.volumes = &volumeWaits{
		loop:   c.loop,
		waits:  c.waits,
		random: cfg.Random,
		clock:  cfg.Clock,
	}
	c.bounding = &bounding{
		cells:     cfg.Cells,
		choosing:  c.choosing,
		exclusion: c.exclusion,
		failing:   c.failing,
		waits:     c.waits,
		history:   c.history,
		clock:     cfg.Clock,
	}
	c.requesting = &requesting{
		bounding: c.bounding,
		asking: &asking{
			exclusion: c.exclusion,
			failing:   c.failing,
			waits:     c.waits,
			history:   c.history,
			paused:    c.paused,
			clock:     cfg.Clock,
		},
		placing: &placing{
			cells:    cfg.Cells,
			choosing: c.choosing,
			waits:    c.waits,
			unplaced: &unplaced{waits: c.waits, volumes: c.volumes, leaving: c.leaving, random: cfg.Random},
			history:  c.history,
			events:   cfg.Events,
			random:   cfg.Random,
		},
	}
}
