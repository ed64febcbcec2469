package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/provisioner"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/version"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watches"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// served is a virtual node that this process serves.
type served struct {
	name   string
	number int // in the name
	asNode kubernetes.Interface

	informer    cache.SharedIndexInformer // of its pods
	stats       *stats.Stats
	certificate Certificate // of the port
	port        *node.Port
	listener    net.Listener
	stop        context.CancelFunc // of these; nil before they run

	lost    chan struct{} // it has become another's
	once    sync.Once
	settled chan struct{} // closed when it is registered, or known that it may not be

	// Under nodes.mu.
	entry  nodeplan.Entry
	node   *node.Node
	loop   *loop // that keeps its object; nil while none does
	rights rights
	turns  time.Time // when it last began to turn pods away for others that leave
	left   time.Time // when a pod last was to leave it, since it had nothing for that
	// turnsLacks and leftLacks are what those pods lacked, for people.
	turnsLacks, leftLacks string

	// Of keep.
	short   shortage  // why it takes no pods now, as was told
	leaving time.Time // since when it is cordoned and empty; zero if it is not
	deleted bool      // its object is, since it was taken out
}

// rights are whether Kip may serve a node.
type rights int

const (
	rightsUnknown rights = iota
	rightsMissing
	rightsForeign // the name is that of a machine, or of another Kip's node
	rightsHeld
)

// loop is a goroutine that can be ended.
type loop struct {
	end  context.CancelFunc
	done chan struct{}
}

// numberedPorts is how far the kubelet ports of numbered nodes are from the one of the
// node without: those next to it are Kip's own for metrics, and the cluster's components'.
const numberedPorts = 100

// portOf is where the API server finds the node of a number.
func portOf(base, number int) int {
	if number == 0 {
		return base
	}
	return base + numberedPorts + number
}

// equip makes what answers for a node as its kubelet.
func (n *Nodes) equip(ctx context.Context, s *served) error {
	addresses, err := n.c.Flags.Addresses()
	if err != nil {
		return err
	}
	if s.certificate, err = n.made.Certificates.Certificate(ctx, s.name, addresses); err != nil {
		return err
	}
	s.stats = stats.New(stats.Config{
		NodeName: s.name,
		Cells:    func() []stats.Cell { return withClaims(n.made.Endpoints.Running(s.name), s.informer.GetStore()) },
		Gathered: n.made.Observer.StatsGathered,
		Clock:    n.c.Clock,
		Log:      n.c.Log,
	})
	pods, healthy := func() []*corev1.Pod { return watches.List(s.informer) }, n.healthyOf(s)
	s.port, err = node.NewPort(node.PortConfig{
		NodeName:    s.name,
		Reviews:     n.c.Reviews,
		ClientCA:    n.made.ClientCA,
		Certificate: s.certificate.GetCertificate,
		Cells:       n.made.Endpoints.To(s.informer.GetStore()),
		Logs:        n.made.Logs,
		Stats:       s.stats,
		Metrics: n.made.Observer.Kubelet(metrics.KubeletConfig{
			Node:        s.name,
			Pods:        pods,
			Certificate: s.certificate.GetCertificate,
			Volumes:     s.stats.Volumes,
			Healthy:     healthy,
		}),
		MaxPods: func() int64 { return n.maxPods(s) },
		Version: version.String(),
		Pods:    pods,
		Healthy: healthy,
		Log:     n.c.Log,
	})
	if err != nil {
		return err
	}
	// Before anything runs: a port that is taken ends Kip before it has done anything.
	at := net.JoinHostPort(addresses[0].String(), strconv.Itoa(portOf(n.c.KubeletPort, s.number)))
	s.listener, err = n.listen(ctx, at)
	if err != nil {
		return fmt.Errorf("listen for the API server, as node %s: %w", s.name, err)
	}
	return nil
}

