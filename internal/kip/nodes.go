package kip

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/pods"
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
	ways     func() []cells.Way // to the cells that run pods, of all nodes
	failed   chan error         // ends Kip
	wake     chan struct{}      // asks for a look
	tasks    sync.WaitGroup
	loops    sync.WaitGroup
	revision int64 // of the stored roster; of keep, once it runs
	seen     sum   // of the file that cfg is of; the same
	// lingers is how long a node that was taken out stays cordoned without pods, asksAgain
	// the wait before a question that was not answered is asked again, and readsAgain how
	// long the object of a node that was read counts.
	lingers, asksAgain, readsAgain time.Duration
	turnsFor, turnsAgain           time.Duration // those of the constants

	reads reads

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
		leading:    l,
		pods:       watches.NewNodePods(),
		as:         l.api.nodeNamed,
		ways:       func() []cells.Way { return l.cells.Ways() },
		lingers:    nodesEvery,
		asksAgain:  nodesEvery,
		readsAgain: nodesEvery,
		turnsFor:   turnsFor,
		turnsAgain: turnsAgain,
		reads:      reads{objects: map[string]reading{}},
		failed:     make(chan error, 1),
		wake:       make(chan struct{}, 1),
		cfg:        l.cfg,
		served:     map[string]*served{},
	}
}

