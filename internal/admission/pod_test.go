package admission

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

// rules are those of a Kip with one node.
func rules() Rules {
	return Rules{
		Label: Label{Key: "type", Value: "virtual-kubelet"},
		NodeLabels: map[string][]string{
			"type": {"virtual-kubelet"}, "kubernetes.io/hostname": {"kip-0"}, "kip.elotl.co/controller": {"us"},
			"kubernetes.io/arch": {"amd64"}, "team": {"a"},
			"node.kubernetes.io/instance-type": {"kip"}, "topology.kubernetes.io/zone": {"a"}, "karpenter.azure.com/sku-family": {"D"},
		},
		NoInstance: "kip",
		Taint:      &corev1.Taint{Key: "virtual-kubelet.io/provider", Value: "kip", Effect: corev1.TaintEffectNoSchedule},
	}
}

// patched returns the pod after the patch, and the warnings.
func patched(t testing.TB, pod *corev1.Pod, scope Scope, defaults Defaults) (*corev1.Pod, []string) {
	t.Helper()
	before := pod.DeepCopy()
	operations, warnings := rules().Patch(pod, scope, defaults)
	if !equality.Semantic.DeepEqual(pod, before) {
		t.Fatal("the pod was changed, and is the API server's")
	}
	if len(operations) == 0 {
		return before, warnings
	}
	text, err := json.Marshal(operations)
	if err != nil {
		t.Fatal(err)
	}
	object, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return applied(t, object, text), warnings
}

// applied is a pod after a patch, both in JSON.
func applied(t testing.TB, object, text []byte) *corev1.Pod {
	t.Helper()
	var after corev1.Pod
	if err := json.Unmarshal(patchedText(t, object, text), &after); err != nil {
		t.Fatal(err)
	}
	return &after
}

// patchedText is an object after a patch, all in JSON.
func patchedText(t testing.TB, object, text []byte) []byte {
	t.Helper()
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	object, err = patch.Apply(object)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return object
}

// podFrom is a pod with a spec and annotations in YAML.
func podFrom(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return pod
}

// defaulted are the tolerations that an API server adds, seconds each.
func defaulted(seconds int) string {
	return fmt.Sprintf("{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: %d}, "+
		"{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: %d}", seconds, seconds)
}

const (
	forever = "{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute}, " +
		"{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}"
	ofKip   = "type: virtual-kubelet"
	ofTaint = "{key: virtual-kubelet.io/provider, operator: Equal, value: kip, effect: NoSchedule}"
)

// affinity is a pod on Kip with terms of required node affinity, one a line.
func affinity(selector string, terms ...string) string {
	text := "spec:\n  tolerations: [" + ofTaint + ", " + forever + "]\n  nodeSelector: {" + selector +
		"}\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: ["
	for _, term := range terms {
		text += "\n    {matchExpressions: [" + term + "]},"
	}
	return text + "]}}}\n"
}

