package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// machines are those that there are, and were.
type machines struct {
	*base

	all     []*machine // in the order of their launches, until no list shows them
	byID    map[string]*machine
	ended   map[string]bool // those that no list will show again
	history []Instance      // those that have ended
}

// find returns the machine that calls know by an ID, or nil.
func (c *machines) find(id string, now time.Time) *machine {
	m := c.byID[id]
	if m == nil || !m.Ended.IsZero() || now.Before(m.known) {
		return nil
	}
	return m
}

// findAll returns the machines of a call, each once, without those for which
// nothing is to be done; or why it is refused.
func (c *machines) findAll(ids []string, now time.Time, done func(*machine) bool, check func(*machine) error) ([]*machine, error) {
	var found []*machine
	for _, id := range ids {
		m := c.find(id, now)
		if m == nil {
			return nil, fmt.Errorf("%w: %w: there is no instance %s", cloud.ErrRefused, CodeNotFound, id)
		}
		if done(m) || slices.Contains(found, m) {
			continue
		}
		if err := check(m); err != nil {
			return nil, fmt.Errorf("%w: %w", cloud.ErrRefused, err)
		}
		found = append(found, m)
	}
	return found, nil
}

// forget drops the machines that no list will show again.
func (c *machines) forget(now time.Time) {
	c.all = slices.DeleteFunc(c.all, func(m *machine) bool {
		last := m.views[len(m.views)-1]
		if !last.gone || last.from.Add(c.knobs.StaleBy).After(now) {
			return false
		}
		delete(c.byID, m.ID)
		c.ended[m.ID] = true
		return true
	})
}

// Unknown returns those IDs that calls do not know: of no machine, or not yet.
func (c *machines) Unknown(ids ...string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		m := c.byID[id]
		return c.ended[id] || m != nil && !now.Before(m.known)
	})
}

// Truth returns the instances that exist now, in the order of their launches.
func (c *machines) Truth() []Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.existing()
}

func (c *machines) existing() []Instance {
	var all []Instance
	for _, m := range c.all {
		if m.Ended.IsZero() {
			all = append(all, m.Instance.clone())
		}
	}
	return all
}

// History returns all instances that ever were: those that have ended, in the
// order of their ends, and then those that exist.
func (c *machines) History() []Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Instance, 0, len(c.history))
	for _, i := range c.history {
		all = append(all, i.clone())
	}
	return append(all, c.existing()...)
}
