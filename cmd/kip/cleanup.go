package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/control"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

const (
	// cleanupTick is how often a cleanup looks at what it waits for, and
	// cleanupSay how often it says so.
	cleanupTick, cleanupSay = time.Second, 5 * time.Second
	// betweenLooks is the least time between the two looks at the cloud that
	// prove that nothing is left; a list that lags asks for more.
	betweenLooks = 2 * time.Second
	// lastPodsTime is how long pods may take to go when the node is gone: no cell
	// runs them any more. What stays is held by somebody's finalizer.
	lastPodsTime = 30 * time.Second
	// lastLook bounds the report when the time for all else is up.
	lastLook = 15 * time.Second
)

// cleaner ends all that this Kip has made. Until the process ends, Kip makes
// nothing new then.
type cleaner struct {
	node, controllerID string
	pods               func() ([]*corev1.Pod, error) // those on the node
	pause              func(why string)              // of the pods' loop
	cells              interface {
		List() []cells.Cell
		EmptyPools()
	}
	status        func(cells.Cell) apiv1.CellStatus
	cloud         cloud.Cloud
	disks         cloud.Disks // nil where the cloud has none
	listLag       time.Duration
	asKip, asNode kubernetes.Interface
	resources     dynamic.ResourceInterface // the Cell resources
	store         *store.Store
	storeHint     string
	// stopNode ends the virtual node's controller for good, and waits for that.
	stopNode func(context.Context) error
	clock    clock.WithTicker

	busy sync.Mutex // held by a cleanup
}

var _ control.Cleaner = (*cleaner)(nil)

// storeHint says where the records of a Kip are, and how they are removed when
// it is not to come back.
func storeHint(cfg *config.Config, prefix string) string {
	if e := cfg.Etcd.Client.Endpoints; len(e) > 0 {
		return fmt.Sprintf("in the etcd at %s: etcdctl del --prefix %s", strings.Join(e, ","), prefix)
	}
	return fmt.Sprintf("in %s: remove the folder, or its volume", cfg.Etcd.Internal.DataDir)
}

// listed returns the pods that an informer follows; an error until it knows them.
func listed(informer cache.SharedIndexInformer) func() ([]*corev1.Pod, error) {
	return func() ([]*corev1.Pod, error) {
		if !informer.HasSynced() {
			return nil, errors.New("the pods of the node are not listed yet")
		}
		return podsOf(informer), nil
	}
}

// Holdings says what there is of this Kip.
func (c *cleaner) Holdings(ctx context.Context) (control.Holdings, error) {
	h := control.Holdings{Node: c.node, Store: c.storeHint, Records: map[string]int{}, Pods: []string{}, Cells: []string{}, Instances: []string{}, CellResources: []string{}, Disks: []string{}}
	// What cannot be asked must not be reported as nothing.
	var errs []error
	pods, err := c.pods()
	if err != nil {
		errs = append(errs, err)
	}
	for _, p := range pods {
		h.Pods = append(h.Pods, p.Namespace+"/"+p.Name)
	}
	for _, cell := range c.cells.List() {
		h.Cells = append(h.Cells, c.describe(cell))
	}
	instances, err := c.cloud.List(ctx, c.controllerID)
	if err != nil {
		errs = append(errs, fmt.Errorf("list the instances of cloud %s: %w", c.cloud.Name(), err))
	}
	for _, i := range instances {
		h.Instances = append(h.Instances, fmt.Sprintf("%s of %s", i.ID, i.Tags[cloud.TagCell]))
	}
	if c.disks != nil {
		disks, err := c.disks.ListDisks(ctx, c.controllerID)
		if err != nil {
			errs = append(errs, fmt.Errorf("list the disks of cloud %s: %w", c.cloud.Name(), err))
		}
		for _, d := range disks {
			h.Disks = append(h.Disks, fmt.Sprintf("%s of %s: %s", d.ID, resource.NewQuantity(d.SizeBytes, resource.BinarySI), d.Tags[cloud.TagName]))
		}
	}
	if h.CellResources, err = c.cellResources(ctx); err != nil {
		errs = append(errs, err)
	}
	if h.NodeExists, err = c.nodeExists(ctx); err != nil {
		errs = append(errs, err)
	}
	if h.NodeLease, err = c.leaseExists(ctx); err != nil {
		errs = append(errs, err)
	}
	if err := c.store.List(ctx, "", func(key string, _ []byte, _ int64) error {
		name, _, _ := strings.Cut(key, "/")
		h.Records[name]++
		return nil
	}); err != nil {
		errs = append(errs, err)
	}
	for _, names := range [][]string{h.Pods, h.Cells, h.Instances, h.CellResources, h.Disks} {
		slices.Sort(names)
	}
	return h, errors.Join(errs...)
}

