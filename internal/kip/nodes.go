package kip

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/roster"
	"github.com/elotl/kip/internal/watches"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// nodesKey is where the roster is stored, once there is more than the one node.
const nodesKey = "nodes"

// nodes are the virtual nodes that a process serves while it leads.
type nodes struct {
	*leading
	pods     *watches.NodePods
	as       func(name, base string) (kubernetes.Interface, error)
	failed   chan error    // ends Kip
	wake     chan struct{} // asks for a look
	tasks    sync.WaitGroup
	loops    sync.WaitGroup
	revision int64 // of the stored roster; of keep, once it runs

	mu sync.Mutex
	// cfg is the last good configuration: what it says of nodes holds.
	cfg     *config.Config
	entries []roster.Entry
	served  map[string]*served
	follows context.Context // of what every served node has, once it runs
	keeps   context.Context // of the nodes' objects, once they are kept
}

// wireNodes finds out which virtual nodes there are.
func (l *leading) wireNodes(ctx context.Context) error {
	l.nodes = l.newNodes()
	return l.nodes.begin(ctx)
}

func (l *leading) newNodes() *nodes {
	return &nodes{
		leading: l,
		pods:    watches.NewNodePods(),
		as:      l.api.nodeNamed,
		failed:  make(chan error, 1),
		wake:    make(chan struct{}, 1),
		cfg:     l.cfg,
		served:  map[string]*served{},
	}
}

// begin makes, of what is configured and what is stored, the nodes that are served first.
func (n *nodes) begin(ctx context.Context) (err error) {
	var stored []roster.Entry
	if n.revision, err = n.store.Get(ctx, nodesKey, &stored); err != nil {
		return err
	}
	wanted, err := roster.Wanted(n.cfg, n.shop.Types())
	if err != nil {
		return err
	}
	entries, err := roster.Assign(stored, wanted)
	if err != nil {
		return fmt.Errorf("%s: nodes: %w", n.ProviderConfig, err)
	}
	if err := n.keepRoster(ctx, stored, entries); err != nil {
		return err
	}
	n.entries = entries
	for _, e := range entries {
		s, err := n.newServed(e)
		if err != nil {
			return err
		}
		n.served[s.name] = s
		if err := n.pods.Add(s.name, s.informer); err != nil {
			return err
		}
	}
	return nil
}

// keepRoster stores the roster before anything is made of it. The one node of a Kip
// that names none needs no record.
func (n *nodes) keepRoster(ctx context.Context, before, now []roster.Entry) (err error) {
	same := func(a, b roster.Entry) bool {
		a.Index, b.Index = 0, 0
		return reflect.DeepEqual(a, b)
	}
	if slices.EqualFunc(before, now, same) || n.revision == 0 && len(now) == 1 && now[0].Plain() {
		return nil
	}
	n.revision, err = n.store.Put(ctx, nodesKey, now, n.revision)
	if err != nil {
		return fmt.Errorf("store the virtual nodes: %w", err)
	}
	return nil
}

// named returns a node that is served; nil for any other.
func (n *nodes) named(name string) *served {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.served[name]
}

// all are the nodes that are served, in order of number.
func (n *nodes) all() []*served {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []*served
	for _, s := range n.served {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *served) int { return a.number - b.number })
	return list
}

// client acts as a node.
func (n *nodes) client(name string) kubernetes.Interface {
	if s := n.named(name); s != nil {
		return s.asNode
	}
	return n.api.asNode
}

// listed says that the pods of a node are known; "" is the node by its own name.
func (n *nodes) listed(name string) bool {
	if name == "" {
		name = n.NodeName
	}
	return n.pods.Listed(name)
}

// entryOf is what is configured of a node that is served.
func (n *nodes) entryOf(name string) (e roster.Entry, is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.served[name]; s != nil {
		return s.entry, true
	}
	return e, false
}

// offers are what a node offers, and what chooses for its pods.
func (n *nodes) offers(name string) ([]catalog.InstanceType, *placement.Placer, error) {
	entry, _ := n.entryOf(name)
	return n.shop.OfNode(name, entry.Limit())
}