// withClaims returns the cells with the claims of their pods, as the pods of their node have them.
func withClaims(cells []stats.Cell, pods cache.Store) []stats.Cell {
	for i := range cells {
		o, _, err := pods.GetByKey(cells[i].Namespace + "/" + cells[i].Pod)
		pod, ok := o.(*corev1.Pod)
		if err != nil || !ok || pod.UID != cells[i].UID {
			continue
		}
		for v := range pod.Spec.Volumes {
			if volume := &pod.Spec.Volumes[v]; volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
				cells[i].Claims = append(cells[i].Claims, volumes.ClaimOf(pod, volume))
			}
		}
	}
	return cells
}

// maxPods is how many pods the node takes now.
func (n *Nodes) maxPods(s *served) int64 {
	n.mu.Lock()
	cfg, object, e := n.cfg, s.node, s.entry
	n.mu.Unlock()
	capacity, _ := cfg.CapacityOf(e.Node)
	if object != nil {
		capacity = object.Capacity()
	}
	return capacity.Pods().Value()
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

// ErrNotListed says that it is not known yet which pods there are.
var ErrNotListed = errors.New("the pods of the node are not listed yet")

// healthyOf says why a node is not Ready.
func (n *Nodes) healthyOf(s *served) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := n.c.Store.Healthy(ctx); err != nil {
			return err
		}
		if !n.pods.Listed(s.name) {
			return ErrNotListed
		}
		return nil
	}
}

// object makes the virtual node of an entry, as a configuration has it. It has no effect
// outside.
func (n *Nodes) object(cfg *config.Config, s *served, e nodeplan.Entry) (*node.Node, error) {
	addresses, err := n.c.Flags.Addresses()
	if err != nil {
		return nil, err
	}
	taint, err := n.c.Flags.Taint()
	if err != nil {
		return nil, err
	}
	c, err := n.described(cfg, s.name, e)
	if err != nil {
		return nil, err
	}
	c.Own, c.Node = n.c.Client, s.asNode
	c.Capacity, c.Awaited = n.capacityOf(cfg, s.name, e)
	c.Taint, c.Taints = taint, taintsOf(e)
	c.Removed = e.Removed
	c.Adopts = e.Number == 0
	c.InternalIP, c.SecondIP = addresses[0], second(addresses)
	c.Port = uint16(portOf(n.c.KubeletPort, e.Number))
	c.Version = version.String()
	c.Healthy = n.healthyOf(s)
	c.Log = n.c.Log
	return node.New(c)
}

// drivers are the CSI drivers of whose disks the cells of an entry's node can have some, or not, and the
// labels that say the zone in their words. The volumes of the cloud's own driver select nodes by their zone
// alone: a node that has none, or several, can have none of them.
func (n *Nodes) drivers(e nodeplan.Entry, zone string) (all []node.Driver, zoneLabels []string) {
	own := node.Driver{Name: volumes.Driver}
	if n.c.HasDisks {
		own.Topology = provisioner.TopologyKeys(apiv1.LabelController, zoneOf(e))
	}
	all = []node.Driver{own}
	if key := n.c.CloudDriver.ZoneKey; n.c.CloudDriver.Name != "" {
		clouds := node.Driver{Name: n.c.CloudDriver.Name}
		if zone != "" {
			clouds.Topology, zoneLabels = []string{key}, []string{key}
		}
		all = append(all, clouds)
	}
	return all, zoneLabels
}