func TestWhatAPodSelectsOfItsInstanceBecomesAnnotations(t *testing.T) {
	const (
		typeC5  = "{key: node.kubernetes.io/instance-type, operator: In, values: [c5.large]}"
		twoC5   = "{key: node.kubernetes.io/instance-type, operator: In, values: [c5.large, c5.xlarge]}"
		gpu     = "{key: nvidia.com/gpu.memory, operator: Gt, values: ['20000']}"
		kip     = "{key: type, operator: In, values: [virtual-kubelet]}"
		zoneA   = "{key: topology.kubernetes.io/zone, operator: In, values: [a]}"
		zoneB   = "{key: topology.kubernetes.io/zone, operator: In, values: [b]}"
		spot    = "{key: karpenter.sh/capacity-type, operator: In, values: [spot]}"
		notSpot = "{key: karpenter.sh/capacity-type, operator: NotIn, values: [spot]}"
		either  = "{key: karpenter.sh/capacity-type, operator: In, values: [on-demand, spot]}"
		own     = "{key: karpenter.azure.com/sku-family, operator: In, values: [D]}"
	)
	for _, c := range []struct {
		says        string
		pod         string
		annotations map[string]string
		requires    string // the value of instance-requirements in YAML
		left        string // the pod without annotations
	}{
		{says: "nothing of an instance", pod: affinity(ofKip, kip+", "+zoneA), left: affinity(ofKip, kip+", "+zoneA)},
		{says: "a type", pod: affinity(ofKip+", node.kubernetes.io/instance-type: c5.large", zoneA), left: affinity(ofKip, zoneA),
			annotations: map[string]string{"instance-type": "c5.large"}},
		{says: "by the old name too", pod: affinity(ofKip+", beta.kubernetes.io/instance-type: c5.large, node.kubernetes.io/instance-type: c5.large", zoneA),
			left: affinity(ofKip, zoneA), annotations: map[string]string{"instance-type": "c5.large"}},
		{says: "two types at once", pod: affinity(ofKip+", beta.kubernetes.io/instance-type: c5.large, node.kubernetes.io/instance-type: m5.large", zoneA),
			left: affinity(ofKip, zoneA), annotations: map[string]string{"instance-type": "c5.large"},
			requires: "[{matchExpressions: [{key: node.kubernetes.io/instance-type, operator: In, values: [m5.large]}]}]"},
		{says: "the label that the node has", pod: affinity(ofKip+", node.kubernetes.io/instance-type: kip", own),
			left: affinity(ofKip+", node.kubernetes.io/instance-type: kip", own)},
		{says: "one of two types", pod: affinity("", kip+", "+twoC5), left: affinity("", kip), requires: "[{matchExpressions: [" + twoC5 + "]}]"},
		{says: "nothing else", pod: affinity(ofKip, typeC5), left: "spec:\n  tolerations: [" + ofTaint + ", " + forever + "]\n  nodeSelector: {" + ofKip +
			"}\n  affinity: {nodeAffinity: {}}\n", annotations: map[string]string{"instance-type": "c5.large"}},
		{says: "spot", pod: affinity(ofKip, kip+", "+spot), left: affinity(ofKip, kip), annotations: map[string]string{"launch-type": "spot"}},
		{says: "either", pod: affinity(ofKip, kip+", "+either), left: affinity(ofKip, kip),
			annotations: map[string]string{"launch-type": "spot,on-demand"}},
		{says: "not spot", pod: affinity(ofKip, kip+", "+notSpot), left: affinity(ofKip, kip),
			annotations: map[string]string{"launch-type": "on-demand"}},
		{says: "on demand", pod: affinity(ofKip+", karpenter.sh/capacity-type: on-demand", kip), left: affinity(ofKip, kip),
			annotations: map[string]string{"launch-type": "on-demand"}},
		{says: "what is not sold", pod: affinity(ofKip+", karpenter.sh/capacity-type: reserved", kip), left: affinity(ofKip, kip),
			requires: "[{matchExpressions: [{key: karpenter.sh/capacity-type, operator: In, values: [reserved]}]}]"},
		{says: "a GPU and a type", pod: affinity(ofKip, kip+", "+gpu+", "+typeC5), left: affinity(ofKip, kip),
			annotations: map[string]string{"instance-type": "c5.large"}, requires: "[{matchExpressions: [" + gpu + "]}]"},
		{says: "terms that differ in the instance only", pod: affinity("", kip+", "+typeC5, kip+", "+gpu), left: affinity("", kip),
			requires: "[{matchExpressions: [" + typeC5 + "]}, {matchExpressions: [" + gpu + "]}]"},
		{says: "terms one of which takes any", pod: affinity(ofKip, kip+", "+typeC5, kip), left: affinity(ofKip, kip)},
		{says: "the same, and a selector", pod: affinity(ofKip+", node.kubernetes.io/instance-type: c5.large", kip+", "+gpu, kip),
			left: affinity(ofKip, kip), annotations: map[string]string{"instance-type": "c5.large"}},
		{says: "terms that differ in both", pod: affinity(ofKip, zoneA+", "+typeC5, zoneB+", "+twoC5+", "+spot),
			left:        affinity(ofKip, zoneA, zoneB),
			requires:    "[{matchExpressions: [" + zoneA + ", " + typeC5 + "]}, {matchExpressions: [" + zoneB + ", " + twoC5 + ", " + spot + "]}]",
			annotations: map[string]string{"launch-type": "spot,on-demand"}},
		{says: "a term that is about the instance alone", pod: affinity(ofKip, zoneA+", "+typeC5, gpu),
			left:     "spec:\n  tolerations: [" + ofTaint + ", " + forever + "]\n  nodeSelector: {" + ofKip + "}\n  affinity: {nodeAffinity: {}}\n",
			requires: "[{matchExpressions: [" + zoneA + ", " + typeC5 + "]}, {matchExpressions: [" + gpu + "]}]"},
		{says: "a label of the node beside one of the instance", pod: affinity(ofKip, own+", "+gpu), left: affinity(ofKip, own),
			requires: "[{matchExpressions: [" + gpu + "]}]"},
	} {
		pod := podFrom(t, c.pod)
		got, warnings := patched(t, pod, Selecting, UpstreamDefaults)
		if len(warnings) > 0 {
			t.Errorf("%s: %q", c.says, warnings)
		}
		annotations := map[string]string{}
		for k, v := range got.Annotations {
			annotations[strings.TrimPrefix(k, "pod.elotl.co/")] = v
		}
		requires := annotations["instance-requirements"]
		delete(annotations, "instance-requirements")
		var terms, want []corev1.NodeSelectorTerm
		if requires != "" {
			if err := json.Unmarshal([]byte(requires), &terms); err != nil {
				t.Fatal(err)
			}
		}
		if err := yaml.UnmarshalStrict([]byte(c.requires), &want); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(annotations, c.annotations) || !equality.Semantic.DeepEqual(terms, want) {
			t.Errorf("%s: annotations %v\nwant %v and %s", c.says, got.Annotations, c.annotations, c.requires)
		}
		if left := podFrom(t, c.left); !equality.Semantic.DeepEqual(got.Spec, left.Spec) {
			t.Errorf("%s: left is %+v\nwant %+v", c.says, got.Spec, left.Spec)
		}
		again, _ := patched(t, got, Selecting, UpstreamDefaults)
		if !equality.Semantic.DeepEqual(got, again) {
			t.Errorf("%s: asked again, the pod becomes %+v", c.says, again)
		}
	}
}

