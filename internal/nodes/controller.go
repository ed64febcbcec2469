package nodes

import (
	"context"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/events"
)

// LookEvery is how often the nodes are looked at: whether the configuration has
// changed, whether one that was taken out is empty, and whether shortages have ended.
const LookEvery = 5 * time.Second

// Controller serves the nodes: it answers the API server like their kubelets, keeps their objects and their capacity,
// and lets nodes come and go with the configuration.
type Controller struct {
	c         Config
	nodes     *Nodes
	kubelets  *kubelets
	keeping   *keeping
	following *following
	removals  *removals
	changes   *changes
	sizing    *sizing
	lacking   *lacking
}

// New makes what the API server sees of the nodes, and what answers it like their
// kubelets. They are served once Follow and Keep run. Close ends that.
func New(ctx context.Context, n *Nodes, made Equipment) (*Controller, error) {
	c := newController(n, made)
	if err := c.open(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func newController(n *Nodes, made Equipment) *Controller {
	failures := make(failures, 1)
	kubelets := &kubelets{
		c:       n.c,
		nodes:   n.registry,
		objects: n.objects,
		made:    made,
		listen:  listen,
	}
	access := &access{
		c:        n.c,
		nodes:    n.registry,
		failures: failures,
		again:    LookEvery,
	}
	keeping := &keeping{
		nodes:    n.registry,
		access:   access,
		failures: failures,
	}
	following := &following{
		nodes:    n.registry,
		access:   access,
		keeping:  keeping,
		failures: failures,
	}
	removals := &removals{
		c:        n.c,
		nodes:    n.registry,
		plan:     n.plan,
		reads:    n.reads,
		kubelets: kubelets,
		keeping:  keeping,
		cells:    made.Cells,
		observer: made.Observer,
		lingers:  LookEvery,
	}
	changes := &changes{
		c:         n.c,
		nodes:     n.registry,
		plan:      n.plan,
		objects:   n.objects,
		kubelets:  kubelets,
		keeping:   keeping,
		following: following,
		cells:     made.Cells,
		failures:  failures,
	}
	sizing := &sizing{
		c:      n.c,
		nodes:  n.registry,
		offers: n.offers,
		cells:  made.Cells,
	}
	lacking := &lacking{nodes: n, cells: made.Cells, clock: n.c.Clock}
	return &Controller{n.c, n, kubelets, keeping, following, removals, changes, sizing, lacking}
}

// open makes the kubelets and the objects of the nodes with which this process begins.
func (c *Controller) open(ctx context.Context) (err error) {
	for _, s := range c.nodes.all() {
		if err := c.kubelets.open(ctx, s); err != nil {
			return err
		}
		cfg := c.nodes.cfg // of the file as it is: this process may have begun with another
		if s.node, err = c.nodes.objects.of(cfg, s, s.entry); err != nil {
			return cfg.Problem(keyOf(cfg, s.entry), "%v", err)
		}
	}
	c.kubelets.keepCertificates(ctx)
	return nil
}

// Close closes the kubelet ports of nodes that are not followed, or no more.
func (c *Controller) Close() { c.kubelets.close() }

// Follow runs what every node has while it is served: the watch on its pods, its
// kubelet port and what answers there, until ctx ends.
func (c *Controller) Follow(ctx context.Context) error { return c.following.run(ctx) }

// KeepCapacity keeps the capacity of the nodes where the configuration says auto, until ctx ends.
func (c *Controller) KeepCapacity(ctx context.Context) error { return c.sizing.run(ctx) }

// Keep keeps the objects of the nodes, and lets nodes come and go with the
// configuration, until ctx ends.
func (c *Controller) Keep(ctx context.Context) error {
	defer c.keeping.loops.Wait()
	c.keeping.ctx = ctx
	seen := c.nodes.plan.seen
	ticker := c.c.Clock.NewTicker(LookEvery)
	defer ticker.Stop()
	for {
		c.c.Watchdog.Track(ctx, "virtual nodes", func(ctx context.Context) {
			seen = c.changes.reload(ctx, seen)
			c.look(ctx)
		})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		case <-c.nodes.wake:
		}
	}
}

// look does for each node what time, its pods and the cloud's capacity ask for.
func (c *Controller) look(ctx context.Context) {
	for _, s := range c.nodes.all() {
		c.nodes.mu.Lock()
		state, removed, kept := s.rights, s.entry.Removed, s.loop != nil
		c.nodes.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return
		case removed && state >= rightsForeign:
			if err := c.removals.empty(ctx, s, kept); err != nil && ctx.Err() == nil {
				c.c.Log.Warn("a virtual node that was taken out is not gone yet, retrying", "node", s.name, "err", err)
			}
		case state == rightsHeld:
			c.lacking.tell(s)                         // first: the object is to begin with what is known
			if !kept && c.nodes.pods.Listed(s.name) { // else it would begin as not Ready
				c.keeping.start(s)
			}
		}
	}
}

// shortage is why a node takes no pods now.
type shortage struct {
	all  string // why nothing can be launched for any pod
	some string // for want of what it turns pods away, though it has something for some
}

// why says it to people; "" where the node takes pods.
func (s shortage) why() string {
	if s.all == "" && s.some != "" {
		return events.TurnsAway(s.some)
	}
	return s.all
}

// over says to people that it is.
func (s shortage) over() events.Event {
	if s.all == "" {
		return events.NewNodeTakesPods(s.some)
	}
	return events.NewNodeHasCapacity()
}

// Registered waits until it is known of each virtual node whether it is ours, or ctx ends.
func (c *Controller) Registered(ctx context.Context) {
	for _, s := range c.nodes.all() {
		select {
		case <-ctx.Done():
			return
		case <-s.settled:
		}
	}
}

// AllRegistered says which node is not registered yet.
func (c *Controller) AllRegistered() error {
	for _, s := range c.nodes.all() {
		c.nodes.mu.Lock()
		object, waits := s.node, !s.entry.Removed && (s.rights == rightsUnknown || s.rights == rightsHeld)
		c.nodes.mu.Unlock()
		if !waits {
			continue
		}
		select {
		case <-object.Ready():
		default:
			return fmt.Errorf("node %s is not registered yet", s.name)
		}
	}
	return nil
}
