package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// profilesOf are these, in a cluster with some namespaces, and with Kip in kip-system.
func profilesOf(list ...Profile) Profiles {
	return Profiles{
		List:   list,
		System: []string{"kip-system", "kube-system"},
		IsGPU:  func(name corev1.ResourceName) bool { return strings.HasSuffix(string(name), "/gpu") },
		LabelsOf: func(_ context.Context, name string) (labels.Set, error) {
			return map[string]labels.Set{"a": {"tier": "batch"}, "b": {}}[name], nil
		},
	}
}

// madeBy is how a pod of a namespace is made by profiles, and the warnings.
func madeBy(t *testing.T, profiles Profiles, namespace string, pod *corev1.Pod) (*corev1.Pod, []string) {
	t.Helper()
	h := newReviews(rules, func() Defaults { return UpstreamDefaults }, nano, profiles, Sets{}, time.Minute, slog.New(slog.DiscardHandler))
	object, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	question := strings.Replace(asking(string(object)), `"namespace":"a"`, fmt.Sprintf(`"namespace":%q`, namespace), 1)
	w := serve(h, http.MethodPost, profiledPath, strings.NewReader(question))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK || !review.Response.Allowed {
		t.Fatalf("%d, %v: %s", w.Code, err, w.Body)
	}
	if review.Response.Patch == nil {
		return pod.DeepCopy(), review.Response.Warnings
	}
	return applied(t, object, review.Response.Patch), review.Response.Warnings
}

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheFirstProfileThatChoosesAPodCounts(t *testing.T) {
	list := []Profile{
		{Name: "own", Namespaces: []string{"kip-system"}, Mode: Never},
		{Name: "daemons", OwnerKinds: []string{"DaemonSet"}, Mode: Only},
		{Name: "tier", NamespaceLabels: selector(t, "tier=batch"), Resources: []corev1.ResourceName{"x.io/fpga"}, Mode: Only},
		{Name: "labels", PodLabels: selector(t, "app in (web)"), Mode: Burst},
		{Name: "account", ServiceAccounts: []string{"builder"}, Mode: Burst},
		{Name: "jobs", Namespaces: []string{"ml-*", "a"}, OwnerKinds: []string{"Job", "Spark"}, Mode: Burst},
		{Name: "gpus", GPU: new(true), Mode: Only},
		{Name: "large", GPU: new(false), MinCPU: resource.MustParse("4"), MinMemory: resource.MustParse("8Gi"), Mode: Burst},
		{Name: "selecting", Annotations: map[string]string{"pod.elotl.co/launch-type": "spot"}},
		{Name: "rest", Namespaces: []string{"b"}, Mode: Never},
	}
	requests := func(text string) string {
		return "spec: {containers: [{name: a, resources: {requests: {" + text + "}}}]}"
	}
	owner := func(kind string) string {
		return "metadata: {ownerReferences: [{apiVersion: apps/v1, kind: " + kind + ", name: x, uid: u, controller: true}]}"
	}
	for says, c := range map[string]struct{ namespace, pod, want string }{
		"nothing of it":                     {"c", "{}", ""},
		"a namespace":                       {"b", "{}", "rest"},
		"the labels of a namespace":         {"a", requests("x.io/fpga: 1"), "tier"},
		"another namespace":                 {"b", requests("x.io/fpga: 1"), "rest"},
		"labels":                            {"c", "metadata: {labels: {app: web}}", "labels"},
		"other labels":                      {"c", "metadata: {labels: {app: db}}", ""},
		"labels, of a DaemonSet":            {"c", "{metadata: {labels: {app: web}, " + owner("DaemonSet")[len("metadata: {"):] + "}", "daemons"},
		"labels, in a system namespace":     {"kube-system", "metadata: {labels: {app: web}}", ""},
		"labels, in Kip's, which is named":  {"kip-system", "metadata: {labels: {app: web}}", "own"},
		"a service account":                 {"c", "spec: {serviceAccountName: builder}", "account"},
		"a Job":                             {"a", owner("Job"), "jobs"},
		"a Job of a namespace like it":      {"ml-x", owner("Job"), "jobs"},
		"a Job elsewhere":                   {"c", owner("Job"), ""},
		"what only owns it":                 {"a", strings.Replace(owner("Job"), ", controller: true", "", 1), ""},
		"a GPU":                             {"c", requests("nvidia.com/gpu: 1"), "gpus"},
		"a GPU of an init container":        {"c", "spec: {initContainers: [{name: a, resources: {requests: {amd.com/gpu: 1}}}]}", "gpus"},
		"no GPU of it":                      {"c", requests("nvidia.com/gpu: 0"), ""},
		"a large one":                       {"c", requests("cpu: 4, memory: 8Gi"), "large"},
		"a large one of two":                {"c", "spec: {containers: [{name: a, resources: {requests: {cpu: 3500m, memory: 4Gi}}}, {name: b, resources: {requests: {cpu: 500m, memory: 4Gi}}}]}", "large"},
		"a large one by the pod":            {"c", "spec: {resources: {requests: {cpu: 4, memory: 8Gi}}, containers: [{name: a}]}", "large"},
		"too little memory":                 {"c", requests("cpu: 4, memory: 8191Mi"), ""},
		"a large one with a GPU":            {"c", requests("cpu: 4, memory: 8Gi, nvidia.com/gpu: 1"), "gpus"},
		"one that selects Kip's nodes":      {"c", "spec: {nodeSelector: {type: virtual-kubelet}}", "selecting"},
		"one that does, where it may never": {"b", "spec: {nodeSelector: {type: virtual-kubelet}}", "selecting"},
	} {
		got, warnings := madeBy(t, profilesOf(list...), c.namespace, podFrom(t, c.pod))
		if name := got.Annotations["pod.elotl.co/profile"]; name != c.want || len(warnings) > 0 {
			t.Errorf("%s: profile %q, want %q; %q", says, name, c.want, warnings)
		}
	}
}

