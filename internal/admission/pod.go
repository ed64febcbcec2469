package admission

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/placement"
)

// Operation is one of a JSON patch, RFC 6902.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Rules are what is known of Kip's nodes.
type Rules struct {
	// Label is what pods select that are for Kip's nodes.
	Label Label
	// NodeLabels are the values that Kip's nodes have of each label. What a pod selects
	// of these is the scheduler's business.
	NodeLabels map[string][]string
	// NoInstance is the value of the label of the instance type of a node that has
	// instances of many. It says nothing of any of them.
	NoInstance string
	// Taint is that of Kip's nodes; nil where they have none.
	Taint *corev1.Taint
}

// Label is a key and a value.
type Label struct{ Key, Value string }

// Scope says which pods a question is about.
type Scope string

const (
	// Selecting: pods that select Kip's nodes by the label that these have.
	Selecting Scope = "selecting"
	// InNamespace: pods of a namespace whose pods are all for Kip's nodes.
	InNamespace Scope = "in-namespace"
	// Profiled: pods that a profile may choose.
	Profiled Scope = "profiled"
)

// Patch returns what is to be changed of a pod before it is made, nil for nothing. The
// warnings are for who makes it. The pod is not changed.
func (r Rules) Patch(pod *corev1.Pod, scope Scope, defaults Defaults) (patch []Operation, warnings []string) {
	if !r.takes(pod, scope) {
		return nil, nil
	}
	if scope == InNamespace {
		patch = r.place(pod)
	}
	chosen, annotations, err := r.rewrite(pod)
	if err != nil {
		warnings = []string{leftAsItIs(err)}
	}
	patch = append(append(patch, chosen...), annotate(pod.Annotations, annotations)...)
	return append(patch, tolerate(pod.Spec.Tolerations, r.tolerationOfTaint(pod.Spec.Tolerations), defaults)...), warnings
}

func leftAsItIs(err error) string {
	return "Kip leaves what the pod selects as it is, and no node may have it: " + err.Error()
}

// takes reports whether a pod is for Kip's nodes alone.
func (r Rules) takes(pod *corev1.Pod, scope Scope) bool {
	switch {
	case r.elsewhere(&pod.Spec):
		return false
	case scope == InNamespace:
		return r.free(pod)
	}
	return r.selects(&pod.Spec)
}

// selects reports whether only nodes with Kip's label will do for a pod.
func (r Rules) selects(spec *corev1.PodSpec) bool {
	if spec.NodeSelector[r.Label.Key] == r.Label.Value {
		return true
	}
	terms := termsOf(spec)
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == r.Label.Key && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 && e.Values[0] == r.Label.Value
		})
	})
}

// free reports whether nobody has decided yet on which node a pod runs.
func (r Rules) free(pod *corev1.Pod) bool {
	kind, selected := pod.Spec.NodeSelector[r.Label.Key]
	return pod.Spec.NodeName == "" && (!selected || kind == r.Label.Value) && !ofDaemonSet(pod)
}

// elsewhere reports whether a pod selects what no node of Kip's has: Kip's label is that
// of all virtual nodes, others' too.
func (r Rules) elsewhere(spec *corev1.PodSpec) bool {
	other := func(key string, values ...string) bool {
		have := r.NodeLabels[key]
		// Of the labels of Kubernetes, nodes have values that are not configured.
		domain, _, _ := strings.Cut(key, "/")
		known := len(have) > 0 && !placement.IsInstanceLabel(key) &&
			(key == corev1.LabelHostname || domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io"))
		return known && !slices.ContainsFunc(values, func(v string) bool { return slices.Contains(have, v) })
	}
	for key, value := range spec.NodeSelector {
		if other(key, value) {
			return true
		}
	}
	terms := termsOf(spec)
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Operator == corev1.NodeSelectorOpIn && other(e.Key, e.Values...)
		}) && !slices.ContainsFunc(t.MatchFields, func(e corev1.NodeSelectorRequirement) bool { // there is one: the node's name
			return e.Operator == corev1.NodeSelectorOpIn && other(corev1.LabelHostname, e.Values...)
		})
	})
}

// place has a pod select Kip's nodes.
func (r Rules) place(pod *corev1.Pod) []Operation {
	if len(pod.Spec.NodeSelector) == 0 {
		return []Operation{{Op: "add", Path: "/spec/nodeSelector", Value: map[string]string{r.Label.Key: r.Label.Value}}}
	}
	return []Operation{{Op: "add", Path: "/spec/nodeSelector/" + escaped(r.Label.Key), Value: r.Label.Value}}
}
