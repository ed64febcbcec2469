package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

const (
	// lastPodsTime is how long pods may take to go when the node is gone: no cell
	// runs them any more. What stays is held by somebody's finalizer.
	lastPodsTime = 30 * time.Second
	// lastLook bounds the report when the time for all else is up.
	lastLook = 15 * time.Second
)

// Config of a Cleaner. All fields are required unless they say otherwise.
type Config struct {
	// Nodes are the virtual nodes.
	Nodes        func() []Node
	ControllerID string
	// Pods returns those on the nodes; an error while they are not known.
	Pods func() ([]*corev1.Pod, error)
	// Pause keeps the pods' loop from requesting cells.
	Pause func(why string)
	Cells Cells
	// Status tells what a cell waits for.
	Status func(cells.Cell) apiv1.CellStatus
	Cloud  cloud.Cloud
	// Guard guards Cloud. A cleanup opens it.
	Guard *guard.Guard
	// Disks of the cloud. Optional: it has none.
	Disks cloud.Disks
	// ListLag is by how much the cloud's list may be behind.
	ListLag time.Duration
	AsKip   kubernetes.Interface
	// Resources are the Cell resources.
	Resources dynamic.ResourceInterface
	Store     *store.Store
	// StoreHint says where the records are, and how they are removed when Kip is not
	// to come back.
	StoreHint string
	// StopNode ends the virtual nodes' controllers for good, and waits for that.
	StopNode func(context.Context) error
	Clock    clock.WithTicker
}

// Node is one virtual node.
type Node struct {
	Name string
	// Client acts as the node.
	Client kubernetes.Interface
}

// Cells is what this package needs of package cells.
type Cells interface {
	List() []cells.Cell
	EmptyPools()
	// Launched says that an instance with this Kip's tags was launched by it.
	Launched(cloud.Instance) bool
	// Behind says why the cells may not be all that this Kip has; "" if they are.
	Behind() (why string, sure bool)
}

// Cleaner ends all that this Kip has made. Until the process ends, Kip makes
// nothing new then.
type Cleaner struct {
	cfg  Config
	busy sync.Mutex // held by a cleanup
}

var _ adminapi.Cleaner = (*Cleaner)(nil)

// New returns a cleaner.
func New(cfg Config) *Cleaner { return &Cleaner{cfg: cfg} }

// Holdings says what there is of this Kip.
func (c *Cleaner) Holdings(ctx context.Context) (adminapi.Holdings, error) {
	h := adminapi.Holdings{
		Node:          c.nodeNames(),
		Store:         c.cfg.StoreHint,
		Records:       map[string]int{},
		Pods:          []string{},
		Cells:         []string{},
		CellResources: []string{},
	}
	// What cannot be asked must not be reported as nothing.
	var errs []error
	pods, err := c.cfg.Pods()
	if err != nil {
		errs = append(errs, err)
	}
	for _, p := range pods {
		h.Pods = append(h.Pods, p.Namespace+"/"+p.Name)
	}
	for _, cell := range c.cfg.Cells.List() {
		h.Cells = append(h.Cells, c.describe(cell))
	}
	there := c.inCloud().names(ctx, &errs)
	h.Instances, h.Parts, h.Disks = there.Instances, there.Parts, there.Disks
	if h.CellResources, err = c.cellResources(ctx); err != nil {
		errs = append(errs, err)
	}
	if h.NodeExists, err = c.nodeExists(ctx); err != nil {
		errs = append(errs, err)
	}
	if h.NodeLease, err = c.leaseExists(ctx); err != nil {
		errs = append(errs, err)
	}
	if err := c.cfg.Store.List(ctx, "", func(key string, _ []byte, _ int64) error {
		name, _, _ := strings.Cut(key, "/")
		h.Records[name]++
		return nil
	}); err != nil {
		errs = append(errs, err)
	}
	for _, names := range [][]string{h.Pods, h.Cells, h.CellResources} {
		slices.Sort(names)
	}
	return h, errors.Join(errs...)
}

// describe names a cell and what it waits for.
func (c *Cleaner) describe(cell cells.Cell) string {
	waits := c.cfg.Status(cell).Waiting
	if cell.Phase == apiv1.Bound {
		waits = "pod " + cell.Pod.String()
	}
	if waits == "" {
		return fmt.Sprintf("%s %s", cell.ID, cell.Phase)
	}
	return fmt.Sprintf("%s %s (%s)", cell.ID, cell.Phase, waits)
}

func (c *Cleaner) cellResources(ctx context.Context) ([]string, error) {
	names := []string{}
	list, err := c.cfg.Resources.List(ctx, metav1.ListOptions{LabelSelector: cells.LabelController + "=" + c.cfg.ControllerID})
	if apierrors.IsNotFound(err) { // their definition is gone
		return names, nil
	}
	if err != nil {
		return names, fmt.Errorf("list our Cell resources: %w", err)
	}
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	return names, nil
}

