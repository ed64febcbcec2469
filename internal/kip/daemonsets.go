package kip

import (
	"slices"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/networkpolicy"
	"k8s.io/apimachinery/pkg/labels"
)

// daemonSets are those that run beside pods, as provider.yaml says; nil where none may.
func daemonSets(cfg *config.Config) *daemonsets.Rules {
	granted := slices.ContainsFunc(cfg.Cells.Grants.Namespaces, func(n config.NamespaceGrants) bool { return n.BesidePods })
	if len(cfg.Cells.DaemonSets) == 0 && !granted {
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
	return daemonsets.New(entries, grants(cfg).AllowsBesidePods)
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
func (l *clusterSide) beside() networkpolicy.Beside {
	if l.daemonSets == nil {
		return nil
	}
	return l.cellAPI
}
