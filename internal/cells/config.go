package cells

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/calls"
	"github.com/elotl/kip/internal/gate"
	"github.com/elotl/kip/internal/lateness"
	"github.com/elotl/kip/internal/pulse"
	"github.com/elotl/kip/internal/store"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Config of a Controller. All fields are required unless they say otherwise.
type Config struct {
	// NodeName is the virtual node of cells whose record says none, as Kips with one node
	// wrote them.
	NodeName string
	// StandbyNode returns the virtual node that a standby cell is made for, by what it is
	// launched as: a pod of another node restarts its kubelet. Optional: NodeName.
	StandbyNode  func(Offer) string
	ControllerID string
	// Budgets are what namespaces may cost. Optional: as much as they want.
	Budgets []Budget
	// Calls are those to the cloud, as its budgets allow.
	Calls   *calls.Calls
	Store   *store.Store
	Tunnels Tunnels
	APIs    APIs
	// CAHash is that of the CA that signs. It goes into user data, so that a cell knows its
	// Kip.
	CAHash string
	// OldCAHash is that of the CA from before, by which some cells know Kip yet; "" for none.
	OldCAHash string
	// Gate is what every end goes through.
	Gate *gate.Gate
	// Shortages are told of each offer that the cloud did not serve.
	Shortages Shortages
	// Event reports to the pod's owner.
	Event func(pod apiv1.PodReference, kind, reason, message string)
	// Measured is told, once, of each cell whose Room is known. It must not block. Optional.
	Measured func(Cell)
	// TakenBack is told, once, of each spot cell whose instance the cloud announces to take
	// back. It must not block. Optional.
	TakenBack func(Offer)
	// SaveLogs keeps the container logs of a pod that has ended, which it asks its
	// cell's agent for.
	SaveLogs func(ctx context.Context, pod apiv1.PodReference, agent agentapi.Conn) error

	// ClusterDNS returns where pods ask for names, now; nil for nowhere. A cell is
	// told when it joins, and again if it changes before its pod is there.
	// Optional: pods then have no name server of the cluster.
	ClusterDNS          func() []netip.Addr
	ClusterDomain       string
	ReservedMemoryBytes int64
	RegistryMirrors     map[string][]string
	// HasPlugins says that cells may be given plugins.
	HasPlugins bool
	// Options are what standby cells are launched with.
	Options Options
	// NameTag is the value of the instances' Name tag.
	NameTag string
	// Pools are the standby cells to keep.
	Pools []Pool
	// RefillDelay is how long a pool waits once one of its cells is taken. Where
	// machines share processors, one that boots slows the start of that pod.
	RefillDelay time.Duration
	// Template names what cells are made of: image and settings. A standby cell of another
	// template, or of another cloud-init file, is replaced.
	Template string
	// CloudInit is the operator's cloud-init file. Optional: there is none.
	CloudInit CloudInit
	Health    Health
	// ListLag is the longest that the cloud's list lags behind a launch. 0 for
	// a cloud whose list does not.
	ListLag time.Duration
	// SoonPoll is the least time between two calls for the cloud's list.
	SoonPoll time.Duration
	// Late measures this process, and its owner runs it: a time in which Kip was late
	// is held against no cell. Nil for a Kip that is never late.
	Late *lateness.Meter
	// Pulse is told of the turns of the loops. Optional.
	Pulse *pulse.Pulse
	// Queues measures the work queue. Optional.
	Queues workqueue.MetricsProvider
	// Random is for jitter. Optional.
	Random backoff.Random
	Clock  clock.WithTicker
	Log    *slog.Logger
}
