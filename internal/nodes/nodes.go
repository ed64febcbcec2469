package nodes

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watchdog"
	"github.com/elotl/kip/internal/watches"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/clock"
)

// Key is where the plan of the nodes is stored, once there is more than the one node.
const Key = "nodes"

// askTimeout bounds a question to the API server.
const askTimeout = 10 * time.Second

// Config is what virtual nodes are made of.
type Config struct {
	// Name is that of the node without a number; the names of the others begin with it.
	Name         string
	ControllerID string
	// File is the path of provider.yaml, and Config what this process has read there.
	File   string
	Config *config.Config

	Store         *store.Store // fenced
	InstanceTypes InstanceTypes
	// Shortages are what is known to be out of capacity.
	Shortages Shortages
	// Bounder is the cloud, where that knows how much can be launched. Optional.
	Bounder Bounder
	// Region is the cloud's; "" where it has none.
	Region string
	// HasDisks says that the cloud makes disks for claims.
	HasDisks bool
	// CloudDriver is the cloud's own, whose disks Kip attaches. Optional.
	CloudDriver volumes.CloudDriver

	Client  kubernetes.Interface // Kip's own
	Reviews kubernetes.Interface // the same, for token reviews and subject access reviews of the callers of kubelet ports
	Clients Clients              // of nodes
	// Recorder reports Events.
	Recorder record.EventRecorder
	// Flags are those of this process.
	Flags Flags
	// KubeletPort is that of the node without a number.
	KubeletPort int

	Watchdog *watchdog.Watchdog
	Clock    clock.WithTickerAndDelayedExecution
	Log      *slog.Logger
}

// Equipment is what Kip makes once it has nodes, and what they use of it. All is required
// but ClientCA.
type Equipment struct {
	Cells        Cells
	Endpoints    Endpoints
	Observer     Observer
	Logs         node.SavedLogs
	Certificates Certificates
	ClientCA     dynamiccertificates.CAContentProvider // as in node.PortConfig
}

// Shortages are what is known to be out of capacity.
type Shortages interface {
	// Unavailable reports whether an offering is.
	Unavailable(offering.Key) bool
	// List returns them.
	List() []capacity.Shortage
}

// Clients are the ways to the API server as one of its nodes.
type Clients interface {
	// As acts as a node.
	As(node string) (kubernetes.Interface, error)
}

// Flags are what the flags of this process, and its environment, say of all nodes.
type Flags interface {
	// Addresses are where the API server reaches this Kip: one, or one of each family.
	Addresses() ([]netip.Addr, error)
	// Taint is that of all nodes; nil where they have none.
	Taint() (*corev1.Taint, error)
}

// Endpoints are the agents of the cells of pods.
type Endpoints interface {
	// To is the way to the cells of a node's pods.
	To(pods cache.Store) node.Cells
	// Running are the cells that run a pod of a node now.
	Running(node string) []stats.Cell
}

// Certificates are those of kubelet ports.
type Certificates interface {
	// Certificate returns that of a node, whose port has these addresses.
	Certificate(ctx context.Context, node string, addresses []netip.Addr) (Certificate, error)
	// KeepOnly deletes what is stored for other nodes than these.
	KeepOnly(ctx context.Context, nodes []string)
}

// Certificate is the certificate of a kubelet port.
type Certificate interface {
	// GetCertificate is for a server's tls.Config.
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Run keeps the certificate valid until ctx ends.
	Run(ctx context.Context) error
}

// Observer is told what becomes of nodes.
type Observer interface {
	// StatsGathered is told of each gathering of what pods use, as in stats.Config.
	StatsGathered(endpoint string, took time.Duration, missed map[stats.Miss]int)
	// Kubelet answers for /metrics and /metrics/slis of a node's kubelet port.
	Kubelet(metrics.KubeletConfig) http.Handler
	// NodeGone is told of a node that is served no more.
	NodeGone(node string)
}

