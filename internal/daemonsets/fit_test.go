package daemonsets

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	apiv1 "github.com/elotl/kip/api/v1"
)

// kips are Kip's nodes in tests.
var kips = Nodes{Controller: "id", Taints: []corev1.Taint{
	{Key: "virtual-kubelet.io/provider", Value: "kip", Effect: corev1.TaintEffectNoSchedule},
	{Key: "kip.elotl.co/no-capacity", Effect: corev1.TaintEffectNoSchedule},
}}

// kipNode is one of them, on EKS.
func kipNode() *corev1.Node {
	n := &corev1.Node{}
	n.Name = "kip-0"
	n.Labels = map[string]string{
		"type": "virtual-kubelet", apiv1.LabelController: "id", corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		corev1.LabelInstanceTypeStable: "kip", "eks.amazonaws.com/compute-type": "fargate", "kubernetes.azure.com/managed": "false",
	}
	n.Spec.Taints = kips.Taints
	return n
}

func expression(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

func affinityOf(terms ...[]corev1.NodeSelectorRequirement) *corev1.Affinity {
	s := &corev1.NodeSelector{}
	for _, t := range terms {
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: t})
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: s}}
}

type all = []corev1.NodeSelectorRequirement

func TestWhatATemplateLacksForKipsNodes(t *testing.T) {
	const in, notIn, exists = corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists
	onKip := expression(apiv1.LabelController, in, "id")
	linux := expression(corev1.LabelOSStable, in, "linux")
	notFargate := expression("eks.amazonaws.com/compute-type", notIn, "fargate", "auto")
	everything := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	for name, tc := range map[string]struct {
		spec        corev1.PodSpec
		tolerations int
		terms       []all
		barred      string // what keeps it off all the same
	}{
		"nothing is tolerated": {tolerations: 2},
		"all is tolerated":     {spec: corev1.PodSpec{Tolerations: everything}},
		"another taint is":     {spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "mine", Operator: "Exists"}}}, tolerations: 2},
		"the taint is": {
			spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "virtual-kubelet.io/provider", Operator: "Exists"}}}, tolerations: 1,
		},
		"it leaves out Fargate": {
			spec:  corev1.PodSpec{Tolerations: everything, Affinity: affinityOf(all{linux, notFargate})},
			terms: []all{{linux, onKip}},
		},
		"it leaves out virtual nodes, and what is not of its cluster": {
			spec: corev1.PodSpec{Tolerations: everything, Affinity: affinityOf(all{
				expression("kubernetes.azure.com/cluster", exists), expression("type", notIn, "virtual-kubelet"), linux})},
			terms: []all{{linux, onKip}},
		},
		"nothing but virtual nodes": {
			spec:  corev1.PodSpec{Tolerations: everything, Affinity: affinityOf(all{expression("type", corev1.NodeSelectorOpDoesNotExist)})},
			terms: []all{{onKip}},
		},
		"each term is": {
			spec:  corev1.PodSpec{Tolerations: everything, Affinity: affinityOf(all{notFargate}, all{linux, notFargate}, all{notFargate})},
			terms: []all{{onKip}, {linux, onKip}},
		},
		"it has the terms": {
			spec: corev1.PodSpec{Tolerations: everything, Affinity: affinityOf(all{linux, notFargate}, all{linux, onKip})},
		},
		"it selects virtual nodes": {
			spec: corev1.PodSpec{Tolerations: everything, Affinity: affinityOf(all{expression("type", in, "virtual-kubelet")})},
		},
		"it is for another system": {
			spec: corev1.PodSpec{Tolerations: everything,
				Affinity: affinityOf(all{notFargate, expression(corev1.LabelOSStable, in, "windows")})},
			terms:  []all{{expression(corev1.LabelOSStable, in, "windows"), onKip}},
			barred: "its node affinity does not fit the node: it wants kubernetes.io/os In (windows)",
		},
		"it is for machines with GPUs": {
			spec:   corev1.PodSpec{Tolerations: everything, Affinity: affinityOf(all{expression("nvidia.com/gpu.present", exists)})},
			barred: "it wants nvidia.com/gpu.present Exists",
		},
		"a nodeSelector": {
			spec:        corev1.PodSpec{NodeSelector: map[string]string{"pool": "apps", corev1.LabelOSStable: "linux"}},
			tolerations: 2, barred: "its nodeSelector wants the label pool=apps, which the node lacks",
		},
	} {
		f := kips.Fit(&tc.spec)
		if len(f.Tolerations) != tc.tolerations {
			t.Errorf("%s: it lacks the tolerations %v", name, f.Tolerations)
		}
		var terms []all
		for _, is := range f.Terms {
			terms = append(terms, is.MatchExpressions)
		}
		if !equality.Semantic.DeepEqual(terms, tc.terms) {
			t.Errorf("%s: it lacks the terms %v, want %v", name, terms, tc.terms)
		}
		spec := tc.spec.DeepCopy()
		spec.Tolerations = append(spec.Tolerations, f.Tolerations...)
		if len(f.Terms) > 0 {
			r := required(spec)
			r.NodeSelectorTerms = append(r.NodeSelectorTerms, f.Terms...)
		}
		if again := kips.Fit(spec); len(again.Tolerations)+len(again.Terms) > 0 {
			t.Errorf("%s: what has it lacks %+v", name, again)
		}
		if got := Barred(spec, kipNode()); (got == "") != (tc.barred == "") || !strings.Contains(got, tc.barred) {
			t.Errorf("%s: then it is barred by %q, want %q", name, got, tc.barred)
		}
		if len(f.Tolerations)+len(f.Terms) > 0 && Barred(&tc.spec, kipNode()) == "" {
			t.Errorf("%s: nothing barred it before", name)
		}
	}
}

