package doctor

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// setPod is a pod of a DaemonSet on Kip's node that has no machine, for a reason.
func setPod(namespace, set, reason, message string, ready corev1.ConditionStatus) corev1.Pod {
	p := onCell(set + "-1")
	p.Namespace = namespace
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set, Controller: new(true)}}
	p.Status.Conditions = []corev1.PodCondition{
		{Type: apiv1.NoMachine, Status: corev1.ConditionTrue, Reason: reason, Message: message},
		{Type: corev1.PodReady, Status: ready},
	}
	return p
}

func daemonSet(namespace, name string, labels map[string]string, tolerations ...corev1.Toleration) *appsv1.DaemonSet {
	set := &appsv1.DaemonSet{ObjectMeta: meta(namespace, name)}
	set.Spec.Template.Labels, set.Spec.Template.Spec.Tolerations = labels, tolerations
	return set
}

// requires has a DaemonSet's pods require expressions of their nodes, all of them.
func requires(set *appsv1.DaemonSet, all ...corev1.NodeSelectorRequirement) *appsv1.DaemonSet {
	set.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: all}}},
	}}
	return set
}

func TestDoctorListsTheDaemonSetsBesidePods(t *testing.T) {
	// beside has a set that runs beside the pods of cells, whose copies are ready or say why not.
	beside := func(ready corev1.ConditionStatus, copies ...string) func(*world) {
		return func(w *world) {
			w.pods = append(w.pods, setPod("logging", "fluent-bit", "BesidePods", "", ready))
			w.cells = nil
			for i, why := range copies {
				cell := apiv1.Cell{ObjectMeta: meta("", "cell-"+string(rune('1'+i)))}
				cell.Status.Phase, cell.Status.Pod = apiv1.Bound, apiv1.PodReference{Namespace: "shop", Name: "web"}
				cell.Status.Beside = []apiv1.BesidePod{
					{Namespace: "logging", Name: "another-1"},
					{Namespace: "logging", Name: "fluent-bit-1", Ready: why == "", Message: why},
				}
				w.cells = append(w.cells, cell)
			}
			gone := apiv1.Cell{ObjectMeta: meta("", "cell-gone")}
			gone.Status.Phase, gone.Status.Beside = apiv1.Terminating, []apiv1.BesidePod{{Namespace: "logging", Name: "fluent-bit-1"}}
			w.cells = append(w.cells, gone)
		}
	}
	named := func(sets []config.DaemonSet, others ...*appsv1.DaemonSet) func(*world) {
		return func(w *world) {
			w.provider = &config.Config{}
			w.provider.Cells.DaemonSets = sets
			w.pods = append(w.pods, setPod("logging", "runs", "BesidePods", "", corev1.ConditionTrue))
			w.others = append(w.others, daemonSet("logging", "runs", nil))
			for _, o := range others {
				w.others = append(w.others, o)
			}
		}
	}
	entry := func(name, selector string) []config.DaemonSet {
		return []config.DaemonSet{{Namespace: "logging", Name: "runs"}, {Namespace: "logging", Name: name, Selector: selector}}
	}
	mine := corev1.Toleration{Key: "mine", Operator: corev1.TolerationOpExists}
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	selecting := daemonSet("logging", "absent", nil, all)
	selecting.Spec.Template.Spec.NodeSelector = map[string]string{"cloud.google.com/gke-netd-ready": "true"}
	const check = "DaemonSets"
	examineEach(t, map[string]broken{
		"all are ready": {installed, beside(corev1.ConditionTrue, "", ""), check, finding.OK,
			"DaemonSet logging/fluent-bit runs beside pods: 2 cells have a copy, and all copies are ready", ""},
		"one is not": {installed, beside(corev1.ConditionTrue, "", "ImagePullBackOff: no such image"), check, finding.Warning,
			"of 2 cells the copies on 1 are not ready, or do not run: cell-2 beside pod shop/web (ImagePullBackOff: no such image)", "kipctl exec cell-2 -- ls"},
		"too many are not": {installed, beside(corev1.ConditionFalse, "a", "b", "c", "d"), check, finding.Failed,
			"cell-3 beside pod shop/web (c), and 1 more", "kubectl get cell cell-1 -o yaml"},
		"none says so": {installed, beside(corev1.ConditionFalse, ""), check, finding.Warning, "is not Ready yet", "kubectl describe daemonset -n logging fluent-bit"},
		"it may not": {installed, func(w *world) {
			const why = "DaemonSet own does not run beside pods: not granted"
			w.pods = append(w.pods, setPod("team", "own", "DaemonSetLeftOut", why, corev1.ConditionTrue))
		}, check, finding.Warning, "DaemonSet own does not run beside pods: not granted", "docs/daemonsets.md says what runs beside pods"},
		"it stands": {installed, func(w *world) {
			w.pods = append(w.pods, setPod("team", "own", "NoMachine", "", corev1.ConditionTrue))
		}, check, finding.Warning, "DaemonSet team/own stands on Kip's nodes without a machine", "docs/daemonsets.md runs it beside pods"},
		"a slip": {installed, named(entry("run", "")), check, finding.Warning, "cells.daemonSets[1] names no DaemonSet: namespace logging has no run, but runs",
			"correct config.cells.daemonSets[1] in it, then: helm upgrade release"},
		"a slip, of manifests": {byManifests, named(entry("run", "")), check, finding.Warning, "namespace logging has no run, but runs",
			"kubectl edit configmap -n kip-system kip-config # correct cells.daemonSets[1] in provider.yaml, then: kubectl rollout restart -n kip-system statefulset/kip"},
		"another namespace": {installed, named(entry("elsewhere", ""), daemonSet("monitoring", "elsewhere", nil)), check, finding.Warning,
			"namespace logging has no elsewhere, but namespace monitoring does", "helm get values"},
		"a selector": {installed, named(entry("", "app=x")), check, finding.Warning, "the selector app=x chooses no pods of those in namespace logging: runs", "helm"},
		"no toleration": {installed, named(entry("absent", ""), daemonSet("logging", "absent", nil)), check, finding.Warning,
			"cells.daemonSets[1] names DaemonSet logging/absent, which runs beside no pod: it does not tolerate the taint virtual-kubelet.io/provider=kip:NoSchedule",
			`kubectl patch daemonset -n logging absent --type=json -p '[{"op":"add","path":"/spec/template/spec/tolerations","value":[{"key":"virtual-kubelet.io/provider"`},
		"another toleration": {installed, named(entry("absent", ""), daemonSet("logging", "absent", nil, mine)), check, finding.Warning,
			"does not tolerate the taint", `"path":"/spec/template/spec/tolerations/-","value":{"key":"virtual-kubelet.io/provider"`},
		"no pod": {installed, named(entry("", "app=x"), daemonSet("logging", "absent", map[string]string{"app": "x"}, all)), check, finding.Warning,
			"it has no pod on Kip's nodes", "its nodeSelector and affinity"},
		"an affinity": {installed, named(entry("absent", ""), requires(daemonSet("logging", "absent", nil, all),
			corev1.NodeSelectorRequirement{Key: "gone", Operator: corev1.NodeSelectorOpDoesNotExist},
			corev1.NodeSelectorRequirement{Key: wellknown.ComputeType, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate", "hybrid"}})),
			check, finding.Warning, "it has no pod on Kip's nodes: its affinity eks.amazonaws.com/compute-type NotIn fargate, hybrid keeps it off",
			"kubectl edit daemonset -n logging absent"},
		"a node selector": {installed, named(entry("absent", ""), selecting), check, finding.Warning,
			"it has no pod on Kip's nodes: nodeSelector cloud.google.com/gke-netd-ready: true keeps it off", "its nodeSelector"},
	})
}

func TestDoctorFindsThatProfilesHaveNoWebhooks(t *testing.T) {
	with := func(mode string, paths ...string) func(*world) {
		return func(w *world) {
			w.provider = &config.Config{}
			w.provider.Admission.Profiles = []config.Profile{{Name: "batch", Mode: mode}}
			w.hook.Labels = map[string]string{"app.kubernetes.io/instance": "kip-provider"}
			for _, path := range paths {
				hook := admissionregistrationv1.MutatingWebhook{Name: path}
				at := admissionregistrationv1.ServiceReference{Namespace: "kip-system", Name: "kip-provider-webhook", Path: &path}
				hook.ClientConfig.Service = &at
				hook.ClientConfig.CABundle = []byte("CA")
				w.hook.Webhooks = append(w.hook.Webhooks, hook)
			}
			w.others = append(w.others, &corev1.Service{ObjectMeta: meta("kip-system", "kip-provider-webhook")})
		}
	}
	leavesOut := func(namespace string) func(*world) {
		return func(w *world) {
			with("only", profiledPath)(w)
			w.provider.Admission.Profiles[0].Namespaces = []string{"ml-*", "kube-system"}
			w.hook.Webhooks[len(w.hook.Webhooks)-1].NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{namespace}},
			}}
		}
	}
	const check = "profiles"
	examineEach(t, map[string]broken{
		"none": {installed, with("only"), check, finding.Failed, "admission.profiles have no effect: the API server does not ask Kip about pods",
			"helm upgrade release deploy/helm/kip --namespace kip-system --reuse-values --values - --force-conflicts"},
		"none, of manifests": {byManifests, with("burst", bindingsPath), check, finding.Failed, "admission.profiles have no effect",
			`(echo config:; kubectl get configmap -n kip-system kip-config -o jsonpath='{.data.provider\.yaml}' | sed 's/^/  /') | ` +
				"helm template kip-provider deploy/helm/kip --namespace kip-system --set existingConfigMap=kip-config,fullnameOverride=kip-provider,nodeName=kip-0,nodeCount=64 " +
				"--values - --show-only templates/webhook.yaml | kubectl apply --server-side --field-manager=kip-profiles -f -"},
		"no bindings": {installed, with("burst", profiledPath), check, finding.Failed, "podDeletionCost of admission.profiles has no effect", "helm upgrade"},
		"no costs":    {installed, with("only", profiledPath), check, finding.OK, "1 profiles", ""},
		"a namespace that is left out": {byManifests, leavesOut("kube-system"), check, finding.Failed,
			"profile batch names namespace kube-system, and the API server does not ask Kip about pods there",
			"kubectl apply --server-side --force-conflicts --field-manager=kip-profiles"},
		"another is":    {byManifests, leavesOut("kube-public"), check, finding.OK, "1 profiles", ""},
		"both":          {installed, with("burst", profiledPath, bindingsPath), check, finding.OK, "1 profiles", ""},
		"not installed": {installed, func(w *world) { with("only")(w); w.hook, w.answers = nil, false }, check, finding.Failed, "no webhook has the path", "helm upgrade"},
	})
}