// taintsOf are those that the configuration gives a node.
func taintsOf(e nodeplan.Entry) (list []corev1.Taint) {
	for _, t := range e.Node.Taints {
		list = append(list, corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	return list
}

// described is what the labels of the node of an entry follow from, as a configuration
// has it.
func (n *Nodes) described(cfg *config.Config, name string, e nodeplan.Entry) (node.Config, error) {
	types, _, err := n.c.InstanceTypes.OfNode(name, e.Limit())
	if err != nil {
		return node.Config{}, err
	}
	zone, arch := e.Zone(types), runtime.GOARCH
	switch only := e.Arch(types); {
	case len(e.Node.Architectures) > 0:
		arch = e.Node.Architectures[0]
	case only != "" && !e.Plain():
		arch = only
	}
	drivers, zoneLabels := n.drivers(e, zone)
	return node.Config{
		Name:         name,
		Drivers:      drivers,
		ZoneLabels:   zoneLabels,
		Labels:       cfg.LabelsOf(e.Node),
		Zone:         zone,
		Region:       cmp.Or(n.c.Region, zone),
		Arch:         arch,
		AnyArch:      len(e.Node.Architectures) > 1,
		CapacityType: e.CapacityType(),
		Controller:   n.c.ControllerID,
	}, nil
}

// labelsOf are the labels of a node that is served.
func (n *Nodes) labelsOf(name string) (map[string]string, error) {
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

// labelsFor are those by which a pod is placed. Where it requires one that Kip does not set,
// they are also those that others have written on its node, but for what they say of
// instances, which differ; as these were at most so long ago.
func (n *Nodes) labelsFor(ctx context.Context, pod *corev1.Pod, ago time.Duration) (map[string]string, error) {
	name := pod.Spec.NodeName
	labels, err := n.labelsOf(name)
	asked, invalid := placement.ParseAnnotations(pod.Annotations)
	if err != nil || invalid != nil || !asked.Requirements.Beyond(labels) { // placement says what is invalid
		return labels, err
	}
	there, err := n.read(ctx, name, ago)
	switch {
	case apierrors.IsNotFound(err): // Kip makes it again
		return labels, nil
	case err != nil:
		return nil, fmt.Errorf("read the labels of node %s: %w", name, err)
	}
	for key, value := range there.Labels {
		if _, own := labels[key]; !own && !placement.IsInstanceLabel(key) {
			labels[key] = value
		}
	}
	return labels, nil
}

// Follow runs what every node has while it is served: the watch on its pods, its
// kubelet port and what answers there, until ctx ends.
func (n *Nodes) Follow(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer n.tasks.Wait()
	defer end()
	n.mu.Lock()
	n.follows = ctx
	for _, s := range n.served {
		n.followOne(ctx, s)
	}
	n.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil
	case err := <-n.failed:
		return err
	}
}

func (n *Nodes) followOne(ctx context.Context, s *served) {
	ctx, s.stop = context.WithCancel(ctx)
	n.tasks.Go(func() { n.watch(ctx, s) })
	n.tasks.Go(func() { n.unless(ctx, s.stats.Run(ctx)) })
	n.tasks.Go(func() { n.unless(ctx, s.port.Serve(ctx, s.listener)) })
}

// errEnded is the failure of what returned although nobody had stopped it.
var errEnded = errors.New("it has ended by itself")

// unless ends Kip for the failure of something that nobody had stopped.
func (n *Nodes) unless(ctx context.Context, err error) {
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

// watch follows the node's pods until ctx ends, while Kip may. A node that Kip may not
// be is left out, and holds up no other.
func (n *Nodes) watch(ctx context.Context, s *served) {
	n.awaitRights(ctx, s)
	if ctx.Err() != nil {
		return
	}
	// Not before: a certificate in the name of a machine is none for Kip to request.
	n.tasks.Go(func() { n.unless(ctx, s.certificate.Run(ctx)) })
	n.tasks.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), s.informer.HasSynced) {
			if e, _ := n.entryOf(s.name); e.Removed {
				s.settle() // it is ours, and need not be registered
			}
		}
		n.LookSoon()
	})
	n.tasks.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.lost:
				n.stopLoop(s)
				n.awaitRights(ctx, s)
				n.LookSoon()
			}
		}
	})
	s.informer.RunWithContext(ctx)
}

// leaveOut notes that a node is not Kip's now: it knows nothing of its pods.
func (n *Nodes) leaveOut(s *served, now rights) {
	n.setRights(s, now)
	n.pods.Remove(s.name)
	s.settle()
	n.LookSoon()
}

