package admission

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/placement"
)

// Where the parts of node affinity are.
const (
	affinityPath     = "/spec/affinity"
	nodeAffinityPath = affinityPath + "/nodeAffinity"
	preferredPath    = nodeAffinityPath + "/preferredDuringSchedulingIgnoredDuringExecution"
)

// awayWeight is the greatest that a preference can have.
const awayWeight = 100

// away is what nodes meet that are not Kip's.
func (r Rules) away() corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: r.Label.Key, Operator: corev1.NodeSelectorOpNotIn, Values: []string{r.Label.Value}}
}

// isAway reports whether an expression keeps a pod from Kip's nodes.
func (r Rules) isAway(e corev1.NodeSelectorRequirement) bool {
	in := slices.Contains(e.Values, r.Label.Value)
	return e.Key == r.Label.Key && (e.Operator == corev1.NodeSelectorOpNotIn && in || e.Operator == corev1.NodeSelectorOpIn && !in ||
		e.Operator == corev1.NodeSelectorOpDoesNotExist)
}

// forKip reports whether a pod selects Kip's nodes by itself.
func (r Rules) forKip(spec *corev1.PodSpec) bool { return !r.elsewhere(spec) && r.selects(spec) }

// decided reports whether a pod that does not select Kip's nodes says itself that it does not run there, or on which node it runs.
func (r Rules) decided(spec *corev1.PodSpec) bool {
	kind, selected := spec.NodeSelector[r.Label.Key]
	terms := termsOf(spec)
	return spec.NodeName != "" || selected && kind != r.Label.Value || r.elsewhere(spec) ||
		len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
			return !slices.ContainsFunc(t.MatchExpressions, r.isAway)
		})
}

// leaves reports whether a pod stays as it is although a profile chooses it.
func (r Rules) leaves(pod *corev1.Pod, p *Profile) bool {
	if r.forKip(&pod.Spec) {
		return pod.Spec.NodeName != "" || p.Mode == Never
	}
	return r.decided(&pod.Spec)
}

// PatchProfiled returns what is to be changed of a pod that a profile has chosen, nil for nothing. The warnings are for who makes it.
// The pod is not changed.
func (r Rules) PatchProfiled(pod *corev1.Pod, shape shape, p *Profile, defaults Defaults) (patch []Operation, warnings []string) {
	if r.leaves(pod, p) {
		return nil, nil
	}
	annotations := map[string]string{}
	switch {
	case r.forKip(&pod.Spec) || p.Mode == Only:
		var err error
		if !r.forKip(&pod.Spec) {
			patch = r.place(pod)
		}
		var chosen []Operation
		if chosen, annotations, err = r.rewrite(pod); err != nil {
			warnings = []string{leftAsItIs(err)}
		}
		patch = append(patch, chosen...)
		patch = append(patch, tolerate(pod.Spec.Tolerations, r.tolerationOfTaint(pod.Spec.Tolerations), defaults)...)
	case p.Mode == Burst:
		patch = append(addTolerations("", pod.Spec.Tolerations, r.tolerationOfTaint(pod.Spec.Tolerations)), r.prefer(shape)...)
	case p.Mode == Never:
		patch = r.keepAway(&pod.Spec, shape)
	}
	all := withDefaults(pod.Annotations, annotations, p.Annotations)
	all[placement.AnnotationProfile] = p.Name
	return append(patch, annotate(pod.Annotations, all)...), warnings
}

// toKip reports whether a pod that a profile has chosen runs on Kip's nodes alone.
func (r Rules) toKip(pod *corev1.Pod, p *Profile) bool {
	return !r.leaves(pod, p) && (p.Mode == Only || r.forKip(&pod.Spec))
}

// prefer has a pod prefer nodes that are not Kip's.
func (r Rules) prefer(s shape) []Operation {
	if slices.ContainsFunc(s.preferred, func(t preferredTerm) bool {
		return len(t.expressions) == 1 && r.isAway(t.expressions[0])
	}) {
		return nil
	}
	term := corev1.PreferredSchedulingTerm{Weight: awayWeight, Preference: corev1.NodeSelectorTerm{
		MatchExpressions: expressions{r.away()},
	}}
	list := []corev1.PreferredSchedulingTerm{term}
	switch {
	case !s.affinity:
		return []Operation{{Op: "add", Path: affinityPath, Value: corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: list}}}}
	case !s.nodeAffinity:
		return []Operation{{Op: "add", Path: nodeAffinityPath, Value: corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: list}}}
	case len(s.preferred) == 0:
		return []Operation{{Op: "add", Path: preferredPath, Value: list}}
	}
	return []Operation{{Op: "add", Path: preferredPath + "/-", Value: term}}
}

// keepAway has a pod run on no node of Kip's. A term without expressions matches no node, and stays so.
func (r Rules) keepAway(spec *corev1.PodSpec, s shape) (patch []Operation) {
	terms := termsOf(spec)
	if len(terms) == 0 {
		required := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: expressions{r.away()}}}}
		switch {
		case !s.affinity:
			return []Operation{{Op: "add", Path: affinityPath, Value: corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: required}}}}
		case !s.nodeAffinity:
			return []Operation{{Op: "add", Path: nodeAffinityPath,
				Value: corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}}
		}
		return []Operation{{Op: "add", Path: requiredPath, Value: required}}
	}
	for i, t := range terms {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 || slices.ContainsFunc(t.MatchExpressions, r.isAway) {
			continue
		}
		at := fmt.Sprintf("%s/nodeSelectorTerms/%d/matchExpressions", requiredPath, i)
		if len(t.MatchExpressions) == 0 {
			patch = append(patch, Operation{Op: "add", Path: at, Value: expressions{r.away()}})
		} else {
			patch = append(patch, Operation{Op: "add", Path: at + "/-", Value: r.away()})
		}
	}
	return patch
}

// withDefaults returns what is to be added to a pod's own annotations: what its selection has become, and the defaults that it does
// not have. A default that would make valid annotations invalid is left out.
func withDefaults(own, selected, defaults map[string]string) map[string]string {
	added := maps.Clone(selected)
	if added == nil {
		added = map[string]string{}
	}
	together := maps.Clone(own)
	if together == nil {
		together = map[string]string{}
	}
	maps.Copy(together, selected)
	_, err := placement.ParseAnnotations(together)
	valid := err == nil
	for _, key := range slices.Sorted(maps.Keys(defaults)) {
		if _, has := together[key]; has {
			continue
		}
		together[key] = defaults[key]
		if _, err := placement.ParseAnnotations(together); valid && err != nil {
			delete(together, key)
			continue
		}
		added[key] = defaults[key]
	}
	return added
}