func TestAnnotationsThatAPodHasHoldAsWell(t *testing.T) {
	const requires = "pod.elotl.co/instance-requirements"
	family := func(op, family string) string {
		return `{"key":"karpenter.k8s.aws/instance-family","operator":"` + op + `","values":["` + family + `"]}`
	}
	both := `[{"matchExpressions":[` + family("In", "c5") + "," + family("NotIn", "m5") + `]},{"matchExpressions":[` +
		family("In", "c6i") + "," + family("NotIn", "m5") + `]}]`
	of := func(terms, expressions int) string {
		one := `{"matchExpressions":[` + family("In", "c5") + strings.Repeat(","+family("NotIn", "m5"), expressions-1) + "]}"
		return "[" + one + strings.Repeat(","+one, terms-1) + "]"
	}
	for _, c := range []struct {
		says, selector, affinity string
		own, want                map[string]string
		warning                  string
	}{
		{says: "another type", selector: "node.kubernetes.io/instance-type: c5.large",
			own: map[string]string{"pod.elotl.co/instance-type": "m5.*"},
			want: map[string]string{"pod.elotl.co/instance-type": "m5.*",
				requires: `[{"matchExpressions":[{"key":"node.kubernetes.io/instance-type","operator":"In","values":["c5.large"]}]}]`}},
		{says: "another way to buy", selector: "karpenter.sh/capacity-type: spot",
			own: map[string]string{"pod.elotl.co/launch-type": "on-demand"},
			want: map[string]string{"pod.elotl.co/launch-type": "on-demand",
				requires: `[{"matchExpressions":[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]}]}]`}},
		{says: "other requirements", affinity: family("NotIn", "m5"),
			own: map[string]string{requires: `[{"matchExpressions":[` + family("In", "c5") + `]},{"matchExpressions":[` +
				family("In", "c6i") + `]}]`},
			want: map[string]string{requires: both}},
		{says: "bad requirements", selector: "karpenter.k8s.aws/instance-family: c5", own: map[string]string{requires: "c5"},
			want: map[string]string{requires: "c5"}, warning: "annotation pod.elotl.co/instance-requirements is not valid: "},
		{says: "more than an annotation holds", affinity: strings.Repeat(family("NotIn", "m5")+",", 32) + family("NotIn", "m5"),
			warning: "a term of its node affinity has 34 expressions: the most is 32"},
		{says: "terms that are too many together", affinity: family("NotIn", "m5") + "]}, {matchExpressions: [" + family("NotIn", "c5"),
			own:     map[string]string{requires: of(17, 1)},
			want:    map[string]string{requires: of(17, 1)},
			warning: "has 17 terms beside 2 of its own: the most is 32 together"},
		{says: "expressions that are too many together", affinity: family("NotIn", "m5"),
			own:     map[string]string{requires: of(32, 2)},
			want:    map[string]string{requires: of(32, 2)},
			warning: "96 expressions in all: the most is 64"},
		{says: "more values than anybody writes", affinity: `{"key":"karpenter.k8s.aws/instance-family","operator":"In","values":["c5"` +
			strings.Repeat(`,"c5"`, 256) + `]}`,
			warning: "its node affinity has 257 values: the most is 256"},
		{says: "nonsense, which the API server refuses", affinity: family("Gt", "m5"),
			warning: "annotation pod.elotl.co/instance-requirements cannot hold it: "},
	} {
		pod := podFrom(t, affinity(ofKip+", "+c.selector, `{"key":"type","operator":"Exists"}`, `{"key":"type","operator":"Exists"},`+c.affinity))
		if c.affinity != "" {
			pod = podFrom(t, affinity(ofKip, `{"key":"type","operator":"Exists"},`+c.affinity))
		}
		pod.Annotations = c.own
		got, warnings := patched(t, pod, Selecting, UpstreamDefaults)
		if c.warning == "" && len(warnings) > 0 || c.warning != "" && (len(warnings) != 1 || !strings.Contains(warnings[0], c.warning)) {
			t.Errorf("%s: warnings %q, want %q", c.says, warnings, c.warning)
		}
		if !maps.Equal(got.Annotations, c.want) {
			t.Errorf("%s: annotations %v\nwant %v", c.says, got.Annotations, c.want)
		}
		if c.warning != "" && !equality.Semantic.DeepEqual(got.Spec, pod.Spec) {
			t.Errorf("%s: the pod selects %+v", c.says, got.Spec)
		}
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Who makes pods writes as much as an object may have. With the race detector the same
// takes ten times more, since there the buffers of encoding/json are not used again.
func TestNoSelectionTakesMuchMemory(t *testing.T) {
	const most = 4 << 20
	expression := func(values int) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: "karpenter.sh/capacity-type", Operator: corev1.NodeSelectorOpNotIn,
			Values: slices.Repeat([]string{strings.Repeat("x", 60)}, values)}
	}
	kip := corev1.NodeSelectorRequirement{Key: "type", Operator: corev1.NodeSelectorOpIn, Values: []string{"virtual-kubelet"}}
	own, err := json.Marshal(slices.Repeat([]corev1.NodeSelectorTerm{{MatchExpressions: expressions{expression(1)}}}, 32))
	if err != nil {
		t.Fatal(err)
	}
	for says, term := range map[string]struct {
		times       int
		expressions expressions
	}{
		"2,000 terms":      {2_000, expressions{expression(1), kip}},
		"8,000 values":     {1, expressions{expression(8_000), kip}},
		"2,000 in a term":  {1, append(slices.Repeat(expressions{expression(1)}, 2_000), kip)},
		"32 terms as well": {32, expressions{expression(1), kip}},
	} {
		terms := slices.Repeat([]corev1.NodeSelectorTerm{{MatchExpressions: term.expressions}}, term.times)
		pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}}}
		pod.Annotations = map[string]string{placement.AnnotationRequirements: string(own)}
		var warnings []string
		if n := allocated(func() { _, warnings = rules().Patch(pod, Selecting, UpstreamDefaults) }); n > most {
			t.Errorf("%s: %d KiB", says, n>>10)
		}
		if len(warnings) != 1 {
			t.Errorf("%s: %q, want a warning", says, warnings)
		}
	}
}

