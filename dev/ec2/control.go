package ec2

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// ControlPath is where Control is to be served beside the API.
const ControlPath = "/_model/"

// State is what a model tells of itself.
type State struct {
	Calls map[string]int // of each action
	// Queued is how many messages are in the queue.
	Queued int
	// Refused are the calls of each action that the policies did not allow.
	Refused map[string]int
	// Unused are the statements that have allowed nothing yet, of each key.
	Unused map[string][]string
	// Hung is how many calls have met a Hang.
	Hung      int
	Instances []sim.Instance // all that ever were
	Volumes   []Volume       // that exist, but for the root disks of instances
	Routes    []Route        // that were made by calls
}

// Hang lets one call hang until its caller is gone.
type Hang struct {
	Call cloud.Call // its kind
	Nth  int        // from now on; 1 is the next
	// After lets it have its effect first.
	After bool
}

// Capacity is for how many instances of a type there is room; a negative number is no bound.
type Capacity struct {
	Type      string
	Instances int
}

// Interruption takes a spot instance back.
type Interruption struct {
	Instance string        // the youngest spot instance when ""
	Notice   time.Duration // how long before; EC2's two minutes when 0
	// Untold are the ways by which nothing is said of it.
	Untold []Way
}

// Way is one by which EC2 says that it takes an instance back.
type Way string

// The ways. What is sent by WayQueue has Kip ask for WayRequest.
const (
	WayQueue    Way = "queue"    // the event in the account's queue
	WayMetadata Way = "metadata" // what the instance is told of itself
	WayRequest  Way = "request"  // the status of the spot request
)

// Rebalance recommends to leave a spot instance.
type Rebalance struct{ Instance string }

// Rebalance gives one.
func (m *Model) Rebalance(r Rebalance) error {
	n := slices.IndexFunc(m.sim.Truth(), func(i sim.Instance) bool { return i.ID == r.Instance && i.Spot })
	if n < 0 {
		return fmt.Errorf("the field Instance is %q: want the ID of a spot instance that has not ended", r.Instance)
	}
	m.mu.Lock()
	m.risks[r.Instance] = m.now()
	m.mu.Unlock()
	return m.Send("aws.ec2", "EC2 Instance Rebalance Recommendation", Detail{"instance-id": r.Instance})
}

// Interrupt takes a spot instance back.
func (m *Model) Interrupt(i Interruption) error {
	for _, w := range i.Untold {
		if !slices.Contains([]Way{WayQueue, WayMetadata, WayRequest}, w) {
			return fmt.Errorf("the field Untold has %q: want %s, %s or %s", w, WayQueue, WayMetadata, WayRequest)
		}
	}
	if i.Instance == "" {
		var youngest sim.Instance
		for _, one := range m.sim.Truth() {
			if one.Spot && !one.Launched.Before(youngest.Launched) {
				youngest = one
			}
		}
		if i.Instance = youngest.ID; i.Instance == "" {
			return errors.New("the field Instance is empty, and there is no spot instance")
		}
	}
	m.mu.Lock()
	m.untold[i.Instance] = i.Untold
	m.mu.Unlock()
	if err := m.sim.Change(func(k *sim.Knobs) { k.InterruptionNotice = i.Notice }); err != nil {
		return err
	}
	if err := m.sim.Interrupt(i.Instance); err != nil {
		return err
	}
	if slices.Contains(i.Untold, WayQueue) {
		return nil
	}
	return m.Send("aws.ec2", "EC2 Spot Instance Interruption Warning", Detail{
		"instance-id":     i.Instance,
		"instance-action": "terminate",
	})
}

// announced are the notices of which something is said by a way.
func (m *Model) announced(by Way) []cloud.Interruption {
	all := m.sim.Announced()
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(all, func(i cloud.Interruption) bool { return slices.Contains(m.untold[i.InstanceID], by) })
}

// atRisk is when it was recommended to leave an instance.
func (m *Model) atRisk(instance string) (at time.Time, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, is = m.risks[instance]
	return at, is
}

// State says what is and was.
func (m *Model) State() State {
	s := State{
		Instances: m.sim.History(),
		Volumes:   m.Volumes(),
		Routes:    m.Routes(),
		Unused:    map[string][]string{},
	}
	for key, p := range m.cfg.Policies {
		s.Unused[key] = p.Unused()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Queued = len(m.queue.messages)
	s.Calls, s.Refused, s.Hung = maps.Clone(m.calls), maps.Clone(m.unallowed), m.hung
	return s
}

// Hang plans one.
func (m *Model) Hang(h Hang) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = append(m.hangs, h)
}

// fault is the sim's question of what goes wrong with a call.
func (m *Model) fault(c sim.Call) sim.Fault {
	m.mu.Lock()
	met := false
	var is Hang
	kept := m.hangs[:0]
	for _, h := range m.hangs {
		if h.Call == c.Kind {
			h.Nth--
		}
		if h.Nth < 1 && !met {
			met, is = true, h
			continue
		}
		kept = append(kept, h)
	}
	m.hangs = kept
	m.mu.Unlock()
	count := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.hung++
	}
	switch {
	case met && is.After:
		return sim.Fault{Then: count, HangAfter: true}
	case met:
		count()
		return sim.Fault{HangBefore: true}
	case m.cfg.Sim.Fault != nil:
		return m.cfg.Sim.Fault(c)
	}
	return sim.Fault{}
}

// Control serves what tests do to a model in another process: GET is its State; POST of a
// Hang, a Capacity, a Compose, an Interruption, a Maintenance, a Rebalance or a Role to hang,
// capacity, compose, interrupt, maintain, rebalance or role does it.
func (m *Model) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ControlPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(m.State()) // or whoever asked is gone
	})
	handle(mux, "hang", func(h Hang) error {
		if h.Nth < 1 {
			return fmt.Errorf("the field Nth is %d: want 1 or more", h.Nth)
		}
		m.Hang(h)
		return nil
	})
	handle(mux, "capacity", func(c Capacity) error {
		m.sim.SetCapacity(sim.Pool{InstanceType: c.Type}, c.Instances)
		return nil
	})
	handle(mux, "compose", m.Compose)
	handle(mux, "interrupt", m.Interrupt)
	handle(mux, "maintain", m.Maintain)
	handle(mux, "rebalance", m.Rebalance)
	handle(mux, "role", m.PutRole)
	return mux
}

func handle[T any](mux *http.ServeMux, name string, do func(T) error) {
	mux.HandleFunc("POST "+ControlPath+name, func(w http.ResponseWriter, r *http.Request) {
		var one T
		read := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
		read.DisallowUnknownFields()
		err := read.Decode(&one)
		if err == nil {
			err = do(one)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
}
