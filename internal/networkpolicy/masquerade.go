package networkpolicy

import "github.com/elotl/kip/internal/agentapi"

// MasqueradeChanged tells that Config.Masquerade may return something else. It does not block.
func (c *Controller) MasqueradeChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, x := range c.cells {
		if x.PublicAt.IsValid() {
			c.queue.Add(id)
		}
	}
}

// masquerade returns what the agent is to be told of masquerading; nil for nothing. It is known at
// once but for a cell with a public address, which has no rules yet, or has them of an earlier process of
// Kip. The lock is held.
func (c *Controller) masquerade(x *cell) (m *agentapi.Masquerade, known bool) {
	if c.cfg.Masquerade == nil || !x.PublicAt.IsValid() {
		return nil, true
	}
	except, does, known := c.cfg.Masquerade(x.Subnet)
	if !known && x.inForce { // policies do not wait
		return x.masquerade, true
	}
	if !does || !known {
		return nil, known
	}
	return &agentapi.Masquerade{As: x.PublicAt, Except: except}, true
}
