package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Labels that say where, and on what, a pod may run, with the names that they
// had before Kubernetes 1.17, which manifests still use.
var (
	archLabels = []string{corev1.LabelArchStable, "beta.kubernetes.io/arch"}
	zoneLabels = []string{corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone}
)

// constraint is what a pod's nodeSelector and required node affinity say of
// architecture and zone. What they say of other labels held for the virtual node,
// or the pod would not be bound to it, and so holds for each of its cells.
type constraint struct {
	all []corev1.NodeSelectorRequirement // each must hold
	any [][]corev1.NodeSelectorRequirement
	// arch reports whether the architecture is constrained.
	arch bool
}

func constraintOf(spec *corev1.PodSpec) constraint {
	var c constraint
	for _, labels := range [][]string{archLabels, zoneLabels} {
		for _, label := range labels {
			if v, ok := spec.NodeSelector[label]; ok {
				c.all = append(c.all, corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{v}})
				c.arch = c.arch || slices.Contains(archLabels, label)
			}
		}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return c
	}
	constrained := false
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
			continue // an empty term matches no node
		}
		var kept []corev1.NodeSelectorRequirement
		for _, r := range term.MatchExpressions {
			isArch := slices.Contains(archLabels, r.Key)
			if isArch || slices.Contains(zoneLabels, r.Key) {
				kept = append(kept, r)
				constrained = true
				c.arch = c.arch || isArch
			}
		}
		c.any = append(c.any, kept)
	}
	if !constrained {
		c.any = nil
	}
	return c
}

// none reports whether the pod may run anywhere.
func (c constraint) none() bool { return len(c.all) == 0 && len(c.any) == 0 }

// allows reports whether the pod may run on that architecture in that zone.
func (c constraint) allows(arch, zone string) bool {
	for _, r := range c.all {
		if !holds(r, arch, zone) {
			return false
		}
	}
	return len(c.any) == 0 || slices.ContainsFunc(c.any, func(term []corev1.NodeSelectorRequirement) bool {
		return !slices.ContainsFunc(term, func(r corev1.NodeSelectorRequirement) bool { return !holds(r, arch, zone) })
	})
}

// archOnly returns what the constraint says of the architecture alone.
func (c constraint) archOnly() constraint {
	ofZone := func(r corev1.NodeSelectorRequirement) bool { return slices.Contains(zoneLabels, r.Key) }
	only := constraint{all: slices.DeleteFunc(slices.Clone(c.all), ofZone), arch: c.arch}
	for _, term := range c.any {
		only.any = append(only.any, slices.DeleteFunc(slices.Clone(term), ofZone))
	}
	return only
}

func holds(r corev1.NodeSelectorRequirement, arch, zone string) bool {
	value := zone
	if slices.Contains(archLabels, r.Key) {
		value = arch
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpExists:
		return true
	default: // DoesNotExist; Gt and Lt compare integers, which these are not
		return false
	}
}
