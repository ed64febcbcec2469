package kip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/roster"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/version"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

type ownerReference = metav1.OwnerReference

// served is a virtual node that this process serves.
type served struct {
	name   string
	number int // in the name
	asNode kubernetes.Interface

	informer cache.SharedIndexInformer // of its pods
	stats    *stats.Stats
	port     *node.Port
	listener net.Listener
	stop     context.CancelFunc // of these; nil before they run

	once    sync.Once
	settled chan struct{} // closed when it is registered, or known that it may not be

	// Under nodes.mu.
	entry  roster.Entry
	node   *node.Node
	loop   *loop // that keeps its object; nil while none does
	rights rights
	short  string // why nothing can be launched for its pods, as was told; of keep
}

// rights are whether Kip may serve a node.
type rights int

const (
	rightsUnknown rights = iota
	rightsMissing
	rightsHeld // or nobody says otherwise
)

// loop is a goroutine that can be ended.
type loop struct {
	end  context.CancelFunc
	done chan struct{}
}

// equip makes what answers for a node as its kubelet.
func (n *nodes) equip(ctx context.Context, s *served) error {
	addresses, err := n.addresses()
	if err != nil {
		return err
	}
	certificate, err := n.servingCertificate(n.authority, s.name, addresses)
	if err != nil {
		return err
	}
	s.stats = stats.New(stats.Config{
		NodeName: s.name,
		Cells:    statsCells(n.leading.cells, s.name),
		Gathered: n.metrics.StatsGathered,
		Clock:    n.clock,
		Log:      n.Log,
	})
	s.port, err = node.NewPort(node.PortConfig{
		NodeName:    s.name,
		Reviews:     n.api.asKip,
		ClientCA:    n.clientCA,
		Certificate: certificate,
		Cells:       wayToCells{pods: s.informer.GetStore(), cells: n.cells, loop: n.leading.pods},
		Logs:        n.logs,
		Stats:       s.stats,
		Pods:        func() []*corev1.Pod { return podsOf(s.informer) },
		Healthy:     n.healthyOf(s),
		Log:         n.Log,
	})
	if err != nil {
		return err
	}
	// One each from the port of the options. Before anything runs: a port that is taken ends Kip before it has done anything.
	s.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(addresses[0].String(), strconv.Itoa(n.KubeletPort+s.number)))
	if err != nil {
		return fmt.Errorf("listen for the API server, as node %s: %w", s.name, err)
	}
	return nil
}

// healthyOf says why a node is not Ready.
func (n *nodes) healthyOf(s *served) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := n.store.Healthy(ctx); err != nil {
			return err
		}
		if !n.pods.Listed(s.name) {
			return errNotListed
		}
		return nil
	}
}

// object makes the virtual node of an entry, as a configuration has it. It has no effect
// outside.
func (n *nodes) object(cfg *config.Config, s *served, e roster.Entry) (*node.Node, error) {
	addresses, err := n.addresses()
	if err != nil {
		return nil, err
	}
	taint, err := n.taint()
	if err != nil {
		return nil, err
	}
	c, err := n.described(cfg, s.name, e)
	if err != nil {
		return nil, err
	}
	c.Own, c.Node = n.api.asKip, s.asNode
	c.Capacity = cfg.CapacityOf(e.Node)
	c.Taint, c.Taints = taint, taintsOf(e)
	c.Removed = e.Removed
	c.Adopts = e.Number == 0
	c.InternalIP, c.SecondIP = addresses[0], second(addresses)
	c.Port = uint16(n.KubeletPort + e.Number)
	c.Version = version.String()
	c.Healthy = n.healthyOf(s)
	c.Log = n.Log
	return node.New(c)
}