func TestPodsThatAreNotForKipAreLeftAlone(t *testing.T) {
	const selects = "node.kubernetes.io/instance-type: c5.large"
	for says, text := range map[string]string{
		"no selector":          "spec: {tolerations: [" + defaulted(300) + "]}",
		"a toleration alone":   "spec: {tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}, {operator: Exists}], nodeSelector: {" + selects + "}}",
		"another type of node": "spec: {nodeSelector: {type: other, " + selects + "}}",
		"the wish, no more":    "spec: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: type, operator: In, values: [virtual-kubelet]}]}}]}}}",
		"one of several terms": affinity("", "{key: type, operator: In, values: [virtual-kubelet]}",
			"{key: type, operator: In, values: [other]}"),
		"not this type of node":                  affinity("", "{key: type, operator: NotIn, values: [virtual-kubelet]}"),
		"no term at all":                         affinity(""),
		"a node with any type":                   affinity("", "{key: type, operator: In, values: [virtual-kubelet, other]}"),
		"bound to its node":                      "spec: {nodeName: kip-0}",
		"a node of another provider by its name": "spec: {nodeSelector: {" + ofKip + ", kubernetes.io/hostname: other-0, " + selects + "}}",
		"one of another provider by affinity": affinity(ofKip, "{key: kubernetes.io/hostname, operator: In, values: [other-0, other-1]}",
			"{key: kip.elotl.co/controller, operator: In, values: [other]}"),
		"another's label": "spec: {nodeSelector: {" + ofKip + ", team: b, " + selects + "}}",
	} {
		pod := podFrom(t, text)
		if got, warnings := rules().Patch(pod, Selecting, UpstreamDefaults); len(got) > 0 || len(warnings) > 0 {
			t.Errorf("%s: %+v, %q", says, got, warnings)
		}
	}
}

