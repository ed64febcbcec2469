package cells

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/elotl/kip/internal/events"
)

// Plugin is the node plugin of a CSI driver that a cell's pod has volumes of. The
// record has it, so that a cell goes on running the same plugin when the DaemonSet
// changes: a mount may live in the plugin's processes.
type Plugin struct {
	Driver string `json:"driver"`
	// Beside reports whether the plugin runs as a copy of its DaemonSet's pod: Pod is empty.
	Beside bool `json:"beside,omitempty"`
	// Pod is the static pod, as in agentapi.Plugin.
	Pod json.RawMessage `json:"pod,omitempty"`
}

// pluginSilence is how long a plugin may take to register before its pod is
// told, where its kubelet says nothing: most of it is the pull of its images.
const pluginSilence = 20 * time.Second

// plugins gives ready cells the plugins of their pods' CSI drivers.
type plugins struct {
	loop   *loop
	agents *asking
	waits  *bindWaits
	cells  perCell[pluginsState] // of their workers
}

var _ preparation = (*plugins)(nil)

// pluginsState is how far that is.
type pluginsState struct {
	sent  bool // the agent has them from this process
	known bool // the kubelet knows their drivers
}

// prepare gives a ready cell its plugins, before its kubelet sees the pod. It is done
// when the kubelet knows their drivers.
func (s *plugins) prepare(ctx context.Context, e *entry) (progress, error) {
	static, state := staticPlugins(e.cell().Plugins), s.cells.of(e)
	if len(static) == 0 || state.known {
		return done, nil
	}
	link := e.connection()
	if !link.session.connected() {
		return await(notConnected), nil // the tunnel wakes the cell
	}
	if !state.sent {
		got, err := s.loop.async(ctx, e, givesPlugins, func(ctx context.Context) error {
			return s.agents.putPlugins(ctx, e, link.session, static)
		})
		if !got.isDone() {
			return got, nil
		}
		if err != nil {
			s.waits.report(ctx, e, events.NewPluginsNotTaken(driverNames(static), err))
			return progress{}, fmt.Errorf("give cell %s its plugins: %w", e.id, err)
		}
		state.sent = true
	}
	// Where this process was not told what is registered, an earlier one may have
	// been. The kubelet waits for a driver by itself; it only takes longer.
	registered, known := link.api.CSIDrivers()
	missing := slices.DeleteFunc(slices.Clone(static), func(p Plugin) bool { return slices.Contains(registered, p.Driver) })
	if known && len(missing) > 0 {
		trouble, silence := link.api.PluginTrouble(), time.Duration(0)
		if trouble == "" {
			trouble, silence = events.PluginsNotRegistered, pluginSilence
		}
		return s.waits.wait(ctx, e, bindWait{
			by:       s,
			progress: waitFor("its kubelet does not know its CSI drivers yet", pluginPoll),
			event:    events.NewPluginsNotRunning(driverNames(missing), trouble),
			silence:  silence,
		})
	}
	state.known = true
	s.waits.over(ctx, e)
	return done, nil
}

// staticPlugins returns those of a list that the agent runs. For the others the pod waits as it does for what runs beside it.
func staticPlugins(list []Plugin) []Plugin {
	return slices.DeleteFunc(slices.Clone(list), func(p Plugin) bool { return p.Beside })
}

// driversBeside returns the drivers of a list whose plugins run as copies of a DaemonSet's pod.
func driversBeside(list []Plugin) (names []string) {
	for _, p := range list {
		if p.Beside {
			names = append(names, p.Driver)
		}
	}
	return names
}

// pluginRequests returns what the pods of plugins ask for together. What cannot be read asks for nothing: the agent refuses it.
func pluginRequests(list []Plugin) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, p := range list {
		var pod corev1.Pod
		if err := json.Unmarshal(p.Pod, &pod); err != nil {
			continue
		}
		for name, q := range resource.PodRequests(&pod, resource.PodResourcesOptions{}) {
			all := sum[name]
			all.Add(q)
			sum[name] = all
		}
	}
	return sum
}

func driverNames(list []Plugin) string {
	var names []string
	for _, p := range list {
		names = append(names, p.Driver)
	}
	return "CSI driver " + strings.Join(names, ", ")
}