// Clean ends all pods, cells and instances, and takes the node away. It may be
// cut off and called again. The error says what is left.
func (c *Cleaner) Clean(ctx context.Context, say func(string)) (adminapi.Holdings, error) {
	if !c.busy.TryLock() {
		return adminapi.Holdings{}, errors.New("another cleanup of this Kip is running")
	}
	defer c.busy.Unlock()
	if err := c.mayDeleteNode(ctx); err != nil {
		return adminapi.Holdings{}, fmt.Errorf("nothing was done: %w", err)
	}
	if why, sure := c.cfg.Cells.Behind(); why != "" && sure {
		return adminapi.Holdings{}, fmt.Errorf("nothing was done: %s", why)
	}
	if h, err := c.Holdings(ctx); err == nil && len(h.Left()) == 0 {
		say("there is nothing to clean up; making sure of it")
	}
	say("no new cells: Kip is paused until it is started again")
	c.cfg.Pause(events.CleanedUp)
	c.cfg.Cells.EmptyPools()
	c.cfg.Guard.Open()
	failed := c.clean(ctx, say)

	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
			return adminapi.Holdings{}, cause // nobody is left to hear
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
		defer cancel()
		ctx = last
	}
	h, err := c.Holdings(ctx)
	if err != nil {
		err = fmt.Errorf("see what is left: %w", err)
	}
	if left := h.Left(); len(left) > 0 {
		err = errors.Join(fmt.Errorf("left: %s", strings.Join(left, "; ")), err)
	} else if err == nil {
		failed = nil // whatever went wrong, it is done
	}
	return h, errors.Join(failed, err)
}

// mayDeleteNode finds out, before anything is ended, whether the end can be
// reached: a role of an earlier Kip has no right to delete the node.
func (c *Cleaner) mayDeleteNode(ctx context.Context) error {
	for _, n := range c.cfg.Nodes() {
		err := c.cfg.AsKip.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) {
			return fmt.Errorf("this Kip may not delete its node: upgrade the Helm chart, or apply deploy/manifests/rights/rbac.yaml: %w", err)
		}
	}
	return nil // whatever else is wrong shows when it matters
}

func (c *Cleaner) clean(ctx context.Context, say func(string)) error {
	if err := c.until(ctx, say, c.cordon); err != nil {
		return err
	}
	if err := c.until(ctx, say, c.emptying(say)); err != nil {
		return err
	}
	clears := clearing{holdings: c.inCloud()}
	if err := c.until(ctx, say, clears.step); err != nil {
		return err
	}
	// Before its object goes: it would make it again.
	if err := c.cfg.StopNode(ctx); err != nil {
		return fmt.Errorf("stop the virtual node: %w", err)
	}
	if err := c.until(ctx, say, c.removeNode); err != nil {
		return err
	}
	say("node " + c.nodeNames() + " is gone")
	// Those of DaemonSets.
	late := fmt.Errorf("pods have not gone within %s, although no cell runs them", lastPodsTime)
	bounded, cancel := context.WithTimeoutCause(ctx, lastPodsTime, late)
	defer cancel()
	if err := c.until(bounded, say, c.lastPods); err != nil && ctx.Err() != nil {
		return err
	} else if err != nil {
		say(err.Error()) // what is left is reported; the rest can go all the same
	}
	return c.until(ctx, say, c.removeResources)
}

// cordon keeps the scheduler from placing more pods on the node.
func (c *Cleaner) cordon(ctx context.Context) (string, error) {
	patch := []byte(`{"spec":{"unschedulable":true}}`)
	for _, n := range c.cfg.Nodes() {
		_, err := c.cfg.AsKip.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("cordon node %s: %w", n.Name, err)
		}
	}
	return "", nil
}

// emptying returns a step that deletes the pods and waits until there is no cell,
// and then until the cloud has shown no instance twice. Pods that come after the cordon are those of
// DaemonSets, which ignore it and make others for each that is deleted: unless they
// have a cell, they wait until the node is gone.
func (c *Cleaner) emptying(say func(string)) func(context.Context) (string, error) {
	var early map[types.UID]bool // the pods of before
	cloudEmpties := emptying{holdings: c.inCloud(), say: say, before: "no cell is left; ", of: " without a cell"}
	return func(ctx context.Context) (string, error) {
		all := c.cfg.Cells.List()
		withCell := map[types.UID]bool{}
		for _, cell := range all {
			withCell[cell.Pod.UID] = true
		}
		pods, err := c.cfg.Pods()
		if err != nil {
			return "", err
		}
		if early == nil {
			early = map[types.UID]bool{}
			for _, pod := range pods {
				early[pod.UID] = true
			}
		}
		waits, deleteErr := c.deletePods(ctx, slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !early[p.UID] && !withCell[p.UID] }))
		if len(all) > 0 {
			cloudEmpties.restart()
			var names []string
			for _, cell := range all {
				names = append(names, c.describe(cell))
			}
			slices.Sort(names)
			what := strings.Join(adminapi.NonEmpty(adminapi.Some(names), waits), "; ")
			return fmt.Sprintf("waiting for %s: %s", adminapi.Count(len(all), "cell"), what), deleteErr
		}
		// A pod without a cell needs nothing but the API server.
		if deleteErr != nil {
			return "", deleteErr
		}
		return cloudEmpties.step(ctx)
	}
}