// The table of docs/profiles.md.
func TestWhatAPodSaysComesBeforeItsProfile(t *testing.T) {
	const (
		awayTerm  = "{matchExpressions: [{key: type, operator: NotIn, values: [virtual-kubelet]}]}"
		preferred = "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: " + awayTerm + "}]}}"
		required  = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + awayTerm + "]}}}"
		other     = "{weight: 1, preference: {matchExpressions: [{key: a, operator: Exists}]}}"
		daemonSet = "{apiVersion: apps/v1, kind: DaemonSet, name: x, uid: u, controller: true}"
	)
	onNode := func(name string) string {
		return "{metadata: {ownerReferences: [" + daemonSet + "]}, spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: " +
			"{nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [" + name + "]}]}]}}}}}"
	}
	for says, c := range map[string]struct {
		mode      Mode
		kinds     []string
		pod, want string // want: the spec, "" for a pod that is left as it is
	}{
		"only":  {mode: Only, pod: "{}", want: "{nodeSelector: {" + ofKip + "}, tolerations: [" + ofTaint + ", " + forever + "]}"},
		"burst": {mode: Burst, pod: "{}", want: "{tolerations: [" + ofTaint + "], " + preferred + "}"},
		"never": {mode: Never, pod: "{}", want: "{" + required + "}"},

		"only, of an instance": {mode: Only, pod: "spec: {nodeSelector: {node.kubernetes.io/instance-type: c5.large}}",
			want: "{nodeSelector: {" + ofKip + "}, tolerations: [" + ofTaint + ", " + forever + "]}"},
		"burst, of an instance, which is ordinary": {mode: Burst, pod: "spec: {nodeSelector: {node.kubernetes.io/instance-type: c5.large}}",
			want: "{nodeSelector: {node.kubernetes.io/instance-type: c5.large}, tolerations: [" + ofTaint + "], " + preferred + "}"},
		"burst, with all tolerations, which end on ordinary nodes": {mode: Burst, pod: "spec: {tolerations: [{operator: Exists}, " + defaulted(300) + "]}",
			want: "{tolerations: [{operator: Exists}, " + defaulted(300) + "], " + preferred + "}"},
		"burst, with pod affinity": {mode: Burst, pod: "spec: {affinity: {podAffinity: {}}}",
			want: "{tolerations: [" + ofTaint + "], affinity: {podAffinity: {}, " + preferred[len("affinity: {"):] + "}"},
		"burst, with required terms": {mode: Burst,
			pod: "spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}}",
			want: "{tolerations: [" + ofTaint + "], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: " +
				"[{matchExpressions: [{key: a, operator: Exists}]}]}, " + preferred[len("affinity: {nodeAffinity: {"):] + "}"},
		"burst, with a preference": {mode: Burst, pod: "spec: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [" + other + "]}}}",
			want: "{tolerations: [" + ofTaint + "], affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [" + other + ", " +
				"{weight: 100, preference: " + awayTerm + "}]}}}"},
		"never, with terms": {mode: Never, pod: "spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: " +
			"[{matchExpressions: [{key: a, operator: Exists}]}, {}, {matchFields: [{key: metadata.name, operator: NotIn, values: [x]}]}]}}}}",
			want: "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: " +
				"[{matchExpressions: [{key: a, operator: Exists}, {key: type, operator: NotIn, values: [virtual-kubelet]}]}, {}, " +
				"{matchFields: [{key: metadata.name, operator: NotIn, values: [x]}], matchExpressions: [{key: type, operator: NotIn, values: [virtual-kubelet]}]}]}}}}"},
		"never, with a preference": {mode: Never, pod: "spec: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [" + other + "]}}}",
			want: "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [" +
				other + "], " + required[len("affinity: {nodeAffinity: {"):] + "}"},

		"burst, for Kip": {mode: Burst, pod: "spec: {nodeSelector: {" + ofKip + "}}",
			want: "{nodeSelector: {" + ofKip + "}, tolerations: [" + ofTaint + ", " + forever + "]}"},
		"never, for Kip":               {mode: Never, pod: "spec: {nodeSelector: {" + ofKip + "}}"},
		"only, for another kind":       {mode: Only, pod: "spec: {nodeSelector: {type: other}}"},
		"only, on a node of its own":   {mode: Only, pod: "spec: {nodeSelector: {kubernetes.io/hostname: machine}}"},
		"burst, not for Kip by itself": {mode: Burst, pod: "spec: {" + required + "}"},
		"only, on a node already":      {mode: Only, pod: "spec: {nodeName: machine}"},
		"only, on Kip's already":       {mode: Only, pod: "spec: {nodeName: kip-0, nodeSelector: {" + ofKip + "}}"},
		"a DaemonSet":                  {mode: Only, pod: onNode("kip-0")},
		"a DaemonSet that is named": {mode: Only, kinds: []string{"DaemonSet"}, pod: onNode("kip-0"),
			want: "{nodeSelector: {" + ofKip + "}, tolerations: [" + ofTaint + ", " + forever + "], affinity: {nodeAffinity: " +
				"{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [kip-0]}]}]}}}}"},
		"its pod of another node": {mode: Only, kinds: []string{"DaemonSet"}, pod: onNode("machine")},
	} {
		profiles := profilesOf(Profile{Name: "p", Mode: c.mode, OwnerKinds: c.kinds})
		pod := podFrom(t, c.pod)
		got, warnings := madeBy(t, profiles, "a", pod)
		if len(warnings) > 0 {
			t.Errorf("%s: %q", says, warnings)
		}
		if c.want == "" {
			if !equality.Semantic.DeepEqual(got, pod) {
				t.Errorf("%s: it becomes %+v", says, got)
			}
			continue
		}
		var want corev1.PodSpec
		if err := yaml.UnmarshalStrict([]byte(c.want), &want); err != nil {
			t.Fatalf("%s: %v", says, err)
		}
		if !equality.Semantic.DeepEqual(got.Spec, want) || got.Annotations["pod.elotl.co/profile"] != "p" {
			t.Errorf("%s: annotations %v, and\n     %+v\nwant %+v", says, got.Annotations, got.Spec, want)
		}
		again, _ := madeBy(t, profiles, "a", got)
		if !equality.Semantic.DeepEqual(got, again) {
			t.Errorf("%s: asked again, it becomes\n     %+v\nfrom %+v", says, again, got)
		}
	}
}

