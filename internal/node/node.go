package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/version"
)

// CellFeatures are the node features that the kubelet on the cells has on by
// default and that a node declares, sorted. The API server refuses what a node
// does not declare (it would resize no init container), and speaks WebSocket to
// a kubelet only if it declares it.
var CellFeatures = []string{
	"ExtendWebSocketsToKubelet",
	"InPlacePodLevelResourcesVerticalScaling",
	"InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}

const (
	// TypeLabel is the label by which pods select a virtual node, and TypeValue its value.
	TypeLabel = "type"
	TypeValue = "virtual-kubelet"
	// InstanceType is the label's value for a node whose pods have each an
	// instance of a type of its own.
	InstanceType = "kip"
	// roleLabel is what kubectl shows as the node's role, and roleValue its value.
	roleLabel = "kubernetes.io/role"
	roleValue = "agent"
	// capacityTypeLabel is karpenter's.
	capacityTypeLabel = "karpenter.sh/capacity-type"
	// eksComputeTypeLabel and azureManagedLabel are by what the controllers of a cloud, and
	// its DaemonSets, know a node that is no machine of it. It is the cluster's cloud that
	// matters, which may be another than that of the cells. No other cloud looks at them.
	eksComputeTypeLabel = "eks.amazonaws.com/compute-type"
	azureManagedLabel   = "kubernetes.azure.com/managed"
	operatingSys        = "linux"

	// checkInterval is how often Kip asks itself whether it can work, and
	// checkTimeout how long it waits for the answer.
	checkInterval = 10 * time.Second
	checkTimeout  = 10 * time.Second
	// failuresToNotReady is how many checks must fail in a row before a node
	// that was ready says that it is not. A node that is not ready takes its
	// pods out of their Services, although they run: a hiccup must not.
	failuresToNotReady = 3
)

// Config of the virtual node. All fields are required, unless stated otherwise.
type Config struct {
	// Name of the node, a DNS subdomain.
	Name string
	// Own is Kip's own identity: it may create nodes, and get and patch this
	// one.
	Own kubernetes.Interface
	// Node is the identity system:node:<Name>: it writes the status and the
	// lease.
	Node kubernetes.Interface
	// Capacity is what the scheduler may place on the node; allocatable is
	// the same. SetCapacity changes it.
	Capacity corev1.ResourceList
	// Awaited are the resources of Capacity that are not known yet. A node that is there
	// keeps what it has of them until SetCapacity. Optional.
	Awaited []corev1.ResourceName
	// Labels are added to the node's own, and may replace the zone, the region,
	// the instance type and those of clouds. Optional.
	Labels map[string]string
	// Taint keeps pods away that do not tolerate it, Taints are further ones. Optional.
	Taint  *corev1.Taint
	Taints []corev1.Taint
	// Removed says that the node takes no more pods: it is cordoned until it is gone, or
	// comes back.
	Removed bool
	// Zone and Region are those of the cells. Optional.
	Zone, Region string
	// Arch of the cells, in Go's and Kubernetes' words: amd64, arm64. With AnyArch it is
	// one of several, and no label says which.
	Arch    string
	AnyArch bool
	// CapacityType is how the cells are bought, in karpenter's words: on-demand, spot.
	// Optional: in several ways.
	CapacityType string
	// Controller is the ID of the Kip whose node this is. Optional. A node of another Kip
	// is a foreign one, unless Adopts is true.
	Controller string
	Adopts     bool
	// InternalIP and Port are where the API server finds the kubelet port.
	InternalIP netip.Addr
	Port       uint16
	// SecondIP is its address of the other family. Optional.
	SecondIP netip.Addr
	// Version of Kip.
	Version string
	// Features that the node declares. Optional: CellFeatures.
	Features []string
	// Drivers are the CSI drivers of which Kip knows whether the node's cells can have disks.
	// Optional.
	Drivers []Driver
	// ZoneLabels are labels that say Zone, besides the usual one. Optional.
	ZoneLabels []string
	// Healthy says why Kip cannot do its work now, or nil.
	Healthy func(context.Context) error
	Log     *slog.Logger
	// Clock is optional: the real one.
	Clock clock.WithTicker
}

// Driver is a CSI driver for disks.
type Driver struct {
	Name string
	// Topology are the labels by which its volumes select nodes; none where the node's cells
	// can have none of its disks.
	Topology []string
}

// Node is the virtual node. Make it with New.
type Node struct {
	c      Config
	labels map[string]string // all that the node must carry

	ready     chan struct{}
	readyOnce sync.Once
	changed   chan struct{} // what register writes has changed
	there     chan struct{} // the object is there, maybe another than before

	mu  sync.Mutex
	uid types.UID // of the object; "" before it is there
	// short is why nothing can be launched for the node's pods now, "" if something can.
	short string
	// lacks is the condition of what nothing can be launched for.
	lacks corev1.NodeCondition
	// capacity is never changed, only replaced.
	capacity corev1.ResourceList
	awaited  []corev1.ResourceName
	// sent is the Ready condition that the node controller was last told of, sentLacks and sentCapacity
	// what else was told with it, and applied whether they were written. The node
	// controller's inbox holds one status and blocks its writer when full, also after the
	// controller has ended: nothing is sent before the last was applied.
	sent         corev1.NodeCondition
	sentLacks    corev1.NodeCondition
	sentCapacity corev1.ResourceList
	applied      bool
}

// New checks the configuration. It has no effect outside.
func New(c Config) (*Node, error) {
	if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		return nil, fmt.Errorf("node name %q: %s", c.Name, strings.Join(problems, "; "))
	}
	if c.SecondIP.IsValid() && (c.SecondIP.IsUnspecified() || c.SecondIP.Is4() == c.InternalIP.Is4()) {
		return nil, fmt.Errorf("second IP of node %s: %q is no address of the other family than that of %s", c.Name, c.SecondIP, c.InternalIP)
	}
	if !c.InternalIP.IsValid() || c.InternalIP.IsUnspecified() {
		return nil, fmt.Errorf("internal IP of node %s: %q is not an address at which the API server can reach it", c.Name, c.InternalIP)
	}
	if c.Port == 0 {
		return nil, fmt.Errorf("kubelet port of node %s: it must be between 1 and 65535", c.Name)
	}
	for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods} {
		if q, ok := c.Capacity[r]; !ok || q.Sign() <= 0 {
			return nil, fmt.Errorf("capacity of node %s: %s must be set and greater than 0", c.Name, r)
		}
	}
	for _, t := range c.Taints {
		switch {
		case c.Removed: // it gets no more pods, and is no longer somebody's to mend
		case t.Key == RemovedTaint || t.Key == ShortTaint:
			return nil, fmt.Errorf("taint %s: Kip sets it and takes it off, as it is needed: want another key", t.Key)
		case c.Taint != nil && t.MatchTaint(c.Taint):
			return nil, fmt.Errorf("taint %s:%s: the node has it twice, as all of Kip's have it: want another effect, or none", t.Key, t.Effect)
		}
	}
	if c.Own == nil || c.Node == nil || c.Healthy == nil || c.Log == nil {
		return nil, errors.New("node: Own, Node, Healthy and Log must be set")
	}
	if c.Arch == "" || c.Version == "" {
		return nil, errors.New("node: Arch and Version must be set")
	}
	if c.Features == nil {
		c.Features = CellFeatures
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	labels, err := Labels(c)
	if err != nil {
		return nil, err
	}
	return &Node{
		c:        c,
		labels:   labels,
		capacity: c.Capacity.DeepCopy(),
		awaited:  c.Awaited,
		lacks:    corev1.NodeCondition{Type: ShortageCondition, Status: corev1.ConditionFalse, Reason: "CapacityAvailable"},
		ready:    make(chan struct{}),
		changed:  make(chan struct{}, 1),
		there:    make(chan struct{}, 1),
	}, nil
}

