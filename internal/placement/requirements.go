package placement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Bounds of instance-requirements: more than people write, and little work for each
// instance type.
const (
	MaxTerms       = 32
	MaxExpressions = 32 // in a term
	MaxValues      = 256

	maxExpressionsInAll  = 64
	maxRequirementsBytes = 8 << 10
)

var requirementsAllowed = fmt.Sprintf(`a JSON list of node selector terms such as `+
	`[{"matchExpressions":[{"key":"karpenter.k8s.aws/instance-family","operator":"In","values":["c5","m5"]}]}]`+
	`, of %d bytes, %d terms, %d expressions and %d values at most; or an ordered list, whose entries have a launchType`,
	maxRequirementsBytes, MaxTerms, maxExpressionsInAll, MaxValues)

// Requirements are what the labels of an instance must be, in the words of node
// affinity: one of the terms holds, with all of its expressions. nil asks for nothing.
type Requirements []labels.Requirements

// operators of node affinity, and what they are of label selectors.
var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn:           selection.In,
	corev1.NodeSelectorOpNotIn:        selection.NotIn,
	corev1.NodeSelectorOpExists:       selection.Exists,
	corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt:           selection.GreaterThan,
	corev1.NodeSelectorOpLt:           selection.LessThan,
}

// ParseRequirements reads the value of the annotation.
func ParseRequirements(value string) (Requirements, error) {
	terms, err := DecodeTerms(value)
	if err != nil {
		return nil, err
	}
	all := make(Requirements, 0, len(terms))
	for _, t := range terms {
		term, err := requirementsOf(t.MatchExpressions)
		if err != nil {
			return nil, err
		}
		all = append(all, term)
	}
	return all, nil
}

func requirementsOf(expressions []corev1.NodeSelectorRequirement) (labels.Requirements, error) {
	var all labels.Requirements
	for _, e := range expressions {
		op, ok := operators[e.Operator]
		if !ok {
			return nil, fmt.Errorf("%s: operator %q is none of node affinity", e.Key, e.Operator)
		}
		r, err := labels.NewRequirement(e.Key, op, e.Values)
		if err != nil {
			return nil, err
		}
		all = append(all, *r)
	}
	return all, nil
}

// DecodeTerms reads the value of the annotation as what node affinity is made of.
// Terms and their expressions are there, and are few; what an expression says is not
// looked at.
func DecodeTerms(value string) ([]corev1.NodeSelectorTerm, error) {
	if len(value) > maxRequirementsBytes {
		return nil, fmt.Errorf("%d bytes: the most is %d", len(value), maxRequirementsBytes)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(value)))
	d.DisallowUnknownFields()
	var terms []corev1.NodeSelectorTerm
	if err := d.Decode(&terms); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the list")
	}
	return terms, checkTerms(terms)
}

// EncodeTerms is the value of the annotation for terms. It is an error if they are too
// many, or not valid.
func EncodeTerms(terms []corev1.NodeSelectorTerm) (string, error) {
	if err := checkTerms(terms); err != nil { // before it takes memory
		return "", err
	}
	value, err := json.Marshal(terms)
	if err != nil {
		return "", err
	}
	_, err = ParseRequirements(string(value))
	return string(value), err
}

func checkTerms(terms []corev1.NodeSelectorTerm) error {
	if len(terms) == 0 || len(terms) > MaxTerms {
		return fmt.Errorf("%d terms: want 1 to %d", len(terms), MaxTerms)
	}
	expressions, values, bytes := 0, 0, 0
	for _, t := range terms {
		n := len(t.MatchExpressions)
		if n == 0 || n > MaxExpressions || len(t.MatchFields) > 0 {
			return fmt.Errorf("a term of %d expressions and %d fields: want 1 to %d expressions, and no fields", n, len(t.MatchFields),
				MaxExpressions)
		}
		expressions += n
		for _, e := range t.MatchExpressions {
			values += len(e.Values)
			bytes += len(e.Key) + len(e.Operator)
			for _, v := range e.Values {
				bytes += len(v)
			}
		}
	}
	switch {
	case expressions > maxExpressionsInAll:
		return fmt.Errorf("%d expressions in all: the most is %d", expressions, maxExpressionsInAll)
	case values > MaxValues:
		return fmt.Errorf("%d values in all: the most is %d", values, MaxValues)
	case bytes > maxRequirementsBytes:
		return fmt.Errorf("%d bytes of keys and values: the most is %d", bytes, maxRequirementsBytes)
	}
	return nil
}

// hold reports whether an instance with these labels may be had.
func (r Requirements) hold(of labels.Labels) bool {
	return slices.ContainsFunc(r, func(term labels.Requirements) bool {
		return !slices.ContainsFunc(term, func(e labels.Requirement) bool { return !e.Matches(of) })
	})
}

// keys are the labels that are asked for, each once, in the order in which they are named.
func (r Requirements) keys() []string {
	var keys []string
	for _, term := range r {
		for _, e := range term {
			if !slices.Contains(keys, e.Key()) {
				keys = append(keys, e.Key())
			}
		}
	}
	return keys
}

// LaunchTypesFor is the value of the launch-type annotation by which all can be had that
// the terms allow: what one names, and else on-demand wherever it will do. "" where no
// launch type will do, or a term is not valid.
func LaunchTypesFor(terms [][]corev1.NodeSelectorRequirement) string {
	var words []string
	for _, t := range []LaunchType{Spot, OnDemand, Dedicated} {
		if slices.ContainsFunc(terms, func(term []corev1.NodeSelectorRequirement) bool { return boughtAs(term, t) }) {
			words = append(words, string(t))
		}
	}
	return strings.Join(words, ",")
}

// boughtAs reports whether an instance that a term allows is to be bought as t.
func boughtAs(term []corev1.NodeSelectorRequirement, t LaunchType) bool {
	about := slices.DeleteFunc(slices.Clone(term), func(e corev1.NodeSelectorRequirement) bool { return e.Key != LabelCapacityType })
	all, err := requirementsOf(about)
	allows := func(t LaunchType) bool {
		return err == nil && Requirements{all}.hold(labels.Set{LabelCapacityType: string(t)})
	}
	switch {
	case !allows(t):
		return false
	case slices.ContainsFunc(about, func(e corev1.NodeSelectorRequirement) bool { return e.Operator == corev1.NodeSelectorOpIn }):
		return true
	case allows(OnDemand):
		return t == OnDemand
	}
	return t == Spot
}
