package admission

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/daemonsets"
)

// setsOf are these, on nodes with the taint of rules.
func setsOf(entries ...daemonsets.Entry) Sets {
	return Sets{
		Rules: daemonsets.New(entries, func(namespace string) bool { return namespace == "granted" }),
		Nodes: daemonsets.Nodes{Controller: "us", Taints: []corev1.Taint{*rules().Taint}},
	}
}

// askingSet is a question about a DaemonSet that is to be made, or changed.
func askingSet(operation, namespace, object string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","operation":%q,`+
		`"resource":{"group":"apps","version":"v1","resource":"daemonsets"},"namespace":%q,"object":%s}}`, operation, namespace, object)
}

// reviewOf is the answer to a question about a DaemonSet.
func reviewOf(t *testing.T, sets Sets, body string) *admissionv1.AdmissionResponse {
	t.Helper()
	h := newReviews(rules, func() Defaults { return UpstreamDefaults }, nano, Profiles{}, sets, time.Minute, slog.New(slog.DiscardHandler))
	w := serve(h, http.MethodPost, "/daemonsets", strings.NewReader(body))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK || !review.Response.Allowed {
		t.Fatalf("%d, %v: %s", w.Code, err, w.Body)
	}
	return review.Response
}

// fitted is a DaemonSet after Kip's answer, which may change tolerations and affinity of its template, and nothing else.
func fitted(t *testing.T, sets Sets, set *appsv1.DaemonSet, operation string) (*appsv1.DaemonSet, []string) {
	t.Helper()
	object, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	r := reviewOf(t, sets, askingSet(operation, set.Namespace, string(object)))
	if r.Patch == nil {
		return set, r.Warnings
	}
	got := &appsv1.DaemonSet{}
	if err := json.Unmarshal(patchedText(t, object, r.Patch), got); err != nil {
		t.Fatal(err)
	}
	without := got.DeepCopy()
	without.Spec.Template.Spec.Tolerations = set.Spec.Template.Spec.Tolerations
	without.Spec.Template.Spec.Affinity = set.Spec.Template.Spec.Affinity
	if !equality.Semantic.DeepEqual(without, set) {
		t.Errorf("more than tolerations and affinity is changed: %s", r.Patch)
	}
	return got, r.Warnings
}

// What published sets have, by their charts and manifests: fluent/helm-charts, DataDog/helm-charts, falcosecurity/charts,
// aws-observability/helm-charts (amazon-cloudwatch-observability), microsoft/Docker-Provider (ama-logs), aws/amazon-vpc-cni-k8s.
var shapes = map[string]string{
	"fluent-bit": `{}`,
	"datadog":    `{nodeSelector: {kubernetes.io/os: linux}}`,
	"falco": `{tolerations: [{effect: NoSchedule, key: node-role.kubernetes.io/master},
  {effect: NoSchedule, key: node-role.kubernetes.io/control-plane}]}`,
	"cloudwatch": `{hostNetwork: true, tolerations: [{operator: Exists}],
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [
    {key: kubernetes.io/os, operator: In, values: [linux]},
    {key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}]}]}}}}`,
	"ama-logs": `{tolerations: [{key: CriticalAddonsOnly, operator: Exists}, {operator: Exists, effect: NoExecute},
    {operator: Exists, effect: NoSchedule}, {operator: Exists, effect: PreferNoSchedule}],
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [
    {key: kubernetes.io/os, operator: In, values: [linux]}, {key: kubernetes.azure.com/cluster, operator: Exists},
    {key: type, operator: NotIn, values: [virtual-kubelet]}]}]}}}}`,
	"aws-node": `{hostNetwork: true, tolerations: [{operator: Exists}],
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [
    {key: kubernetes.io/os, operator: In, values: [linux]}, {key: kubernetes.io/arch, operator: In, values: [amd64, arm64]},
    {key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate, hybrid, auto]}]}]}}}}`,
}

// shaped is a DaemonSet of a namespace with the template of a shape, and with what else a template has.
func shaped(t *testing.T, namespace, name, spec string) *appsv1.DaemonSet {
	t.Helper()
	set := &appsv1.DaemonSet{}
	set.Namespace, set.Name = namespace, name
	if err := yaml.UnmarshalStrict([]byte(spec), &set.Spec.Template.Spec); err != nil {
		t.Fatal(err)
	}
	set.Spec.Template.Labels = map[string]string{"app": name}
	mounts := []corev1.VolumeMount{{Name: "log", MountPath: "/var/log"}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "image", VolumeMounts: mounts}}
	set.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "log"}}
	return set
}

