package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/placement"
)

// Bounds of what is read of a pod, beside those of placement: more than pods have. Three
// bytes of JSON can become hundreds.
const (
	maxListed = 256   // owners, and tolerations
	maxKeys   = 4_096 // of annotations, labels, and of a nodeSelector
)

// question is what is read of an AdmissionReview.
type question struct {
	metav1.TypeMeta
	Request *struct {
		UID         types.UID                   `json:"uid"`
		Operation   admissionv1.Operation       `json:"operation"`
		Resource    metav1.GroupVersionResource `json:"resource"`
		SubResource string                      `json:"subResource"`
		Namespace   string                      `json:"namespace"`
		Object      json.RawMessage             `json:"object"`
		OldObject   json.RawMessage             `json:"oldObject"`
	} `json:"request"`
}

// podOf reads of a pod what its patch depends on. The error may be a *tooManyError.
func podOf(object []byte) (*corev1.Pod, ofHost, error) {
	var is struct {
		Metadata struct {
			Name            string `json:"name"`
			GenerateName    string `json:"generateName"`
			Annotations     texts  `json:"annotations"`
			OwnerReferences owners `json:"ownerReferences"`
		} `json:"metadata"`
		Spec struct {
			NodeName     string      `json:"nodeName"`
			NodeSelector texts       `json:"nodeSelector"`
			Tolerations  tolerations `json:"tolerations"`
			listsOfHost
			Affinity struct {
				termsOfHost
				NodeAffinity struct {
					Required *struct {
						Terms terms `json:"nodeSelectorTerms"`
					} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
				} `json:"nodeAffinity"`
			} `json:"affinity"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(object, &is); err != nil {
		return nil, ofHost{}, err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            is.Metadata.Name,
			GenerateName:    is.Metadata.GenerateName,
			Annotations:     is.Metadata.Annotations,
			OwnerReferences: is.Metadata.OwnerReferences,
		},
		Spec: corev1.PodSpec{
			NodeName:     is.Spec.NodeName,
			NodeSelector: is.Spec.NodeSelector,
			Tolerations:  is.Spec.Tolerations,
		},
	}
	if required := is.Spec.Affinity.NodeAffinity.Required; required != nil {
		selector := &corev1.NodeSelector{}
		for _, t := range required.Terms {
			selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: t.MatchExpressions.list(),
				MatchFields:      t.MatchFields.list(),
			})
		}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}
	}
	return pod, hostOf(is.Spec.listsOfHost, is.Spec.Affinity.termsOfHost), nil
}

// tooManyError says that a pod has more of something than is read.
type tooManyError struct {
	what string
	most int
}

func (e *tooManyError) Error() string { return fmt.Sprintf("it has more than %d %s", e.most, e.what) }

// Lists and maps that are read until they are too long.
type (
	texts       map[string]string
	owners      []metav1.OwnerReference
	tolerations []corev1.Toleration
	terms       []struct{ MatchExpressions, MatchFields requirements }
	requirement struct {
		Key      string                      `json:"key"`
		Operator corev1.NodeSelectorOperator `json:"operator"`
		Values   values                      `json:"values"`
	}
	requirements []requirement
	values       []string
)

func (l *owners) UnmarshalJSON(b []byte) error { return readList(b, l, "owners", maxListed) }

func (l *tolerations) UnmarshalJSON(b []byte) error { return readList(b, l, "tolerations", maxListed) }

func (l *terms) UnmarshalJSON(b []byte) error {
	return readList(b, l, "terms of node affinity", placement.MaxTerms)
}

func (l *requirements) UnmarshalJSON(b []byte) error {
	return readList(b, l, "expressions in a term of node affinity", placement.MaxExpressions)
}

func (l *values) UnmarshalJSON(b []byte) error {
	return readList(b, l, "values in an expression of node affinity", placement.MaxValues)
}

func (l requirements) list() expressions {
	var all expressions
	for _, r := range l {
		all = append(all, corev1.NodeSelectorRequirement{Key: r.Key, Operator: r.Operator, Values: r.Values})
	}
	return all
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *texts) UnmarshalJSON(b []byte) error {
	*m = nil
	return readEach(b, '{', func(d *json.Decoder) error {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if len(*m) == maxKeys {
			return &tooManyError{"annotations, or labels", maxKeys}
		}
		var value string
		if err := d.Decode(&value); err != nil {
			return err
		}
		if *m == nil {
			*m = texts{}
		}
		(*m)[fmt.Sprint(key)] = value
		return nil
	})
}

// readList reads a list of at most so many elements.
func readList[L ~[]T, T any](b []byte, list *L, what string, most int) error {
	*list = nil
	return readEach(b, '[', func(d *json.Decoder) error {
		if len(*list) == most {
			return &tooManyError{what, most}
		}
		var next T
		if err := d.Decode(&next); err != nil {
			return err
		}
		*list = append(*list, next)
		return nil
	})
}

// readEach has all that is in a list or an object read, one by one. null has nothing.
func readEach(b []byte, begins json.Delim, next func(*json.Decoder) error) error {
	d := json.NewDecoder(bytes.NewReader(b))
	switch first, err := d.Token(); {
	case err != nil:
		return err
	case first == nil:
		return nil
	case first != begins:
		return errors.New("this is no " + map[json.Delim]string{'[': "list", '{': "object"}[begins])
	}
	for d.More() {
		if err := next(d); err != nil {
			return err
		}
	}
	return nil
}
