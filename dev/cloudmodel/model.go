package cloudmodel

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Config is what a model is made from.
type Config struct {
	// Sim are the machines.
	Sim sim.Config
	// Words are the cloud's own.
	Words Words
	// Knows reports whether the cloud has an action, for Hang.
	Knows func(action string) bool
	// Refusal returns the error that the cloud answers by a code, for FailCall.
	Refusal func(code string) error
	// Ways are those by which the cloud announces that it takes an instance back.
	Ways []Way
}

// Words are those of a cloud that messages and examples of orders need.
type Words struct {
	Cloud    string // its name
	Action   string // an action, such as that which launches
	Code     string // of a failure
	Instance string // an ID
	Zone     string
}

// Model is what a model of a cloud's API embeds. It is safe for concurrent use, and calls Machines under no lock of its own.
type Model struct {
	cfg   Config
	sim   *sim.Cloud
	clock clock.PassiveClock

	mu      sync.Mutex
	calls   map[string]int   // by action
	refused map[string]int   // by action
	hangs   []Hang           // to come
	hung    []string         // the actions of those that were
	mishaps []mishap         // to come
	denied  map[string]int   // how many calls do not know an instance, by ID
	untold  map[string][]Way // by which an interrupted instance is not spoken of
}

// New makes a model without instances. Close it.
func New(cfg Config) (*Model, error) {
	m := &Model{
		cfg:     cfg,
		clock:   clock.RealClock{},
		calls:   map[string]int{},
		refused: map[string]int{},
		denied:  map[string]int{},
		untold:  map[string][]Way{},
	}
	if c := cfg.Sim.Clock; c != nil {
		m.clock = c
	}
	machines := cfg.Sim
	machines.Fault = m.fault
	var err error
	if m.sim, err = sim.New(machines); err != nil {
		return nil, fmt.Errorf("make a model of %s: %w", cfg.Words.Cloud, err)
	}
	return m, nil
}

// base lets the functions of this package see a Model in the model of a cloud.
func (m *Model) base() *Model { return m }

// Close ends everything that runs.
func (m *Model) Close() error { return m.sim.Close() }

// Machines are what is behind the model, for faults and for the truth.
func (m *Model) Machines() *sim.Cloud { return m.sim }

// Now returns the time on the machines' clock.
func (m *Model) Now() time.Time { return m.clock.Now() }

// Call counts a call of an action and does what it does. Before or after that, the call hangs if Hang said so.
func (m *Model) Call(ctx context.Context, action string, do func() (any, error)) (any, error) {
	m.Count(action)
	if err := m.hang(ctx, action, false); err != nil {
		return nil, err
	}
	answer, err := do()
	if err != nil {
		return nil, err
	}
	return answer, m.hang(ctx, action, true)
}

// Count counts a call of an action.
func (m *Model) Count(action string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[action]++
}

// Calls returns how many there were of each action.
func (m *Model) Calls() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.calls)
}

// CountRefused counts a call of an action that its caller had no right to.
func (m *Model) CountRefused(action string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[action]++
}

// Arrive lets a call of a kind arrive that changes no machine: it meets the faults and budgets of one, and is answered with err.
func (m *Model) Arrive(ctx context.Context, kind sim.Kind, err error, ids ...string) error {
	return m.sim.Take(ctx, sim.Call{Kind: kind, IDs: ids}, func() error { return err })
}

// Unknown returns those IDs that a call does not know: of no instance, of one that it does not know yet, or of one that is denied.
func (m *Model) Unknown(ids ...string) []string {
	none := m.sim.Unknown(ids...)
	for _, id := range ids {
		if !slices.Contains(none, id) && m.Denies(id) {
			none = append(none, id)
		}
	}
	return none
}

// Living returns the instances that have not ended, by their IDs.
func (m *Model) Living() map[string]sim.Instance {
	all := map[string]sim.Instance{}
	for _, i := range m.sim.Truth() {
		all[i.ID] = i
	}
	return all
}

// MustLive returns an error if the instance of an order has ended, or never was.
func (m *Model) MustLive(id string) error {
	if _, lives := m.Living()[id]; !lives {
		return fmt.Errorf("the field Instance is %q: want the ID of an instance that has not ended", id)
	}
	return nil
}

// TagsOf returns the tags of an instance, also of one that has ended.
func (m *Model) TagsOf(id string) map[string]string {
	for _, i := range m.sim.History() {
		if i.ID == id {
			return i.Tags
		}
	}
	return nil
}

// State is what a model tells of itself.
type State struct {
	Calls map[string]int // of each action
	// Refused are the calls of each action that their callers had no right to.
	Refused map[string]int
	// Hung are the actions of the calls that have met a Hang, in their order.
	Hung      []string
	Instances []sim.Instance // all that ever were
	// Interfaces are the network interfaces that exist.
	Interfaces []cloud.OwnedResource
}

// State returns what is and was.
func (m *Model) State() State {
	s := State{Instances: m.sim.History(), Interfaces: m.sim.OwnedResources.OwnedNow()}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Calls, s.Refused, s.Hung = maps.Clone(m.calls), maps.Clone(m.refused), slices.Clone(m.hung)
	return s
}

// youngestSpot returns the ID of the spot instance that was launched last; "" where there is none.
func (m *Model) youngestSpot() string {
	var youngest sim.Instance
	for _, one := range m.sim.Truth() {
		if one.Spot && !one.Launched.Before(youngest.Launched) {
			youngest = one
		}
	}
	return youngest.ID
}