// inCloud is what this Kip has in its cloud.
func (c *Cleaner) inCloud() holdings {
	return holdings{
		cloud:   c.cfg.Cloud,
		disks:   c.cfg.Disks,
		owner:   c.cfg.ControllerID,
		ours:    c.cfg.Cells.Launched,
		listLag: c.cfg.ListLag,
		clock:   c.cfg.Clock,
	}
}

// until takes a step each second until it waits for nothing.
func (c *Cleaner) until(ctx context.Context, say func(string), step func(context.Context) (waits string, err error)) error {
	return until(ctx, c.cfg.Clock, say, step)
}

// lastPods deletes all pods of a node that is gone.
func (c *Cleaner) lastPods(ctx context.Context) (string, error) {
	pods, err := c.cfg.Pods()
	if err != nil {
		return "", err
	}
	return c.deletePods(ctx, pods)
}

// deletePods deletes pods of the node, with their grace period, as the node.
func (c *Cleaner) deletePods(ctx context.Context, pods []*corev1.Pod) (waits string, err error) {
	var names []string
	var errs []error
	for _, pod := range pods {
		names = append(names, pod.Namespace+"/"+pod.Name)
		if pod.DeletionTimestamp != nil {
			continue
		}
		this := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
		err := c.clientOf(pod).CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, this)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	if len(errs) > 0 { // a thousand say no more than one
		return "", errs[0]
	}
	if len(names) == 0 {
		return "", nil
	}
	slices.Sort(names)
	return fmt.Sprintf("%s being deleted: %s", adminapi.Count(len(names), "pod"), adminapi.Some(names)), nil
}

// clientOf acts as the node of a pod.
func (c *Cleaner) clientOf(pod *corev1.Pod) kubernetes.Interface {
	for _, n := range c.cfg.Nodes() {
		if n.Name == pod.Spec.NodeName {
			return n.Client
		}
	}
	return c.cfg.AsKip // who is refused, which is told
}

func (c *Cleaner) nodeNames() string {
	var names []string
	for _, n := range c.cfg.Nodes() {
		names = append(names, n.Name)
	}
	return strings.Join(names, ", ")
}

// removeNode deletes the nodes and their leases.
func (c *Cleaner) removeNode(ctx context.Context) (string, error) {
	for _, n := range c.cfg.Nodes() {
		err := n.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, n.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("delete the lease of node %s: %w", n.Name, err)
		}
		err = c.cfg.AsKip.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("delete node %s: %w", n.Name, err)
		}
	}
	node, err := c.nodeExists(ctx)
	if err != nil {
		return "", err
	}
	lease, err := c.leaseExists(ctx) // a renewal may have crossed with the deletion
	if err != nil {
		return "", err
	}
	if node || lease {
		return fmt.Sprintf("waiting for node %s and its lease to go", c.nodeNames()), nil
	}
	return "", nil
}

func (c *Cleaner) nodeExists(ctx context.Context) (bool, error) {
	for _, n := range c.cfg.Nodes() {
		_, err := c.cfg.AsKip.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if there, err := exists(err, "node "+n.Name); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

func (c *Cleaner) leaseExists(ctx context.Context) (bool, error) {
	for _, n := range c.cfg.Nodes() {
		_, err := n.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.Name, metav1.GetOptions{})
		if there, err := exists(err, "the lease of node "+n.Name); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// exists reads the answer to a get.
func exists(err error, what string) (bool, error) {
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get %s: %w", what, err)
	}
	return true, nil
}

// removeResources deletes the Cell resources that the mirror has left.
func (c *Cleaner) removeResources(ctx context.Context) (string, error) {
	names, err := c.cellResources(ctx)
	if err != nil || len(names) == 0 {
		return "", err
	}
	for _, name := range names {
		if err := c.cfg.Resources.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("delete Cell resource %s: %w", name, err)
		}
	}
	return fmt.Sprintf("deleting %s: %s", adminapi.Count(len(names), "Cell resource"), adminapi.Some(names)), nil
}
