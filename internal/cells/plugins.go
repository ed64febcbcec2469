package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

// Plugin is the node plugin of a CSI driver that a cell's pod has volumes of. The
// record has it, so that a cell goes on running the same plugin when the DaemonSet
// changes: a mount may live in the plugin's processes.
type Plugin struct {
	Driver string `json:"driver"`
	// Pod is the static pod, as in agentapi.Plugin.
	Pod json.RawMessage `json:"pod"`
}

const (
	// pluginPoll is how often a plugin that has not registered is looked for.
	pluginPoll = 100 * time.Millisecond
	// pluginSilence is how long a plugin may take to register before its pod is
	// told, where its kubelet says nothing: most of it is the pull of its images.
	pluginSilence = 20 * time.Second
)

// plug gives a ready cell its plugins, before its kubelet sees the pod. It returns
// true when the kubelet knows their drivers. It returns true as well when something
// else is to be done with the cell first.
func (c *Controller) plug(ctx context.Context, e *entry) (ready bool, again time.Duration, err error) {
	cell := e.cell()
	if len(cell.Plugins) == 0 || cell.Stopped || e.plugged {
		return true, 0, nil
	}
	if stays, err := c.stays(ctx, e); !stays {
		return err == nil, 0, err
	}
	if !e.session.Connected() {
		return false, 0, nil // the tunnel wakes the cell
	}
	if session := e.session; e.pluginsSent.IsZero() {
		err := c.aside(ctx, e, "plug", func(ctx context.Context) error { return c.putPlugins(ctx, e, session, cell.Plugins) })
		if errors.Is(err, errUnderWay) {
			return false, 0, err
		}
		if err != nil {
			c.tellDisk(ctx, e, events.CSIDriverNotReady,
				fmt.Sprintf("Its cell does not take the node plugins of %s: %v; retrying", driverNames(cell.Plugins), err))
			return false, 0, fmt.Errorf("give cell %s its plugins: %w", e.id, err)
		}
		e.pluginsSent = c.cfg.Clock.Now()
	}
	// Where this process was not told what is registered, an earlier one may have
	// been. The kubelet waits for a driver by itself; it only takes longer.
	registered, known := e.api.CSIDrivers()
	missing := slices.DeleteFunc(slices.Clone(cell.Plugins), func(p Plugin) bool { return slices.Contains(registered, p.Driver) })
	if known && len(missing) > 0 {
		trouble := e.api.PluginTrouble()
		if trouble == "" && c.cfg.Clock.Since(e.pluginsSent) >= pluginSilence {
			trouble = "they have not registered with its kubelet"
		}
		if trouble != "" {
			c.tellDisk(ctx, e, events.CSIDriverNotReady,
				fmt.Sprintf("The node plugins of %s do not run on the pod's cell yet: %s", driverNames(missing), trouble))
		}
		return false, pluginPoll, nil
	}
	e.plugged = true
	c.noteDisk(ctx, e, told{})
	return true, 0, nil
}

// unplug waits until the kubelet of a cell that is being drained has let go of all
// CSI volumes: what a driver has not written yet would be lost with the machine.
func (c *Controller) unplug(ctx context.Context, e *entry) error {
	return c.letsGo(ctx, e, pluginPoll, func(ctx context.Context) error { return c.putPlugins(ctx, e, e.session, nil) })
}

// putPlugins tells the agent which plugins its cell is to have.
func (c *Controller) putPlugins(ctx context.Context, e *entry, s Session, list []Plugin) error {
	plugins := make([]agentapi.Plugin, len(list))
	for i, p := range list {
		plugins[i] = agentapi.Plugin(p)
	}
	return c.ask(ctx, e, s, func(ctx context.Context, agent agentapi.Client) error { return agent.PutPlugins(ctx, plugins) })
}

func driverNames(list []Plugin) string {
	var names []string
	for _, p := range list {
		names = append(names, p.Driver)
	}
	return "CSI driver " + strings.Join(names, ", ")
}
