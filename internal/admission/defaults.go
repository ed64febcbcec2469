package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// none is for how long a pod stays by a toleration that the API server does not add.
const none = -1

// askDefaults has the API server make a pod without making it, as a node may that shows
// a pod of its own (a mirror pod), and reads which tolerations it got. There is no other
// way to learn them: they are a flag of the API server.
func askDefaults(ctx context.Context, nodes []Node) (Defaults, error) {
	fail := func(err error) (Defaults, error) {
		return Defaults{}, fmt.Errorf("which tolerations the API server adds is not known: %w", err)
	}
	node, uid, err := first(ctx, nodes)
	if err != nil {
		return fail(err)
	}
	yes := true
	asked, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        "kip-asks-for-tolerations",
			Namespace:   corev1.NamespaceNodeLease,
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "never made"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       node.Name,
				UID:        uid,
				Controller: &yes,
			}},
		},
		Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "none", Image: "none"}}},
	})
	if err != nil {
		return fail(err)
	}
	answer, err := node.As.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(corev1.NamespaceNodeLease).
		Create(ctx, &unstructured.Unstructured{Object: asked}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fail(err)
	}
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, &pod); err != nil {
		return fail(err)
	}
	seconds := func(taint string) int64 {
		for _, t := range pod.Spec.Tolerations {
			if s := t.TolerationSeconds; s != nil && t == toleration(taint, s) {
				return *s
			}
		}
		return none
	}
	return Defaults{NotReadySeconds: seconds(corev1.TaintNodeNotReady), UnreachableSeconds: seconds(corev1.TaintNodeUnreachable)}, nil
}

// first is the first of the nodes that is there, with its UID.
func first(ctx context.Context, nodes []Node) (is Node, uid types.UID, err error) {
	err = errors.New("there is no node")
	for _, n := range nodes {
		var object *unstructured.Unstructured
		object, err = n.As.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil {
			return n, object.GetUID(), nil
		}
		if !apierrors.IsNotFound(err) {
			return n, "", err
		}
	}
	return is, "", err
}