// Labels are those of the virtual node: what c says of its zone, region and others, and
// Kip's own.
func Labels(c Config) (map[string]string, error) {
	fixed := map[string]string{
		TypeLabel:            TypeValue,
		roleLabel:            roleValue,
		corev1.LabelHostname: c.Name,
		corev1.LabelOSStable: operatingSys,
		// No machine is behind it that a load balancer could send to.
		corev1.LabelNodeExcludeBalancers: "true",
	}
	if !c.AnyArch {
		// Every cell of this node is of this architecture.
		fixed[corev1.LabelArchStable] = c.Arch
	}
	if c.CapacityType != "" {
		fixed[capacityTypeLabel] = c.CapacityType
	}
	if c.Controller != "" {
		fixed[apiv1.LabelController] = c.Controller
	}
	labels := map[string]string{
		corev1.LabelInstanceTypeStable: InstanceType,
		eksComputeTypeLabel:            "fargate",
		azureManagedLabel:              "false",
	}
	if c.Zone != "" {
		labels[corev1.LabelTopologyZone] = c.Zone
		for _, key := range c.ZoneLabels {
			labels[key] = c.Zone
		}
	}
	if c.Region != "" {
		labels[corev1.LabelTopologyRegion] = c.Region
	}
	for k, v := range c.Labels {
		if problems := validation.IsQualifiedName(k); len(problems) > 0 {
			return nil, fmt.Errorf("node label %q: %s", k, strings.Join(problems, "; "))
		}
		if problems := validation.IsValidLabelValue(v); len(problems) > 0 {
			return nil, fmt.Errorf("value %q of node label %s: %s", v, k, strings.Join(problems, "; "))
		}
		if f, ok := fixed[k]; ok && f != v {
			return nil, fmt.Errorf("node label %s: Kip sets it to %q, it cannot be %q", k, f, v)
		}
		labels[k] = v
	}
	maps.Copy(labels, fixed)
	return labels, nil
}

