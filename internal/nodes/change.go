package nodes

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// LookEvery is how often the nodes are looked at: whether the configuration has
// changed, whether one that was taken out is empty, and whether shortages have ended.
const LookEvery = 5 * time.Second

// Keep keeps the objects of the nodes, and lets nodes come and go with the
// configuration, until ctx ends.
func (n *Nodes) Keep(ctx context.Context) error {
	defer n.loops.Wait()
	n.mu.Lock()
	n.keeps = ctx
	n.mu.Unlock()
	seen := n.seen
	ticker := n.c.Clock.NewTicker(LookEvery)
	defer ticker.Stop()
	for {
		n.c.Watchdog.Track(ctx, "virtual nodes", func(ctx context.Context) {
			seen = n.reload(ctx, seen)
			n.look(ctx)
		})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		case <-n.wake:
		}
	}
}

// look does for each node what time, its pods and the cloud's capacity ask for.
func (n *Nodes) look(ctx context.Context) {
	for _, s := range n.all() {
		n.mu.Lock()
		state, removed, kept := s.rights, s.entry.Removed, s.loop != nil
		n.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return
		case removed && state >= rightsForeign:
			if err := n.empty(ctx, s, kept); err != nil && ctx.Err() == nil {
				n.c.Log.Warn("a virtual node that was taken out is not gone yet, retrying", "node", s.name, "err", err)
			}
		case state == rightsHeld:
			if !kept && n.pods.Listed(s.name) { // else it would begin as not Ready
				n.startLoop(n.keeps, s)
			}
			n.tellShortage(s)
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
		return "the cloud has no capacity for " + s.some + "; pods that need it leave the node, and their replacements would come back"
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

// tellShortage marks a node for whose pods nothing can be launched.
func (n *Nodes) tellShortage(s *served) {
	now, was := shortage{all: n.shortage(s)}, s.short
	if now.all == "" {
		now.some = n.turning(s)
	}
	s.short = now
	s.node.Short(now.why())
	switch {
	case was == now:
	case now != (shortage{}):
		n.Event(s.name, events.NewNodeOutOfCapacity(now.why()))
	default:
		n.Event(s.name, was.over())
	}
}

// empty lets a node go that was taken out, once it has no pods but those of DaemonSets,
// which go with it. It is kept, and so cordoned, before: the scheduler may have placed a
// pod just now.
func (n *Nodes) empty(ctx context.Context, s *served, kept bool) error {
	n.mu.Lock()
	foreign := s.rights == rightsForeign // of its pods Kip knows nothing
	n.mu.Unlock()
	if !foreign && !n.pods.Listed(s.name) {
		return nil
	}
	occupied, onlyDaemons := n.hasPods(s)
	if !s.deleted && !foreign {
		if gone, err := n.letGo(ctx, s, kept, occupied && !onlyDaemons); !gone || err != nil {
			return err
		}
	}
	if occupied {
		return nil // the cluster removes the pods of a node that is gone
	}
	n.mu.Lock()
	before := n.entries
	n.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(before), func(e nodeplan.Entry) bool { return e.Number == s.number })
	if err := n.keepPlan(ctx, before, left); err != nil {
		return err
	}
	s.stop()
	_ = s.listener.Close() // or a node that comes again now would find its own port taken
	n.mu.Lock()
	n.entries = left
	delete(n.served, s.name)
	delete(n.found, s.name)
	n.mu.Unlock()
	s.settle() // who waits for it waits for nothing any more
	n.pods.Remove(s.name)
	n.reads.forget(s.name)
	n.made.Observer.NodeGone(s.name)
	n.keepCertificates(ctx)
	n.c.Log.Info("a virtual node that was taken out is gone", "node", s.name)
	return nil
}

// letGo deletes the object of a node that was taken out, once it was cordoned and without
// pods for a while, also by the API server's own word.
func (n *Nodes) letGo(ctx context.Context, s *served, kept, occupied bool) (gone bool, err error) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if !kept {
		_, err := n.c.Client.CoreV1().Nodes().Get(asking, s.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && !occupied:
			s.deleted = true
			return true, nil
		case err != nil && !apierrors.IsNotFound(err):
			return false, fmt.Errorf("read node %s: %w", s.name, err)
		}
		n.startLoop(n.keeps, s)
		return false, nil
	}
	if ready := isClosed(s.node.Ready()); occupied || !ready {
		s.leaving = time.Time{}
		return false, nil
	}
	now := n.c.Clock.Now()
	if s.leaving.IsZero() {
		s.leaving = now
	}
	if now.Sub(s.leaving) < n.lingers {
		return false, nil
	}
	list, err := s.asNode.CoreV1().Pods("").List(asking, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.name})
	if err != nil {
		return false, fmt.Errorf("list the pods of node %s: %w", s.name, err)
	}
	if slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return !ofDaemonSet(&p) && !watches.Ended(&p) }) {
		return false, nil // the watch is about to tell
	}
	n.stopLoop(s)
	if err := n.removeObject(ctx, s); err != nil {
		return false, err
	}
	s.deleted = true
	return true, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// removeObject deletes a node's lease and object; not those of a machine, or of another
