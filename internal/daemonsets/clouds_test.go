package daemonsets_test

import (
	"bytes"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/node"
)

// What docs/daemonsets.md says of the DaemonSets that clouds bring, and of drivers and meshes: whether the controller of DaemonSets
// makes a pod of each for Kip's node, or by what it does not, and whether one that cells.daemonSets names runs beside pods then.
func TestWhatKipDoesWithTheDaemonSetsOfClouds(t *testing.T) {
	const (
		stands   = "" // a pod stands on the node, and runs beside pods if the set is named
		taint    = "the taint"
		affinity = "its affinity"
	)
	want := map[string]string{
		"aws-node": affinity, "kube-proxy": affinity, "ebs-csi-node": affinity, "efs-csi-node": affinity, "dcgm-server": affinity,
		"eks-pod-identity-agent": affinity, "eks-node-monitoring-agent": affinity, "cloudwatch-agent": affinity, "fluent-bit": stands,
		"fluentbit-gke": stands, "pdcsi-node": stands, "netd": affinity, "node-local-dns": affinity, "gke-metadata-server": affinity,
		"ip-masq-agent": affinity, "nvidia-gpu-device-plugin": affinity,
		"ama-logs": affinity, "azure-ip-masq-agent": affinity, "azure-cns": affinity, "csi-azuredisk-node": affinity,
		"csi-azurefile-node": affinity, "azure-npm": stands, "cloud-node-manager": stands,
		"csi-secrets-store": affinity, "fsx-csi-node": affinity, "s3-csi-node": affinity, "secrets-store-csi-driver-provider-aws": affinity,
		"vault-csi-provider": taint, "istio-cni-node": stands, "ztunnel": stands, "linkerd-cni": stands,
	}
	others := map[string]bool{
		"dcgm-server": true, "netd": true, "node-local-dns": true, "gke-metadata-server": true, "ip-masq-agent": true,
		"nvidia-gpu-device-plugin": true,
	}
	own := kipsOwn(t)
	rules := daemonsets.New([]daemonsets.Entry{
		{Namespace: "kube-system"}, {Namespace: "amazon-cloudwatch"}, {Namespace: "vault"}, {Namespace: "istio-system"}, {Namespace: "linkerd-cni"},
	}, nil)
	text, err := os.ReadFile("testdata/clouds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var set appsv1.DaemonSet
		if err := yaml.UnmarshalStrict(document, &set); err != nil {
			t.Fatal(err)
		}
		expected, known := want[set.Name]
		delete(want, set.Name)
		pod := podOf(&set)
		got := stands
		// As k8s.io/kubernetes/pkg/controller/daemon, predicates.
		if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(own); err != nil {
			t.Fatal(err)
		} else if !fits {
			got = affinity
		} else if !tolerates(pod, own.Spec.Taints) {
			got = taint
		}
		if !known || got != expected {
			t.Errorf("%s is kept off by %q, want %q", set.Name, got, expected)
		}
		if _, runs, why := rules.Of(pod); !runs || why != nil {
			t.Errorf("%s, if it is named and has a pod on the node, does not run beside pods: %v", set.Name, why)
		}
		// With what Kip's webhook adds to a set that is named it has a pod there, unless it is for machines of another kind.
		kips := daemonsets.Nodes{Controller: own.Labels[apiv1.LabelController], Taints: own.Spec.Taints}
		spec := set.Spec.Template.Spec.DeepCopy()
		lacks := kips.Fit(spec)
		spec.Tolerations = append(spec.Tolerations, lacks.Tolerations...)
		if len(lacks.Terms) > 0 {
			required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, lacks.Terms...)
		}
		if bars := daemonsets.Barred(spec, own); (bars != "") != others[set.Name] {
			t.Errorf("%s, if it is named: %s", set.Name, bars)
		}
		// Whoever wants it beside pods takes the affinity away, and adds the toleration, as the page says.
		pod.Spec.Affinity, pod.Spec.NodeSelector, pod.Spec.Tolerations = nil, nil, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(own); err != nil || !fits || !tolerates(pod, own.Spec.Taints) {
			t.Errorf("%s is kept off all the same: %v", set.Name, err)
		}
	}
	for name := range want {
		t.Errorf("there is no %s", name)
	}
}

// kipsOwn is a virtual node with the labels and the taint that Kip gives it.
func kipsOwn(t *testing.T) *corev1.Node {
	t.Helper()
	labels, err := node.Labels(node.Config{Name: "kip-0", Controller: "id", Arch: "amd64", Zone: "us-east-1a", Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	taint, err := node.TaintFromEnv(func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kip-0", Labels: labels}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint}}}
}

func podOf(set *appsv1.DaemonSet) *corev1.Pod {
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name, Controller: new(true)}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: set.Name + "-1", OwnerReferences: []metav1.OwnerReference{owner}},
		Spec:       *set.Spec.Template.Spec.DeepCopy(),
	}
}

func tolerates(pod *corev1.Pod, taints []corev1.Taint) bool {
	for i := range taints {
		is := false
		for _, t := range pod.Spec.Tolerations {
			is = is || t.ToleratesTaint(klog.Logger{}, &taints[i], false)
		}
		if !is {
			return false
		}
	}
	return true
}