// taintsOf are those that the configuration gives a node.
func taintsOf(e roster.Entry) (list []corev1.Taint) {
	for _, t := range e.Node.Taints {
		list = append(list, corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	return list
}

// described is what the labels of the node of an entry follow from, as a configuration
// has it.
func (n *nodes) described(cfg *config.Config, name string, e roster.Entry) (node.Config, error) {
	types, _, err := n.shop.OfNode(name, e.Limit())
	if err != nil {
		return node.Config{}, err
	}
	zone, arch := e.Zone(types), runtime.GOARCH
	if len(e.Node.Architectures) > 0 {
		arch = e.Node.Architectures[0]
	}
	traits := n.machines.Traits()
	return node.Config{
		Name:         name,
		Labels:       cfg.LabelsOf(e.Node),
		Zone:         zone,
		Region:       cmp.Or(traits.Region, zone),
		Arch:         arch,
		AnyArch:      len(e.Node.Architectures) > 1,
		CapacityType: e.CapacityType(),
		Controller:   n.controllerID,
	}, nil
}

// labelsOf are the labels of a node that is served.
func (n *nodes) labelsOf(name string) (map[string]string, error) {
	entry, _ := n.entryOf(name)
	n.mu.Lock()
	cfg := n.cfg
	n.mu.Unlock()
	c, err := n.described(cfg, name, entry)
	if err != nil {
		return nil, err
	}
	return node.Labels(c)
}

// follow runs what every node has while it is served: the watch on its pods, its
// kubelet port and what answers there.
func (n *nodes) follow(ctx context.Context) error {
	n.mu.Lock()
	n.follows = ctx
	for _, s := range n.served {
		n.followOne(ctx, s)
	}
	n.mu.Unlock()
	defer n.tasks.Wait()
	select {
	case <-ctx.Done():
		return nil
	case err := <-n.failed:
		return err
	}
}

func (n *nodes) followOne(ctx context.Context, s *served) {
	ctx, s.stop = context.WithCancel(ctx)
	n.tasks.Go(func() { n.watch(ctx, s) })
	n.tasks.Go(func() { n.unless(ctx, s.stats.Run(ctx)) })
	n.tasks.Go(func() { n.unless(ctx, s.port.Serve(ctx, s.listener)) })
}

// unless ends Kip for the failure of something that nobody had stopped.
func (n *nodes) unless(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	select {
	case n.failed <- cmp.Or(err, errEnded):
	default:
	}
}

// rightsRetry is how often it is looked whether missing rights are there.
const rightsRetry = time.Minute

// watch follows the node's pods until ctx ends, once Kip may. A node that Kip may not
// be is left out, and holds up no other.
func (n *nodes) watch(ctx context.Context, s *served) {
	for said := ""; ctx.Err() == nil; {
		missing := n.missingRights(ctx, s)
		if missing == "" {
			break
		}
		if missing != said {
			said = missing
			n.Log.Error("a virtual node cannot be served: Kip has not the rights; apply deploy/rbac.yaml, with this name in it",
				"node", s.name, "right", missing)
			n.setRights(s, rightsMissing)
			n.pods.Remove(s.name)
			s.settle()
		}
		select {
		case <-ctx.Done():
			return
		case <-n.clock.After(rightsRetry):
		}
	}
	if n.setRights(s, rightsHeld) == rightsMissing {
		n.Log.Info("a virtual node can be served now", "node", s.name)
		if err := n.pods.Add(s.name, s.informer); err != nil {
			n.unless(ctx, err)
			return
		}
	}
	n.tasks.Go(func() {
		cache.WaitForCacheSync(ctx.Done(), s.informer.HasSynced)
		n.lookSoon()
	})
	s.informer.RunWithContext(ctx)
}

// setRights notes what is known of the rights, and returns what was before.
func (n *nodes) setRights(s *served, now rights) (before rights) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, s.rights = s.rights, now
	return before
}

func (s *served) settle() { s.once.Do(func() { close(s.settled) }) }

// missingRights says what Kip may not do that it needs for a node; "" if nothing, or
// nobody says.
func (n *nodes) missingRights(ctx context.Context, s *served) string {
	if s.number == 0 {
		return "" // Kip is of no use without: what fails says so
	}
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "impersonate", Resource: "users", Name: "system:node:" + s.name},
		{Verb: "patch", Resource: "nodes", Name: s.name},
		{Verb: "delete", Resource: "nodes", Name: s.name},
	} {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err := n.api.asKip.AuthorizationV1().SelfSubjectAccessReviews().Create(asking, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
		}, metav1.CreateOptions{})
		cancel()
		if err != nil {
			n.Log.Warn("whether Kip may serve a virtual node cannot be asked: trying", "node", s.name, "err", err)
			return ""
		}
		if !answer.Status.Allowed {
			return right.Verb + " " + right.Resource + " " + right.Name
		}
	}
	return ""
}

// startLoop keeps the object of a node until ctx ends, or stopLoop.
func (n *nodes) startLoop(ctx context.Context, s *served) {
	ctx, end := context.WithCancel(ctx)
	l := &loop{end: end, done: make(chan struct{})}
	n.mu.Lock()
	s.loop = l
	object := s.node
	n.mu.Unlock()
	n.loops.Go(func() {
		defer close(l.done)
		running := make(chan struct{})
		n.loops.Go(func() {
			select {
			case <-object.Ready():
				s.settle()
			case <-running:
			}
		})
		err := object.Run(ctx)
		close(running)
		if ctx.Err() == nil {
			n.unless(ctx, cmp.Or(err, errors.New("the virtual node is kept no more")))
		}
	})
}

// stopLoop ends the keeping of a node's object, and waits for that.
func (n *nodes) stopLoop(s *served) {
	n.mu.Lock()
	l := s.loop
	s.loop = nil
	n.mu.Unlock()
	if l != nil {
		l.end()
		<-l.done
	}
}
