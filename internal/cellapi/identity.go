package cellapi

import (
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/elotl/kip/internal/watches"
)

// identity is of one virtual node: as whom the API server is asked for its cells.
type identity struct {
	name    string
	client  kubernetes.Interface
	raw     *passer
	renewal *ask // of a lease, as each cell has one

	virtual atomic.Pointer[corev1.Node] // the real virtual node
	source  *watches.Source             // where that comes from
	forget  func()                      // ends that watch

	listing sync.Mutex // held while its pods of DaemonSets are asked for
}

func newIdentity(cfg *rest.Config, name string) (n *identity, err error) {
	n = &identity{name: name, renewal: renewalOf(name)}
	if n.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return n, fmt.Errorf("cell API: client of node %s: %w", name, err)
	}
	if n.raw, err = newPasser(cfg); err != nil {
		return n, fmt.Errorf("cell API: client of node %s: %w", name, err)
	}
	return n, nil
}

// identityOf is userOf for a caller that does not hold s.mu.
func (s *Server) identityOf(name string) (*identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.userOf(name)
}

// userOf returns that of a virtual node, which it makes for the first cell. s.mu is
// held.
func (s *Server) userOf(name string) (*identity, error) {
	if n := s.nodes[name]; n != nil {
		return n, nil
	}
	cfg := rest.CopyConfig(s.nodeConfig)
	cfg.Impersonate.UserName = identityPrefix + name
	n, err := newIdentity(cfg, name)
	if err == nil {
		s.followLocked(n)
	}
	return n, err
}

// identityPrefix begins the names of the users that nodes are.
const identityPrefix = "system:node:"

func (s *Server) follow(n *identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followLocked(n)
}

// followLocked keeps up with the real virtual node.
func (s *Server) followLocked(n *identity) {
	n.source, n.forget = s.watches.Watch(n.client, nodeKind, n.name, virtualNode{s, n})
	s.nodes[n.name] = n
}

// ForgetNode gives up what is kept for the cells of a virtual node that is gone.
func (s *Server) ForgetNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil || name == s.nodeName { // which all shared watches are of
		return
	}
	n.forget()
	n.raw.client.CloseIdleConnections()
	delete(s.nodes, name)
}

// virtualNode receives a real virtual node from its watch.
type virtualNode struct {
	*Server
	as *identity
}

var _ cache.ReflectorStore = virtualNode{}

func (v virtualNode) Add(o any) error {
	n, ok := o.(*corev1.Node)
	if !ok {
		return fmt.Errorf("virtual node: got a %T", o)
	}
	v.as.virtual.Store(n)
	for _, c := range v.allCells() {
		if c.as == v.as {
			c.node.refresh()
		}
	}
	return nil
}

func (v virtualNode) Update(o any) error { return v.Add(o) }

// Delete keeps the node as it was: Kip makes it again, and no kubelet should
// believe that its node is gone.
func (v virtualNode) Delete(any) error {
	v.log.Warn("virtual node deleted, cells keep its last state", "node", v.as.name)
	return nil
}

func (v virtualNode) Replace(list []any, _ string) error {
	for _, o := range list {
		if err := v.Add(o); err != nil {
			return err
		}
	}
	return nil
}

func (v virtualNode) Resync() error { return nil }
