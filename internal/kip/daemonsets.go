package kip

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/networkpolicy"
	"k8s.io/apimachinery/pkg/labels"
)

// daemonSets are those that run beside pods, as provider.yaml says; nil where none may.
func daemonSets(cfg *config.Config) *daemonsets.Rules {
	granted := slices.ContainsFunc(cfg.Cells.Grants.Namespaces, func(n config.NamespaceGrants) bool { return n.BesidePods })
	plugins := pluginSets(cfg.Cells.CSIDrivers)
	if len(plugins)+len(cfg.Cells.DaemonSets) == 0 && !granted {
		return nil
	}
	var entries []daemonsets.Entry
	for _, set := range cfg.Cells.DaemonSets {
		entries = append(entries, daemonsets.Entry{
			Namespace:  set.Namespace,
			Name:       set.Name,
			Selector:   selector(set.Selector),
			Pods:       selector(set.Pods),
			Namespaces: set.Namespaces,
			MaxDelay:   set.MaxDelay,
			Linger:     set.Linger,
		})
	}
	entries = append(entries, plugins...) // last: a set that is named in both runs beside all pods
	return daemonsets.New(entries, grants(cfg).AllowsBesidePods)
}

// pluginDelay is how long a pod waits for the copy that has a node plugin of its volumes. Its kubelet then waits for the driver by
// itself, with an Event for each attempt.
const pluginDelay = time.Minute

// pluginSets are the DaemonSets with the node plugins of CSI drivers that run beside pods. One may ship several.
func pluginSets(drivers []config.CSIDriver) (entries []daemonsets.Entry) {
	at := map[string]int{}
	for i, d := range drivers {
		if !d.Beside {
			continue
		}
		n, has := at[d.DaemonSet]
		if !has {
			namespace, name, _ := strings.Cut(d.DaemonSet, "/")
			n, at[d.DaemonSet] = len(entries), len(entries)
			entries = append(entries, daemonsets.Entry{
				By: fmt.Sprintf("cells.csiDrivers[%d]", i), Namespace: namespace, Name: name, MaxDelay: pluginDelay,
			})
		}
		entries[n].Drivers = append(entries[n].Drivers, d.Name)
	}
	return entries
}

// selector is that of a text that was checked; nil for "".
func selector(text string) labels.Selector {
	if text == "" {
		return nil
	}
	s, err := labels.Parse(text)
	if err != nil {
		return labels.Nothing()
	}
	return s
}

// beside is told which agents can run pods beside those of their cells; nil where no cell is to.
func beside(sets *daemonsets.Rules, api *cellapi.Server) networkpolicy.Beside {
	if sets == nil {
		return nil
	}
	return api
}
