package admission

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/placement"
)

// expressions are of node affinity; all of them must hold.
type expressions = []corev1.NodeSelectorRequirement

const requiredPath = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"

// rewrite turns what a pod selects of instances into annotations, which it returns. Otherwise the
// scheduler would look for a node that has it. It is an error if annotations cannot
// hold it all.
func (r Rules) rewrite(pod *corev1.Pod) (patch []Operation, annotations map[string]string, err error) {
	asked, err := r.split(&pod.Spec)
	if err != nil {
		return nil, nil, err
	}
	annotations, err = r.annotationsFor(pod.Annotations, asked.terms)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range asked.selected {
		patch = append(patch, Operation{Op: "remove", Path: "/spec/nodeSelector/" + escaped(key)})
	}
	switch {
	case asked.required == nil: // it stays
	case len(asked.required.NodeSelectorTerms) == 0:
		patch = append(patch, Operation{Op: "remove", Path: requiredPath})
	default:
		patch = append(patch, Operation{Op: "replace", Path: requiredPath, Value: asked.required})
	}
	return patch, annotations, nil
}

// annotate adds annotations to an object's own, but those that it has so already.
func annotate(own, annotations map[string]string) (patch []Operation) {
	if len(annotations) > 0 && len(own) == 0 {
		return []Operation{{Op: "add", Path: "/metadata/annotations", Value: annotations}}
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if have, has := own[key]; !has || have != annotations[key] {
			patch = append(patch, Operation{Op: "add", Path: "/metadata/annotations/" + escaped(key), Value: annotations[key]})
		}
	}
	return patch
}

// escaped is a key in the path of an operation.
func escaped(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// asked is what a pod asks of its instance.
type asked struct {
	// selected are the keys that leave the nodeSelector.
	selected []string
	// required is what remains of the required node affinity, without terms if
	// nothing does; nil where it stays as it is.
	required *corev1.NodeSelector
	// terms say what the instance must be: one of them holds. Empty for nothing.
	terms []expressions
}

// split parts what a pod asks of its instance from what it asks of its node. It is an
// error if that is more than an annotation holds.
func (r Rules) split(spec *corev1.PodSpec) (a asked, err error) {
	var selected expressions
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		e := corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{spec.NodeSelector[key]}}
		if r.ofInstance(e) {
			a.selected, selected = append(a.selected, key), append(selected, e)
		}
	}
	if n := len(selected); n > placement.MaxExpressions {
		return asked{}, fmt.Errorf("its nodeSelector has %d labels of instances: the most is %d", n, placement.MaxExpressions)
	}
	terms := slices.DeleteFunc(slices.Clone(termsOf(spec)), func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) == 0 // it matches no node
	})
	if !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool { return slices.ContainsFunc(t.MatchExpressions, r.ofInstance) }) {
		if len(selected) > 0 {
			a.terms = []expressions{selected}
		}
		return a, nil
	}
	if err := few(terms); err != nil {
		return asked{}, err
	}
	a.required = &corev1.NodeSelector{}
	var rests []corev1.NodeSelectorTerm // of the node, term by term
	var instances []expressions         // of the instance
	for _, t := range terms {
		rest := corev1.NodeSelectorTerm{MatchFields: t.MatchFields}
		var instance expressions
		for _, e := range t.MatchExpressions {
			if r.ofInstance(e) {
				instance = append(instance, e)
			} else {
				rest.MatchExpressions = append(rest.MatchExpressions, e)
			}
		}
		rests, instances = append(rests, rest), append(instances, instance)
	}
	// The node must meet one of the rests. One without expressions any node meets.
	if !slices.ContainsFunc(rests, func(t corev1.NodeSelectorTerm) bool { return len(t.MatchExpressions)+len(t.MatchFields) == 0 }) {
		for _, rest := range rests {
			if !slices.ContainsFunc(a.required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return reflect.DeepEqual(t, rest) }) {
				a.required.NodeSelectorTerms = append(a.required.NodeSelectorTerms, rest)
			}
		}
	}
	// Where the terms ask different things of the node, which of them is met decides
	// what the instance may be: it is asked for them as a whole.
	if slices.ContainsFunc(rests, func(t corev1.NodeSelectorTerm) bool { return !reflect.DeepEqual(t, rests[0]) }) {
		for i, t := range terms {
			instances[i] = slices.Clone(t.MatchExpressions)
			for _, f := range t.MatchFields { // there is one field: the node's name
				instances[i] = append(instances[i], corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: f.Operator, Values: f.Values})
			}
		}
	}
	if slices.ContainsFunc(instances, func(e expressions) bool { return len(e) == 0 }) { // any will do
		instances = []expressions{nil}
	}
	for _, instance := range instances {
		if all := slices.Concat(selected, instance); len(all) > 0 {
			a.terms = append(a.terms, all)
		}
	}
	return a, nil
}