func TestPodsOfANamespaceGoToKip(t *testing.T) {
	for says, c := range map[string]struct{ pod, want string }{
		"one that selects nothing": {"spec: {tolerations: [" + defaulted(300) + "]}",
			"spec: {nodeSelector: {" + ofKip + "}, tolerations: [" + forever + ", " + ofTaint + "]}"},
		"one without tolerations": {"spec: {nodeSelector: {team: a}}",
			"spec: {nodeSelector: {team: a, " + ofKip + "}, tolerations: [" + ofTaint + ", " + forever + "]}"},
		"one that tolerates the taint": {"spec: {tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}, " + forever + "]}",
			"spec: {nodeSelector: {" + ofKip + "}, tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}, " + forever + "]}"},
		"one that selects an instance": {"spec: {nodeSelector: {karpenter.sh/capacity-type: spot}, tolerations: [" + forever + "]}",
			"metadata: {annotations: {pod.elotl.co/launch-type: spot}}\nspec: {nodeSelector: {" + ofKip + "}, tolerations: [" + forever + ", " + ofTaint + "]}"},
		"one that is on a node": {"spec: {nodeName: node-1}", "spec: {nodeName: node-1}"},
		"one for other nodes":   {"spec: {nodeSelector: {type: other}}", "spec: {nodeSelector: {type: other}}"},
		"one of a DaemonSet":    {daemon, daemon},
		"one of another's kind of that name": {strings.ReplaceAll(daemon, "apps/v1", "x/v1"), strings.ReplaceAll(daemon, "apps/v1", "x/v1") +
			"spec: {nodeSelector: {" + ofKip + "}, tolerations: [" + ofTaint + ", " + forever + "]}"},
		"one of a ReplicaSet, too": {strings.ReplaceAll(daemon, "DaemonSet", "ReplicaSet"),
			strings.ReplaceAll(daemon, "DaemonSet", "ReplicaSet") +
				"spec: {nodeSelector: {" + ofKip + "}, tolerations: [" + ofTaint + ", " + forever + "]}"},
	} {
		got, warnings := patched(t, podFrom(t, c.pod), InNamespace, UpstreamDefaults)
		if want := podFrom(t, c.want); !equality.Semantic.DeepEqual(got, want) || len(warnings) > 0 {
			t.Errorf("%s: %+v, %q\nwant %+v", says, got, warnings, want)
		}
	}
}