// InstanceTypes is the catalogue as it is now.
type InstanceTypes interface {
	Types() []catalog.InstanceType
	// OfNode returns what a node offers, and what chooses out of that.
	OfNode(name string, limit placement.Limit) ([]catalog.InstanceType, *placement.Placer, error)
}

// Cells are the cells of the nodes' pods.
type Cells interface {
	List() []cells.Cell
	// NodeOf is the name of the node that a cell is of.
	NodeOf(cells.Cell) string
	// NodesChanged says that cells may be of other nodes than before.
	NodesChanged()
}

var (
	_ Cells       = (*cells.Controller)(nil)
	_ Shortages   = (*capacity.Shortages)(nil)
	_ cells.Nodes = (*Nodes)(nil)
)

// Nodes are the virtual nodes that a process serves while it leads.
type Nodes struct {
	c        Config
	made     Equipment // once it is made
	base     kubernetes.Interface
	pods     *watches.NodePods
	failed   chan error    // ends Kip
	wake     chan struct{} // asks for a look
	tasks    sync.WaitGroup
	loops    sync.WaitGroup
	revision int64 // of the stored plan; of Keep, once it runs
	seen     sum   // of the file that cfg is of; the same
	// lingers is how long a node that was taken out stays cordoned without pods, asksAgain
	// the wait before a question that was not answered is asked again, and readsAgain how
	// long the object of a node that was read counts.
	lingers, asksAgain, readsAgain time.Duration
	turnsFor, turnsAgain           time.Duration // those of the constants
	// listen opens a kubelet port.
	listen func(ctx context.Context, address string) (net.Listener, error)

	reads  reads
	bounds bounds

	mu sync.Mutex
	// cfg is the last good configuration: what it says of nodes holds.
	cfg     *config.Config
	entries []nodeplan.Entry
	served  map[string]*served
	found   map[string]corev1.ResourceList // capacity that was found out, by node
	follows context.Context                // of what every served node has, once it runs
	keeps   context.Context                // of the nodes' objects, once they are kept
}

// Open finds out which virtual nodes there are, and stores that. They are served once
// they are equipped, and Follow and Keep run.
func Open(ctx context.Context, c Config) (*Nodes, error) {
	n := newNodes(c)
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

func newNodes(c Config) *Nodes {
	return &Nodes{
		c:          c,
		pods:       watches.NewNodePods(),
		lingers:    LookEvery,
		asksAgain:  LookEvery,
		readsAgain: LookEvery,
		turnsFor:   turnsFor,
		turnsAgain: turnsAgain,
		listen:     listen,
		reads:      reads{objects: map[string]reading{}},
		failed:     make(chan error, 1),
		wake:       make(chan struct{}, 1),
		cfg:        c.Config,
		served:     map[string]*served{},
		found:      map[string]corev1.ResourceList{},
	}
}

// Equip makes what the API server sees of the nodes, and what answers it like their
// kubelets. Close ends that, also after an error.
func (n *Nodes) Equip(ctx context.Context, made Equipment) (err error) {
	n.made = made
	for _, s := range n.all() {
		if err := n.equip(ctx, s); err != nil {
			return err
		}
		cfg := n.cfg // of the file as it is: this process may have begun with another
		if s.node, err = n.object(cfg, s, s.entry); err != nil {
			return cfg.Problem(keyOf(cfg, s.entry), "%v", err)
		}
	}
	n.keepCertificates(ctx)
	return nil
}

// keepCertificates deletes the stored certificates of nodes that are gone.
func (n *Nodes) keepCertificates(ctx context.Context) {
	var names []string
	for _, s := range n.all() {
		names = append(names, s.name)
	}
	n.made.Certificates.KeepOnly(ctx, names)
}

// Close closes the kubelet ports of nodes that are not followed, or no more.
func (n *Nodes) Close() {
	for _, s := range n.all() {
		if s.listener == nil {
			continue
		}
		if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			n.c.Log.Warn("close the kubelet port", "node", s.name, "err", err)
		}
	}
}

