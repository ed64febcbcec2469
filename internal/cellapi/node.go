package cellapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/elotl/kip/internal/watches"
)

// nodeHistory is how many changes of a cell's node are kept: one kubelet and one
// kube-proxy watch it.
const nodeHistory = 2

// cellNode is the Node that a cell's kubelet believes to be. Identity, labels,
// annotations and spec are those of the real virtual node; what the kubelet adds to
// labels and annotations is kept beside them; the status is the machine's own.
type cellNode struct {
	server     *Server
	as         *identity
	info       CellInfo
	collection *watches.Collection
	ready      chan struct{} // closed when the kubelet has reported Ready

	// mu is held for a moment each time, never while what a cell sent is read.
	mu      sync.Mutex
	current *composed // as composed last, nil before the virtual node is known
	first   *said     // before that
	// shown says that the kubelet has read this node. A patch from before that
	// was made against the node of an earlier process, and would be wrong here.
	shown       bool
	isReady     bool
	hasReported bool      // the kubelet has reported the node's status to this process
	heard       time.Time // of the last heartbeat, status or lease
}

// said is what a cell's kubelet says of its node. It never changes.
type said struct {
	labels      map[string]string
	annotations map[string]string
	status      corev1.NodeStatus
}

// composed is a version of a cell's node and what it was made of. Neither changes.
type composed struct {
	node *corev1.Node
	said *said
}

func newCellNode(s *Server, as *identity, info CellInfo) *cellNode {
	now := metav1.NewTime(s.clock.Now())
	status := corev1.NodeStatus{
		Capacity:    withPods(info.Capacity),
		Allocatable: withPods(info.Allocatable),
		Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: as.name}},
	}
	for _, ip := range []netip.Addr{info.NodeIP, info.NodeIPv6} {
		if ip.IsValid() {
			status.Addresses = append(status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
		}
	}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
		corev1.NodeReady} {
		status.Conditions = append(status.Conditions, corev1.NodeCondition{
			Type:               t,
			Status:             corev1.ConditionUnknown,
			LastHeartbeatTime:  now,
			LastTransitionTime: now,
			Reason:             "NodeStatusNeverUpdated",
			Message:            "the cell's kubelet has not reported yet",
		})
	}
	return &cellNode{
		server:     s,
		as:         as,
		info:       info,
		collection: watches.NewCollection(nodeKind, nodeHistory),
		ready:      make(chan struct{}),
		first:      &said{status: status},
	}
}

// withPods returns resources with a number of pods: a kubelet that reads none
// there refuses its pod as one too many. 110 is the kubelet's own default.
func withPods(resources corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
	for name, quantity := range resources {
		list[name] = quantity.DeepCopy()
	}
	return list
}

// refresh merges what is new of the virtual node into this one.
func (n *cellNode) refresh() {
	for {
		virtual := n.as.virtual.Load()
		if virtual == nil {
			return
		}
		n.mu.Lock()
		before := n.current
		n.mu.Unlock()
		is := n.first
		if before != nil {
			is = before.said
		}
		// A change that came between is of the same virtual node or a newer one.
		if _, ok := n.become(before, is, virtual); ok {
			return
		}
	}
}

// become makes the node anew, of what the kubelet says and the virtual node, and
// shows it to its watchers if it is different. It is false when the node is not
// before any more.
func (n *cellNode) become(before *composed, is *said, virtual *corev1.Node) (*corev1.Node, bool) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              n.as.name,
			UID:               virtual.UID,
			CreationTimestamp: virtual.CreationTimestamp,
			Labels:            merged(is.labels, virtual.Labels),
			Annotations:       merged(is.annotations, virtual.Annotations),
		},
		// Neither is ever changed, only replaced.
		Spec:   virtual.Spec,
		Status: is.status,
	}
	same := false
	if before != nil {
		node.ResourceVersion = before.node.ResourceVersion
		node.TypeMeta = before.node.TypeMeta
		same = equality.Semantic.DeepEqual(node, before.node)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current != before {
		return nil, false
	}
	if same {
		return before.node, true
	}
	rv := n.server.nextVersion()
	node.ResourceVersion = fmt.Sprint(rv)
	o, err := watches.NewObject(nodeKind, node)
	if err != nil {
		n.server.log.Error("node of a cell not stored", "err", err)
		return node, true
	}
	n.current = &composed{node: node, said: is}
	if before == nil {
		n.collection.Become([]*watches.Object{o}, rv)
		return node, true
	}
	n.collection.Put(o)
	return node, true
}