// Short says why nothing can be launched for the node's pods now, by a taint that keeps
// pods away; "" takes the taint off. It does not block.
func (n *Node) Short(why string) {
	n.mu.Lock()
	changed := n.short != why
	n.short = why
	n.mu.Unlock()
	if changed {
		n.registerSoon()
	}
}

// Lacks says what of the node's offers cannot be launched now, as its condition ShortageCondition. The API server has it after the next
// check.
func (n *Node) Lacks(status corev1.ConditionStatus, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lacks.Status, n.lacks.Reason, n.lacks.Message = status, reason, message
}

// Capacity returns what the scheduler may place on the node.
func (n *Node) Capacity() corev1.ResourceList {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.capacity.DeepCopy()
}

// SetCapacity changes what the scheduler may place on the node. The API server has it after
// the next check. It reports whether that is another capacity than before.
func (n *Node) SetCapacity(list corev1.ResourceList) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed = len(list) != len(n.capacity) || !has(list, n.capacity)
	n.capacity, n.awaited = list.DeepCopy(), nil
	return changed
}

// await has the node keep what the API server has of the capacity that is not known yet.
func (n *Node) await(registered *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.capacity.DeepCopy()
	for _, name := range n.awaited {
		if q, is := registered.Status.Capacity[name]; is && q.Sign() > 0 {
			kept[name] = q.DeepCopy()
		}
	}
	n.capacity = kept
}

// has reports whether a list has all that another has, and as much.
func has(list, other corev1.ResourceList) bool {
	for name, want := range other {
		if q, is := list[name]; !is || q.Cmp(want) != 0 {
			return false
		}
	}
	return true
}

func (n *Node) registerSoon() { soon(n.changed) }

// soon asks for a turn of who waits for c. It does not block.
func soon(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// registerRetry is the pause after a change of the registration that was not written.
const registerRetry = 5 * time.Second

// keepRegistered writes what changes of the registration, until ctx ends. The error is nil
// unless the node's name has come to belong to a node that is not Kip's.
func (n *Node) keepRegistered(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.changed:
		}
		_, err := n.register(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			continue
		case errors.Is(err, ErrForeignNode):
			return err
		}
		n.c.Log.Warn("the virtual node's taints cannot be written, retrying", "node", n.c.Name, "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-n.c.Clock.After(registerRetry):
			n.registerSoon()
		}
	}
}

// Ready is closed when the node is registered and its first status is written.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Run registers the node and keeps its lease and status until ctx ends. It does
// not give up: what fails is logged and retried. The node object stays. The
// error is nil unless the node's name belongs to a node that is not Kip's.
func (n *Node) Run(ctx context.Context) error {
	ctx = vklog.WithLogger(ctx, vkLogger{ctx, n.c.Log.With("node", n.c.Name)})
	const first, most = time.Second, 30 * time.Second
	for failed := 1; ; failed++ {
		started := n.c.Clock.Now()
		err := n.runOnce(ctx)
		if errors.Is(err, ErrForeignNode) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if n.c.Clock.Since(started) > most {
			failed = 1
		}
		wait := backoff.Random(nil).After(failed, first, most)
		n.c.Log.Error("the virtual node cannot be kept, retrying", "node", n.c.Name, "err", err, "in", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-n.c.Clock.After(wait):
		}
	}
}

