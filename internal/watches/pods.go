package watches

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Pods informs of the pods of the virtual nodes. A [cache.SharedIndexInformer] does,
// of one node's.
type Pods interface {
	AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
	RemoveEventHandler(cache.ResourceEventHandlerRegistration) error
	HasSynced() bool
	GetStore() cache.Store
}

var (
	_ Pods        = cache.SharedIndexInformer(nil)
	_ Pods        = (*NodePods)(nil)
	_ cache.Store = podStore{}
)

// List returns the pods that are known.
func List(p Pods) (list []*corev1.Pod) {
	for _, obj := range p.GetStore().List() {
		list = append(list, obj.(*corev1.Pod))
	}
	return list
}

// Ended says that a pod's containers have run for the last time.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// NodePods are the pods of several virtual nodes, each with an informer of its own:
// the API server lets a node watch its own pods and no other. Who follows them hears
// of each node's in its order; of two pods that had the same name on two nodes, in any
// order, so that a pod is known by its UID.
type NodePods struct {
	mu       sync.Mutex
	nodes    map[string]cache.SharedIndexInformer
	handlers map[*podHandler]bool
}

// podHandler is a handler with its registration at each informer.
type podHandler struct {
	cache.ResourceEventHandler
	pods *NodePods
	at   map[string]cache.ResourceEventHandlerRegistration // under NodePods.mu
}

// NewNodePods returns the pods of no node.
func NewNodePods() *NodePods {
	return &NodePods{nodes: map[string]cache.SharedIndexInformer{}, handlers: map[*podHandler]bool{}}
}

// Add joins the pods of a node. Its owner runs the informer.
func (p *NodePods) Add(node string, informer cache.SharedIndexInformer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nodes[node] != nil {
		return fmt.Errorf("the pods of node %s are followed already", node)
	}
	for h := range p.handlers {
		registration, err := informer.AddEventHandler(h.ResourceEventHandler)
		if err != nil {
			return fmt.Errorf("follow the pods of node %s: %w", node, err)
		}
		h.at[node] = registration
	}
	p.nodes[node] = informer
	return nil
}

// Remove leaves the pods of a node out, of which there are none any more.
func (p *NodePods) Remove(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	informer := p.nodes[node]
	delete(p.nodes, node)
	for h := range p.handlers {
		if r := h.at[node]; r != nil {
			_ = informer.RemoveEventHandler(r) // fails only for a handler of another informer
		}
		delete(h.at, node)
	}
}

// Listed says that the pods of a node are known.
func (p *NodePods) Listed(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	informer := p.nodes[node]
	return informer != nil && informer.HasSynced()
}

// HasSynced says that the pods of all nodes are known.
func (p *NodePods) HasSynced() bool {
	return !slices.ContainsFunc(p.informers(), func(i cache.SharedIndexInformer) bool { return !i.HasSynced() })
}

func (p *NodePods) informers() []cache.SharedIndexInformer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.nodes))
}

// AddEventHandler tells a handler of the pods of all nodes, those included that are
// added later.
func (p *NodePods) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &podHandler{ResourceEventHandler: handler, pods: p, at: map[string]cache.ResourceEventHandlerRegistration{}}
	for node, informer := range p.nodes {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, err
		}
		h.at[node] = registration
	}
	p.handlers[h] = true
	return h, nil
}

// RemoveEventHandler undoes AddEventHandler.
func (p *NodePods) RemoveEventHandler(registration cache.ResourceEventHandlerRegistration) error {
	h, ok := registration.(*podHandler)
	if !ok {
		return fmt.Errorf("a %T is no registration of these pods", registration)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.handlers, h)
	var errs []error
	for node, r := range h.at {
		if err := p.nodes[node].RemoveEventHandler(r); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// HasSynced says that the handler has been told of the pods of all nodes.
func (h *podHandler) HasSynced() bool { return h.waitsFor() == nil }

// HasSyncedChecker is that of a node of whose pods the handler has not been told.
func (h *podHandler) HasSyncedChecker() cache.DoneChecker { return follower{h.waitsFor()} }

func (h *podHandler) waitsFor() cache.ResourceEventHandlerRegistration {
	h.pods.mu.Lock()
	defer h.pods.mu.Unlock()
	for _, r := range h.at {
		if !r.HasSynced() {
			return r
		}
	}
	return nil
}

// Told is closed when a handler has been told of the pods of a node; at once where
// that node's are not followed.
func Told(registration cache.ResourceEventHandlerRegistration, node string) <-chan struct{} {
	if h, ok := registration.(*podHandler); ok {
		h.pods.mu.Lock()
		defer h.pods.mu.Unlock()
		registration = h.at[node]
	}
	return follower{registration}.Done()
}

// follower is done when a registration is; at once without one.
type follower struct {
	by cache.ResourceEventHandlerRegistration
}

func (t follower) Name() string { return "pods" }

func (t follower) Done() <-chan struct{} {
	if t.by != nil {
		return t.by.HasSyncedChecker().Done()
	}
	done := make(chan struct{})
	close(done)
	return done
}

// GetStore returns the pods of all nodes, to be read only.
func (p *NodePods) GetStore() cache.Store { return podStore{p} }

// podStore reads the stores of all informers.
type podStore struct{ *NodePods }

// GetByKey returns the pod of that name. Where two nodes have one, the older has been
// deleted, and its node's watch has yet to say so.
func (s podStore) GetByKey(key string) (item any, exists bool, err error) {
	var newest uint64
	for _, informer := range s.informers() {
		o, has, err := informer.GetStore().GetByKey(key)
		if err != nil {
			return nil, false, err
		}
		if !has {
			continue
		}
		version, err := strconv.ParseUint(o.(*corev1.Pod).ResourceVersion, 10, 64)
		if err != nil {
			return nil, false, fmt.Errorf("resource version of pod %s: %w", key, err)
		}
		if !exists || version > newest {
			item, exists, newest = o, true, version
		}
	}
	return item, exists, nil
}

func (s podStore) Get(obj any) (item any, exists bool, err error) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil, false, err
	}
	return s.GetByKey(key)
}

func (s podStore) List() (all []any) {
	for _, informer := range s.informers() {
		all = append(all, informer.GetStore().List()...)
	}
	return all
}

func (s podStore) ListKeys() (all []string) {
	for _, informer := range s.informers() {
		all = append(all, informer.GetStore().ListKeys()...)
	}
	return all
}

var errReadOnly = errors.New("the pods of nodes are only read here")

func (podStore) Add(any) error                        { return errReadOnly }
func (podStore) Update(any) error                     { return errReadOnly }
func (podStore) Delete(any) error                     { return errReadOnly }
func (podStore) Replace([]any, string) error          { return errReadOnly }
func (podStore) Resync() error                        { return nil }
func (podStore) Bookmark(string)                      {}
func (podStore) LastStoreSyncResourceVersion() string { return "" }
