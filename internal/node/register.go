package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	apiv1 "github.com/elotl/kip/api/v1"
)

// registrationAnnotation holds, on the node object, what Kip last wrote there
// with its own identity, so that a label or taint that has left the
// configuration is removed and those of others stay.
const registrationAnnotation = "kip.elotl.co/registration"

// registration is the value of registrationAnnotation.
type registration struct {
	Labels []string       `json:"labels"` // keys, sorted
	Taints []corev1.Taint `json:"taints,omitempty"`
	// Cordoned says that it was Kip who cordoned the node, and may uncordon it.
	Cordoned bool `json:"cordoned,omitempty"`
}

// ErrForeignNode says that the node's name belongs to a node that is not
// virtual, or to that of another Kip. Taking it over would move a machine's pods to
// cells, or pods from their cells to others.
var ErrForeignNode = errors.New("a node of this name exists and is not a virtual node")

// Foreign returns an ErrForeignNode for a node that is not a virtual node of this Kip.
// controller may be empty: whose virtual node it is does not matter then.
func Foreign(node *corev1.Node, controller string) error {
	_, known := node.Annotations[registrationAnnotation]
	owner := node.Labels[apiv1.LabelController]
	switch {
	case !known && node.Labels[TypeLabel] != TypeValue:
		return fmt.Errorf("%w: it has no label %s=%s; give the virtual node another name, or delete that node", ErrForeignNode, TypeLabel, TypeValue)
	case controller != "" && owner != "" && owner != controller:
		return fmt.Errorf("%w of this Kip, but of that with controller ID %s", ErrForeignNode, owner)
	}
	return nil
}

// Keys of the taints that Kip puts on its nodes besides those that are configured.
const (
	// RemovedTaint is on a node that is not configured any more, unless others had cordoned
	// it before.
	RemovedTaint = "kip.elotl.co/removed"
	// ShortTaint is on a node for whose pods nothing can be launched now.
	ShortTaint = "kip.elotl.co/no-capacity"
	// BurstTaint has the scheduler prefer all other nodes, where profiles have pods for which Kip's nodes are the second choice. The
	// preference of such a pod alone does not outweigh how evenly pods are spread, and how empty a virtual node is.
	BurstTaint = "kip.elotl.co/burst"
)

// ShortageCondition is the condition of a node by which it says of which kinds of what it offers nothing can be launched now.
const ShortageCondition corev1.NodeConditionType = "CapacityShortage"