// So manifests that say nothing of taints run where Kip's nodes have one.
func TestPodsThatSelectKipsNodesTolerateTheirTaint(t *testing.T) {
	own := rules().Taint
	renamed := &corev1.Taint{Key: "example.com/kip", Value: "", Effect: corev1.TaintEffectNoExecute}
	const (
		selects = "nodeSelector: {" + ofKip + "}"
		needs   = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" +
			"{matchExpressions: [{key: type, operator: In, values: [virtual-kubelet]}]}]}}}"
		ofRenamed = "{key: example.com/kip, operator: Equal, effect: NoExecute}"
	)
	for says, c := range map[string]struct {
		taint           *corev1.Taint
		spec, own, want string
	}{
		"by its selector":            {own, selects, forever, forever + ", " + ofTaint},
		"by its affinity":            {own, needs, forever, forever + ", " + ofTaint},
		"without tolerations":        {own, selects, "", ofTaint + ", " + forever},
		"where the taint is another": {renamed, needs, forever, forever + ", " + ofRenamed},
		"where there is none":        {nil, selects, forever, forever},
		"not if it tolerates it":     {own, selects, forever + ", {key: virtual-kubelet.io/provider, operator: Exists}", ""},
		"not if it tolerates all":    {own, selects, "{operator: Exists}", ""},
		"if it tolerates it otherwise": {own, selects, forever + ", {key: virtual-kubelet.io/provider, operator: Exists, effect: NoExecute}",
			forever + ", {key: virtual-kubelet.io/provider, operator: Exists, effect: NoExecute}, " + ofTaint},
	} {
		pod := podFrom(t, "spec: {"+c.spec+", tolerations: ["+c.own+"]}")
		want := podFrom(t, "spec: {"+c.spec+", tolerations: ["+cmp.Or(c.want, c.own)+"]}")
		r := rules()
		r.Taint = c.taint
		operations, _ := r.Patch(pod, Selecting, UpstreamDefaults)
		text, err := json.Marshal(operations)
		if err != nil {
			t.Fatal(err)
		}
		object, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		if got := applied(t, object, text); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: %+v\nwant %+v", says, got.Spec, want.Spec)
		}
	}
}

const daemon = "metadata: {ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u, controller: true}]}\n"

func TestPodsOfKipStayWhenItsNodeIsNotHeardOf(t *testing.T) {
	const notReady = "{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute"
	for _, c := range []struct {
		says, own string
		defaults  Defaults
		want      string
	}{
		{"by the API server's own", defaulted(300), UpstreamDefaults, forever},
		{"by those of another API server", defaulted(10), Defaults{10, 10}, forever},
		{"beside another", "{key: x, operator: Exists}, " + defaulted(300), UpstreamDefaults, "{key: x, operator: Exists}, " + forever},
		{"where the API server adds none", "{key: x, operator: Exists}", Defaults{none, none}, "{key: x, operator: Exists}, " + forever},
		{"where there is nothing", "", Defaults{none, none}, forever},
		{"but not a user's own where the API server adds none", defaulted(-1), Defaults{none, none}, defaulted(-1)},
		{"but not if it says itself for how long", defaulted(20), UpstreamDefaults, defaulted(20)},
		{"nor if it says so in other words", "{key: node.kubernetes.io/not-ready, tolerationSeconds: 300, operator: Exists}, " +
			"{operator: Exists, effect: NoExecute, tolerationSeconds: 300}", UpstreamDefaults,
			"{key: node.kubernetes.io/not-ready, tolerationSeconds: 300, operator: Exists}, {operator: Exists, effect: NoExecute, tolerationSeconds: 300}"},
		{"for one taint only if it speaks of the other", notReady + ", tolerationSeconds: 5}, " +
			"{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}", UpstreamDefaults,
			notReady + ", tolerationSeconds: 5}, {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}"},
		{"a taint of another effect is another", "{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoSchedule}, " + defaulted(300),
			UpstreamDefaults, "{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoSchedule}, " + forever},
		{"as a DaemonSet has it", forever, UpstreamDefaults, forever},
	} {
		pod := podFrom(t, "spec: {nodeSelector: {"+ofKip+"}, tolerations: ["+ofTaint+", "+c.own+"]}")
		got, _ := patched(t, pod, Selecting, c.defaults)
		want := podFrom(t, "spec: {nodeSelector: {"+ofKip+"}, tolerations: ["+ofTaint+", "+c.want+"]}")
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: %+v\nwant %+v", c.says, got.Spec.Tolerations, want.Spec.Tolerations)
		}
	}
}