// begin makes, of what is configured now and what is stored, the nodes that are served
// first: the file may have changed since this process began, and another have led.
func (n *Nodes) begin(ctx context.Context) (err error) {
	if n.base, err = n.c.Clients.As(n.c.Name); err != nil {
		return err
	}
	var stored []nodeplan.Entry
	if n.revision, err = n.c.Store.Get(ctx, Key, &stored); err != nil {
		return err
	}
	entries, err := n.firstEntries(stored)
	if err != nil {
		return err
	}
	if err := n.keepPlan(ctx, stored, entries); err != nil {
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
func (n *Nodes) firstEntries(stored []nodeplan.Entry) ([]nodeplan.Entry, error) {
	seen, err := fileSum(n.c.File)
	cfg := n.cfg
	if err == nil {
		cfg, _, err = config.Load(n.c.File)
	}
	if err == nil {
		var entries []nodeplan.Entry
		if entries, err = n.assign(cfg, stored); err == nil {
			n.cfg, n.seen = cfg, seen
			n.sayWhatWaits(cfg)
			return entries, nil
		}
	}
	if len(stored) == 0 {
		return n.assign(n.cfg, nil)
	}
	n.c.Log.Error("the configuration is wrong: the virtual nodes are those of before", "err", err)
	for i := range stored {
		stored[i].Index = -1
	}
	return stored, nil
}

func (n *Nodes) assign(cfg *config.Config, before []nodeplan.Entry) ([]nodeplan.Entry, error) {
	wanted, err := nodeplan.Wanted(cfg, n.c.InstanceTypes.Types(), before)
	if err != nil {
		return nil, err
	}
	entries, err := nodeplan.Assign(before, wanted)
	if err != nil {
		return nil, fmt.Errorf("%s: nodes: %w", n.c.File, err)
	}
	if _, err := n.c.Flags.Addresses(); err != nil { // not for the file to mend, as the next
		return nil, err
	}
	if _, err := n.c.Flags.Taint(); err != nil {
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

// keepPlan stores the plan before anything is made of it. The one node of a Kip
// that names none needs no record.
func (n *Nodes) keepPlan(ctx context.Context, before, now []nodeplan.Entry) (err error) {
	same := func(a, b nodeplan.Entry) bool {
		a.Index, b.Index = 0, 0
		return reflect.DeepEqual(a, b)
	}
	if slices.EqualFunc(before, now, same) || n.revision == 0 && len(now) == 1 && now[0].Plain() {
		return nil
	}
	n.revision, err = n.c.Store.Put(ctx, Key, now, n.revision)
	if err != nil {
		return fmt.Errorf("store the virtual nodes: %w", err)
	}
	return nil
}

// Configuration is the last good one: what it says of nodes is in force.
func (n *Nodes) Configuration() *config.Config {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cfg
}

// Identity is a node, and what acts as it.
type Identity struct {
	Name   string
	Client kubernetes.Interface
}

// Own are the nodes that are known to be Kip's own.
func (n *Nodes) Own() (list []Identity) {
	for _, s := range n.all() {
		if n.rightsOf(s) == rightsHeld {
			list = append(list, Identity{Name: s.name, Client: s.asNode})
		}
	}
	return list
}

// named returns a node that is served; nil for any other.
func (n *Nodes) named(name string) *served {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.served[name]
}

// all are the nodes that are served, in order of number.
func (n *Nodes) all() []*served {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []*served
	for _, s := range n.served {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *served) int { return a.number - b.number })
	return list
}

// Names are those of the nodes that are served, in order of number.
func (n *Nodes) Names() (list []string) {
	for _, s := range n.all() {
		list = append(list, s.name)
	}
	return list
}

// Client acts as a node.
func (n *Nodes) Client(name string) kubernetes.Interface {
	if s := n.named(name); s != nil {
		return s.asNode
	}
	return n.base
}

// Pods are those of all nodes.
func (n *Nodes) Pods() *watches.NodePods { return n.pods }

// ListPods returns the pods of all nodes; ErrNotListed until they are known.
func (n *Nodes) ListPods() ([]*corev1.Pod, error) {
	if !n.pods.HasSynced() {
		return nil, ErrNotListed
	}
	return watches.List(n.pods), nil
}

// Listed says that the pods of a node are known; "" is the node by its own name.
func (n *Nodes) Listed(name string) bool {
	if name == "" {
		name = n.c.Name
	}
	return n.pods.Listed(name)
}

// entryOf is what is configured of a node that is served.
func (n *Nodes) entryOf(name string) (e nodeplan.Entry, is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.served[name]; s != nil {
		return s.entry, true
	}
	return e, false
}

// Zones are those where a node's pods can be, the preferred one first, and the zone
// that the node says it is in, if it is one; false for a node that is not Kip's.
func (n *Nodes) Zones(name string) (list []string, only string, ours bool) {
	entry, ours := n.entryOf(name)
	if !ours {
		return nil, "", false
	}
	types, _, err := n.offerings(name)
	if err != nil {
		n.c.Log.Error("the zones of a virtual node cannot be told", "node", name, "err", err)
		return nil, "", true
	}
	return zonesOf(types), zoneOf(entry), true
}

// zoneOf is where all disks of a node are, as it says of itself, or "". A zone that follows
// from the catalogue may be one of several tomorrow.
func zoneOf(e nodeplan.Entry) string {
	if e.Number > 0 && len(e.Node.Zones) == 1 {
		return e.Node.Zones[0]
	}
	return ""
}

// StandbyNode is the first node whose pods may be given a standby cell; Kip's own name
// where there is none.
func (n *Nodes) StandbyNode(o cells.Offering) string {
	name, _ := n.NodeWith(o)
	return name
}

// NodeWith is the first node that offers what a standby cell is, and that Kip may
// serve.
func (n *Nodes) NodeWith(o cells.Offering) (name string, is bool) {
	t := catalog.InstanceType{Name: o.InstanceType, Offerings: []catalog.Offering{{Zone: o.Zone, Spot: o.Spot, Dedicated: o.Dedicated}}}
	if types := n.c.InstanceTypes.Types(); types != nil {
		if i := slices.IndexFunc(types, func(sold catalog.InstanceType) bool { return sold.Name == o.InstanceType }); i >= 0 {
			t.Arch = types[i].Arch
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		name := e.Name(n.c.Name)
		if s := n.served[name]; s == nil || s.rights == rightsMissing || s.rights == rightsForeign {
			continue
		}
		if !e.Removed && len(e.Limit().Of([]catalog.InstanceType{t})) > 0 {
			return name, true
		}
	}
	return n.c.Name, false
}

// shortage is why nothing that a node offers can be launched now; "" where something can.
func (n *Nodes) shortage(s *served) string {
	entry, _ := n.entryOf(s.name)
	if entry.Plain() {
		return "" // its pods are told one by one, as they ever were
	}
	types, _, err := n.offerings(s.name)
	if err != nil {
		n.c.Log.Error("what a virtual node offers cannot be told", "node", s.name, "err", err)
		return ""
	}
	count := 0
	for _, t := range types {
		for _, o := range t.Offerings {
			count++
			if !n.c.Shortages.Unavailable(offering.KeyOf(&t, &o)) {
				return ""
			}
		}
	}
	if count == 0 {
		return "the cloud no longer offers anything that the node has"
	}
	return fmt.Sprintf("the cloud has no capacity now for any of the %d offerings of the node (%s)", count, entry.Limit())
}

// Elsewhere are the nodes, in order of number, that the scheduler may give a pod instead of
// its own, and that are not of spot alone. Its own must be one that pods may leave.
func (n *Nodes) Elsewhere(ctx context.Context, pod *corev1.Pod) (list []string) {
	own := n.named(pod.Spec.NodeName)
	if own == nil || !n.mayBeLeft(own) {
		return nil
	}
	selects, log := nodeaffinity.GetRequiredNodeAffinity(pod), logr.FromSlogHandler(n.c.Log.Handler())
	keepsAway := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	for _, s := range n.all() {
		e, is := n.entryOf(s.name)
		if !is || e.Removed || e.CapacityType() == config.Spot || n.shortage(s) != "" {
			continue
		}
		there, err := n.read(ctx, s.name, n.readsAgain)
		if err != nil || there.Spec.Unschedulable || node.Foreign(there, n.c.ControllerID) != nil {
			continue // it is asked again
		}
		_, bad := schedulinghelpers.FindMatchingUntoleratedTaint(log, there.Spec.Taints, pod.Spec.Tolerations, keepsAway, false)
		if fits, err := selects.Match(there); err == nil && fits && !bad {
			list = append(list, s.name)
		}
	}
	return list
}

// mayBeLeft says that pods may leave a node which has nothing for them: one of spot alone, and
// any that has nothing for anybody, as when its zone fails. What one on demand lacks for some
// pods alone is theirs to wait for.
func (n *Nodes) mayBeLeft(s *served) bool {
	e, _ := n.entryOf(s.name)
	return e.CapacityType() == config.Spot || n.shortage(s) != ""
}

const (
	// turnsFor is how long a spot node turns pods away which has something for others than
	// those that leave: three looks of each, and the time in which controllers make others.
	turnsFor = 90 * time.Second
	// turnsAgain is how long after the beginning it may again: it has capacity, whatever
	// keeps its pods from leaving, or brings them back.
	turnsAgain = 10 * time.Minute
)

// TurnsAway says that no node of spot alone would get the pod that replaces this one and
// have nothing for it either: its own, others that have nothing for it now, and those that
// such pods have left lately. Each has a taint that the pod does not tolerate. Those that
// have something for others get that of a shortage for a while, for the sake of the pods
// that leave, but not time and again.
func (n *Nodes) TurnsAway(ctx context.Context, pod *corev1.Pod) bool {
	own, log := n.named(pod.Spec.NodeName), logr.FromSlogHandler(n.c.Log.Handler())
	short := corev1.Taint{Key: node.ShortTaint, Effect: corev1.TaintEffectNoSchedule}
	if own == nil || !n.mayBeLeft(own) || schedulinghelpers.TolerationsTolerateTaint(log, pod.Spec.Tolerations, &short, false) {
		return false
	}
	selects := nodeaffinity.GetRequiredNodeAffinity(pod)
	keepsAway := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	take := map[*served]string{}
	for _, s := range n.all() {
		if s != own && !n.isSpot(s) {
			continue
		}
		there, err := n.read(ctx, s.name, min(n.readsAgain, readsSoon))
		if err != nil {
			return false
		}
		if _, away := schedulinghelpers.FindMatchingUntoleratedTaint(log, there.Spec.Taints, pod.Spec.Tolerations, keepsAway, false); away {
			continue
		}
		nothing, lacks := n.hasNothing(ctx, s, pod)
		if fits, err := selects.Match(there); s == own || err == nil && fits && nothing {
			take[s] = lacks
		}
	}
	if len(take) > 0 {
		n.turn(take)
		return false
	}
	_, lacks := n.hasNothing(ctx, own, pod)
	n.mu.Lock()
	own.left, own.leftLacks = n.c.Clock.Now(), lacks
	n.mu.Unlock()
	return true
}

// isSpot says that pods are given a node of spot alone.
func (n *Nodes) isSpot(s *served) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return s.rights == rightsHeld && !s.entry.Removed && s.entry.CapacityType() == config.Spot
}

// hasNothing says that a node has nothing for a pod of another, or had not lately, and what
// that is: what it lacked is not asked for when no pod waits for it.
func (n *Nodes) hasNothing(ctx context.Context, s *served, pod *corev1.Pod) (nothing bool, lacks string) {
	n.mu.Lock()
	left := n.c.Clock.Since(s.left) < 2*n.turnsAgain
	if left {
		lacks = s.leftLacks
	}
	n.mu.Unlock()
	there := *pod
	there.Spec.NodeName = s.name
	_, err := n.Choose(ctx, &there, "")
	if none, is := errors.AsType[*placement.NoCapacityError](err); is && len(none.Types) > 0 {
		lacks = n.offeringsOf(s, none.Types)
	}
	return left || err != nil, lacks
}

// mostNamed is how many of a list people are told.
const mostNamed = 5

// offeringsOf says how and where a node offers types, at least one, for people: "large or
// xlarge as spot in zone a".
func (n *Nodes) offeringsOf(s *served, names []string) string {
	anyOf := func(list []string) string {
		if more := len(list) - mostNamed; more > 0 {
			list = append(slices.Clone(list[:mostNamed]), fmt.Sprintf("%d more", more))
		}
		last := len(list) - 1
		return strings.TrimPrefix(strings.Join(list[:last], ", ")+" or "+list[last], " or ")
	}
	is := anyOf(names)
	if e, _ := n.entryOf(s.name); e.CapacityType() != "" {
		is += " as " + e.CapacityType()
	}
	types, _, err := n.offerings(s.name)
	if err != nil { // it was offered a moment ago
		return is
	}
	types = slices.DeleteFunc(slices.Clone(types), func(t catalog.InstanceType) bool { return !slices.Contains(names, t.Name) })
	zones := zonesOf(types)
	slices.Sort(zones)
	if len(zones) > 0 {
		is += " in zone " + anyOf(zones)
	}
	return is
}

// turn has spot nodes turn pods away together, once all may; each for what it lacks. Any
// other gets its taint for a shortage that it has, and may have no more.
func (n *Nodes) turn(take map[*served]string) {
	maps.DeleteFunc(take, func(s *served, _ string) bool { return !n.isSpot(s) })
	maps.DeleteFunc(take, func(s *served, _ string) bool { return cmp.Or(n.shortage(s), n.turning(s)) != "" })
	n.mu.Lock()
	now, all := n.c.Clock.Now(), true
	for s := range take {
		all = all && now.Sub(s.turns) >= n.turnsAgain
	}
	for s, lacks := range take {
		if all {
			s.turns, s.turnsLacks = now, cmp.Or(lacks, "what pods have left the node for")
		}
	}
	n.mu.Unlock()
	n.LookSoon()
}

// turning is for want of what a node turns pods away that has something for some; "" if it
// does not.
func (n *Nodes) turning(s *served) (lacks string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.c.Clock.Since(s.turns) < n.turnsFor {
		return s.turnsLacks
	}
	return ""
}

// LookSoon asks for a look at the nodes. It does not block.
func (n *Nodes) LookSoon() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// hasPods says whether a node has pods that have not ended, or cells of pods, and
// whether they are all those of DaemonSets, which leave no node.
func (n *Nodes) hasPods(s *served) (has, onlyDaemons bool) {
	daemons := map[string]bool{}
	onlyDaemons = true
	for _, pod := range watches.List(s.informer) {
		if watches.Ended(pod) {
			continue
		}
		daemon := ofDaemonSet(pod)
		daemons[string(pod.UID)] = daemon
		has, onlyDaemons = true, onlyDaemons && daemon
	}
	for _, cell := range n.made.Cells.List() {
		if cell.Pod.UID != "" && n.made.Cells.NodeOf(cell) == s.name {
			has = true
			onlyDaemons = onlyDaemons && daemons[string(cell.Pod.UID)]
		}
	}
	return has, onlyDaemons
}

func ofDaemonSet(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
}

// zonesOf are where the catalogue has offerings, that of the cheapest one first.
func zonesOf(types []catalog.InstanceType) (all []string) {
	var offerings []catalog.Offering
	for _, t := range types {
		offerings = append(offerings, t.Offerings...)
	}
	slices.SortStableFunc(offerings, func(a, b catalog.Offering) int {
		return cmp.Or(a.ComparePrice(b), cmp.Compare(a.Zone, b.Zone))
	})
	for _, o := range offerings {
		if !slices.Contains(all, o.Zone) {
			all = append(all, o.Zone)
		}
	}
	return all
}
