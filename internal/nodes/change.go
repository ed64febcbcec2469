package nodes

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// changes bring the nodes in line with the configuration.
type changes struct {
	c         Config
	nodes     *registry
	plan      *plan
	objects   *objects
	kubelets  *kubelets
	keeping   *keeping
	following *following
	cells     Cells
	failures  failures
}

// reload takes the configuration again if the file is another than the one that was
// seen, and returns what is seen now. What is wrong with it is told once; the last good
// one holds.
func (g *changes) reload(ctx context.Context, seen sum) sum {
	now, err := fileSum(g.c.File)
	if err != nil || now == seen {
		return seen // a file that is being replaced is not there for a moment
	}
	cfg, _, err := config.Load(g.c.File)
	if err == nil {
		err = g.change(ctx, cfg)
	}
	var wrong *config.Error
	switch {
	case err == nil:
	case ctx.Err() != nil, !errors.As(err, &wrong):
		g.c.Log.Warn("the new configuration is not in force yet, retrying", "err", err)
		return seen
	default:
		g.c.Log.Error("the new configuration is wrong: the last good one holds", "err", err)
	}
	return now
}

// change brings the nodes in line with a configuration. Nothing is changed where it
// cannot be.
func (g *changes) change(ctx context.Context, cfg *config.Config) error {
	wanted, err := nodeplan.Wanted(cfg, g.c.InstanceTypes.Types(), g.nodes.entries)
	if err != nil {
		return err
	}
	before := g.nodes.entries
	entries, err := nodeplan.Assign(before, wanted)
	if err != nil {
		return cfg.Problem("nodes", "%v", err)
	}
	var added []*served
	undo := func() {
		for _, s := range added {
			_ = s.kubelet.closePort() // nobody has been told of it
		}
	}
	objects := map[string]*node.Node{}
	for _, e := range entries {
		s := g.nodes.named(e.Name(g.c.Name))
		if s == nil {
			if s, err = g.nodes.newServed(e); err == nil {
				err = g.kubelets.open(ctx, s)
			}
			if err != nil {
				undo()
				return cfg.Problem(keyOf(cfg, e), "%v", err)
			}
			added = append(added, s)
		}
		if objects[s.name], err = g.objects.of(cfg, s, e); err != nil {
			undo()
			return cfg.Problem(keyOf(cfg, e), "%v", err)
		}
	}
	var fresh []nodeplan.Entry
	for _, e := range entries {
		s := g.nodes.named(e.Name(g.c.Name))
		if !e.Removed && (s == nil || g.nodes.rightsOf(s) != rightsHeld) {
			fresh = append(fresh, e)
		}
	}
	if err := g.foreign(ctx, cfg, fresh); err != nil {
		undo()
		return err
	}
	if err := g.plan.keep(ctx, before, entries); err != nil {
		undo()
		return err
	}
	g.adopt(cfg, entries, added, objects)
	g.plan.sayWhatWaits(cfg)
	return nil
}

// adopt puts a configuration in force.
func (g *changes) adopt(cfg *config.Config, entries []nodeplan.Entry, added []*served, objects map[string]*node.Node) {
	for _, s := range added {
		if err := g.nodes.pods.Add(s.name, s.informer); err != nil {
			g.failures.unless(g.following.ctx, err)
		}
	}
	sameSelf := reflect.DeepEqual(cfg.Kubelet, g.nodes.cfg.Kubelet)
	g.nodes.mu.Lock()
	for _, s := range added {
		g.nodes.served[s.name] = s
		g.following.begin(s)
	}
	g.nodes.cfg, g.nodes.entries = cfg, entries
	g.nodes.mu.Unlock()
	for _, e := range entries {
		s := g.nodes.named(e.Name(g.c.Name))
		was := s.entry
		was.Index = e.Index
		if sameSelf && reflect.DeepEqual(was, e) && s.node != nil {
			continue
		}
		g.keeping.stop(s)
		g.nodes.mu.Lock()
		s.entry, s.node = e, objects[s.name]
		g.nodes.mu.Unlock()
		s.short, s.lacks, s.leaving, s.deleted = shortage{}, nil, time.Time{}, false
		g.c.Log.Info("a virtual node has changed", "node", s.name, "offers", e.Limit().String(), "removed", e.Removed)
	}
	g.cells.NodesChanged()
	g.nodes.LookSoon()
}

// foreign returns a problem of the configuration for a node whose name is that of a
// machine, or of another Kip. An API server that does not answer says nothing; the
// node is then refused when it is registered.
func (g *changes) foreign(ctx context.Context, cfg *config.Config, entries []nodeplan.Entry) error {
	for _, e := range entries {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		there, err := g.c.Client.CoreV1().Nodes().Get(asking, e.Name(g.c.Name), metav1.GetOptions{})
		cancel()
		if err != nil {
			continue
		}
		if err := node.Foreign(there, g.c.ControllerID); err != nil {
			return cfg.Problem(keyOf(cfg, e), "its name is %s: %v", there.Name, err)
		}
	}
	return nil
}