// TestPatternsOfTypesAreNamedByManyAtOnce is of what a placer keeps of the patterns that pods
// name, which placement's own tests ask one after the other.
func TestPatternsOfTypesAreNamedByManyAtOnce(t *testing.T) {
	// More than twice as many as are kept, so that some are forgotten meanwhile.
	var patterns []string
	for _, end := range []string{"", ".*", ".s*", ".sm*", ".sma*", ".smal*", ".small"} {
		for stars := range 40 {
			patterns = append(patterns, "c"+strings.Repeat("*", 1+stars)+end)
		}
	}
	placer, err := placement.New([]catalog.InstanceType{{Name: "c.small", MilliCPU: 1000, MemoryBytes: 8 << 30, Arch: "amd64",
		Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 1}}}}, placement.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for _, pattern := range patterns {
				pod := &corev1.Pod{}
				pod.Annotations = map[string]string{placement.AnnotationInstanceType: pattern}
				if got, err := placer.Offerings(pod, nil); err != nil || len(got) != 1 || got[0].InstanceType != "c.small" {
					t.Errorf("%s: %+v, %v", pattern, got, err)
				}
			}
		})
	}
	all.Wait()
}

// The oracle is the scheduler's: what a pod selects is asked of a node that has the
// labels of the instance, as if the instance were the node.
func TestNoPodGetsAnotherInstanceThanItSelects(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	nodeLabels := map[string]string{}
	for key, values := range rules().NodeLabels {
		nodeLabels[key] = values[0]
	}
	var types []catalog.InstanceType
	for _, name := range []string{"c5.large", "c5.xlarge", "m5.large", "m6i.large"} {
		types = append(types, catalog.InstanceType{Name: name, MilliCPU: int64(1+len(types)) * 1000, MemoryBytes: 8 << 30, Arch: "amd64",
			Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 1}, {Zone: "b", PricePerHour: 1}, {Zone: "a", Spot: true, PricePerHour: 1}}})
	}
	placer, err := placement.New(types, placement.Config{})
	if err != nil {
		t.Fatal(err)
	}
	placer = placer.OnNode(nodeLabels)
	keys := []string{"node.kubernetes.io/instance-type", "karpenter.k8s.aws/instance-family", "karpenter.k8s.aws/instance-cpu",
		"karpenter.sh/capacity-type", "topology.kubernetes.io/zone", "team", "kubernetes.io/hostname", "karpenter.k8s.aws/instance-gpu-name"}
	values := map[string][]string{keys[0]: {"c5.large", "m5.large", "c5.xlarge"}, keys[1]: {"c5", "m5", "m6i"}, keys[2]: {"1", "2", "4"},
		keys[3]: {"spot", "on-demand"}, keys[4]: {"a", "b"}, keys[5]: {"a", "b"}, keys[6]: {"kip-0", "kip-1"}, keys[7]: {"t4", "a100"}}
	ops := []corev1.NodeSelectorOperator{"In", "In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}
	random := func() corev1.NodeSelectorRequirement {
		key := keys[rng.IntN(len(keys))]
		e := corev1.NodeSelectorRequirement{Key: key, Operator: ops[rng.IntN(len(ops))]}
		switch e.Operator {
		case "In", "NotIn":
			e.Values = []string{values[key][rng.IntN(len(values[key]))], values[key][rng.IntN(len(values[key]))]}
			e.Values = slices.Compact(e.Values)
		case "Gt", "Lt":
			e.Values = []string{"2"}
		}
		return e
	}
	// matches says what the scheduler says of a pod on a node with these labels.
	matches := func(pod *corev1.Pod, of map[string]string) bool {
		ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kip-0", Labels: of}})
		return ok && err == nil
	}
	placed, none := 0, 0
	for range 1_500 {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"type": "virtual-kubelet"},
			Containers: []corev1.Container{{Name: "main"}}}}
		for range rng.IntN(3) {
			key := keys[rng.IntN(len(keys))]
			pod.Spec.NodeSelector[key] = values[key][rng.IntN(len(values[key]))]
		}
		var terms []corev1.NodeSelectorTerm
		for range rng.IntN(4) {
			var term corev1.NodeSelectorTerm
			for range rng.IntN(4) {
				term.MatchExpressions = append(term.MatchExpressions, random())
			}
			if rng.IntN(8) == 0 {
				term.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{
					[]string{"kip-0", "kip-1"}[rng.IntN(2)]}}}
			}
			terms = append(terms, term)
		}
		if terms != nil {
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
		}
		if rng.IntN(6) == 0 {
			value, err := placement.EncodeTerms([]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{random()}}})
			if err != nil {
				t.Fatal(err)
			}
			pod.Annotations = map[string]string{placement.AnnotationRequirements: value}
		}
		got, warnings := patched(t, pod, Selecting, UpstreamDefaults)
		if len(warnings) > 0 {
			t.Fatalf("%+v: %q", pod, warnings)
		}
		// What terms that say nothing of an instance say of other zones than the node's is
		// taken for granted, as without this annotation.
		whole := slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
			return slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool { return placement.IsInstanceLabel(e.Key) })
		})
		var candidates []offering.Offering
		if matches(got, nodeLabels) {
			if candidates, err = placer.Offerings(got, nil); err != nil {
				candidates = nil
			}
		}
		for _, typ := range types {
			for _, o := range typ.Offerings {
				of := maps.Clone(nodeLabels)
				of["topology.kubernetes.io/zone"] = o.Zone
				of["karpenter.sh/capacity-type"] = map[bool]string{true: "spot", false: "on-demand"}[o.Spot]
				of["node.kubernetes.io/instance-type"], of["karpenter.k8s.aws/instance-cpu"] = typ.Name, fmt.Sprint(typ.MilliCPU/1000)
				of["karpenter.k8s.aws/instance-family"], _, _ = strings.Cut(typ.Name, ".")
				want := matches(pod, of)
				if value, ok := pod.Annotations[placement.AnnotationRequirements]; ok {
					own, err := placement.DecodeTerms(value)
					if err != nil {
						t.Fatal(err)
					}
					and := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: own}}}}}
					want = want && matches(and, of)
				}
				has := slices.ContainsFunc(candidates, func(one offering.Offering) bool {
					return one.Key() == offering.KeyOf(&typ, &o)
				})
				asksForSpot := strings.Contains(got.Annotations[placement.AnnotationLaunchType], "spot")
				switch {
				case has && !want && (o.Zone == "a" || whole): // the node is in zone a
					t.Fatalf("%v %v\nmay have %s %+v by %v", pod.Spec.NodeSelector, terms, typ.Name, o, got.Annotations)
				case want && !has && o.Zone == "a" && (!o.Spot || asksForSpot) && !(asksForSpot && !o.Spot):
					t.Fatalf("%v %v\nmay not have %s %+v by %v", pod.Spec.NodeSelector, terms, typ.Name, o, got.Annotations)
				case want:
					placed++
				default:
					none++
				}
			}
		}
	}
	if placed*20 < none || none*20 < placed {
		t.Errorf("%d instances will do and %d will not: such a test says little", placed, none)
	}
}