// zonesOf are those where a node's pods can be, the preferred one first, and the zone
// that the node says it is in, if it is one; false for a node that is not Kip's.
func (n *nodes) zonesOf(name string) (list []string, only string, ours bool) {
	entry, ours := n.entryOf(name)
	if !ours {
		return nil, "", false
	}
	types, _, err := n.offers(name)
	if err != nil {
		n.Log.Error("the zones of a virtual node cannot be told", "node", name, "err", err)
		return nil, "", true
	}
	if entry.Number > 0 {
		only = entry.Zone(types)
	}
	return zones(types), only, true
}

// standbyNode is the first node whose pods may be given a standby cell.
func (n *nodes) standbyNode(o cells.Offer) string {
	t := catalog.InstanceType{Name: o.InstanceType, Offerings: []catalog.Offering{{Zone: o.Zone, Spot: o.Spot, Dedicated: o.Dedicated}}}
	if types := n.shop.Types(); types != nil {
		if i := slices.IndexFunc(types, func(sold catalog.InstanceType) bool { return sold.Name == o.InstanceType }); i >= 0 {
			t.Arch = types[i].Arch
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		if !e.Removed && len(e.Limit().Of([]catalog.InstanceType{t})) > 0 {
			return e.Name(n.NodeName)
		}
	}
	return n.NodeName
}

// shortage is why nothing that a node offers can be launched now; "" where something can.
func (n *nodes) shortage(s *served) string {
	if s.entry.Plain() {
		return "" // its pods are told one by one, as they ever were
	}
	types, _, err := n.offers(s.name)
	if err != nil {
		n.Log.Error("what a virtual node offers cannot be told", "node", s.name, "err", err)
		return ""
	}
	count := 0
	for _, t := range types {
		for _, o := range t.Offerings {
			count++
			if !n.shortages.shortages.Unavailable(capacity.Offering{
				InstanceType: t.Name,
				Zone:         o.Zone,
				Subnet:       o.Subnet,
				Spot:         o.Spot,
				Family:       t.Family,
			}) {
				return ""
			}
		}
	}
	if count == 0 {
		return "the cloud offers nothing of what the node has any more"
	}
	return fmt.Sprintf("the cloud has no capacity now for any of the %d offerings of the node (%s)", count, s.entry.Limit())
}

// elsewhere are the nodes, in order of number, that the scheduler may give a pod of a node
// of spot alone instead, and that are not of spot alone.
func (n *nodes) elsewhere(pod *corev1.Pod) (list []string) {
	if own, _ := n.entryOf(pod.Spec.NodeName); own.CapacityType() != config.Spot {
		return nil
	}
	taint, err := n.taint()
	if err != nil {
		return nil // Kip does not start with that
	}
	selects, log := nodeaffinity.GetRequiredNodeAffinity(pod), logr.FromSlogHandler(n.Log.Handler())
	keepsAway := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	for _, s := range n.all() {
		e, is := n.entryOf(s.name)
		if !is || e.Removed || e.CapacityType() == config.Spot || n.shortage(s) != "" {
			continue
		}
		labels, err := n.labelsOf(s.name)
		if err != nil {
			n.Log.Error("the labels of a virtual node cannot be told", "node", s.name, "err", err)
			continue
		}
		taints := taintsOf(e)
		if taint != nil {
			taints = append(taints, *taint)
		}
		_, bad := schedulinghelpers.FindMatchingUntoleratedTaint(log, taints, pod.Spec.Tolerations, keepsAway, false)
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: labels}}
		if fits, err := selects.Match(&node); err == nil && fits && !bad {
			list = append(list, s.name)
		}
	}
	return list
}

// lookSoon asks for a look at the nodes. It does not block.
func (n *nodes) lookSoon() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// hasPods says whether a node has pods, or cells of pods, and whether they are all
// those of DaemonSets, which leave no node.
func (n *nodes) hasPods(s *served) (has, onlyDaemons bool) {
	daemons := map[string]bool{}
	list := podsOf(s.informer)
	onlyDaemons = true
	for _, pod := range list {
		daemon := slices.ContainsFunc(pod.OwnerReferences, func(o ownerReference) bool { return o.Kind == "DaemonSet" })
		daemons[string(pod.UID)] = daemon
		onlyDaemons = onlyDaemons && daemon
	}
	has = len(list) > 0
	for _, cell := range n.cells.List() {
		if cell.Pod.UID != "" && n.cells.NodeOf(cell) == s.name {
			has = true
			onlyDaemons = onlyDaemons && daemons[string(cell.Pod.UID)]
		}
	}
	return has, onlyDaemons
}