// begin makes, of what is configured now and what is stored, the nodes that are served
// first: the file may have changed since this process began, and another have led.
func (n *nodes) begin(ctx context.Context) (err error) {
	var stored []roster.Entry
	if n.revision, err = n.store.Get(ctx, nodesKey, &stored); err != nil {
		return err
	}
	entries, err := n.firstEntries(stored)
	if err != nil {
		return err
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

// firstEntries are of the file as it is. Where that is wrong, they are those of before,
// or of the configuration that this process began with.
func (n *nodes) firstEntries(stored []roster.Entry) ([]roster.Entry, error) {
	seen, err := fileSum(n.ProviderConfig)
	cfg := n.cfg
	if err == nil {
		cfg, _, err = config.Load(n.ProviderConfig)
	}
	if err == nil {
		var entries []roster.Entry
		if entries, err = n.assign(cfg, stored); err == nil {
			n.cfg, n.seen = cfg, seen
			n.sayWhatWaits(cfg)
			return entries, nil
		}
	}
	if len(stored) == 0 {
		return n.assign(n.cfg, nil)
	}
	n.Log.Error("the configuration is wrong: the virtual nodes are those of before", "err", err)
	for i := range stored {
		stored[i].Index = -1
	}
	return stored, nil
}

func (n *nodes) assign(cfg *config.Config, before []roster.Entry) ([]roster.Entry, error) {
	wanted, err := roster.Wanted(cfg, n.shop.Types(), before)
	if err != nil {
		return nil, err
	}
	entries, err := roster.Assign(before, wanted)
	if err != nil {
		return nil, fmt.Errorf("%s: nodes: %w", n.ProviderConfig, err)
	}
	if _, err := n.addresses(); err != nil { // not for the file to mend, as the next
		return nil, err
	}
	if _, err := n.taint(); err != nil {
		return nil, err
	}
	for _, e := range entries { // what is stored stays: nothing is that no node can be made of
		s, err := n.newServed(e)
		if err != nil {
			return nil, err
		}
		if _, err := n.object(cfg, s, e); err != nil {
			return nil, cfg.Problem(keyOf(cfg, e), "%v", err)
		}
	}
	return entries, nil
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

// names are those of the nodes that are served, in order of number.
func (n *nodes) names() (list []string) {
	for _, s := range n.all() {
		list = append(list, s.name)
	}
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
	return zones(types), zoneOf(entry), true
}

// zoneOf is where all disks of a node are, as it says of itself, or "". A zone that follows
// from the catalogue may be one of several tomorrow.
func zoneOf(e roster.Entry) string {
	if e.Number > 0 && len(e.Node.Zones) == 1 {
		return e.Node.Zones[0]
	}
	return ""
}

// standbyNode is the first node whose pods may be given a standby cell; Kip's own name
// where there is none.
func (n *nodes) standbyNode(o cells.Offer) string {
	name, _ := n.nodeOffering(o)
	return name
}

// nodeOffering is the first node that offers what a standby cell is, and that Kip may
// serve.
func (n *nodes) nodeOffering(o cells.Offer) (name string, is bool) {
	t := catalog.InstanceType{Name: o.InstanceType, Offerings: []catalog.Offering{{Zone: o.Zone, Spot: o.Spot, Dedicated: o.Dedicated}}}
	if types := n.shop.Types(); types != nil {
		if i := slices.IndexFunc(types, func(sold catalog.InstanceType) bool { return sold.Name == o.InstanceType }); i >= 0 {
			t.Arch = types[i].Arch
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		name := e.Name(n.NodeName)
		if s := n.served[name]; s == nil || s.rights == rightsMissing || s.rights == rightsForeign {
			continue
		}
		if !e.Removed && len(e.Limit().Of([]catalog.InstanceType{t})) > 0 {
			return name, true
		}
	}
	return n.NodeName, false
}

// shortage is why nothing that a node offers can be launched now; "" where something can.
func (n *nodes) shortage(s *served) string {
	entry, _ := n.entryOf(s.name)
	if entry.Plain() {
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
	return fmt.Sprintf("the cloud has no capacity now for any of the %d offerings of the node (%s)", count, entry.Limit())
}

// elsewhere are the nodes, in order of number, that the scheduler may give a pod of a node
// of spot alone instead, and that are not of spot alone.
func (n *nodes) elsewhere(ctx context.Context, pod *corev1.Pod) (list []string) {
	own := n.named(pod.Spec.NodeName)
	if own == nil {
		return nil
	}
	if e, _ := n.entryOf(own.name); e.CapacityType() != config.Spot {
		return nil
	}
	selects, log := nodeaffinity.GetRequiredNodeAffinity(pod), logr.FromSlogHandler(n.Log.Handler())
	keepsAway := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	for _, s := range n.all() {
		e, is := n.entryOf(s.name)
		if !is || e.Removed || e.CapacityType() == config.Spot || n.shortage(s) != "" {
			continue
		}
		there, err := n.read(ctx, s.name, n.readsAgain)
		if err != nil || there.Spec.Unschedulable || node.Foreign(there, n.controllerID) != nil {
			continue // it is asked again
		}
		_, bad := schedulinghelpers.FindMatchingUntoleratedTaint(log, there.Spec.Taints, pod.Spec.Tolerations, keepsAway, false)
		if fits, err := selects.Match(there); err == nil && fits && !bad {
			list = append(list, s.name)
		}
	}
	return list
}

const (
	// turnsFor is how long a spot node turns pods away which has something for others than
	// those that leave: three looks of each, and the time in which controllers make others.
	turnsFor = 90 * time.Second
	// turnsAgain is how long after the beginning it may again: it has capacity, whatever
	// keeps its pods from leaving, or brings them back.
	turnsAgain = 10 * time.Minute
)

// turnsAway says that the node of a pod has the taint of a shortage, which the pod does not
// tolerate. A node that has something for others gets it for a while for the sake of the
// pods that leave, but not time and again.
func (n *nodes) turnsAway(ctx context.Context, pod *corev1.Pod) bool {
	isShort := func(t corev1.Taint) bool { return t.Key == node.ShortTaint }
	s, log := n.named(pod.Spec.NodeName), logr.FromSlogHandler(n.Log.Handler())
	taint := corev1.Taint{Key: node.ShortTaint, Effect: corev1.TaintEffectNoSchedule}
	if s == nil || schedulinghelpers.TolerationsTolerateTaint(log, pod.Spec.Tolerations, &taint, false) {
		return false
	}
	if n.shortage(s) == "" {
		n.mu.Lock()
		if n.clock.Since(s.turns) >= n.turnsAgain {
			s.turns = n.clock.Now()
		}
		n.mu.Unlock()
		n.lookSoon()
	}
	there, err := n.read(ctx, s.name, min(n.readsAgain, readsSoon))
	return err == nil && slices.ContainsFunc(there.Spec.Taints, isShort)
}

// turning is why a node turns pods away that has something for some; "" if it does not.
func (n *nodes) turning(s *served) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.clock.Since(s.turns) < n.turnsFor {
		return "pods leave the node for which the cloud has no capacity; those that replace them would come back"
	}
	return ""
}

// lookSoon asks for a look at the nodes. It does not block.
func (n *nodes) lookSoon() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// hasPods says whether a node has pods that have not ended, or cells of pods, and
// whether they are all those of DaemonSets, which leave no node.
func (n *nodes) hasPods(s *served) (has, onlyDaemons bool) {
	daemons := map[string]bool{}
	onlyDaemons = true
	for _, pod := range podsOf(s.informer) {
		if pods.Ended(pod) {
			continue
		}
		daemon := ofDaemonSet(pod)
		daemons[string(pod.UID)] = daemon
		has, onlyDaemons = true, onlyDaemons && daemon
	}
	for _, cell := range n.cells.List() {
		if cell.Pod.UID != "" && n.cells.NodeOf(cell) == s.name {
			has = true
			onlyDaemons = onlyDaemons && daemons[string(cell.Pod.UID)]
		}
	}
	return has, onlyDaemons
}

func ofDaemonSet(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
}
