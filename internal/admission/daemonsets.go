package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/daemonsets"
)

// Templates are the pod templates of DaemonSets that run beside pods.
const Templates Scope = "templates"

// templatePath is where the template is in a DaemonSet.
const templatePath = "/spec/template"

// Sets are the DaemonSets that run beside pods on their cells. The zero value has none.
type Sets struct {
	Rules *daemonsets.Rules
	Nodes daemonsets.Nodes
}

// daemonSetsResource is of what Kip is asked there.
var daemonSetsResource = metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}

// fit answers about a DaemonSet that is to be made or changed. Of one that runs beside pods it adds to the tolerations and to the required
// node affinity of the template, and nothing else.
func (rs *reviews) fit(response *admissionv1.AdmissionResponse, object []byte, namespace string) error {
	name, template, err := templateOf(object)
	if err != nil {
		return fmt.Errorf("read the DaemonSet: %w", err)
	}
	is, why := rs.sets.Rules.Names(namespace, name, template.Labels, template.Annotations)
	if why != nil {
		response.Warnings = []string{fmt.Sprintf("Kip does not run DaemonSet %s beside pods: %v", name, why)}
	}
	if !is {
		return nil
	}
	lacks := rs.sets.Nodes.Fit(&template.Spec)
	if bars := rs.rules().bars(&template.Spec); bars != "" {
		response.Warnings = append(response.Warnings, fmt.Sprintf("DaemonSet %s runs beside no pod on Kip's nodes: %s; docs/daemonsets.md says what helps",
			name, bars))
	}
	patch := addTolerations(templatePath, template.Spec.Tolerations, lacks.Tolerations)
	for _, term := range lacks.Terms {
		patch = append(patch, Operation{Op: "add", Path: templatePath + requiredPath + "/nodeSelectorTerms/-", Value: term})
	}
	if len(patch) > 0 {
		rs.log.Info("a DaemonSet that runs beside pods is given what it lacks to have a pod on Kip's nodes", "daemonset", namespace+"/"+name,
			"operations", len(patch))
	}
	return respond(response, patch)
}

// templateOf reads of a DaemonSet its name, and of its template what its patch depends on. The error may be a *tooManyError.
func templateOf(object []byte) (name string, template *corev1.Pod, err error) {
	var set struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			Template json.RawMessage `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(object, &set); err != nil {
		return "", nil, err
	}
	if len(set.Spec.Template) == 0 {
		return "", nil, errors.New("it has no spec.template")
	}
	if template, _, err = podOf(set.Spec.Template); err != nil {
		return "", nil, err
	}
	var is struct {
		Metadata struct {
			Labels texts `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(set.Spec.Template, &is); err != nil {
		return "", nil, err
	}
	template.Labels = is.Metadata.Labels
	return set.Metadata.Name, template, nil
}

// bars says what of a nodeSelector, which must hold whatever the affinity says, no node of Kip's has; "" for nothing that is known.
func (r Rules) bars(spec *corev1.PodSpec) string {
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		if value := spec.NodeSelector[key]; r.lacks(key, value) {
			return fmt.Sprintf("its nodeSelector wants the label %s=%s, which none has", key, value)
		}
	}
	return ""
}

// lacks reports whether no node of Kip's has a label. Of some labels only the node itself says what it has.
func (r Rules) lacks(key, value string) bool {
	if have := r.NodeLabels[key]; len(have) > 0 {
		return !slices.Contains(have, value)
	}
	domain, _, _ := strings.Cut(key, "/")
	switch {
	case key == r.Label.Key:
		return value != r.Label.Value
	case key == corev1.LabelOSStable:
		return value != "linux"
	case domain == "kubernetes.io", strings.HasSuffix(domain, ".kubernetes.io"), strings.HasPrefix(domain, "topology."),
		domain == "eks.amazonaws.com", domain == "kubernetes.azure.com", domain == "karpenter.sh":
		return false
	}
	return true
}

// unasked is an error if the API server does not ask about the sets that run beside pods.
func (s Sets) unasked(asks func(path string) bool) error {
	if s.Rules == nil || asks(daemonSetsPath) {
		return nil
	}
	return errors.New("DaemonSets that run beside pods, and do not tolerate the taint of Kip's nodes, have no pods there: no webhook of the " +
		"MutatingWebhookConfiguration has the path " + daemonSetsPath + ": docs/daemonsets.md says how to make it")
}
