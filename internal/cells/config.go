package cells

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/credentialproviders"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/stall"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// NodeEvents are those of virtual nodes. Event does not block.
type NodeEvents interface {
	Event(node string, e events.Event)
}

// Config of a Controller. All fields are required unless they say otherwise.
type Config struct {
	// NodeName is the virtual node of cells whose record says none, as Kips with one node
	// wrote them.
	NodeName string
	// Nodes are the virtual nodes. Optional: there is the one of NodeName.
	Nodes        Nodes
	ControllerID string
	// TermBegan is when this process began its term, by Clock. Optional: when it loads the records.
	TermBegan time.Time
	// Budgets are what namespaces may cost. Optional: as much as they want.
	Budgets []Budget
	// Calls are those to the cloud. Guard guards them.
	Calls *pipe.Pipe
	Store *store.Store
	// Generation is that of Store, which the Guard asks. Optional: without it nothing else does.
	Generation *StoreGeneration
	Tunnels    Tunnels
	APIs       APIs
	// CAHash is that of the CA that signs. It goes into user data, so that a cell knows its
	// Kip.
	CAHash string
	// OldCAHash is that of the CA from before, by which some cells know Kip yet; "" for none.
	OldCAHash string
	// Guard decides about every end.
	Guard *guard.Guard
	// Shortages are told of each offering that the cloud did not serve.
	Shortages Shortages
	// Meter tells how much of a cell's machine its pod has used. Optional.
	Meter Meter
	// Events are those of the cells' pods.
	Events Recorder
	// Logs are those of pods that have ended.
	Logs Logs

	// ClusterDNS is told to a cell when it joins, and again if it changes before its pod is
	// there. Optional: pods then have no name server of the cluster.
	ClusterDNS          ClusterDNS
	ClusterDomain       string
	ReservedMemoryBytes int64
	RegistryMirrors     map[string][]string
	// Registries are those that cells reach otherwise than they would.
	Registries []agentapi.Registry
	// ImagesOfCloud are patterns of the images for which cells ask Kip for credentials.
	ImagesOfCloud []string
	// CredentialProviders are those that the cells' kubelets ask for what pulls other images.
	CredentialProviders []credentialproviders.Provider
	// HasPlugins reports whether cells may be given plugins.
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
	// MaxAge is how old cells may become; 0 for any age. Standby cells are replaced at half of it. Package pods sees to the others.
	MaxAge time.Duration
	// Template names what cells are made of: image and settings. A standby cell of another
	// template, or of another cloud-init file, is replaced.
	Template string
	// Agent is that of cells. Optional: that of their image.
	Agent *agentapi.Agent
	// Version is Kip's own. Optional: agents are not compared with it.
	Version string
	// CloudInit is the operator's cloud-init file. Optional: there is none.
	CloudInit CloudInit
	// NodeEvents tells the operator, on a virtual node, what holds up launches. Optional.
	NodeEvents NodeEvents
	Health     Health
	// ListLag is the longest that the cloud's list lags behind a launch. 0 for
	// a cloud whose list does not.
	ListLag time.Duration
	// SoonPoll is the least time between two calls for the cloud's list.
	SoonPoll time.Duration
	// Late measures this process, and its owner runs it: a time in which Kip was late
	// is held against no cell. Nil for a Kip that is never late.
	Late *stall.Meter
	// Watchdog tracks the tasks of the loops. Optional.
	Watchdog *watchdog.Watchdog
	// Queues measures the work queue. Optional.
	Queues workqueue.MetricsProvider
	// Random is for jitter. Optional.
	Random backoff.Random
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// Nodes are the virtual nodes that cells are made for.
type Nodes interface {
	// StandbyNode is the one that a standby cell is made for, by what it is launched as: a
	// pod of another node restarts its kubelet.
	StandbyNode(Offering) string
}

// Recorder reports Events to the owners of pods. Several goroutines use it at a time, and it
// does not block.
type Recorder interface {
	Event(pod apiv1.PodReference, e events.Event)
}

// Logs are those of pods that have ended.
type Logs interface {
	// SaveLogs keeps the container logs of a cell's pod, which it asks the cell's agent for. It bounds its time.
	SaveLogs(ctx context.Context, cell Cell, agent agentapi.Conn) error
	// HasStreams reports whether somebody reads of a pod's cell: a log, or what exec, attach or port-forward carry.
	HasStreams(pod types.UID) bool
	// Finish reads what the cell of a pod has yet to say to those, so that it may end. It bounds its time.
	Finish(ctx context.Context, pod types.UID)
}

// ClusterDNS is what pods ask for names.
type ClusterDNS interface {
	// Addresses are where it is now; none for nowhere.
	Addresses() []netip.Addr
}
