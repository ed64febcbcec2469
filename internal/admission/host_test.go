package admission

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/hostports"
)

// answered is a pod as Kip answers that it is to be made, and the warnings.
func answered(t *testing.T, pod *corev1.Pod, path string) (*corev1.Pod, []string) {
	t.Helper()
	object, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	w := serve(handler(), http.MethodPost, path, strings.NewReader(asking(string(object))))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK || !review.Response.Allowed {
		t.Fatalf("%d, %v: %s", w.Code, err, w.Body)
	}
	if review.Response.Patch == nil {
		return pod.DeepCopy(), review.Response.Warnings
	}
	return applied(t, object, review.Response.Patch), review.Response.Warnings
}

func forKip(spec corev1.PodSpec) *corev1.Pod {
	spec.NodeSelector = map[string]string{"type": "virtual-kubelet"}
	return &corev1.Pod{Spec: spec}
}

func byHostname(selector *metav1.LabelSelector) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: selector}
}

// demanding is a pod that wants a host of its own in each way there is.
func demanding() corev1.PodSpec {
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	some := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
	constraint := func(key string, when corev1.UnsatisfiableConstraintAction, selector *metav1.LabelSelector) corev1.TopologySpreadConstraint {
		return corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: when, LabelSelector: selector}
	}
	return corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "side", Ports: []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1}}}},
		Containers: []corev1.Container{{Name: "none"}, {Name: "main", Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: 80},
			{ContainerPort: 8080, HostPort: 80, Protocol: corev1.ProtocolTCP},
			{ContainerPort: 8081, HostPort: 81, HostIP: "127.0.0.1"},
			{ContainerPort: 8082, HostPort: 82, HostIP: "10.0.0.1"},
		}}},
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				byHostname(web), {TopologyKey: corev1.LabelTopologyZone, LabelSelector: web}, byHostname(some), byHostname(nil),
				byHostname(&metav1.LabelSelector{}),
			},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: byHostname(web)}},
		}},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
			constraint(corev1.LabelTopologyZone, corev1.DoNotSchedule, web),
			constraint(corev1.LabelHostname, corev1.DoNotSchedule, web),
			constraint(corev1.LabelHostname, corev1.ScheduleAnyway, some),
		},
	}
}

func TestWhatEachCellHasByItselfIsHiddenFromTheScheduler(t *testing.T) {
	pod := forKip(demanding())
	first, _ := answered(t, pod, "/pods")
	second, _ := answered(t, pod, "/pods")

	want := pod.Spec.DeepCopy()
	want.Tolerations = first.Spec.Tolerations // of another kind
	only := metav1.LabelSelectorRequirement{Key: SameCell, Operator: metav1.LabelSelectorOpExists}
	terms := want.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for _, selector := range []*metav1.LabelSelector{terms[0].LabelSelector, terms[2].LabelSelector, terms[4].LabelSelector,
		want.TopologySpreadConstraints[1].LabelSelector} {
		selector.MatchExpressions = append(selector.MatchExpressions, only)
	}
	shown := first.DeepCopy()
	if hostports.Restore(shown); !equality.Semantic.DeepEqual(&shown.Spec, want) {
		t.Errorf("the cell is shown\n%+v\nwant\n%+v", shown.Spec, *want)
	}
	for _, c := range []struct{ list, container, port int }{{0, 0, 0}, {1, 1, 1}, {1, 1, 2}} {
		port := func(pod *corev1.Pod) corev1.ContainerPort {
			return [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers}[c.list][c.container].Ports[c.port]
		}
		a, b := port(first), port(second)
		if _, err := netip.ParseAddr(a.HostIP); err != nil || a.HostIP == b.HostIP || a.HostPort == 0 {
			t.Errorf("two pods have the ports %+v and %+v: want the same port of two addresses", a, b)
		}
	}
	if ip := first.Spec.Containers[1].Ports[3].HostIP; ip != "10.0.0.1" {
		t.Errorf("the address of a machine becomes %s", ip)
	}

	again, _ := answered(t, first, "/pods")
	hostports.Restore(again)
	if !equality.Semantic.DeepEqual(&again.Spec, &shown.Spec) {
		t.Errorf("asked again, as when another webhook has changed the pod, it becomes\n%+v\nwant\n%+v", again.Spec, shown.Spec)
	}
}

func TestHostsOfPodsThatAreForOtherNodesAreTheSchedulersToFind(t *testing.T) {
	for path, pod := range map[string]*corev1.Pod{
		"/pods":            {Spec: demanding()},
		"/namespaced-pods": {Spec: corev1.PodSpec{NodeName: "machine", Containers: demanding().Containers}},
	} {
		if got, _ := answered(t, pod, path); !equality.Semantic.DeepEqual(got, pod) {
			t.Errorf("%s: it becomes %+v", path, got.Spec)
		}
	}
	pod := &corev1.Pod{Spec: demanding()}
	if got, _ := answered(t, pod, "/namespaced-pods"); got.Spec.Containers[1].Ports[1].HostIP == "" {
		t.Error("a pod of a namespace of Kip's keeps its host port from others")
	}
}

func TestAHostThatPodsAreToShareIsToldToBeNone(t *testing.T) {
	for _, c := range []struct {
		term corev1.PodAffinityTerm
		told bool
	}{{byHostname(&metav1.LabelSelector{}), true}, {corev1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone}, false}} {
		_, warnings := answered(t, forKip(corev1.PodSpec{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{c.term}}}}), "/pods")
		if told := slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "not on one machine") }); told != c.told {
			t.Errorf("podAffinity by %s: warnings %q", c.term.TopologyKey, warnings)
		}
	}
}

func TestAPodWithManyHostPortsGetsThemAll(t *testing.T) {
	spec := corev1.PodSpec{Containers: make([]corev1.Container, 300)}
	for i := range spec.Containers {
		spec.Containers[i].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(1000 + i)}}
	}
	got, warnings := answered(t, forKip(spec), "/pods")
	for i, c := range got.Spec.Containers {
		if c.Ports[0].HostIP == "" {
			t.Fatalf("container %d keeps its host port from others; warnings %q", i, warnings)
		}
	}
}