// Kip, that has come to have the name.
func (n *Nodes) removeObject(ctx context.Context, s *served) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := n.c.Store.Leads(ctx); err != nil { // its pods go with it
		return fmt.Errorf("delete node %s: %w", s.name, err)
	}
	there, err := n.c.Client.CoreV1().Nodes().Get(ctx, s.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		there = &corev1.Node{}
	case err != nil:
		return fmt.Errorf("read node %s: %w", s.name, err)
	default:
		if err := node.Foreign(there, n.c.ControllerID); err != nil {
			n.c.Log.Warn("a node is left alone: its name is that of a virtual node that was taken out", "node", s.name, "err", err)
			return nil
		}
	}
	gone := func(err error) bool { return err == nil || apierrors.IsNotFound(err) }
	if err := s.asNode.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, s.name, metav1.DeleteOptions{}); !gone(err) {
		return fmt.Errorf("delete the lease of node %s: %w", s.name, err)
	}
	if there.UID == "" {
		return nil
	}
	that := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &there.UID}}
	if err := n.c.Client.CoreV1().Nodes().Delete(ctx, s.name, that); !gone(err) {
		return fmt.Errorf("delete node %s: %w", s.name, err)
	}
	return nil
}

type sum = [sha256.Size]byte

func fileSum(path string) (sum, error) {
	data, err := os.ReadFile(path)
	return sha256.Sum256(data), err
}

// reload takes the configuration again if the file is another than the one that was
// seen, and returns what is seen now. What is wrong with it is told once; the last good
// one holds.
func (n *Nodes) reload(ctx context.Context, seen sum) sum {
	now, err := fileSum(n.c.File)
	if err != nil || now == seen {
		return seen // a file that is being replaced is not there for a moment
	}
	cfg, _, err := config.Load(n.c.File)
	if err == nil {
		err = n.change(ctx, cfg)
	}
	var wrong *config.Error
	switch {
	case err == nil:
	case ctx.Err() != nil, !errors.As(err, &wrong):
		n.c.Log.Warn("the new configuration is not in force yet, retrying", "err", err)
		return seen
	default:
		n.c.Log.Error("the new configuration is wrong: the last good one holds", "err", err)
	}
	return now
}

// change brings the nodes in line with a configuration. Nothing is changed where it
// cannot be.
func (n *Nodes) change(ctx context.Context, cfg *config.Config) error {
	wanted, err := nodeplan.Wanted(cfg, n.c.InstanceTypes.Types(), n.entries)
	if err != nil {
		return err
	}
	before := n.entries
	entries, err := nodeplan.Assign(before, wanted)
	if err != nil {
		return cfg.Problem("nodes", "%v", err)
	}
	var added []*served
	undo := func() {
		for _, s := range added {
			_ = s.listener.Close() // nobody has been told of it
		}
	}
	objects := map[string]*node.Node{}
	for _, e := range entries {
		s := n.named(e.Name(n.c.Name))
		if s == nil {
			if s, err = n.newServed(e); err == nil {
				err = n.equip(ctx, s)
			}
			if err != nil {
				undo()
				return cfg.Problem(keyOf(cfg, e), "%v", err)
			}
			added = append(added, s)
		}
		if objects[s.name], err = n.object(cfg, s, e); err != nil {
			undo()
			return cfg.Problem(keyOf(cfg, e), "%v", err)
		}
	}
	var fresh []nodeplan.Entry
	for _, e := range entries {
		s := n.named(e.Name(n.c.Name))
		if !e.Removed && (s == nil || n.rightsOf(s) != rightsHeld) {
			fresh = append(fresh, e)
		}
	}
	if err := n.foreign(ctx, cfg, fresh); err != nil {
		undo()
		return err
	}
	if err := n.keepPlan(ctx, before, entries); err != nil {
		undo()
		return err
	}
	n.adopt(cfg, entries, added, objects)
	n.sayWhatWaits(cfg)
	return nil
}

// keyOf is where an entry is configured.
func keyOf(cfg *config.Config, e nodeplan.Entry) string {
	if e.Index < 0 || e.Index >= len(cfg.Nodes) { // by auto, or the one node without a list
		return "nodes"
	}
	return fmt.Sprintf("nodes[%d]", e.Index)
}

