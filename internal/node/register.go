package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// registrationAnnotation holds, on the node object, what Kip last wrote there
// with its own identity, so that a label or taint that has left the
// configuration is removed and those of others stay.
const registrationAnnotation = "kip.elotl.co/registration"

// registration is the value of registrationAnnotation.
type registration struct {
	Labels []string      `json:"labels"` // keys, sorted
	Taint  *corev1.Taint `json:"taint,omitempty"`
}

// ErrForeignNode says that the node's name belongs to a node that is not
// virtual. Taking it over would move a machine's pods to cells.
var ErrForeignNode = errors.New("a node of this name exists and is not a virtual node")

// register makes the node object, or brings the labels and the taint of an
// existing one up to date. It returns the object as the API server has it. When
// nothing changed it writes nothing.
func (n *Node) register(ctx context.Context) (*corev1.Node, error) {
	nodes := n.c.Own.CoreV1().Nodes()
	var result *corev1.Node
	stale := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultRetry, stale, func() error {
		current, err := nodes.Get(ctx, n.c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			fresh, err := n.fresh()
			if err != nil {
				return err
			}
			result, err = nodes.Create(ctx, fresh, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		patch, err := n.registrationPatch(current)
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
	if err != nil {
		return nil, fmt.Errorf("register node %s: %w", n.c.Name, err)
	}
	return result, nil
}

// fresh is the node object before its first status.
func (n *Node) fresh() (*corev1.Node, error) {
	mark, err := n.registrationMark()
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        n.c.Name,
		Labels:      n.labels,
		Annotations: map[string]string{registrationAnnotation: mark},
	}}
	if n.c.Taint != nil {
		node.Spec.Taints = []corev1.Taint{*n.c.Taint}
	}
	return node, nil
}

func (n *Node) registrationMark() (string, error) {
	r := registration{Taint: n.c.Taint}
	for k := range n.labels {
		r.Labels = append(r.Labels, k)
	}
	slices.Sort(r.Labels)
	b, err := json.Marshal(r)
	return string(b), err
}

// registrationPatch is the merge patch that turns current into what the
// configuration asks for, nil when it is that already. It carries the resource
// version, since the list of taints is replaced as a whole and others write it.
func (n *Node) registrationPatch(current *corev1.Node) ([]byte, error) {
	last, known := current.Annotations[registrationAnnotation]
	if !known && current.Labels[TypeLabel] != TypeValue {
		return nil, fmt.Errorf("%w: it has no label %s=%s; give the virtual node another name, or delete that node",
			ErrForeignNode, TypeLabel, TypeValue)
	}
	var before registration
	if known {
		if err := json.Unmarshal([]byte(last), &before); err != nil {
			return nil, fmt.Errorf("annotation %s of the node is not what Kip wrote: %w", registrationAnnotation, err)
		}
	}

	labels := map[string]any{}
	for k, v := range n.labels {
		if have, ok := current.Labels[k]; !ok || have != v {
			labels[k] = v
		}
	}
	for _, k := range before.Labels {
		if _, wanted := n.labels[k]; wanted {
			continue
		}
		if _, has := current.Labels[k]; has {
			labels[k] = nil
		}
	}

	ours := func(t corev1.Taint) bool {
		if before.Taint != nil && t.MatchTaint(before.Taint) {
			return true
		}
		if n.c.Taint != nil && t.MatchTaint(n.c.Taint) {
			return true
		}
		// A node of an older Kip says nothing of what it wrote.
		return !known && t.Key == DefaultTaintKey
	}
	var taints []corev1.Taint
	if n.c.Taint != nil {
		taints = append(taints, *n.c.Taint)
	}
	for _, t := range current.Spec.Taints {
		if !ours(t) {
			taints = append(taints, t)
		}
	}

	mark, err := n.registrationMark()
	if err != nil {
		return nil, err
	}
	metadata := map[string]any{}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if mark != last {
		metadata["annotations"] = map[string]any{registrationAnnotation: mark}
	}
	patch := map[string]any{}
	if !sameTaints(taints, current.Spec.Taints) {
		patch["spec"] = map[string]any{"taints": taints}
	}
	if len(metadata) == 0 && len(patch) == 0 {
		return nil, nil
	}
	metadata["resourceVersion"] = current.ResourceVersion
	patch["metadata"] = metadata
	return json.Marshal(patch)
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
