package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
)

// Health says when a cell that runs a pod counts as lost. One of two signs is
// believed: the lease that its kubelet renews over the tunnel (healthcheck.status),
// or the cloud's list (healthcheck.cloudAPI).
type Health struct {
	// CloudAPI believes the cloud's list alone, for links that break often.
	CloudAPI bool
	// HealthyTimeout is how long the sign may be missing; 0 for ever.
	HealthyTimeout time.Duration
	// Interval is how often the cloud is asked at least, with CloudAPI.
	Interval time.Duration
	// Check is how often leases are looked at.
	Check time.Duration
}

// pollInterval is how often the cloud is asked for its list at least.
func (h Health) pollInterval() time.Duration {
	if h.CloudAPI {
		return min(h.Interval, idlePoll)
	}
	return idlePoll
}

// missingTimeout is how long the cloud's list may lack the instance of a cell.
func (h Health) missingTimeout(silent bool) time.Duration {
	switch {
	case h.CloudAPI && h.HealthyTimeout > 0:
		return h.HealthyTimeout
	case silent:
		return silentAge
	}
	return missingAge
}

const (
	// silentAfter is when a pod whose cell is silent counts as not ready: a
	// kubelet renews its lease each 10 s, and the node controller waits for 40
	// to 50 (node-monitor-grace-period) before it does the same to the pods of
	// a node.
	silentAfter = 40 * time.Second
	// When more than disruptionShare of the ready cells are silent at once, and at
	// least disruptionLeast, the fault is on Kip's side. To end them all would be
	// worse than to wait. The node controller's unhealthy-zone-threshold is the same
	// share.
	disruptionShare, disruptionLeast = 0.55, 3
)

// checkHealth ends cells that are lost by the lease, until ctx ends.
func (c *Controller) checkHealth(ctx context.Context) {
	if c.cfg.Health.Check <= 0 {
		return
	}
	ticker := c.cfg.Clock.NewTicker(c.cfg.Health.Check)
	defer ticker.Stop()
	awake := c.cfg.Clock.Now() // since when this process has looked without a gap
	last, disrupted := awake, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		now := c.cfg.Clock.Now()
		if now.Sub(last) > 2*c.cfg.Health.Check+time.Second {
			awake = now // it was stopped, or its machine was: the cells were not
		}
		last = now
		c.cfg.Pulse.Turn(ctx, "health", func(context.Context) { disrupted = c.checkLeases(now, awake, disrupted) })
	}
}

// checkLeases looks at every cell with a kubelet once. It returns true when so many
// are silent that no cell is ended for its silence.
func (c *Controller) checkLeases(now, awake time.Time, wasDisrupted bool) bool {
	type silence struct {
		e     *entry
		since time.Time
	}
	var silent []silence
	ready := 0
	c.mu.Lock()
	for _, e := range c.cells {
		phase := e.cell().Phase
		if phase != apiv1.Bound && phase != apiv1.Ready || e.ending != "" || e.api == nil || e.session == nil {
			continue
		}
		ready++
		since := awake
		for _, t := range []time.Time{e.api.LastHeartbeat(), e.connecting, e.cell().StepTime(apiv1.StepBound)} {
			if t.After(since) {
				since = t
			}
		}
		if now.Sub(since) >= min(silentAfter, c.healthyTimeout(e.cell())) {
			silent = append(silent, silence{e, since})
		}
	}
	c.mu.Unlock()
	disrupted := len(silent) >= disruptionLeast && float64(len(silent)) > disruptionShare*float64(ready)
	if disrupted != wasDisrupted {
		if disrupted {
			c.cfg.Log.Error("most cells are silent: Kip's own network may be down, and no cell is ended for its silence until that is over",
				"silent", len(silent), "ready", ready)
		} else {
			c.cfg.Log.Info("most cells are heard again", "silent", len(silent), "ready", ready)
		}
	}
	for _, s := range silent {
		cell, quiet := s.e.cell(), now.Sub(s.since).Round(time.Second)
		if cell.Phase == apiv1.Bound {
			c.observers.CellSilent(*cell, s.since)
		}
		if timeout := c.healthyTimeout(cell); !disrupted && !c.cfg.Health.CloudAPI && quiet >= timeout {
			c.lose(s.e, fmt.Sprintf("nothing was heard of its kubelet for %s: %s", quiet, c.whySilent(s.e)))
		}
	}
	return disrupted
}

// forever is longer than anybody waits.
const forever = time.Duration(1<<63 - 1)

// healthyTimeout is how long the cell may be silent.
func (c *Controller) healthyTimeout(cell *Cell) time.Duration {
	timeout := c.cfg.Health.HealthyTimeout
	if cell.HealthyTimeout != nil {
		timeout = *cell.HealthyTimeout
	}
	if timeout <= 0 {
		return forever
	}
	return timeout
}

// whySilent tells a cell that is cut off from one that has died.
func (c *Controller) whySilent(e *entry) string {
	i, there := c.inventory.last().byID[e.cell().Instance.ID]
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.session != nil && e.session.Connected():
		return "its agent answers, its kubelet does not"
	case !there:
		return "the cloud no longer shows its instance"
	case i.State != cloud.Running:
		return fmt.Sprintf("its instance is %s", i.State)
	}
	const why = "it is cut off, while its instance runs"
	if e.session != nil {
		if err := e.session.LastError(); err != nil {
			return why + ": " + err.Error()
		}
	}
	return why
}

// lose ends a cell that is lost. The cell may come back until the cloud has
// confirmed its end. Only then does the pod get another.
func (c *Controller) lose(e *entry, why string) { c.endFor(e, CauseLost, why) }

func (c *Controller) endFor(e *entry, cause Cause, why string) {
	c.mu.Lock()
	lost := e.ending == ""
	if lost {
		e.ending, e.cause = why, cause
	}
	c.mu.Unlock()
	if lost {
		c.warn(e.cell(), events.CellLost, "Cell %s is lost: %s", e.id, why)
		c.queue.Add(e.id)
	}
}
