package doctor

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
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
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: all}},
		},
	}}
	return set
}

// stands has a set that is not named stand on Kip's node.
func stands(namespace, name string, change func(*corev1.Pod)) func(*world) {
	return func(w *world) {
		pod := setPod(namespace, name, "NoMachine", "", corev1.ConditionTrue)
		if change != nil {
			change(&pod)
		}
		w.pods = append(w.pods, pod)
		w.others = append(w.others, daemonSet(namespace, name, nil))
	}
}

func hostPath(p *corev1.Pod, path string) {
	source := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: source})
}

func managedBy(set *appsv1.DaemonSet, manager string) *appsv1.DaemonSet {
	set.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager}}
	return set
}

// asksAt has the API server ask Kip at another path.
func asksAt(w *world, path string) {
	hook := admissionregistrationv1.MutatingWebhook{Name: path}
	url := "https://10.0.0.1:9443" + path
	hook.ClientConfig.URL, hook.ClientConfig.CABundle = &url, []byte("CA")
	w.hook.Webhooks = append(w.hook.Webhooks, hook)
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
		"others have no pod there": {installed, func(w *world) {
			w.provider = &config.Config{}
			w.others = append(w.others, daemonSet("logging", "absent", nil), daemonSet("kube-system", "kube-proxy", nil))
		}, check, finding.OK, "since cells.daemonSets does not name them (docs/daemonsets.md): logging/absent", ""},
		"it may not": {installed, func(w *world) {
			const why = "DaemonSet own does not run beside pods: not granted"
			w.pods = append(w.pods, setPod("team", "own", "DaemonSetLeftOut", why, corev1.ConditionTrue))
		}, check, finding.Warning, "DaemonSet own does not run beside pods: not granted", "docs/daemonsets.md says what runs beside pods"},
		"it stands": {installed, func(w *world) {
			w.pods = append(w.pods, setPod("team", "own", "NoMachine", "", corev1.ConditionTrue))
		}, check, finding.Warning, "DaemonSet team/own shows Running and Ready on Kip's nodes, and does nothing there",
			"to run it beside pods, add {namespace: team, name: own} to config.cells.daemonSets"},
		"it stands, and nobody makes it again": {byManifests, stands("team", "own", nil), check, finding.Warning,
			"DaemonSet team/own shows Running and Ready",
			"kubectl edit configmap -n kip-system kip-config # to run it beside pods, add {namespace: team, name: own} to cells.daemonSets in provider.yaml, then: " +
				`kubectl rollout restart -n kip-system statefulset/kip; or: kubectl patch daemonset -n team own -p`},
		"it stands, and is the cluster's": {installed, stands("kube-system", "agent", nil), check, finding.Warning,
			"DaemonSet kube-system/agent shows",
			"then: helm upgrade release deploy/helm/kip --namespace kip-system --values values.yaml; docs/daemonsets.md"},
		"kube-proxy": {installed, stands("kube-system", "kube-proxy", nil), check, finding.OK,
			"kube-system/kube-proxy (network of machines)", ""},
		"a network": {installed, stands("kube-system", "aws-node", func(p *corev1.Pod) { hostPath(p, "/opt/cni/bin") }), check, finding.OK,
			"docs/daemonsets.md says not to name: kube-system/aws-node (network of machines)", ""},
		"devices": {installed, stands("gpus", "plugin", func(p *corev1.Pod) { hostPath(p, "/var/lib/kubelet/device-plugins/") }),
			check, finding.OK, "gpus/plugin (devices of machines)", ""},
		"a CSI driver": {installed, stands("kube-system", "ebs-csi-node", func(p *corev1.Pod) { hostPath(p, "/var/lib/kubelet/plugins/ebs/") }),
			check, finding.OK, "kube-system/ebs-csi-node (node plugin of a CSI driver)", ""},
		"one that reads all of the machine": {installed, stands("team", "own", func(p *corev1.Pod) { hostPath(p, "/etc"); hostPath(p, "/") }),
			check, finding.Warning, "DaemonSet team/own shows", ""},
		"a slip": {installed, named(entry("run", "")), check, finding.Warning, "cells.daemonSets[1] names no DaemonSet: namespace logging has no run, but runs",
			"correct config.cells.daemonSets[1] in it, then: helm upgrade release"},
		"a slip, of manifests": {byManifests, named(entry("run", "")), check, finding.Warning, "namespace logging has no run, but runs",
			"kubectl edit configmap -n kip-system kip-config # correct cells.daemonSets[1] in provider.yaml, then: kubectl rollout restart -n kip-system statefulset/kip"},
		"another namespace": {installed, named(entry("elsewhere", ""), daemonSet("monitoring", "elsewhere", nil)), check, finding.Warning,
			"namespace logging has no elsewhere, but namespace monitoring does", "helm get values"},
		"a selector": {installed, named(entry("", "app=x")), check, finding.Warning, "the selector app=x chooses no pods of those in namespace logging: runs", "helm"},
		"no toleration": {installed, named(entry("absent", ""), daemonSet("logging", "absent", nil)), check, finding.Warning,
			"cells.daemonSets[1] names DaemonSet logging/absent, which runs beside no pod: it does not tolerate the taint virtual-kubelet.io/provider=kip:NoSchedule, so",
			`kubectl patch daemonset -n logging absent --type=json -p '[{"op":"add","path":"/spec/template/spec/tolerations","value":[{"key":"virtual-kubelet.io/provider"`},
		"another toleration": {installed, named(entry("absent", ""), daemonSet("logging", "absent", nil, mine)), check, finding.Warning,
			"does not tolerate the taint", `"path":"/spec/template/spec/tolerations/-","value":{"key":"virtual-kubelet.io/provider"`},
		"an affinity, too": {installed, named(entry("absent", ""), requires(daemonSet("logging", "absent", nil, all),
			corev1.NodeSelectorRequirement{Key: "kubernetes.azure.com/cluster", Operator: "Exists"})),
			check, finding.Warning, "its node affinity does not fit the node: it wants kubernetes.azure.com/cluster Exists, so",
			`[{"op":"add","path":"/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/-",` +
				`"value":{"matchExpressions":[{"key":"kip.elotl.co/controller","operator":"In","values":["id"]}]}}]`},
		"no toleration, and Kip is asked": {installed, func(w *world) {
			named(entry("absent", ""), daemonSet("logging", "absent", nil))(w)
			asksAt(w, daemonSetsPath)
		}, check, finding.Warning, "it does not tolerate the taint", "kubectl rollout restart daemonset -n logging absent # Kip's webhook then adds what it lacks"},
		"an add-on, and Kip is not asked": {installed, named(entry("absent", ""), managedBy(daemonSet("logging", "absent", nil), "eks")), check,
			finding.Warning, "it does not tolerate the taint",
			"helm upgrade release deploy/helm/kip --namespace kip-system --reuse-values --set webhook.daemonSets=true\nkubectl rollout restart daemonset -n logging absent"},
		"an add-on, of manifests": {byManifests, named(entry("absent", ""), managedBy(daemonSet("logging", "absent", nil), "eks")), check,
			finding.Warning, "it does not tolerate the taint", "helm template"},
		"a nodeSelector": {installed, func(w *world) {
			picky := daemonSet("logging", "absent", nil)
			picky.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "apps"}
			named(entry("absent", ""), picky)(w)
			asksAt(w, daemonSetsPath)
		}, check, finding.Warning, "which runs beside no pod: its nodeSelector wants the label pool=apps, which the node lacks, so", "kubelet.labels"},
		"no pod": {installed, named(entry("", "app=x"), daemonSet("logging", "absent", map[string]string{"app": "x"}, all)), check, finding.Warning,
			"it has no pod on Kip's nodes", "its nodeSelector and affinity"},
		"a node selector": {installed, named(entry("absent", ""), selecting), check, finding.Warning,
			"which runs beside no pod: its nodeSelector wants the label cloud.google.com/gke-netd-ready=true, which the node lacks", "its nodeSelector"},
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