// describe names a cell and what it waits for.
func (c *cleaner) describe(cell cells.Cell) string {
	waits := c.status(cell).Waiting
	if cell.Phase == apiv1.Bound {
		waits = "pod " + cell.Pod.String()
	}
	if waits == "" {
		return fmt.Sprintf("%s %s", cell.ID, cell.Phase)
	}
	return fmt.Sprintf("%s %s (%s)", cell.ID, cell.Phase, waits)
}

func (c *cleaner) cellResources(ctx context.Context) ([]string, error) {
	names := []string{}
	list, err := c.resources.List(ctx, metav1.ListOptions{LabelSelector: cells.LabelController + "=" + c.controllerID})
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
func (c *cleaner) Clean(ctx context.Context, say func(string)) (control.Holdings, error) {
	if !c.busy.TryLock() {
		return control.Holdings{}, errors.New("another cleanup of this Kip is running")
	}
	defer c.busy.Unlock()
	if err := c.mayDeleteNode(ctx); err != nil {
		return control.Holdings{}, fmt.Errorf("nothing was done: %w", err)
	}
	if h, err := c.Holdings(ctx); err == nil && len(h.Left()) == 0 {
		say("there is nothing to clean up; making sure of it")
	}
	say("no new cells: Kip is paused until it is started again")
	c.pause("Kip is being cleaned up (kipctl cleanup): it makes no cells until it is started again")
	c.cells.EmptyPools()
	failed := c.clean(ctx, say)

	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
			return control.Holdings{}, cause // nobody is left to hear
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
func (c *cleaner) mayDeleteNode(ctx context.Context) error {
	err := c.asKip.CoreV1().Nodes().Delete(ctx, c.node, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("this Kip may not delete its node: apply deploy/rbac.yaml of this version: %w", err)
	}
	return nil // whatever else is wrong shows when it matters
}

func (c *cleaner) clean(ctx context.Context, say func(string)) error {
	if err := c.until(ctx, say, c.cordon); err != nil {
		return err
	}
	if err := c.until(ctx, say, c.emptying(say)); err != nil {
		return err
	}
	// Before its object goes: it would make it again.
	if err := c.stopNode(ctx); err != nil {
		return fmt.Errorf("stop the virtual node: %w", err)
	}
	if err := c.until(ctx, say, c.removeNode); err != nil {
		return err
	}
	say("node " + c.node + " is gone")
	// Those of DaemonSets.
	bounded, cancel := context.WithTimeoutCause(ctx, lastPodsTime, fmt.Errorf("pods have not gone within %s, although no cell runs them", lastPodsTime))
	defer cancel()
	if err := c.until(bounded, say, c.lastPods); err != nil && ctx.Err() != nil {
		return err
	} else if err != nil {
		say(err.Error()) // what is left is reported; the rest can go all the same
	}
	return c.until(ctx, say, c.removeResources)
}

// until takes a step each second until it waits for nothing. It says what it
// waits for when that begins, and every few seconds, and of what fails the first
// time at once.
func (c *cleaner) until(ctx context.Context, say func(string), step func(context.Context) (waits string, err error)) error {
	var said time.Time
	failed := ""
	for {
		waits, err := step(ctx)
		news := false
		if err != nil {
			waits = err.Error() + "; it is tried again"
			news, failed = waits != failed, waits
		}
		if waits == "" {
			return nil
		}
		if now := c.clock.Now(); ctx.Err() == nil && (news || now.Sub(said) >= cleanupSay) {
			say(waits)
			said = now
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.clock.After(cleanupTick):
		}
	}
}

// cordon keeps the scheduler from placing more pods on the node.
func (c *cleaner) cordon(ctx context.Context) (string, error) {
	patch := []byte(`{"spec":{"unschedulable":true}}`)
	_, err := c.asKip.CoreV1().Nodes().Patch(ctx, c.node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("cordon node %s: %w", c.node, err)
	}
	return "", nil
}

// emptying returns a step that deletes the pods and waits until there is no cell,
// and then until the cloud has shown no instance twice. An instance without a cell
// is terminated when it was seen twice. Pods that come after the cordon are those of
// DaemonSets, which ignore it and make others for each that is deleted: unless they
// have a cell, they wait until the node is gone.
func (c *cleaner) emptying(say func(string)) func(context.Context) (string, error) {
	empty := 0
	var early map[types.UID]bool // the pods of before
	var looked time.Time
	seen := map[string]bool{}
	return func(ctx context.Context) (string, error) {
		all := c.cells.List()
		withCell := map[types.UID]bool{}
		for _, cell := range all {
			withCell[cell.Pod.UID] = true
		}
		pods, err := c.pods()
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
			empty, looked = 0, c.clock.Now()
			var names []string
			for _, cell := range all {
				names = append(names, c.describe(cell))
			}
			slices.Sort(names)
			return fmt.Sprintf("waiting for %s: %s", control.Count(len(all), "cell"), strings.Join(nonEmpty(control.Some(names), waits), "; ")), deleteErr
		}
		// A pod without a cell needs nothing but the API server.
		if deleteErr != nil {
			return "", deleteErr
		}
		if wait := max(betweenLooks, c.listLag); c.clock.Since(looked) < wait {
			return fmt.Sprintf("no cell is left; looking at the cloud twice, %s apart", wait), nil
		}
		instances, err := c.cloud.List(ctx, c.controllerID)
		looked = c.clock.Now()
		if err != nil {
			empty = 0
			return "", fmt.Errorf("list the instances of cloud %s: %w", c.cloud.Name(), err)
		}
		if len(instances) == 0 {
			if empty++; empty < 2 {
				return "the cloud shows no instance; looking once more", nil
			}
			say("the cloud has shown no instance twice")
			return "", nil
		}
		empty = 0
		var names, orphans []string
		for _, i := range instances {
			names = append(names, fmt.Sprintf("%s (%s)", i.ID, i.State))
			if seen[i.ID] && i.State != cloud.Terminating {
				orphans = append(orphans, i.ID)
			}
			seen[i.ID] = true
		}
		if len(orphans) > 0 {
			say(fmt.Sprintf("terminating %s without a cell: %s", control.Count(len(orphans), "instance"), control.Some(orphans)))
			if err := c.cloud.Terminate(ctx, orphans...); err != nil {
				return "", fmt.Errorf("terminate %s: %w", control.Some(orphans), err)
			}
		}
		return fmt.Sprintf("waiting for %s of the cloud: %s", control.Count(len(instances), "instance"), control.Some(names)), nil
	}
}

// lastPods deletes all pods of a node that is gone.
func (c *cleaner) lastPods(ctx context.Context) (string, error) {
	pods, err := c.pods()
	if err != nil {
		return "", err
	}
	return c.deletePods(ctx, pods)
}

// deletePods deletes pods of the node, with their grace period, as the node.
func (c *cleaner) deletePods(ctx context.Context, pods []*corev1.Pod) (waits string, err error) {
	var names []string
	var errs []error
	for _, pod := range pods {
		names = append(names, pod.Namespace+"/"+pod.Name)
		if pod.DeletionTimestamp != nil {
			continue
		}
		err := c.asNode.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
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
	return fmt.Sprintf("%s being deleted: %s", control.Count(len(names), "pod"), control.Some(names)), nil
}

// removeNode deletes the node and its lease.
func (c *cleaner) removeNode(ctx context.Context) (string, error) {
	err := c.asNode.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, c.node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("delete the lease of node %s: %w", c.node, err)
	}
	err = c.asKip.CoreV1().Nodes().Delete(ctx, c.node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("delete node %s: %w", c.node, err)
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
		return fmt.Sprintf("waiting for node %s and its lease to go", c.node), nil
	}
	return "", nil
}

func (c *cleaner) nodeExists(ctx context.Context) (bool, error) {
	_, err := c.asKip.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
	return exists(err, "node "+c.node)
}

func (c *cleaner) leaseExists(ctx context.Context) (bool, error) {
	_, err := c.asNode.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, c.node, metav1.GetOptions{})
	return exists(err, "the lease of node "+c.node)
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
func (c *cleaner) removeResources(ctx context.Context) (string, error) {
	names, err := c.cellResources(ctx)
	if err != nil || len(names) == 0 {
		return "", err
	}
	for _, name := range names {
		if err := c.resources.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("delete Cell resource %s: %w", name, err)
		}
	}
	return fmt.Sprintf("deleting %s: %s", control.Count(len(names), "Cell resource"), control.Some(names)), nil
}

func nonEmpty(words ...string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}

// stoppable runs a component that can be ended before all else is.
type stoppable struct {
	run     func(context.Context) error
	stop    chan struct{}
	stopped chan struct{} // closed when it does not run, and will not any more
	once    sync.Once
}

func newStoppable(run func(context.Context) error) *stoppable {
	return &stoppable{run: run, stop: make(chan struct{}), stopped: make(chan struct{})}
}

// Run runs the component until ctx ends, or it is stopped: then it waits for ctx.
func (s *stoppable) Run(ctx context.Context) error {
	err := func() error {
		defer close(s.stopped)
		running, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-s.stop:
				cancel()
			case <-running.Done():
			}
		}()
		return s.run(running)
	}()
	select {
	case <-s.stop:
		<-ctx.Done()
		return nil
	default:
		return err
	}
}

// Stop ends the component for good and waits for that.
func (s *stoppable) Stop(ctx context.Context) error {
	s.once.Do(func() { close(s.stop) })
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
