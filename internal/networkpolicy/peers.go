package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/elotl/kip/internal/policy"
	"github.com/elotl/kip/internal/watches"
)

// clusterPods is one watch on the pods of the cluster, which feeds the index. Its
// fields are guarded by the controller's lock.
type clusterPods struct {
	c      *Controller
	known  bool
	denied error // the API server's refusal, nil after a success
	ended  bool  // what still comes is of no use
}

// synced says whether all pods are in the index.
func (p *clusterPods) synced() bool { return p != nil && p.known }

// refusal is why the pods may not be watched.
func (p *clusterPods) refusal() error {
	if p == nil {
		return nil
	}
	return p.denied
}

// living selects the pods that can be peers: those that have ended have lost their
// addresses, and are often the most.
var living = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
).String()

// watchPods watches the cluster's pods whenever they are needed, until ctx ends.
func (c *Controller) watchPods(ctx context.Context) {
	needed := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.index.NeedsPods()
	}
	for {
		for !needed() {
			select {
			case <-c.needs:
			case <-ctx.Done():
				return
			}
		}
		watching, stop := context.WithCancel(ctx)
		peers := &clusterPods{c: c}
		c.mu.Lock()
		c.peers = peers
		c.mu.Unlock()
		c.cfg.Log.Info("watching the cluster's pods, which a NetworkPolicy asks for")
		var running sync.WaitGroup
		running.Go(func() { peers.run(watching) })
		for ctx.Err() == nil && c.lingers(ctx, needed) {
			continue
		}
		stop()
		running.Wait()
		c.mu.Lock()
		peers.ended = true
		c.peers = nil
		for _, name := range c.index.Pods() {
			c.index.RemovePod(name)
		}
		c.changed()
		c.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		c.cfg.Log.Info("no longer watching the cluster's pods: no NetworkPolicy asks for them")
	}
}

// lingers waits for a change of the need, and, if there is none left, for long
// enough that it has really gone. It returns whether there is one.
func (c *Controller) lingers(ctx context.Context, needed func() bool) bool {
	if needed() {
		select {
		case <-c.needs:
		case <-ctx.Done():
		}
		return true
	}
	timer := c.cfg.Clock.NewTimer(linger)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
			return needed()
		case <-c.needs:
			if needed() {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// run feeds the index until ctx ends.
func (p *clusterPods) run(ctx context.Context) {
	pods := p.c.cfg.Client.CoreV1().Pods(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = living
			list, err := pods.List(ctx, o) // the reflector's own context does not end with it
			p.attempt(err)
			return list, err
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = living
			w, err := pods.Watch(ctx, o)
			p.attempt(err)
			return w, err
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, p.c.cfg.Client), &corev1.Pod{}, p, cache.ReflectorOptions{
		Name:    "isolation pods",
		Backoff: watches.ReflectorBackoff(200 * time.Millisecond),
	}).RunWithContext(ctx)
}

// attempt notes how a list or a watch has begun.
func (p *clusterPods) attempt(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if err != nil {
		p.c.cfg.Log.Warn("watch on the cluster's pods failed, retrying", "err", err)
	}
	var denied error
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		denied = err
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.ended {
		return
	}
	if (p.denied == nil) != (denied == nil) {
		p.c.all() // those that wait have something to tell
	}
	p.denied = denied
}

var _ cache.ReflectorStore = (*clusterPods)(nil)

// set takes one pod, of which only what policies ask is kept.
func (p *clusterPods) set(o any) error {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("cluster's pods: got a %T", o)
	}
	p.c.index.SetPod(p.c.believed(policy.PodOf(pod), p.c.byPod[pod.UID]))
	return nil
}

// believed is what is believed of a pod: of one on a cell of this Kip no address but
// those that Kip gave it. Its status comes from the cell. The lock is held.
func (c *Controller) believed(pod *policy.Pod, on *cell) *policy.Pod {
	if on == nil {
		return pod
	}
	kept := *pod
	kept.Addresses = nil
	for _, addr := range pod.Addresses {
		if addr == on.PodIP || addr == on.PodIPv6 {
			kept.Addresses = append(kept.Addresses, addr)
		}
	}
	return &kept
}

// change calls f with the index to itself, and sees to what it changed.
func (p *clusterPods) change(f func() error) error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.ended {
		return nil
	}
	err := f()
	p.c.changed()
	return err
}

// Add implements [cache.ReflectorStore].
func (p *clusterPods) Add(o any) error { return p.change(func() error { return p.set(o) }) }

// Update implements [cache.ReflectorStore].
func (p *clusterPods) Update(o any) error { return p.Add(o) }

// Delete implements [cache.ReflectorStore].
func (p *clusterPods) Delete(o any) error {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("cluster's pods: got a %T", o)
	}
	return p.change(func() error {
		p.c.index.RemovePod(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		return nil
	})
}

// Replace implements [cache.ReflectorStore].
func (p *clusterPods) Replace(list []any, _ string) error {
	return p.change(func() error {
		gone := map[types.NamespacedName]bool{}
		for _, name := range p.c.index.Pods() {
			gone[name] = true
		}
		for _, o := range list {
			if err := p.set(o); err != nil {
				return err
			}
			pod := o.(*corev1.Pod)
			delete(gone, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		}
		for name := range gone {
			p.c.index.RemovePod(name)
		}
		p.known = true
		p.c.all()
		return nil
	})
}

// Resync implements [cache.ReflectorStore].
func (p *clusterPods) Resync() error { return nil }