func TestThePodsOwnAnnotationsComeBeforeDefaults(t *testing.T) {
	defaults := map[string]string{"pod.elotl.co/launch-type": "spot", "pod.elotl.co/instance-profile": "reader"}
	for says, c := range map[string]struct {
		pod  string
		want map[string]string
	}{
		"none of its own": {"{}", map[string]string{"launch-type": "spot", "instance-profile": "reader"}},
		"one of its own":  {"metadata: {annotations: {pod.elotl.co/launch-type: on-demand}}", map[string]string{"launch-type": "on-demand", "instance-profile": "reader"}},
		"an empty one":    {"metadata: {annotations: {pod.elotl.co/launch-type: ''}}", map[string]string{"launch-type": "", "instance-profile": "reader"}},
		"what it selects": {"spec: {nodeSelector: {karpenter.sh/capacity-type: on-demand}}", map[string]string{"launch-type": "on-demand", "instance-profile": "reader"}},
		"what a default would make invalid": {"metadata: {annotations: {pod.elotl.co/allow-metadata: 'false'}}",
			map[string]string{"launch-type": "spot", "allow-metadata": "false"}},
		"another profile's name": {"metadata: {annotations: {pod.elotl.co/profile: forged}}",
			map[string]string{"launch-type": "spot", "instance-profile": "reader"}},
	} {
		for _, mode := range []Mode{Only, Burst} {
			if mode == Burst && says == "what it selects" { // of an ordinary node
				continue
			}
			profiles := profilesOf(Profile{Name: "p", Mode: mode, Annotations: defaults})
			got, _ := madeBy(t, profiles, "a", podFrom(t, c.pod))
			want := map[string]string{"pod.elotl.co/profile": "p"}
			for k, v := range c.want {
				want["pod.elotl.co/"+k] = v
			}
			if !maps.Equal(got.Annotations, want) {
				t.Errorf("%s: %v, want %v", says, got.Annotations, want)
			}
		}
	}
}