// merged returns the union of both; where they differ, that of the virtual node
// holds.
func merged(own, virtual map[string]string) map[string]string {
	union := make(map[string]string, len(own)+len(virtual))
	maps.Copy(union, own)
	maps.Copy(union, virtual)
	return union
}

// without returns those of all that the virtual node does not set.
func without(all, virtual map[string]string) map[string]string {
	own := map[string]string{}
	for k, v := range all {
		if _, set := virtual[k]; !set {
			own[k] = v
		}
	}
	return own
}

// changeAttempts is how often a change is made anew because the node has changed
// meanwhile.
const changeAttempts = 5

// change applies edit to a copy of the node and keeps what a kubelet may change:
// labels and annotations, and, with status, the status. What a cell sent is applied,
// compared and measured without the lock.
func (n *cellNode) change(status bool, edit func(*corev1.Node) (*corev1.Node, error)) (*corev1.Node, error) {
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(nodeKind.GroupResource(), n.as.name, fmt.Errorf(format, args...))
	}
	for range changeAttempts {
		n.mu.Lock()
		before, shown := n.current, n.shown
		n.mu.Unlock()
		virtual := n.as.virtual.Load()
		switch {
		case virtual == nil || before == nil:
			return nil, notYet("node " + n.as.name)
		case !shown:
			return nil, conflict("the node has not been read since Kip started; read it and apply the change to that")
		}
		next, err := edit(before.node.DeepCopy())
		if err != nil {
			return nil, err
		}
		switch current := before.node; {
		case next.Name != current.Name:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, it must be %q", cut(next.Name, 64), current.Name))
		case next.UID != "" && next.UID != current.UID:
			return nil, conflict("metadata.uid is %q, the node's is %q", cut(string(next.UID), 64), current.UID)
		case next.ResourceVersion != "" && next.ResourceVersion != current.ResourceVersion:
			return nil, conflict("the object has been modified; please apply your changes to the latest version and try again")
		}
		said := *before.said
		said.labels, said.annotations = without(next.Labels, virtual.Labels), without(next.Annotations, virtual.Annotations)
		if status {
			said.status = next.Status
		}
		if err := said.bounded(); err != nil {
			return nil, err
		}
		node, ok := n.become(before, &said, virtual)
		if !ok {
			continue
		}
		return node, nil
	}
	return nil, conflict("the node has changed %d times meanwhile; read it and apply the change to that", changeAttempts)
}

// reported notes that the kubelet has reported its node's status, and returns whether it had not before.
func (n *cellNode) reported(status *corev1.NodeStatus) (first bool) {
	isReady := slices.ContainsFunc(status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	first = !n.hasReported
	n.hasReported = true
	n.heard = n.server.clock.Now()
	if isReady && !n.isReady {
		n.isReady = true
		close(n.ready)
	}
	return first
}

// isKnown reports whether the kubelet has reported its node's status to this process.
func (n *cellNode) isKnown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hasReported
}

// heartbeat notes that the kubelet lives.
func (n *cellNode) heartbeat() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = n.server.clock.Now()
}

func (n *cellNode) lastHeartbeat() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.heard
}

// wasReady reports whether the kubelet has reported to this process that its node is ready.
func (n *cellNode) wasReady() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isReady
}

// allocatable is what the kubelet says that its pods may have, to be read only; before that, what Kip knows.
func (n *cellNode) allocatable() corev1.ResourceList {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current == nil {
		return n.first.status.Allocatable
	}
	return n.current.node.Status.Allocatable
}

func (n *cellNode) show() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shown = n.shown || n.current != nil
}