// awaitRights waits until Kip may serve a node, or ctx ends.
func (n *Nodes) awaitRights(ctx context.Context, s *served) {
	for said := ""; ctx.Err() == nil; {
		retry := rightsRetry
		state, why, err := n.barred(ctx, s)
		if err == nil && state == rightsHeld {
			break
		}
		if err != nil {
			why, retry = err.Error(), n.asksAgain
		}
		switch {
		case ctx.Err() != nil:
			return
		case why == said:
		case err != nil:
			n.c.Log.Warn("whether Kip may serve a virtual node is not known, asking again", "node", s.name, "err", err)
		default:
			n.c.Log.Error("a virtual node cannot be served", "node", s.name, "why", why)
			n.leaveOut(s, state)
		}
		said = why
		select {
		case <-ctx.Done():
			return
		case <-n.c.Clock.After(retry):
		}
	}
	if ctx.Err() != nil {
		return
	}
	if n.setRights(s, rightsHeld) != rightsUnknown {
		n.c.Log.Info("a virtual node can be served now", "node", s.name)
		if err := n.pods.Add(s.name, s.informer); err != nil {
			n.unless(ctx, err)
			return
		}
	}
}

// setRights notes what is known of the rights, and returns what was before.
func (n *Nodes) setRights(s *served, now rights) (before rights) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before, s.rights = s.rights, now
	return before
}

func (n *Nodes) rightsOf(s *served) rights {
	n.mu.Lock()
	defer n.mu.Unlock()
	return s.rights
}

func (s *served) settle() { s.once.Do(func() { close(s.settled) }) }

// barred says whether Kip may serve a node, and why not: it lacks a right, or a machine
// or another Kip has the name, whose pods are its own. The error is that there was no
// answer.
func (n *Nodes) barred(ctx context.Context, s *served) (state rights, why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if e, _ := n.entryOf(s.name); s.number == 0 && !e.Removed {
		return rightsHeld, "", nil // Kip is of no use without: what fails ends it
	}
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "impersonate", Resource: "users", Name: "system:node:" + s.name},
		{Verb: "patch", Resource: "nodes", Name: s.name},
		{Verb: "delete", Resource: "nodes", Name: s.name},
	} {
		answer, err := n.c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
		}, metav1.CreateOptions{})
		if err != nil {
			return rightsUnknown, "", fmt.Errorf("ask whether Kip may %s %s %s: %w", right.Verb, right.Resource, right.Name, err)
		}
		if !answer.Status.Allowed {
			return rightsMissing, fmt.Sprintf("Kip has no right to %s %s %s: raise nodeCount of the Helm chart, or name the node in its ClusterRole",
				right.Verb, right.Resource, right.Name), nil
		}
	}
	there, err := n.c.Client.CoreV1().Nodes().Get(ctx, s.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return rightsHeld, "", nil
	case err != nil:
		return rightsUnknown, "", fmt.Errorf("look whose node %s is: %w", s.name, err)
	}
	if err := node.Foreign(there, n.c.ControllerID); err != nil {
		return rightsForeign, err.Error(), nil
	}
	return rightsHeld, "", nil
}

// startLoop keeps the object of a node until ctx ends, or stopLoop.
func (n *Nodes) startLoop(ctx context.Context, s *served) {
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
		switch {
		case ctx.Err() != nil:
		case s.number > 0 && errors.Is(err, node.ErrForeignNode):
			// Only this one: the others' pods have their cells.
			n.leaveOut(s, rightsForeign)
			select {
			case s.lost <- struct{}{}:
			default:
			}
		default:
			n.unless(ctx, cmp.Or(err, errors.New("the virtual node is kept no more")))
		}
	})
}

// stopLoop ends the keeping of a node's object, and waits for that.
func (n *Nodes) stopLoop(s *served) {
	n.mu.Lock()
	l := s.loop
	s.loop = nil
	n.mu.Unlock()
	if l != nil {
		l.end()
		<-l.done
	}
}

// second is the second of addresses, the zero one where there is none.
func second(addresses []netip.Addr) netip.Addr {
	if len(addresses) > 1 {
		return addresses[1]
	}
	return netip.Addr{}
}