func (n *Node) runOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var checks sync.WaitGroup
	defer checks.Wait()
	defer cancel()

	registered, err := n.register(ctx)
	if err != nil {
		return err
	}
	// The first judgement stands at once: nothing is known of before.
	failures := failuresToNotReady
	condition := n.check(ctx, &failures)
	condition.LastTransitionTime = n.transition(condition, registered.Status.Conditions)
	n.await(registered)
	n.mu.Lock()
	capacity, lacks := n.capacity, n.lacks
	lacks.LastTransitionTime = n.transition(lacks, registered.Status.Conditions)
	n.sent, n.sentLacks, n.sentCapacity, n.applied = condition, lacks, capacity, false
	n.mu.Unlock()

	notify := make(chan func(*corev1.Node), 1)
	controller, err := vknode.NewNodeController(provider{notify},
		n.object(registered, condition, lacks, capacity),
		observedNodes{n.c.Node.CoreV1().Nodes(), n},
		vknode.WithNodeEnableLeaseV1(renewedLeases{n.c.Node.CoordinationV1().Leases(corev1.NamespaceNodeLease)}, vknode.DefaultLeaseDuration),
		vknode.WithNodeStatusUpdateErrorHandler(func(ctx context.Context, err error) error {
			if !apierrors.IsNotFound(err) {
				return err
			}
			n.c.Log.Warn("the node object was deleted; making it again", "node", n.c.Name)
			_, err = n.register(ctx)
			return err
		}))
	if err != nil {
		return fmt.Errorf("node controller of %s: %w", n.c.Name, err)
	}
	checks.Go(func() { n.keepChecking(ctx, failures, registered, notify) })
	var foreign error
	checks.Go(func() {
		if foreign = n.keepRegistered(ctx); foreign != nil {
			cancel()
		}
	})
	checks.Go(func() { n.keepDriver(ctx) })
	err = controller.Run(ctx)
	cancel()
	checks.Wait()
	return cmp.Or(foreign, err)
}

// keepChecking tells the node controller when Kip's health changes, or the capacity.
func (n *Node) keepChecking(ctx context.Context, failures int, registered *corev1.Node, notify <-chan func(*corev1.Node)) {
	var tell func(*corev1.Node)
	select {
	case <-ctx.Done():
		return
	case tell = <-notify:
	}
	ticker := n.c.Clock.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		condition := n.check(ctx, &failures)
		if ctx.Err() != nil {
			return
		}
		n.mu.Lock()
		capacity, lacks, turns := n.capacity, n.lacks, !sameCondition(condition, n.sent)
		send := n.applied && (turns || !sameCondition(lacks, n.sentLacks) || !has(n.sentCapacity, capacity))
		if send {
			condition.LastTransitionTime = n.transition(condition, []corev1.NodeCondition{n.sent})
			lacks.LastTransitionTime = n.transition(lacks, []corev1.NodeCondition{n.sentLacks})
			n.sent, n.sentLacks, n.sentCapacity, n.applied = condition, lacks, capacity, false
		}
		n.mu.Unlock()
		if send && turns {
			n.c.Log.Info("the node's readiness changes", "node", n.c.Name,
				"ready", condition.Status, "reason", condition.Reason, "message", condition.Message)
		}
		if send {
			tell(n.object(registered, condition, lacks, capacity))
		}
	}
}

// observe sees each status that the API server accepted.
func (n *Node) observe(node *corev1.Node) {
	written := writtenStatus(node)
	n.mu.Lock()
	is := func(want corev1.NodeCondition) bool {
		return slices.ContainsFunc(written.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == want.Type && sameCondition(c, want)
		})
	}
	if is(n.sent) && is(n.sentLacks) && has(written.Capacity, n.sentCapacity) {
		n.applied = true
	}
	n.mu.Unlock()
	n.readyOnce.Do(func() { close(n.ready) })
}

// writtenAnnotation is where Virtual Kubelet keeps the status that it has written.
const writtenAnnotation = "virtual-kubelet.io/last-applied-node-status"

// writtenStatus returns the status that was written: that of the node may be another, since
// webhooks change it, as those do that overcommit.
func writtenStatus(node *corev1.Node) corev1.NodeStatus {
	var written corev1.NodeStatus
	if err := json.Unmarshal([]byte(node.Annotations[writtenAnnotation]), &written); err != nil {
		return node.Status
	}
	return written
}