// node returns a copy of the node as the cell sees it, nil while the virtual node
// is not known.
func (n *cellNode) node() *corev1.Node {
	n.mu.Lock()
	current := n.current
	n.mu.Unlock()
	if current == nil {
		return nil
	}
	return current.node.DeepCopy()
}

// nodeAPI answers what is asked about nodes.
type nodeAPI struct {
	*base
	node *cellNode
	pod  *boundPod
}

// serveNode answers all that is asked about nodes.
func (c *nodeAPI) serveNode(w http.ResponseWriter, r *http.Request, a *ask) error {
	if a.Name != "" && a.Name != c.as.name {
		return c.forbidden(a, "it sees only the node "+c.as.name)
	}
	rd := &reader{
		collection: c.node.collection,
		clock:      c.server.clock,
		missed:     c.as.source.Refusal,
		lifetime:   c.lifetime,
	}
	switch a.Verb {
	case "get", "list", "watch":
		if a.Subresource != "" {
			return c.forbidden(a, "nodes are read whole")
		}
		if err := rd.await(r.Context()); err != nil {
			return err
		}
		c.node.show()
		return c.read(w, r, rd, a)
	case "create":
		// A kubelet that is told so reads the node and goes on with that.
		return apierrors.NewAlreadyExists(nodeKind.GroupResource(), c.as.name)
	case "patch":
		patch, err := readPatch(r)
		if err != nil {
			return err
		}
		if patch.body, err = rebuilt(patch.body, nodeShape); err != nil {
			return err
		}
		return c.changeNode(w, r, a, func(n *corev1.Node) (*corev1.Node, error) {
			next := &corev1.Node{}
			return next, patch.apply(n, next)
		})
	case "update":
		// In protobuf, quantities would be computed with before they are looked at.
		t, err := bodyMediaType(r.Header)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if t != runtime.ContentTypeJSON {
			return unsupportedMediaType(t, runtime.ContentTypeJSON)
		}
		b, err := readBody(r)
		if err != nil {
			return err
		}
		if b, err = rebuilt(b, nodeShape); err != nil {
			return err
		}
		sent := &corev1.Node{}
		if err := json.Unmarshal(b, sent); err != nil {
			return apierrors.NewBadRequest("decode the body: " + err.Error())
		}
		return c.changeNode(w, r, a, func(*corev1.Node) (*corev1.Node, error) { return sent, nil })
	}
	return c.forbidden(a, "")
}

func (c *nodeAPI) changeNode(w http.ResponseWriter, r *http.Request, a *ask, edit func(*corev1.Node) (*corev1.Node, error)) error {
	if a.Subresource != "" && a.Subresource != "status" {
		return c.forbidden(a, "")
	}
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	status := a.Subresource == "status"
	node, err := c.node.change(status, edit)
	if err != nil {
		return err
	}
	if status {
		c.reported(&node.Status)
	}
	writeObject(w, f, http.StatusOK, node)
	return nil
}

// reported notes a status that the kubelet has reported of its node. What runs beside the pod may depend on the first one.
func (c *nodeAPI) reported(status *corev1.NodeStatus) {
	if c.node.reported(status) {
		c.pod.setsChanged()
	}
}

// jsonOf returns o in JSON as a patch is applied to.
func jsonOf(o watches.APIObject) ([]byte, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", watches.Key(o.GetNamespace(), o.GetName()), err)
	}
	return b, nil
}

// NodeReady is closed when the cell's kubelet has reported, to this process, that
// its node is ready.
func (c *nodeAPI) NodeReady() <-chan struct{} { return c.node.ready }

// LastHeartbeat returns when the kubelet last renewed its lease or reported its
// node's status; the zero time when it has done neither since Kip started.
func (c *nodeAPI) LastHeartbeat() time.Time { return c.node.lastHeartbeat() }

// Node returns the cell's own Node, its conditions and images as its kubelet
// reported them. It is nil as long as the real virtual node is not known.
func (c *nodeAPI) Node() *corev1.Node { return c.node.node() }
