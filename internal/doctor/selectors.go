package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// selectors names pods that wait for a node of Kip's with labels that none of them has, such as those of nodes of EKS Auto Mode. Of several
// pods of one owner it names the first.
func (k workloads) selectors(ctx context.Context) []finding.Finding {
	list, err := k.c.Cluster.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", "").String(),
	})
	if err != nil {
		return one(unasked("list the pods that have no node", err))
	}
	var found []finding.Finding
	named := map[string]bool{}
	for i := range list.Items {
		p := &list.Items[i]
		of := "-n " + p.Namespace + " " + ownerOf(p)
		if p.Spec.NodeName != "" || !isUnschedulable(p) || !selectsKip(p) || named[of] {
			continue
		}
		lacking := k.lacking(p)
		if len(lacking) == 0 {
			continue
		}
		if named[of] = true; len(named) > mostNamed {
			return append(found, finding.Warn("kubectl get pods -A --field-selector status.phase=Pending", "more pods wait for such nodes"))
		}
		what := strings.Join(lacking, " and ")
		whose := ""
		if slices.ContainsFunc(lacking, func(l string) bool { return strings.HasPrefix(l, wellknown.Labels) }) {
			whose = ": these are labels of EKS' own nodes"
		}
		found = append(found, finding.Fail(fmt.Sprintf("kubectl edit %s # take %s out of its pods. What their machines must be goes into "+
			"pod.elotl.co/instance-requirements (docs/annotations.md#instance-requirements)", of, what),
			"pod %s/%s waits for a node of Kip with %s, and none has it%s", p.Namespace, p.Name, what, whose))
	}
	if found == nil {
		found = one(finding.Fine("no pod waits for a node of Kip with labels that none has"))
	}
	return found
}

func isUnschedulable(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}

// The label of Kip's nodes.
const labelType, virtual = "type", "virtual-kubelet"

// selectsKip reports whether a pod is for Kip's nodes alone.
func selectsKip(p *corev1.Pod) bool {
	terms := requiredTerms(p)
	return p.Spec.NodeSelector[labelType] == virtual || len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == labelType && e.Operator == corev1.NodeSelectorOpIn && slices.Equal(e.Values, []string{virtual})
		})
	})
}

func requiredTerms(p *corev1.Pod) []corev1.NodeSelectorTerm {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	return nil
}

// lacking returns what a pod requires of a node's labels that no node of Kip's has; nothing if a node has all, or if each label is on some
// node.
func (k workloads) lacking(p *corev1.Pod) (all []string) {
	has := func(terms ...corev1.NodeSelectorTerm) bool {
		selector, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: terms})
		return err != nil || slices.ContainsFunc(k.own, func(n corev1.Node) bool { return selector.Match(&n) }) // the API server takes no other
	}
	for _, key := range slices.Sorted(maps.Keys(p.Spec.NodeSelector)) {
		value := p.Spec.NodeSelector[key]
		if !slices.ContainsFunc(k.own, func(n corev1.Node) bool { return n.Labels[key] == value }) {
			all = append(all, key+"="+value)
		}
	}
	terms := requiredTerms(p)
	if len(terms) == 0 || has(terms...) {
		return all
	}
	for _, t := range terms {
		for _, e := range t.MatchExpressions {
			if one := strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ","))); !slices.Contains(all, one) &&
				!has(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}}) {
				all = append(all, one)
			}
		}
	}
	return all
}
