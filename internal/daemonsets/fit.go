package daemonsets

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Nodes are what is known of Kip's nodes by which the template of a DaemonSet fits them.
type Nodes struct {
	// Controller is the value of their label apiv1.LabelController.
	Controller string
	// Taints are those that all of them have, or may have for a while.
	Taints []corev1.Taint
}

// Fit is what a pod template lacks so that the controller of DaemonSets makes a pod of it for Kip's nodes.
type Fit struct {
	Tolerations []corev1.Toleration
	// Terms are further terms of the required node affinity, one of which must hold.
	Terms []corev1.NodeSelectorTerm
}

// Fit returns what a template lacks. A nodeSelector must hold whatever else does, so nothing helps against one.
func (n Nodes) Fit(spec *corev1.PodSpec) (f Fit) {
	for _, taint := range n.Taints {
		if tolerates(spec.Tolerations, taint) {
			continue
		}
		t := corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpEqual, Value: taint.Value, Effect: taint.Effect}
		if taint.Value == "" {
			t.Operator = corev1.TolerationOpExists
		}
		f.Tolerations = append(f.Tolerations, t)
	}
	own := requiredTerms(spec)
	for _, term := range own {
		if more, is := n.unbarred(term); is && !hasTerm(own, more) && !hasTerm(f.Terms, more) {
			f.Terms = append(f.Terms, more)
		}
	}
	return f
}

// unbarred returns a term for Kip's nodes alone: one that leaves out virtual nodes, without what does so. It is false for a term that
// does not. What a term wants of the system, the architecture or the devices of a node stays.
func (n Nodes) unbarred(term corev1.NodeSelectorTerm) (more corev1.NodeSelectorTerm, is bool) {
	for _, e := range term.MatchExpressions {
		if leavesOutVirtual(e) {
			is = true
			continue
		}
		more.MatchExpressions = append(more.MatchExpressions, e)
	}
	more.MatchFields = term.MatchFields
	more.MatchExpressions = append(more.MatchExpressions, corev1.NodeSelectorRequirement{
		Key: apiv1.LabelController, Operator: corev1.NodeSelectorOpIn, Values: []string{n.Controller},
	})
	return more, is
}

// ofVirtualNodes are the labels by which DaemonSets leave out nodes that are no machines of their cloud, with what Kip's nodes have of
// them (internal/node); "" for nothing.
var ofVirtualNodes = map[string]string{
	"type":                           "virtual-kubelet",
	"eks.amazonaws.com/compute-type": "fargate",
	"kubernetes.azure.com/cluster":   "",
	"kubernetes.azure.com/managed":   "false",
}

// leavesOutVirtual reports whether an expression keeps pods off nodes for being virtual.
func leavesOutVirtual(e corev1.NodeSelectorRequirement) bool {
	value, is := ofVirtualNodes[e.Key]
	if !is {
		return false
	}
	labels := map[string]string{}
	if value != "" {
		labels[e.Key] = value
	}
	return !meets(e, labels)
}

// Barred says what keeps the controller of DaemonSets from making a pod for a node; "" for nothing.
func Barred(spec *corev1.PodSpec, node *corev1.Node) string {
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !alwaysTolerated(taint, spec.HostNetwork) &&
			!tolerates(spec.Tolerations, taint) {
			return "it does not tolerate the taint " + taint.ToString()
		}
	}
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		if value, has := node.Labels[key]; !has || value != spec.NodeSelector[key] {
			return fmt.Sprintf("its nodeSelector wants the label %s=%s, which the node lacks", key, spec.NodeSelector[key])
		}
	}
	if required := required(spec); required != nil && !matches(required, node) {
		return "its node affinity does not fit the node" + firstUnmet(required.NodeSelectorTerms, node.Labels)
	}
	return ""
}

// alwaysTolerated reports whether the controller of DaemonSets gives its pods a toleration of a taint by itself
// (k8s.io/kubernetes/pkg/controller/daemon/util, AddOrUpdateDaemonPodTolerations).
func alwaysTolerated(taint corev1.Taint, hostNetwork bool) bool {
	switch taint.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
		return taint.Effect == corev1.TaintEffectNoExecute
	case corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable:
		return taint.Effect == corev1.TaintEffectNoSchedule
	case corev1.TaintNodeNetworkUnavailable:
		return hostNetwork && taint.Effect == corev1.TaintEffectNoSchedule
	}
	return false
}

// firstUnmet names an expression that labels do not meet; "" where there is none. Of several it is one that Fit does not help against.
func firstUnmet(terms []corev1.NodeSelectorTerm, labels map[string]string) (text string) {
	for _, term := range terms {
		for _, e := range term.MatchExpressions {
			if meets(e, labels) || text != "" && leavesOutVirtual(e) {
				continue
			}
			if text = ": it wants " + expressionText(e); !leavesOutVirtual(e) {
				return text
			}
		}
	}
	return text
}

// expressionText is an expression of node affinity in words.
func expressionText(e corev1.NodeSelectorRequirement) string {
	text := e.Key + " " + string(e.Operator)
	if len(e.Values) > 0 {
		text += " (" + strings.Join(e.Values, ", ") + ")"
	}
	return text
}

// meets reports whether a node with these labels meets an expression.
func meets(e corev1.NodeSelectorRequirement, labels map[string]string) bool {
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}}
	node := &corev1.Node{}
	node.Labels = labels
	return matches(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}, node)
}

// matches reports whether a node meets one of the terms. An invalid term matches none.
func matches(selector *corev1.NodeSelector, node *corev1.Node) bool {
	s, err := nodeaffinity.NewNodeSelector(selector)
	return err == nil && s.Match(node)
}

func tolerates(tolerations []corev1.Toleration, taint corev1.Taint) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Logger{}, &taint, false) })
}

// required is the required node affinity of a pod; nil for none.
func required(spec *corev1.PodSpec) *corev1.NodeSelector {
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func requiredTerms(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	if r := required(spec); r != nil {
		return r.NodeSelectorTerms
	}
	return nil
}

func hasTerm(list []corev1.NodeSelectorTerm, term corev1.NodeSelectorTerm) bool {
	return slices.ContainsFunc(list, func(t corev1.NodeSelectorTerm) bool { return equality.Semantic.DeepEqual(t, term) })
}
