package nodes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// registry has the nodes that are served, and the configuration that is in force.
type registry struct {
	name    string               // of the node without a number
	base    kubernetes.Interface // acts as that node
	clients Clients
	pods    *watches.NodePods
	wake    chan struct{} // asks for a look

	mu sync.Mutex
	// cfg is the last good configuration: what it says of nodes holds.
	cfg     *config.Config
	entries []nodeplan.Entry
	served  map[string]*served
}

func newRegistry(c Config) (*registry, error) {
	base, err := c.Clients.As(c.Name)
	return &registry{
		name:    c.Name,
		base:    base,
		clients: c.Clients,
		pods:    watches.NewNodePods(),
		wake:    make(chan struct{}, 1),
		cfg:     c.Config,
		served:  map[string]*served{},
	}, err
}

// served is a virtual node that this process serves.
type served struct {
	name     string
	number   int // in the name
	asNode   kubernetes.Interface
	informer cache.SharedIndexInformer // of its pods
	kubelet  kubelet
	stop     context.CancelFunc // of the informer and the kubelet; nil before they run

	lost    chan struct{} // it has become another's
	once    sync.Once
	settled chan struct{} // closed when it is registered, or known that it may not be

	// Under registry.mu.
	entry  nodeplan.Entry
	node   *node.Node
	loop   *loop // that keeps its object; nil while none does
	rights rights
	found  corev1.ResourceList // capacity that was found out; nil before
	turns  time.Time           // when it last began to turn pods away for others that leave
	left   time.Time           // when a pod last was to leave it, since it had nothing for that
	// turnsLacks and leftLacks are what those pods lacked, for people.
	turnsLacks, leftLacks string
	out                   []string // kinds of what it offers that its capacity leaves out, since the cloud has none of them
	away                  string   // why it takes no pods now, for people

	// Of Controller.Keep.
	lacks   map[string]*lack // by kind
	short   shortage         // why it takes no pods now, as was told
	leaving time.Time        // since when it is cordoned and empty; zero if it is not
	deleted bool             // its object is, since it was taken out
}

// rights are whether Kip may serve a node.
type rights int

const (
	rightsUnknown rights = iota
	rightsMissing
	rightsForeign // the name is that of a machine, or of another Kip's node
	rightsHeld
)

func (s *served) settle() { s.once.Do(func() { close(s.settled) }) }

// newServed makes a node that is not served yet.
func (r *registry) newServed(e nodeplan.Entry) (*served, error) {
	s := &served{
		name:    e.Name(r.name),
		number:  e.Number,
		entry:   e,
		lost:    make(chan struct{}, 1),
		settled: make(chan struct{}),
	}
	var err error
	if s.asNode, err = r.clients.As(s.name); err != nil {
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

// serve has nodes served that were not, as their entries say.
func (r *registry) serve(entries []nodeplan.Entry) error {
	r.entries = entries
	for _, e := range entries {
		s, err := r.newServed(e)
		if err != nil {
			return err
		}
		r.served[s.name] = s
		if err := r.pods.Add(s.name, s.informer); err != nil {
			return err
		}
	}
	return nil
}

// Configuration is the last good one: what it says of nodes is in force.
func (r *registry) Configuration() *config.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cfg
}

// Identity is a node, and what acts as it.
type Identity struct {
	Name   string
	Client kubernetes.Interface
}

// Own are the nodes that are known to be Kip's own.
func (r *registry) Own() (list []Identity) {
	for _, s := range r.all() {
		if r.rightsOf(s) == rightsHeld {
			list = append(list, Identity{Name: s.name, Client: s.asNode})
		}
	}
	return list
}

// named returns a node that is served; nil for any other.
func (r *registry) named(name string) *served {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served[name]
}

// all are the nodes that are served, in order of number.
func (r *registry) all() []*served {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*served
	for _, s := range r.served {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *served) int { return a.number - b.number })
	return list
}

// Names are those of the nodes that are served, in order of number.
func (r *registry) Names() (list []string) {
	for _, s := range r.all() {
		list = append(list, s.name)
	}
	return list
}

// Client acts as a node.
func (r *registry) Client(name string) kubernetes.Interface {
	if s := r.named(name); s != nil {
		return s.asNode
	}
	return r.base
}

// Pods are those of all nodes.
func (r *registry) Pods() *watches.NodePods { return r.pods }

// ErrNotListed says that it is not known yet which pods there are.
var ErrNotListed = errors.New("the pods of the node are not listed yet")

// ListPods returns the pods of all nodes; ErrNotListed until they are known.
func (r *registry) ListPods() ([]*corev1.Pod, error) {
	if !r.pods.HasSynced() {
		return nil, ErrNotListed
	}
	return watches.List(r.pods), nil
}

// Listed says that the pods of a node are known; "" is the node by its own name.
func (r *registry) Listed(name string) bool {
	if name == "" {
		name = r.name
	}
	return r.pods.Listed(name)
}

// entryOf is what is configured of a node that is served.
func (r *registry) entryOf(name string) (e nodeplan.Entry, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.served[name]; s != nil {
		return s.entry, true
	}
	return e, false
}

// setRights notes what is known of the rights, and returns what was before.
func (r *registry) setRights(s *served, now rights) (before rights) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, s.rights = s.rights, now
	return before
}

func (r *registry) rightsOf(s *served) rights {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.rights
}

// awayOf returns why a node takes no pods now; "" if it does.
func (r *registry) awayOf(s *served) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.away
}

// LookSoon asks for a look at the nodes. It does not block.
func (r *registry) LookSoon() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