func TestTheControllerOfDaemonSetsToleratesWhatItToleratesForAllItsPods(t *testing.T) {
	node := &corev1.Node{}
	for taint, host := range map[corev1.Taint]bool{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}:            false,
		{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}:      false,
		{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule}: true,
		{Key: "kip.elotl.co/burst", Effect: corev1.TaintEffectPreferNoSchedule}:         false,
	} {
		node.Spec.Taints = []corev1.Taint{taint}
		if got := Barred(&corev1.PodSpec{HostNetwork: host}, node); got != "" {
			t.Errorf("%s: %s", taint.ToString(), got)
		}
	}
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	if got := Barred(&corev1.PodSpec{}, node); got != "it does not tolerate the taint node.kubernetes.io/not-ready:NoSchedule" {
		t.Error(got)
	}
}

func TestWhichDaemonSetsAreNamed(t *testing.T) {
	r := New([]Entry{{Namespace: "a", Name: "x"}, {Namespace: "b", Selector: selector(t, "app=y")}, {Namespace: "a", Name: "x"}},
		func(namespace string) bool { return namespace == "granted" })
	asks := map[string]string{Annotation: "true"}
	for name, tc := range map[string]struct {
		namespace, name     string
		labels, annotations map[string]string
		is                  bool
		why                 string
	}{
		"by name":         {namespace: "a", name: "x", is: true},
		"another":         {namespace: "a", name: "z"},
		"by label":        {namespace: "b", labels: map[string]string{"app": "y"}, is: true},
		"by annotation":   {namespace: "granted", annotations: asks, is: true},
		"without a grant": {namespace: "b", annotations: asks, why: "not granted"},
	} {
		is, why := r.Names(tc.namespace, tc.name, tc.labels, tc.annotations)
		if is != tc.is || (why != nil) != (tc.why != "") || why != nil && !strings.Contains(why.Error(), tc.why) {
			t.Errorf("%s: %t, %v", name, is, why)
		}
	}
	if n := r.Named(); len(n) != 2 || n[0].String() != "a/x" || n[1].String() != "b/" {
		t.Errorf("named are %v", n)
	}
}