func TestPublishedSetsThatAreNamedFitKipsNodes(t *testing.T) {
	node := &corev1.Node{}
	node.Name = "kip-0"
	node.Labels = map[string]string{"type": "virtual-kubelet", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
		"eks.amazonaws.com/compute-type": "fargate", "kip.elotl.co/controller": "us"}
	node.Spec.Taints = []corev1.Taint{*rules().Taint}
	named := setsOf(daemonsets.Entry{Namespace: "agents"})
	for name, spec := range shapes {
		set := shaped(t, "agents", name, spec)
		if daemonsets.Barred(&set.Spec.Template.Spec, node) == "" {
			t.Errorf("%s: nothing keeps it off, so the test shows nothing", name)
		}
		got, warnings := fitted(t, named, set, "CREATE")
		if why := daemonsets.Barred(&got.Spec.Template.Spec, node); why != "" || len(warnings) > 0 {
			t.Errorf("%s: %s, %q", name, why, warnings)
		}
		// What is asked again, or is applied again without it, becomes the same.
		if r, _ := fitted(t, named, got, "UPDATE"); r != got {
			t.Errorf("%s: it is changed again", name)
		}
		if again, _ := fitted(t, named, set, "UPDATE"); !equality.Semantic.DeepEqual(again, got) {
			t.Errorf("%s: an update makes another of it", name)
		}
		if other, _ := fitted(t, setsOf(daemonsets.Entry{Namespace: "agents", Name: "other"}), set, "CREATE"); other != set {
			t.Errorf("%s: it is not named, and is changed", name)
		}
	}
}

func TestWhichDaemonSetsAreChanged(t *testing.T) {
	sets := setsOf(daemonsets.Entry{Namespace: "agents", Name: "named"}, daemonsets.Entry{Namespace: "agents", Name: "picky"})
	for name, tc := range map[string]struct {
		set      *appsv1.DaemonSet
		asks     bool
		changed  bool
		warnings string
	}{
		"it is named":             {set: shaped(t, "agents", "named", "{}"), changed: true},
		"another name":            {set: shaped(t, "agents", "other", "{}")},
		"another namespace":       {set: shaped(t, "team", "named", "{}")},
		"it asks, and may":        {set: shaped(t, "granted", "own", "{}"), asks: true, changed: true},
		"it asks, and may not":    {set: shaped(t, "team", "own", "{}"), asks: true, warnings: "is not granted to namespace team"},
		"it tolerates everything": {set: shaped(t, "agents", "named", "{tolerations: [{operator: Exists}]}")},
		"its nodeSelector does not fit": {set: shaped(t, "agents", "picky", "{nodeSelector: {pool: apps}}"), changed: true,
			warnings: "DaemonSet picky runs beside no pod on Kip's nodes: its nodeSelector wants the label pool=apps, which none has"},
		"its nodeSelector is of Windows": {set: shaped(t, "agents", "picky", "{nodeSelector: {kubernetes.io/os: windows}}"), changed: true,
			warnings: "its nodeSelector wants the label kubernetes.io/os=windows"},
		"its nodeSelector fits": {set: shaped(t, "agents", "picky", "{nodeSelector: {kubernetes.io/os: linux, team: a, type: virtual-kubelet}}"),
			changed: true},
		"only a node says what it has": {set: shaped(t, "agents", "picky", "{nodeSelector: {topology.kubernetes.io/region: r}}"), changed: true},
	} {
		if tc.asks {
			tc.set.Spec.Template.Annotations = map[string]string{daemonsets.Annotation: "true"}
		}
		got, warnings := fitted(t, sets, tc.set, "CREATE")
		if (got != tc.set) != tc.changed {
			t.Errorf("%s: it is changed: %t", name, got != tc.set)
		}
		if (len(warnings) > 0) != (tc.warnings != "") || !strings.Contains(strings.Join(warnings, "\n"), tc.warnings) {
			t.Errorf("%s: warnings %q, want %q", name, warnings, tc.warnings)
		}
	}
	if got, _ := fitted(t, Sets{}, shaped(t, "agents", "named", "{}"), "CREATE"); len(got.Spec.Template.Spec.Tolerations) > 0 {
		t.Error("no set is named, and one is changed")
	}
}

func TestQuestionsAboutDaemonSetsThatAreLeftAlone(t *testing.T) {
	sets := setsOf(daemonsets.Entry{Namespace: "agents"})
	object := `{"metadata":{"name":"a"},"spec":{"template":{"spec":{}}}}`
	for says, body := range map[string]string{
		"a deletion":      askingSet("DELETE", "agents", object),
		"its status":      strings.Replace(askingSet("UPDATE", "agents", object), `"namespace"`, `"subResource":"status","namespace"`, 1),
		"another kind":    strings.Replace(askingSet("CREATE", "agents", object), `"daemonsets"`, `"deployments"`, 1),
		"another version": strings.Replace(askingSet("CREATE", "agents", object), `"version":"v1"`, `"version":"v2"`, 1),
	} {
		if r := reviewOf(t, sets, body); r.Patch != nil {
			t.Errorf("%s: %s", says, r.Patch)
		}
	}
	many := strings.Repeat(`{"key":"a"},`, maxListed) + `{"key":"a"}`
	r := reviewOf(t, sets, askingSet("CREATE", "agents", `{"metadata":{"name":"a"},"spec":{"template":{"spec":{"tolerations":[`+many+`]}}}}`))
	if r.Patch != nil || !slices.Contains(r.Warnings, "Kip leaves the DaemonSet as it is: it has more than 256 tolerations") {
		t.Errorf("%s, %q", r.Patch, r.Warnings)
	}
	h := newReviews(rules, func() Defaults { return UpstreamDefaults }, nano, Profiles{}, sets, time.Minute, slog.New(slog.DiscardHandler))
	for _, object := range []string{`{}`, `{"spec":{"template":7}}`, `[]`} {
		body := strings.NewReader(askingSet("CREATE", "agents", object))
		if w := serve(h, http.MethodPost, "/daemonsets", body); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", object, w.Code)
		}
	}
}
