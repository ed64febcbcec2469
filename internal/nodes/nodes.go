package nodes

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watchdog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
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

// InstanceTypes is the catalogue as it is now.
type InstanceTypes interface {
	Types() []catalog.InstanceType
	// OfNode returns what a node offers, and what chooses out of that.
	OfNode(name string, limit placement.Limit) ([]catalog.InstanceType, *placement.Placer, error)
}

var (
	_ Shortages   = (*capacity.Shortages)(nil)
	_ cells.Nodes = (*Nodes)(nil)
)

// Nodes are the virtual nodes that a process serves while it leads: which there are, what they offer, and which of
// them a pod may leave. A Controller serves them.
type Nodes struct {
	*registry
	*offers
	*departures
	plan    *plan
	labels  *labels
	objects *objects
	reads   *reads
	c       Config
}

// Open finds out which virtual nodes there are, and stores that.
func Open(ctx context.Context, c Config) (*Nodes, error) {
	n, err := newNodes(c)
	if err != nil {
		return nil, err
	}
	return n, n.begin(ctx)
}

func newNodes(c Config) (*Nodes, error) {
	registry, err := newRegistry(c)
	if err != nil {
		return nil, err
	}
	reads := newReads(c, registry)
	labels := &labels{
		c:     c,
		nodes: registry,
		reads: reads,
	}
	offers := &offers{
		nodes:     registry,
		types:     c.InstanceTypes,
		shortages: c.Shortages,
		labels:    labels,
		reads:     reads,
		log:       c.Log,
	}
	departures := &departures{
		nodes:        registry,
		offers:       offers,
		reads:        reads,
		controllerID: c.ControllerID,
		clock:        c.Clock,
		log:          c.Log,
		turnsFor:     turnsFor,
		turnsAgain:   turnsAgain,
	}
	objects := &objects{
		c:      c,
		nodes:  registry,
		labels: labels,
	}
	plan := &plan{
		c:       c,
		nodes:   registry,
		objects: objects,
	}
	return &Nodes{registry, offers, departures, plan, labels, objects, reads, c}, nil
}

// begin has the nodes of the plan served.
func (n *Nodes) begin(ctx context.Context) error {
	entries, err := n.plan.open(ctx)
	if err != nil {
		return err
	}
	return n.serve(entries)
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
