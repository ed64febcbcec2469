package cellapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeHistory is how many changes of a cell's node are kept: one kubelet and one
// kube-proxy watch it.
const nodeHistory = 2

// cellNode is the Node that a cell's kubelet believes to be. Identity, labels,
// annotations and spec are those of the real virtual node; what the kubelet adds to
// labels and annotations is kept beside them; the status is the machine's own.
type cellNode struct {
	server     *Server
	info       CellInfo
	collection *collection
	ready      chan struct{} // closed when the kubelet has reported Ready

	mu          sync.Mutex
	current     *corev1.Node      // as composed last, nil before the virtual node is known
	labels      map[string]string // the kubelet's own
	annotations map[string]string // the kubelet's own
	status      corev1.NodeStatus // shared with the nodes that were composed of it
	// shown says that the kubelet has read this node. A patch from before that
	// was made against the node of an earlier process, and would be wrong here.
	shown   bool
	isReady bool
	heard   time.Time // of the last heartbeat, status or lease
}

func newCellNode(s *Server, info CellInfo) *cellNode {
	now := metav1.NewTime(s.clock.Now())
	n := &cellNode{
		server: s, info: info, collection: newCollection(nodeKind, nodeHistory), ready: make(chan struct{}),
		status: corev1.NodeStatus{
			Capacity:    withPods(info.Capacity),
			Allocatable: withPods(info.Allocatable),
			Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: s.nodeName}},
		},
	}
	for _, ip := range []netip.Addr{info.NodeIP, info.NodeIPv6} {
		if ip.IsValid() {
			n.status.Addresses = append(n.status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
		}
	}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		n.status.Conditions = append(n.status.Conditions, corev1.NodeCondition{
			Type: t, Status: corev1.ConditionUnknown, LastHeartbeatTime: now, LastTransitionTime: now,
			Reason: "NodeStatusNeverUpdated", Message: "the cell's kubelet has not reported yet",
		})
	}
	return n
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
	n.mu.Lock()
	defer n.mu.Unlock()
	if virtual := n.server.virtual.Load(); virtual != nil {
		n.composeLocked(virtual)
	}
}

// composeLocked makes the node anew and shows it to its watchers if it is
// different. n.mu is held.
func (n *cellNode) composeLocked(virtual *corev1.Node) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              n.server.nodeName,
			UID:               virtual.UID,
			CreationTimestamp: virtual.CreationTimestamp,
			Labels:            merged(n.labels, virtual.Labels),
			Annotations:       merged(n.annotations, virtual.Annotations),
		},
		// Neither is ever changed, only replaced.
		Spec:   virtual.Spec,
		Status: n.status,
	}
	if n.current != nil {
		node.ResourceVersion = n.current.ResourceVersion
		node.TypeMeta = n.current.TypeMeta
		if equality.Semantic.DeepEqual(node, n.current) {
			return
		}
	}
	first := n.current == nil
	rv := n.server.nextVersion()
	node.ResourceVersion = fmt.Sprint(rv)
	o, err := newObject(nodeKind, node)
	if err != nil {
		n.server.log.Error("node of a cell not stored", "error", err)
		return
	}
	n.current = node
	if first {
		n.collection.replace([]*object{o}, rv)
		return
	}
	n.collection.put(o)
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

// change applies edit to a copy of the node and keeps what a kubelet may change:
// labels and annotations, and, with status, the status.
func (n *cellNode) change(status bool, edit func(*corev1.Node) (*corev1.Node, error)) (*corev1.Node, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	virtual := n.server.virtual.Load()
	if virtual == nil || n.current == nil {
		return nil, notYet("node " + n.server.nodeName)
	}
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(nodeKind.groupResource(), n.server.nodeName, fmt.Errorf(format, args...))
	}
	if !n.shown {
		return nil, conflict("the node has not been read since Kip started; read it and apply the change to that")
	}
	next, err := edit(n.current.DeepCopy())
	if err != nil {
		return nil, err
	}
	switch {
	case next.Name != n.current.Name:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, it must be %q", next.Name, n.current.Name))
	case next.UID != "" && next.UID != n.current.UID:
		return nil, conflict("metadata.uid is %q, the node's is %q", next.UID, n.current.UID)
	case next.ResourceVersion != "" && next.ResourceVersion != n.current.ResourceVersion:
		return nil, conflict("the object has been modified; please apply your changes to the latest version and try again")
	}
	n.labels = without(next.Labels, virtual.Labels)
	n.annotations = without(next.Annotations, virtual.Annotations)
	if status {
		n.status = next.Status
		n.heard = n.server.clock.Now()
		for _, c := range n.status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !n.isReady {
				n.isReady = true
				close(n.ready)
			}
		}
	}
	n.composeLocked(virtual)
	return n.current, nil
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

func (n *cellNode) show() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shown = n.shown || n.current != nil
}

// node returns a copy of the node as the cell sees it, nil while the virtual node
// is not known.
func (n *cellNode) node() *corev1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current.DeepCopy()
}

// serveNode answers all that is asked about nodes.
func (c *Cell) serveNode(w http.ResponseWriter, r *http.Request, a *ask) error {
	if a.Name != "" && a.Name != c.server.nodeName {
		return c.forbidden(a, "it sees only the node "+c.server.nodeName)
	}
	rd := &reader{collection: c.node.collection, clock: c.server.clock, missed: c.server.virtualError.refusal, lifetime: c.lifetime}
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
		return apierrors.NewAlreadyExists(nodeKind.groupResource(), c.server.nodeName)
	case "patch":
		patch, err := readPatch(r)
		if err != nil {
			return err
		}
		return c.changeNode(w, r, a, func(n *corev1.Node) (*corev1.Node, error) {
			next := &corev1.Node{}
			return next, patch.apply(n, next)
		})
	case "update":
		sent, err := decodeBody[*corev1.Node](r)
		if err != nil {
			return err
		}
		return c.changeNode(w, r, a, func(*corev1.Node) (*corev1.Node, error) { return sent, nil })
	}
	return c.forbidden(a, "")
}

func (c *Cell) changeNode(w http.ResponseWriter, r *http.Request, a *ask, edit func(*corev1.Node) (*corev1.Node, error)) error {
	if a.Subresource != "" && a.Subresource != "status" {
		return c.forbidden(a, "")
	}
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	node, err := c.node.change(a.Subresource == "status", edit)
	if err != nil {
		return err
	}
	writeObject(w, f, http.StatusOK, node)
	return nil
}

// jsonOf returns o in JSON as a patch is applied to.
func jsonOf(o apiObject) ([]byte, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key(o.GetNamespace(), o.GetName()), err)
	}
	return b, nil
}
