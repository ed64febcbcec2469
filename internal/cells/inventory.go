package cells

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/types"
)

// How often the cloud's list is asked for: one call serves all cells.
const (
	idlePoll = 15 * time.Second
	// orphanAge is how long an instance must be seen without a cell before it
	// is terminated; a list may be older than the record beside it.
	orphanAge = 10 * time.Second
	// missingAge is how long looks must not have shown a cell's instance
	// before it counts as gone; a list may lag behind a launch, EC2's by a few
	// seconds.
	missingAge = 20 * time.Second
	// silentAge is the same for a cell whose tunnel is down too.
	silentAge = 4 * time.Second
)

// look is one answer of the cloud's list.
type look struct {
	began time.Time
	byID  map[string]cloud.Instance
	byPod map[types.UID][]string // instance IDs
	// byCell has the instance of a cell: the one that the record names, where
	// there are several.
	byCell map[string]string
	// strangers are standby cells of a Kip whose store was lost: which pods
	// they run, if any, nobody knows.
	strangers []string
}

func (c *Controller) lastLook() look {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.look
}

// pollSoon asks for a fresh look; it does not wait for it.
func (c *Controller) pollSoon() {
	select {
	case c.polls <- struct{}{}:
	default:
	}
}

// takeInventory compares the cloud's list of our instances with the cells, until
// ctx ends.
func (c *Controller) takeInventory(ctx context.Context) {
	orphans := map[string]time.Time{} // instance → first seen without a cell
	idle := c.cfg.Clock.NewTicker(c.cfg.Health.pollInterval())
	defer idle.Stop()
	for {
		began := c.cfg.Clock.Now()
		call, cancel := context.WithTimeout(ctx, callTimeout)
		list, err := c.cfg.Cloud.List(call, c.cfg.ControllerID)
		cancel()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			c.cfg.Log.Warn("list our instances", "cloud", c.cfg.Cloud.Name(), "err", err)
		} else {
			c.compare(ctx, began, list, orphans)
		}
		select {
		case <-ctx.Done():
			return
		case <-idle.C():
			continue
		case <-c.polls:
		}
		select {
		case <-ctx.Done():
			return
		case <-c.cfg.Clock.After(c.cfg.SoonPoll):
		}
	}
}

func (c *Controller) compare(ctx context.Context, began time.Time, list []cloud.Instance, orphans map[string]time.Time) {
	seen := look{began: began, byID: make(map[string]cloud.Instance, len(list)), byPod: map[types.UID][]string{}, byCell: make(map[string]string, len(list))}
	for _, i := range list {
		seen.byID[i.ID] = i
		seen.byCell[i.Tags[cloud.TagCell]] = i.ID
		if uid := types.UID(i.Tags[cloud.TagPodUID]); uid != "" {
			seen.byPod[uid] = append(seen.byPod[uid], i.ID)
		}
	}
	type lost struct {
		e  *entry
		id string
	}
	var vanished []lost
	owned := map[string]bool{}     // instances that a cell has
	launching := map[string]bool{} // cells whose instance is not known yet
	c.mu.Lock()
	for _, e := range c.cells {
		cell := e.cell()
		if cell.Instance == nil {
			launching[cell.ID] = true
			if cell.Phase == apiv1.Requested || cell.Phase == apiv1.Terminating {
				c.queue.Add(cell.ID) // it may wait for this look
			}
			continue
		}
		id := cell.Instance.ID
		owned[id] = true
		i, there := seen.byID[id]
		if there {
			seen.byCell[cell.ID] = id
			e.missing = time.Time{}
		}
		if cell.Phase == apiv1.Terminating || !cell.Instance.PodIP.IsValid() || cell.Stopped && i.State != cell.Instance.State {
			c.queue.Add(cell.ID)
		}
		switch {
		case there, !cell.Live(), began.Sub(cell.launched()) < c.cfg.ListLag: // the list need not show it yet
		case e.missing.IsZero():
			e.missing = began
		case began.Sub(e.missing) >= c.cfg.Health.missingTimeout(e.session != nil && !e.session.Connected()):
			vanished = append(vanished, lost{e, id})
		}
	}
	for _, i := range list {
		if !owned[i.ID] && !launching[i.Tags[cloud.TagCell]] && i.Tags[cloud.TagPodUID] == "" && i.Launched.Before(c.born) {
			seen.strangers = append(seen.strangers, i.ID)
		}
	}
	c.look = seen
	c.mu.Unlock()

	for _, v := range vanished {
		c.lose(v.e, "instance "+v.id+" is no longer in the cloud's list")
	}

	for id := range orphans {
		if _, there := seen.byID[id]; !there || owned[id] {
			delete(orphans, id)
		}
	}
	for _, i := range list {
		if owned[i.ID] || launching[i.Tags[cloud.TagCell]] || i.State == cloud.Terminating {
			continue
		}
		first, known := orphans[i.ID]
		if !known {
			orphans[i.ID] = began
			if c.cfg.Orphan != nil {
				c.cfg.Orphan()
			}
			continue
		}
		if began.Sub(first) < orphanAge {
			continue
		}
		c.cfg.Log.Warn("terminate an instance that has our tags and no cell", "instance", i.ID, "cell", i.Tags[cloud.TagCell])
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := c.cfg.Cloud.Terminate(call, i.ID)
		cancel()
		if err != nil {
			c.cfg.Log.Warn("terminate an orphan", "instance", i.ID, "err", err)
		}
		if c.cfg.Swept != nil {
			c.cfg.Swept(err)
		}
	}
}