// check asks whether Kip can work, and says it as the node's Ready condition.
// failures counts the checks that failed in a row.
func (n *Node) check(ctx context.Context, failures *int) corev1.NodeCondition {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := n.c.Healthy(ctx)
	c := corev1.NodeCondition{
		Type:    corev1.NodeReady,
		Status:  corev1.ConditionTrue,
		Reason:  "KipReady",
		Message: "Kip is ready to give pods their cells",
	}
	switch {
	case err == nil:
		*failures = 0
	case *failures+1 < failuresToNotReady:
		*failures++
		n.c.Log.Warn("Kip cannot do its work now", "node", n.c.Name, "err", err, "times", *failures)
	default:
		*failures = failuresToNotReady
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "KipNotReady", err.Error()
	}
	return c
}

// transition is when c came to have its status: now, unless it had it before.
func (n *Node) transition(c corev1.NodeCondition, before []corev1.NodeCondition) metav1.Time {
	for _, was := range before {
		if was.Type == c.Type && was.Status == c.Status {
			return was.LastTransitionTime
		}
	}
	return metav1.NewTime(n.c.Clock.Now())
}

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// object is the node as the node controller writes it. It carries no labels:
// they are written by register.
func (n *Node) object(registered *corev1.Node, ready, lacks corev1.NodeCondition, capacity corev1.ResourceList) *corev1.Node {
	conditions := []corev1.NodeCondition{ready, lacks}
	for _, t := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable,
	} {
		c := corev1.NodeCondition{
			Type:    t,
			Status:  corev1.ConditionFalse,
			Reason:  "CellPerPod",
			Message: "every pod has a machine of its own; they share nothing that could run short",
		}
		c.LastTransitionTime = n.transition(c, registered.Status.Conditions)
		conditions = append(conditions, c)
	}
	addresses := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.c.InternalIP.String()}}
	if n.c.SecondIP.IsValid() {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.c.SecondIP.String()})
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.c.Name, UID: registered.UID},
		Status: corev1.NodeStatus{
			Capacity:    capacity.DeepCopy(),
			Allocatable: capacity.DeepCopy(),
			Conditions:  conditions,
			Addresses:   append(addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.c.Name}),
			DaemonEndpoints: corev1.NodeDaemonEndpoints{
				KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(n.c.Port)},
			},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion:          version.Kubernetes + "-kip-" + strings.TrimPrefix(n.c.Version, "v"),
				OSImage:                 "Kip " + n.c.Version + " (a machine for each pod)",
				ContainerRuntimeVersion: "kip://" + n.c.Version,
				OperatingSystem:         operatingSys,
				Architecture:            n.c.Arch,
			},
			DeclaredFeatures: n.c.Features,
		},
	}
}

// provider is what Virtual Kubelet asks. The ping never fails: Kip's health is
// told in the Ready condition, with its reason, while the lease says only that
// Kip lives. (A failing ping would stop both, and the node would turn Unknown
// without a word.)
type provider struct{ notify chan<- func(*corev1.Node) }

var _ vknode.NodeProvider = provider{}

func (provider) Ping(ctx context.Context) error { return ctx.Err() }

func (p provider) NotifyNodeStatus(_ context.Context, cb func(*corev1.Node)) { p.notify <- cb }

// observedNodes lets the node see the statuses that are written, and makes a
// node object that vanished in the way in which register does.
type observedNodes struct {
	corev1client.NodeInterface
	n *Node
}

func (o observedNodes) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions,
	sub ...string) (*corev1.Node, error) {
	node, err := o.NodeInterface.Patch(ctx, name, pt, data, opts, sub...)
	if err == nil {
		o.n.observe(node)
	}
	return node, err
}

// renewedLeases renews a lease by what the node controller writes of it, whoever has
// written the rest since: the mark of package holder, which changes as often. An update
// would meet a conflict each time.
type renewedLeases struct {
	coordinationv1client.LeaseInterface
}

// Update is of the lease that was read: one that was made anew is a conflict, for which
// the node controller reads it. Else it would get the owner that the last one had, which
// may be a node that is no more, and be deleted for that.
func (l renewedLeases) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	metadata := map[string]any{"ownerReferences": lease.OwnerReferences}
	if lease.UID != "" {
		metadata["uid"] = lease.UID
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "spec": lease.Spec})
	if err != nil {
		return nil, err
	}
	renewed, err := l.LeaseInterface.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if isAnother(err) {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name, err)
	}
	return renewed, err
}

// isAnother says that a patch was of another UID: to the API server it is a change of a
// field that does not change, and no conflict.
func isAnother(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

func (o observedNodes) Create(ctx context.Context, _ *corev1.Node, _ metav1.CreateOptions) (*corev1.Node, error) {
	return o.n.register(ctx)
}
