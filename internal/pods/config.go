package pods

import (
	"context"
	"log/slog"
	"time"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watchdog"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Config of a Controller. All fields are required unless they say otherwise.
type Config struct {
	// Pods are those bound to the virtual nodes, each listed as its node.
	Pods watches.Pods
	// Nodes are these virtual nodes.
	Nodes Nodes
	Cells Cells
	// Volumes are those of pods. Optional: no pod has any.
	Volumes Volumes
	// Claims are those of all namespaces. Optional: pods that wait for one are looked at again and again.
	Claims Claims
	// Options are what a cell is launched with where its pod's annotations do not say
	// otherwise.
	Options cells.Options
	// Grants are what pods may ask for by annotation.
	Grants Grants
	// DaemonSets are those that run beside pods; nil for none.
	DaemonSets *daemonsets.Rules
	// Copies are the copies of their pods on cells. Required with DaemonSets.
	Copies Copies
	// SharedKernel reports whether cells share the kernel of a host, so that no pod may change it.
	SharedKernel bool
	// CostLabels are the keys of the labels that costs are kept by. Optional.
	CostLabels []string
	// Events are those of pods.
	Events cells.Recorder
	// Observer is told what becomes of pods.
	Observer Observer
	// MaxAttempts is how many cells in a row may be launched, or refused, for a pod and not
	// become ready before the pod is Failed; 0 for no bound.
	MaxAttempts int
	// MaxAge is how old cells may become before their pods are evicted; 0 for any age.
	MaxAge time.Duration
	// Leadership is asked before a pod is ended: a process that does not lead knows too
	// little of cells. Optional: it leads.
	Leadership Leadership
	// Watchdog tracks the tasks of the loops. Optional.
	Watchdog *watchdog.Watchdog
	// Queues measures the work queue. Optional.
	Queues workqueue.MetricsProvider
	// Random is for jitter. Optional.
	Random backoff.Random
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// Nodes is what this package needs of the virtual nodes.
type Nodes interface {
	// Listed reports whether the pods of a node are known; "" is the one of cells whose record
	// says none.
	Listed(node string) bool
	// Client acts as a node.
	Client(node string) kubernetes.Interface
	// Choose returns what can be launched for a pod on its node, in a zone if one is given, and why nothing else can. Errors
	// that are not of placement say that Kip cannot tell now.
	Choose(ctx context.Context, pod *corev1.Pod, zone string) (placement.Chosen, error)
	// Rank returns the ranks of a pod's choices on its node, in a zone if one is given, and those of offerings. Errors are as those of
	// Choose.
	Rank(ctx context.Context, pod *corev1.Pod, zone string, keys []offering.Key) (placement.Ranks, error)
	// Elsewhere are the other nodes that the scheduler may give a pod instead of its own,
	// if pods may leave that: one of spot alone, or one that has nothing for anybody.
	Elsewhere(ctx context.Context, pod *corev1.Pod) []string
	// TurnsAway reports whether the node of a pod takes no other like it now: the one that its
	// controller makes in its place would come back. It may ask the node to, and be called
	// again.
	TurnsAway(ctx context.Context, pod *corev1.Pod) bool
}

// Volumes is what this package needs of package volumes.
type Volumes interface {
	// Needs returns what a pod's volumes need. The error is a *volumes.UnsupportedError or a
	// *volumes.NotReadyError where the pod must wait.
	Needs(ctx context.Context, pod *corev1.Pod) (volumes.Needs, error)
}

// Copies are what cells run beside their pods. None of its methods blocks.
type Copies interface {
	// ObserveCopies has an observer told of changes.
	ObserveCopies(daemonsets.CopyObserver)
	// PodsSeen reports whether SetsBeside knows the pods that there were when this process began.
	PodsSeen() bool
	// SetsBeside returns the pods of DaemonSets that are to run beside a pod, one of each set. One without a UID is not made yet.
	SetsBeside(pod *corev1.Pod) []*corev1.Pod
	// Copies returns what is known of the copies of a DaemonSet's pod.
	Copies(set types.UID) []daemonsets.Copy
	// Shown reports whether all cells of its node know of a DaemonSet's pod.
	Shown(set types.UID) bool
	// HasPod reports whether what runs beside a pod on its cell is known.
	HasPod(pod types.UID) bool
}

// Claims informs of changes of claims. A [cache.SharedIndexInformer] does; of a claim only the name is read.
type Claims interface {
	AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// Leadership is the right to act for the cluster, which another process may take over.
type Leadership interface {
	// Leads returns an error unless this process surely leads. It bounds its time.
	Leads(ctx context.Context) error
}

// Observer is told what becomes of pods, by several goroutines at a time. Until it returns
// the pods, or their watch, wait.
type Observer interface {
	// PodRunning is told, once or more, that a pod runs on its cell.
	PodRunning(cell cells.Cell, at time.Time)
	// PodGone is told of a pod that no longer exists, also of one that has had no cell.
	PodGone(uid types.UID)
}

// Cells is what this package needs of package cells.
type Cells interface {
	// Request asks for a cell by those of the offerings that the pod's namespace can pay.
	Request(ctx context.Context, r cells.Request) (cells.Cell, error)
	// Affords returns an error where the pod's namespace could pay none of the offerings, were its cell gone.
	Affords(ctx context.Context, r cells.Request) error
	// Behind returns why a pod without a cell may run on one that this Kip does not know of;
	// "" if it does not. EndDuplicates ends what may run a pod besides the cell that it may have, and
	// says why that is not certain yet; noEarlierCell is as in cells.Request.
	Behind() (why string, sure bool)
	EndDuplicates(uid types.UID, created time.Time, noEarlierCell bool) (why string, sure bool)
	Release(uid types.UID, why string, podEnded bool)
	ReleaseFailed(uid types.UID, why string, keep time.Duration, most int)
	// ReleaseVanished returns false while the end is held back.
	ReleaseVanished(ctx context.Context, uid types.UID, why string) bool
	ReleaseUnbound(uid types.UID, why string) bool
	ForPod(uid types.UID) (cells.Cell, bool)
	PodsNamed(name cache.ObjectName) []types.UID
	List() []cells.Cell
}

var (
	_ Cells   = (*cells.Controller)(nil)
	_ Volumes = volumes.Resolver{}
)