// The API server asks again when another webhook has changed the pod. It then selects Kip's nodes, since Kip had it do so.
func TestAProfileForPodsThatSelectKipDoesNotTakeThoseOfAnother(t *testing.T) {
	profiles := profilesOf(Profile{Name: "selecting", Annotations: map[string]string{"pod.elotl.co/launch-type": "spot"}},
		Profile{Name: "only", Mode: Only})
	first, _ := madeBy(t, profiles, "a", podFrom(t, "{}"))
	again, _ := madeBy(t, profiles, "a", first)
	if first.Annotations["pod.elotl.co/profile"] != "only" || !equality.Semantic.DeepEqual(first, again) {
		t.Errorf("it becomes %v, and then %v", first.Annotations, again.Annotations)
	}
}

// To ordinary nodes a pod that may burst is as its owner wrote it.
func TestOnlyPodsThatAreKipsGetAHostOfTheirOwn(t *testing.T) {
	pod := &corev1.Pod{Spec: demanding()}
	for mode, hidden := range map[Mode]bool{Only: true, Burst: false} {
		got, _ := madeBy(t, profilesOf(Profile{Name: "p", Mode: mode}), "a", pod)
		if is := got.Spec.Containers[1].Ports[1].HostIP != ""; is != hidden {
			t.Errorf("%s: its host port has a host of its own: %t", mode, is)
		}
	}
}

func TestAPodWhoseNamespaceCannotBeReadStaysAsItIs(t *testing.T) {
	profiles := profilesOf(Profile{Name: "p", NamespaceLabels: selector(t, "a=b"), Mode: Only}, Profile{Name: "q", Mode: Never})
	profiles.LabelsOf = func(context.Context, string) (labels.Set, error) { return nil, errors.New("no answer") }
	pod := podFrom(t, "{}")
	got, warnings := madeBy(t, profiles, "a", pod)
	if !equality.Semantic.DeepEqual(got, pod) || len(warnings) != 1 || !strings.Contains(warnings[0],
		"read the labels of namespace a: no answer") {
		t.Errorf("it becomes %+v; %q", got, warnings)
	}
}

func TestPodsOnKipsNodesGetTheCostOfTheirProfile(t *testing.T) {
	const cost = "controller.kubernetes.io/pod-deletion-cost"
	pods := map[string]map[string]string{
		"burst": {"pod.elotl.co/profile": "burst"}, "dear": {"pod.elotl.co/profile": "burst", cost: "5"},
		"only": {"pod.elotl.co/profile": "only"}, "other": {"pod.elotl.co/profile": "gone"}, "none": nil,
	}
	profiles := profilesOf(Profile{Name: "burst", Mode: Burst, DeletionCost: "-1"}, Profile{Name: "only", Mode: Only})
	profiles.AnnotationsOf = func(_ context.Context, namespace, name string) (map[string]string, error) {
		if namespace != "a" || name == "fails" {
			return nil, errors.New("no answer")
		}
		return pods[name], nil
	}
	h := newReviews(rules, func() Defaults { return UpstreamDefaults }, nano, profiles, Sets{}, time.Minute, slog.New(slog.DiscardHandler))
	for _, c := range []struct{ pod, node, annotations, want string }{
		{"burst", "kip-0", "", "-1"},
		{"burst", "kip-0", `"scheduler":"x"`, "-1"},
		{"burst", "kip-0", `"` + cost + `":"3"`, ""},
		{"burst", "machine", "", ""},
		{"dear", "kip-0", "", ""},
		{"only", "kip-0", "", ""},
		{"other", "kip-0", "", ""},
		{"none", "kip-0", "", ""},
		{"fails", "kip-0", "", ""},
	} {
		metadata := metav1.ObjectMeta{Name: c.pod}
		if c.annotations != "" {
			if err := json.Unmarshal([]byte("{"+c.annotations+"}"), &metadata.Annotations); err != nil {
				t.Fatal(err)
			}
		}
		object, err := json.Marshal(corev1.Binding{ObjectMeta: metadata, Target: corev1.ObjectReference{Kind: "Node", Name: c.node}})
		if err != nil {
			t.Fatal(err)
		}
		question := strings.Replace(asking(string(object)), `"namespace"`, `"subResource":"binding","namespace"`, 1)
		w := serve(h, http.MethodPost, bindingsPath, strings.NewReader(question))
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK || !review.Response.Allowed {
			t.Fatalf("%d, %v: %s", w.Code, err, w.Body)
		}
		got := ""
		if review.Response.Patch != nil {
			got = applied(t, object, review.Response.Patch).Annotations[cost]
		}
		if got != c.want {
			t.Errorf("pod %s on %s with %s: it costs %q, want %q", c.pod, c.node, c.annotations, got, c.want)
		}
	}
}