// few is an error if terms are more than an annotation holds. Each is compared with each.
func few(terms []corev1.NodeSelectorTerm) error {
	if n := len(terms); n > placement.MaxTerms {
		return fmt.Errorf("its node affinity has %d terms: the most is %d", n, placement.MaxTerms)
	}
	values := 0
	for _, t := range terms {
		if n := len(t.MatchExpressions) + len(t.MatchFields); n > placement.MaxExpressions {
			return fmt.Errorf("a term of its node affinity has %d expressions: the most is %d", n, placement.MaxExpressions)
		}
		for _, e := range slices.Concat(t.MatchExpressions, t.MatchFields) {
			values += len(e.Values)
		}
	}
	if values > placement.MaxValues {
		return fmt.Errorf("its node affinity has %d values: the most is %d", values, placement.MaxValues)
	}
	return nil
}

// ofInstance reports whether an expression is about the instance that a pod gets, and
// no node of Kip's has such a label.
func (r Rules) ofInstance(e corev1.NodeSelectorRequirement) bool {
	if !placement.IsInstanceLabel(e.Key) {
		return false
	}
	values := r.NodeLabels[e.Key]
	if len(values) == 1 && values[0] == r.NoInstance {
		return e.Operator != corev1.NodeSelectorOpIn || !slices.Contains(e.Values, r.NoInstance)
	}
	return len(values) == 0
}

// annotationsFor returns the annotations that say what an instance must be, beside
// those that the pod has. One of the terms must hold; none asks for nothing.
func (r Rules) annotationsFor(own map[string]string, terms []expressions) (map[string]string, error) {
	if len(terms) == 0 {
		return nil, nil
	}
	added := map[string]string{}
	if len(terms) == 1 {
		terms[0] = named(own, terms[0], added)
	}
	// A node that says how its instances are bought has no others. Of another, on-demand
	// has to be said too: it may be bought as spot first.
	ofBuying := func(e corev1.NodeSelectorRequirement) bool {
		return e.Key == placement.LabelCapacityType && r.ofInstance(e)
	}
	says := slices.ContainsFunc(terms, func(t expressions) bool { return slices.ContainsFunc(t, ofBuying) })
	if bought := placement.LaunchTypesFor(terms); says && own[placement.AnnotationLaunchType] == "" && bought != "" {
		added[placement.AnnotationLaunchType] = bought
		if len(terms) == 1 { // that says all
			terms[0] = slices.DeleteFunc(terms[0], ofBuying)
		}
	}
	if len(terms[0]) == 0 {
		return added, nil
	}
	var all []corev1.NodeSelectorTerm
	if have, ok := own[placement.AnnotationRequirements]; ok && placement.IsOrdered(have) {
		if len(terms) > 1 {
			return nil, fmt.Errorf("annotation %s is an ordered list, and the pod selects one of %d kinds of instances: want one selection",
				placement.AnnotationRequirements, len(terms))
		}
		value, err := placement.AndOrdered(have, terms[0])
		if err != nil {
			return nil, fmt.Errorf("annotation %s cannot hold it: %w", placement.AnnotationRequirements, err)
		}
		added[placement.AnnotationRequirements] = value
		return added, nil
	}
	if have, ok := own[placement.AnnotationRequirements]; ok {
		before, err := placement.DecodeTerms(have)
		if err != nil {
			return nil, fmt.Errorf("annotation %s is not valid: %w", placement.AnnotationRequirements, err)
		}
		if n := len(before) * len(terms); n > placement.MaxTerms {
			return nil, fmt.Errorf("annotation %s has %d terms beside %d of its own: the most is %d together", placement.AnnotationRequirements,
				len(before), len(terms), placement.MaxTerms)
		}
		for _, b := range before { // both must hold
			for _, t := range terms {
				all = append(all, corev1.NodeSelectorTerm{MatchExpressions: slices.Concat(b.MatchExpressions, t)})
			}
		}
	} else {
		for _, t := range terms {
			all = append(all, corev1.NodeSelectorTerm{MatchExpressions: t})
		}
	}
	value, err := placement.EncodeTerms(all)
	if err != nil {
		return nil, fmt.Errorf("annotation %s cannot hold it: %w", placement.AnnotationRequirements, err)
	}
	added[placement.AnnotationRequirements] = value
	return added, nil
}

// named adds the annotation that names an instance type, if the only term does, and
// returns what is left to say. A pod has one such annotation.
func named(own map[string]string, term expressions, added map[string]string) (left expressions) {
	for _, e := range term {
		if (e.Key == corev1.LabelInstanceTypeStable || e.Key == corev1.LabelInstanceType) &&
			e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
			have := cmp.Or(own[placement.AnnotationInstanceType], added[placement.AnnotationInstanceType], e.Values[0])
			if have == e.Values[0] {
				added[placement.AnnotationInstanceType] = have
				continue
			}
		}
		left = append(left, e)
	}
	return left
}

// termsOf are the terms of the required node affinity of a pod.
func termsOf(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	return nil
}