// newServed makes a node that is not served yet.
func (n *Nodes) newServed(e nodeplan.Entry) (*served, error) {
	s := &served{
		name:    e.Name(n.c.Name),
		number:  e.Number,
		entry:   e,
		lost:    make(chan struct{}, 1),
		settled: make(chan struct{}),
	}
	var err error
	if s.asNode, err = n.c.Clients.As(s.name); err != nil {
		return nil, err
	}
	s.informer = podInformer(s.asNode, s.name)
	return s, nil
}

// podInformer follows the pods of a node, as the node, with the selector that
// the API server asks of one.
func podInformer(asNode kubernetes.Interface, node string) cache.SharedIndexInformer {
	ofNode, pods := fields.OneTermEqualSelector("spec.nodeName", node).String(), asNode.CoreV1().Pods(metav1.NamespaceAll)
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = ofNode
			if o.ResourceVersion == "0" {
				// A watch cache that is behind would lack pods that an earlier Kip has served, and
				// these would count as having come since.
				o.ResourceVersion = ""
			}
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = ofNode
			return pods.Watch(ctx, o)
		},
	}, asNode)
	return cache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, cache.Indexers{})
}

// adopt puts a configuration in force.
func (n *Nodes) adopt(cfg *config.Config, entries []nodeplan.Entry, added []*served, objects map[string]*node.Node) {
	for _, s := range added {
		if err := n.pods.Add(s.name, s.informer); err != nil {
			n.unless(n.follows, err)
		}
	}
	sameSelf := reflect.DeepEqual(cfg.Kubelet, n.cfg.Kubelet)
	n.mu.Lock()
	for _, s := range added {
		n.served[s.name] = s
		n.followOne(n.follows, s)
	}
	n.cfg, n.entries = cfg, entries
	n.mu.Unlock()
	for _, e := range entries {
		s := n.named(e.Name(n.c.Name))
		was := s.entry
		was.Index = e.Index
		if sameSelf && reflect.DeepEqual(was, e) && s.node != nil {
			continue
		}
		n.stopLoop(s)
		n.mu.Lock()
		s.entry, s.node = e, objects[s.name]
		n.mu.Unlock()
		s.short, s.leaving, s.deleted = shortage{}, time.Time{}, false
		n.c.Log.Info("a virtual node has changed", "node", s.name, "offers", e.Limit().String(), "removed", e.Removed)
	}
	n.made.Cells.NodesChanged()
	n.LookSoon()
}

// sayWhatWaits warns of what has changed beside the nodes.
func (n *Nodes) sayWhatWaits(cfg *config.Config) {
	others := func(c *config.Config) string {
		rest := *c
		rest.Nodes, rest.AutoNodes, rest.Kubelet = nil, "", config.Kubelet{}
		data, err := json.Marshal(rest)
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	if others(cfg) != others(n.c.Config) {
		n.c.Log.Warn("the configuration has changed in more than nodes and kubelet: the rest takes effect when Kip is started again")
	}
}

// foreign returns a problem of the configuration for a node whose name is that of a
// machine, or of another Kip. An API server that does not answer says nothing; the
// node is then refused when it is registered.
func (n *Nodes) foreign(ctx context.Context, cfg *config.Config, entries []nodeplan.Entry) error {
	for _, e := range entries {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		there, err := n.c.Client.CoreV1().Nodes().Get(asking, e.Name(n.c.Name), metav1.GetOptions{})
		cancel()
		if err != nil {
			continue
		}
		if err := node.Foreign(there, n.c.ControllerID); err != nil {
			return cfg.Problem(keyOf(cfg, e), "its name is %s: %v", there.Name, err)
		}
	}
	return nil
}

// Event reports something of a virtual node.
func (n *Nodes) Event(name string, e events.Event) {
	n.c.Recorder.Event(&corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       name,
		UID:        types.UID(name),
	}, e.Type, e.Reason, e.Message)
	n.c.Log.Info(e.Message, "node", name, "reason", e.Reason)
}

// Registered waits until it is known of each virtual node whether it is ours, or ctx ends.
func (n *Nodes) Registered(ctx context.Context) {
	for _, s := range n.all() {
		select {
		case <-ctx.Done():
			return
		case <-s.settled:
		}
	}
}

// AllRegistered says which node is not registered yet.
func (n *Nodes) AllRegistered() error {
	for _, s := range n.all() {
		n.mu.Lock()
		object, waits := s.node, !s.entry.Removed && (s.rights == rightsUnknown || s.rights == rightsHeld)
		n.mu.Unlock()
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