// taints are all that the node must carry.
func (n *Node) taints() []corev1.Taint {
	var all []corev1.Taint
	if n.c.Taint != nil {
		all = append(all, *n.c.Taint)
	}
	all = append(all, n.c.Taints...)
	if n.c.Removed {
		all = append(all, corev1.Taint{Key: RemovedTaint, Effect: corev1.TaintEffectNoSchedule})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.short != "" {
		all = append(all, corev1.Taint{Key: ShortTaint, Effect: corev1.TaintEffectNoSchedule})
	}
	return all
}

// providerID names a node that no cloud has a machine for, so that the controllers of
// clouds leave it alone. It does not end with the name: the cloud provider of AWS takes
// the last part for an instance, whatever the scheme, if it begins with i- or fargate-.
// It has three parts: the cluster autoscaler on GCE cuts off as many bytes as there are
// in gce://, and stops working for the whole cluster when it finds another number.
func (n *Node) providerID() string { return "kip://" + n.c.Controller + "/" + n.c.Name + "/virtual" }

// register makes the node object, or brings the labels and the taint of an
// existing one up to date. It returns the object as the API server has it. When
// nothing changed it writes nothing.
func (n *Node) register(ctx context.Context) (*corev1.Node, error) {
	result, err := n.registerWith(ctx, n.labels, false)
	if apierrors.IsForbidden(err) {
		// The policy of an earlier release, or one that was rendered for other taints. A node that is not registered would take
		// its pods out of their Services.
		without := maps.Clone(n.labels)
		delete(without, roleLabel)
		for _, less := range []struct {
			labels     map[string]string
			keepTaints bool
			kept       string
		}{
			{without, false, "no label of its role"},
			{n.labels, true, "no change of its taints"},
			{without, true, "no change of role and taints"},
		} {
			registered, lessErr := n.registerWith(ctx, less.labels, less.keepTaints)
			if lessErr == nil {
				n.c.Log.Warn("the virtual node gets "+less.kept+": upgrade the chart, or deploy/manifests/rights/policies.yaml",
					"node", n.c.Name, "err", err)
				result, err = registered, nil
				break
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register node %s: %w", n.c.Name, err)
	}
	n.mu.Lock()
	n.uid = result.UID
	n.mu.Unlock()
	soon(n.there)
	return result, nil
}

// registerWith is register with these labels. With keepTaints it leaves the taints of a node that is there as they are.
func (n *Node) registerWith(ctx context.Context, labels map[string]string, keepTaints bool) (result *corev1.Node, err error) {
	nodes := n.c.Own.CoreV1().Nodes()
	stale := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultRetry, stale, func() error {
		current, err := nodes.Get(ctx, n.c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			fresh, err := n.fresh(labels)
			if err != nil {
				return err
			}
			result, err = nodes.Create(ctx, fresh, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		patch, err := n.registrationPatch(current, labels, keepTaints)
		if err != nil {
			return err
		}
		if patch == nil {
			result = current
			return nil
		}
		result, err = nodes.Patch(ctx, n.c.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	return result, err
}

// fresh is the node object before its first status.
func (n *Node) fresh(labels map[string]string) (*corev1.Node, error) {
	taints := n.taints()
	mark, err := n.registrationMark(taints, n.c.Removed)
	if err != nil {
		return nil, err
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        n.c.Name,
			Labels:      labels,
			Annotations: map[string]string{registrationAnnotation: mark},
		},
		Spec: corev1.NodeSpec{ProviderID: n.providerID(), Taints: taints, Unschedulable: n.c.Removed},
	}, nil
}

func (n *Node) registrationMark(taints []corev1.Taint, cordoned bool) (string, error) {
	r := registration{Taints: taints, Cordoned: cordoned}
	for k := range n.labels {
		// An older Kip, which has come back, would take a label off that stands here, and its policy forbids it to touch this one.
		if k != roleLabel {
			r.Labels = append(r.Labels, k)
		}
	}
	slices.Sort(r.Labels)
	b, err := json.Marshal(r)
	return string(b), err
}

// registrationPatch is the merge patch that turns current into what the
// configuration asks for, nil when it is that already. It carries the resource
// version, since the list of taints is replaced as a whole and others write it.
func (n *Node) registrationPatch(current *corev1.Node, labels map[string]string, keepTaints bool) ([]byte, error) {
	last, known := current.Annotations[registrationAnnotation]
	controller := n.c.Controller
	if n.c.Adopts {
		controller = ""
	}
	if err := Foreign(current, controller); err != nil {
		return nil, err
	}
	var before registration
	if known {
		if err := json.Unmarshal([]byte(last), &before); err != nil {
			return nil, fmt.Errorf("annotation %s of the node is not what Kip wrote: %w", registrationAnnotation, err)
		}
	}
	own, taints := n.taintsOn(current, before, known)
	if keepTaints {
		own, taints = before.Taints, current.Spec.Taints
	}

	spec := map[string]any{}
	cordoned := current.Spec.Unschedulable && before.Cordoned && slices.ContainsFunc(current.Spec.Taints, marksRemoved)
	switch {
	case n.c.Removed && !current.Spec.Unschedulable:
		spec["unschedulable"], cordoned = true, true
	case !n.c.Removed && cordoned:
		spec["unschedulable"], cordoned = nil, false
	}
	if current.Spec.ProviderID == "" { // it is set once
		spec["providerID"] = n.providerID()
	}
	if !sameTaints(taints, current.Spec.Taints) {
		spec["taints"] = taints
	}
	mark, err := n.registrationMark(own, cordoned)
	if err != nil {
		return nil, err
	}
	metadata := map[string]any{}
	if changes := labelChanges(current, labels, before); len(changes) > 0 {
		metadata["labels"] = changes
	}
	if mark != last {
		metadata["annotations"] = map[string]any{registrationAnnotation: mark}
	}
	patch := map[string]any{}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	if len(metadata) == 0 && len(patch) == 0 {
		return nil, nil
	}
	metadata["resourceVersion"] = current.ResourceVersion
	patch["metadata"] = metadata
	return json.Marshal(patch)
}

// labelChanges are the labels that are to be another on a node, and, as nil, those that Kip
// wrote before and that are to go.
func labelChanges(current *corev1.Node, labels map[string]string, before registration) map[string]any {
	changes := map[string]any{}
	for k, v := range labels {
		if have, ok := current.Labels[k]; !ok || have != v {
			changes[k] = v
		}
	}
	for _, k := range before.Labels {
		if _, wanted := labels[k]; wanted {
			continue
		}
		if _, has := current.Labels[k]; has {
			changes[k] = nil
		}
	}
	return changes
}

// marksRemoved says that a taint is the one of a node that was taken out.
func marksRemoved(t corev1.Taint) bool { return t.Key == RemovedTaint }

// taintsOn are the taints that a node is to have: Kip's own, and all, those of others among
// them. known says that Kip has said on the node what it wrote before.
func (n *Node) taintsOn(current *corev1.Node, before registration, known bool) (own, all []corev1.Taint) {
	own = n.taints()
	if current.Spec.Unschedulable && !slices.ContainsFunc(current.Spec.Taints, marksRemoved) {
		// A person cordoned it. The taint would be a right to uncordon it.
		own = slices.DeleteFunc(own, marksRemoved)
	}
	mine := slices.Concat(before.Taints, own)
	ours := func(t corev1.Taint) bool {
		if slices.ContainsFunc(mine, func(m corev1.Taint) bool { return t.MatchTaint(&m) }) {
			return true
		}
		// A node of the Kip of 2020 says nothing of what it wrote.
		return !known && t.Key == DefaultTaintKey
	}
	all = slices.Clip(own)
	for _, t := range current.Spec.Taints {
		if !ours(t) {
			all = append(all, t)
		}
	}
	return own, all
}

// sameTaints ignores the order, and the time at which a taint was added.
func sameTaints(a, b []corev1.Taint) bool {
	has := func(list []corev1.Taint, t corev1.Taint) bool {
		return slices.ContainsFunc(list, func(o corev1.Taint) bool {
			return o.MatchTaint(&t) && o.Value == t.Value
		})
	}
	missing := func(from []corev1.Taint) func(corev1.Taint) bool {
		return func(t corev1.Taint) bool { return !has(from, t) }
	}
	return len(a) == len(b) && !slices.ContainsFunc(a, missing(b)) && !slices.ContainsFunc(b, missing(a))
}
