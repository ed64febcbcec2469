package nodes

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// removals let nodes go that were taken out.
type removals struct {
	c        Config
	nodes    *registry
	plan     *plan
	reads    *reads
	kubelets *kubelets
	keeping  *keeping
	cells    Cells
	observer Observer
	lingers  time.Duration // how long a node stays cordoned without pods
}

// empty lets a node go that was taken out, once it has no pods but those of DaemonSets,
// which go with it. It is kept, and so cordoned, before: the scheduler may have placed a
// pod just now.
func (r *removals) empty(ctx context.Context, s *served, kept bool) error {
	r.nodes.mu.Lock()
	foreign := s.rights == rightsForeign // of its pods Kip knows nothing
	r.nodes.mu.Unlock()
	if !foreign && !r.nodes.pods.Listed(s.name) {
		return nil
	}
	occupied, onlyDaemons := r.hasPods(s)
	if !s.deleted && !foreign {
		if gone, err := r.letGo(ctx, s, kept, occupied && !onlyDaemons); !gone || err != nil {
			return err
		}
	}
	if occupied {
		return nil // the cluster removes the pods of a node that is gone
	}
	r.nodes.mu.Lock()
	before := r.nodes.entries
	r.nodes.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(before), func(e nodeplan.Entry) bool { return e.Number == s.number })
	if err := r.plan.keep(ctx, before, left); err != nil {
		return err
	}
	s.stop()
	_ = s.kubelet.closePort() // or a node that comes again now would find its own port taken
	r.nodes.mu.Lock()
	r.nodes.entries = left
	delete(r.nodes.served, s.name)
	r.nodes.mu.Unlock()
	s.settle() // who waits for it waits for nothing any more
	r.nodes.pods.Remove(s.name)
	r.reads.forget(s.name)
	r.observer.NodeGone(s.name)
	r.kubelets.keepCertificates(ctx)
	r.c.Log.Info("a virtual node that was taken out is gone", "node", s.name)
	return nil
}

// letGo deletes the object of a node that was taken out, once it was cordoned and without
// pods for a while, also by the API server's own word.
func (r *removals) letGo(ctx context.Context, s *served, kept, occupied bool) (gone bool, err error) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if !kept {
		_, err := r.c.Client.CoreV1().Nodes().Get(asking, s.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && !occupied:
			s.deleted = true
			return true, nil
		case err != nil && !apierrors.IsNotFound(err):
			return false, fmt.Errorf("read node %s: %w", s.name, err)
		}
		r.keeping.start(s)
		return false, nil
	}
	if ready := isClosed(s.node.Ready()); occupied || !ready {
		s.leaving = time.Time{}
		return false, nil
	}
	now := r.c.Clock.Now()
	if s.leaving.IsZero() {
		s.leaving = now
	}
	if now.Sub(s.leaving) < r.lingers {
		return false, nil
	}
	list, err := s.asNode.CoreV1().Pods("").List(asking, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.name})
	if err != nil {
		return false, fmt.Errorf("list the pods of node %s: %w", s.name, err)
	}
	if slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return !ofDaemonSet(&p) && !watches.Ended(&p) }) {
		return false, nil // the watch is about to tell
	}
	r.keeping.stop(s)
	if err := r.removeObject(ctx, s); err != nil {
		return false, err
	}
	s.deleted = true
	return true, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// removeObject deletes a node's lease and object; not those of a machine, or of another
// Kip, that has come to have the name.
func (r *removals) removeObject(ctx context.Context, s *served) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := r.c.Store.Leads(ctx); err != nil { // its pods go with it
		return fmt.Errorf("delete node %s: %w", s.name, err)
	}
	there, err := r.c.Client.CoreV1().Nodes().Get(ctx, s.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		there = &corev1.Node{}
	case err != nil:
		return fmt.Errorf("read node %s: %w", s.name, err)
	default:
		if err := node.Foreign(there, r.c.ControllerID); err != nil {
			r.c.Log.Warn("a node is left alone: its name is that of a virtual node that was taken out", "node", s.name, "err", err)
			return nil
		}
	}
	gone := func(err error) bool { return err == nil || apierrors.IsNotFound(err) }
	if err := s.asNode.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, s.name, metav1.DeleteOptions{}); !gone(err) {
		return fmt.Errorf("delete the lease of node %s: %w", s.name, err)
	}
	if there.UID == "" {
		return nil
	}
	that := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &there.UID}}
	if err := r.c.Client.CoreV1().Nodes().Delete(ctx, s.name, that); !gone(err) {
		return fmt.Errorf("delete node %s: %w", s.name, err)
	}
	return nil
}

// hasPods says whether a node has pods that have not ended, or cells of pods, and
// whether they are all those of DaemonSets, which leave no node.
func (r *removals) hasPods(s *served) (has, onlyDaemons bool) {
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
	for _, cell := range r.cells.List() {
		if cell.Pod.UID != "" && r.cells.NodeOf(cell) == s.name {
			has = true
			onlyDaemons = onlyDaemons && daemons[string(cell.Pod.UID)]
		}
	}
	return has, onlyDaemons
}

func ofDaemonSet(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
}
