package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/elotl/kip/internal/catalog"
)

// labelled is a catalogue whose names say what Karpenter's labels say.
func labelled() []catalog.InstanceType {
	at := func(price float64) []catalog.PurchaseOption {
		return []catalog.PurchaseOption{
			{Zone: "a", PricePerHour: price}, {Zone: "b", PricePerHour: price}, {Zone: "a", Spot: true, PricePerHour: price / 3},
		}
	}
	return []catalog.InstanceType{
		{Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 * gib, Arch: "amd64", Offerings: at(0.085)},
		{Name: "c5.xlarge", MilliCPU: 4000, MemoryBytes: 8 * gib, Arch: "amd64", Offerings: at(0.17)},
		{Name: "m5.large", MilliCPU: 2000, MemoryBytes: 8 * gib, Arch: "amd64", Offerings: at(0.096)},
		{Name: "m6i.large", MilliCPU: 2000, MemoryBytes: 8 * gib, Arch: "amd64", Offerings: at(0.097)},
		{Name: "g4dn.xlarge", MilliCPU: 4000, MemoryBytes: 16 * gib, Arch: "amd64", Offerings: at(0.526),
			GPUs: []catalog.GPU{{Model: "T4", Count: 1, MemoryBytes: 16 * gib}}, Labels: map[string]string{"nvidia.com/gpu.product": "Tesla-T4"}},
		{Name: "p4d.24xlarge", MilliCPU: 96000, MemoryBytes: 1152 * gib, Arch: "amd64", Offerings: at(32.77),
			GPUs: []catalog.GPU{{Model: "A100", Count: 8, MemoryBytes: 40 * gib}}},
		{Name: "u-6tb1.metal", MilliCPU: 448000, MemoryBytes: 6144 * gib, Arch: "amd64", Offerings: at(54.6)},
	}
}

// asking annotates a pod with terms.
func asking(t testing.TB, pod *corev1.Pod, terms ...corev1.NodeSelectorTerm) *corev1.Pod {
	t.Helper()
	value, err := json.Marshal(terms)
	if err != nil {
		t.Fatal(err)
	}
	return annotated(pod, AnnotationRequirements, string(value))
}

func TestInstancesAreThoseThatTheRequirementsAllow(t *testing.T) {
	const in, notIn, exists, without, gt, lt = corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists,
		corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt
	p := placer(t, labelled(), Config{DefaultInstanceType: "u-6tb1.metal", DefaultArch: "amd64"}).OnNode(map[string]string{
		"type": "virtual-kubelet", "team": "a", corev1.LabelInstanceTypeStable: "kip",
	})
	const k = "karpenter.k8s.aws/instance-"
	for _, c := range []struct {
		terms []corev1.NodeSelectorTerm
		want  string // all candidates
	}{
		{[]corev1.NodeSelectorTerm{term(expr(k+"family", in, "m5", "m6i"))}, "m5.large/a m5.large/b m6i.large/a m6i.large/b"},
		{[]corev1.NodeSelectorTerm{term(expr(k+"category", in, "m"), expr(k+"generation", gt, "5"))}, "m6i.large/a m6i.large/b"},
		{[]corev1.NodeSelectorTerm{term(expr(k+"size", in, "xlarge"), expr(k+"gpu-count", without))}, "c5.xlarge/a c5.xlarge/b"},
		{[]corev1.NodeSelectorTerm{term(expr(k+"cpu", lt, "5"), expr(k+"family", notIn, "c5", "m5", "m6i"))}, "g4dn.xlarge/a g4dn.xlarge/b"},
		{[]corev1.NodeSelectorTerm{term(expr(k+"memory", in, "4096"))}, "c5.large/a c5.large/b"},
		{[]corev1.NodeSelectorTerm{term(expr(k+"category", in, "u"))}, "u-6tb1.metal/a u-6tb1.metal/b"},
		{[]corev1.NodeSelectorTerm{term(expr(k+"gpu-memory", gt, "20000"))}, "p4d.24xlarge/a p4d.24xlarge/b"},
		{[]corev1.NodeSelectorTerm{term(expr("nvidia.com/gpu.product", in, "Tesla-T4"))}, "g4dn.xlarge/a g4dn.xlarge/b"},
		{[]corev1.NodeSelectorTerm{term(expr("nvidia.com/gpu.product", exists), expr("nvidia.com/gpu.count", gt, "1"))},
			"p4d.24xlarge/a p4d.24xlarge/b"},
		{[]corev1.NodeSelectorTerm{term(expr("cloud.google.com/gke-accelerator", in, "a100"))}, "p4d.24xlarge/a p4d.24xlarge/b"},
		{[]corev1.NodeSelectorTerm{term(expr(corev1.LabelInstanceTypeStable, in, "c5.large", "kip"))}, "c5.large/a c5.large/b"},
		{[]corev1.NodeSelectorTerm{
			term(expr(corev1.LabelInstanceType, in, "c5.large"), expr(corev1.LabelTopologyZone, in, "b")),
			term(expr(corev1.LabelInstanceType, in, "m5.large"), expr(corev1.LabelTopologyZone, in, "a")),
		}, "c5.large/b m5.large/a"},
		{[]corev1.NodeSelectorTerm{
			term(expr("team", in, "b"), expr(k+"family", in, "c5")), // not of this node
			term(expr("team", in, "a"), expr(k+"family", in, "m5")),
		}, "m5.large/a m5.large/b"},
	} {
		got, err := p.Offerings(asking(t, podOf(), c.terms...), nil)
		if err != nil || names(got) != c.want {
			t.Errorf("%v:\ngot  %s, %v\nwant %s", c.terms, names(got), err, c.want)
		}
	}

	spot := asking(t, podOf("cpu=1"), term(expr(LabelCapacityType, in, "spot"), expr(k+"family", in, "c5")),
		term(expr(LabelCapacityType, in, "on-demand"), expr(k+"family", in, "m5")))
	spot.Annotations[AnnotationLaunchType] = "spot,on-demand"
	got, err := p.Offerings(spot, nil)
	if want := "c5.large/a/spot c5.xlarge/a/spot m5.large/a m5.large/b"; err != nil || names(got) != want {
		t.Errorf("by how it is bought: %s, %v, want %s", names(got), err, want)
	}
	if want := "cheapest of 2 types offered as spot and allowed by pod.elotl.co/instance-requirements that fit cpu 1"; err == nil &&
		got[0].Reason != want {
		t.Errorf("reason %q, want %q", got[0].Reason, want)
	}

	named := asking(t, podOf(), term(expr(k+"family", in, "m5")))
	named.Annotations[AnnotationInstanceType] = "c5.*"
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{named, "needs no resources: 2 types considered: 2 are ruled out by pod.elotl.co/instance-requirements (" + k + "family: c5)"},
		{asking(t, podOf("cpu=1"), term(expr("nvidia.com/gpu.product", in, "T4"))),
			"needs cpu 1: 7 types considered: 7 are ruled out by pod.elotl.co/instance-requirements (nvidia.com/gpu.product: A100, Tesla-T4)"},
		{asking(t, podOf("cpu=1"), term(expr(k+"hypervisor", in, "nitro"), expr(k+"local-nvme", gt, "1"), expr(k+"size", exists),
			expr("z", exists))),
			"needs cpu 1: 7 types considered: 7 are ruled out by pod.elotl.co/instance-requirements (" + k + "hypervisor: none has it; " + k +
				"local-nvme: none has it; " + k + "size: 24xlarge, large, metal, xlarge)"},
		{asking(t, podOf("cpu=64"), term(expr(k+"family", in, "c5"))), "needs cpu 64: 7 types considered: " +
			"5 are ruled out by pod.elotl.co/instance-requirements (" + k + "family: g4dn, m5, m6i, p4d, u-6tb1), 2 have too little cpu (largest: c5.xlarge with 4)"},
	} {
		_, err := p.Offerings(c.pod, nil)
		var unplaceable *UnplaceableError
		if !errors.As(err, &unplaceable) || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

func TestDedicatedHostsOfANodeThatCallsItselfOnDemandAre(t *testing.T) {
	types := []catalog.InstanceType{{Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 * gib, Arch: "amd64",
		Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 1, Dedicated: true}}}}
	p := placer(t, types, Config{LaunchTypes: []LaunchType{OnDemand, Dedicated}})
	for _, c := range []struct {
		node, op, value string
		want            bool
	}{
		{"on-demand", "In", "on-demand", true}, {"on-demand", "In", "dedicated", true}, {"on-demand", "In", "spot", false},
		{"", "In", "on-demand", false}, {"", "In", "dedicated", true},
	} {
		pod := asking(t, podOf(), term(expr(LabelCapacityType, corev1.NodeSelectorOperator(c.op), c.value)))
		if got, err := p.OnNode(map[string]string{LabelCapacityType: c.node}).Offerings(pod, nil); (err == nil) != c.want {
			t.Errorf("%s %s on a node of %q: %v, %v", c.op, c.value, c.node, names(got), err)
		}
	}
}

// worst is a pod with the requirements that are the most work.
func worst(t testing.TB) *corev1.Pod {
	var terms []corev1.NodeSelectorTerm
	for i := range MaxTerms {
		values := slices.Repeat([]string{"c5", "m5"}, MaxValues/MaxTerms/2)
		terms = append(terms, term(expr("karpenter.k8s.aws/instance-family", corev1.NodeSelectorOpExists),
			expr("karpenter.k8s.aws/instance-size", corev1.NodeSelectorOpIn, append([]string{fmt.Sprint(i)}, values[1:]...)...)))
	}
	return asking(t, podOf("cpu=1"), terms...)
}

// many is a catalogue of n types in three zones of two subnets each.
func many(n int) []catalog.InstanceType {
	var types []catalog.InstanceType
	for i := range n {
		typ := catalog.InstanceType{Name: fmt.Sprintf("c%d.size-%d", i%7, i), MilliCPU: 2000, MemoryBytes: 4 * gib, Arch: "amd64"}
		for _, zone := range []string{"a", "b", "c"} {
			for _, subnet := range []string{"1", "2"} {
				typ.Offerings = append(typ.Offerings, catalog.PurchaseOption{Zone: zone, Subnet: zone + subnet, PricePerHour: 1})
			}
		}
		types = append(types, typ)
	}
	return types
}

func TestRequirementsAreLookedAtOnceInAChoice(t *testing.T) {
	p := placer(t, many(50), Config{})
	all, err := p.choicesFor(asking(t, podOf("cpu=1"), term(expr("karpenter.k8s.aws/instance-family", corev1.NodeSelectorOpIn, "c5"))))
	if err != nil {
		t.Fatal(err)
	}
	c := all[0]
	if offerings, err := c.offerings(nil); err != nil || len(offerings) == 0 {
		t.Fatalf("nothing fits: %v", err)
	}
	// What has been looked at is not looked at again: other requirements change nothing.
	c.requirements = nil
	for i := range p.onDemand.rows {
		r := &p.onDemand.rows[i]
		for zone := range p.zones {
			if got, want := c.held(r, zone), strings.HasPrefix(p.types[r.typ].Name, "c5."); got != want {
				t.Errorf("%s in zone %d: %t, want %t", p.types[r.typ].Name, zone, got, want)
			}
		}
	}
}

func BenchmarkTheWorstRequirements(b *testing.B) {
	p := placer(b, many(800), Config{})
	pod := worst(b)
	for b.Loop() {
		if _, err := p.Offerings(pod, nil); err == nil {
			b.Fatal("something holds")
		}
	}
}

func TestBadRequirementsAreRefused(t *testing.T) {
	terms := func(n, expressions int) string {
		one := `{"matchExpressions":[` + strings.Repeat(`{"key":"a","operator":"Exists"},`, expressions-1) + `{"key":"a","operator":"Exists"}]}`
		return "[" + strings.Repeat(one+",", n-1) + one + "]"
	}
	oneOf := func(values int) string {
		return `[{"matchExpressions":[{"key":"a","operator":"In","values":["b"` + strings.Repeat(`,"b"`, values-1) + `]}]}]`
	}
	for _, good := range []string{
		terms(1, 1), terms(32, 2), terms(2, 32), oneOf(256),
		`[{"matchExpressions":[{"key":"a","operator":"Gt","values":["5"]}]}]`,
	} {
		if _, err := ParseAnnotations(map[string]string{AnnotationRequirements: good}); err != nil {
			t.Errorf("%.80s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "null", "[]", "{}", "[{}]", "[null]", "x", `["c5"]`, `[{"matchExpressions":[]}]`, `[{"matchExpressions":[{}]}]`,
		terms(33, 1), terms(1, 33), terms(32, 32), terms(13, 5), oneOf(257), terms(1, 1) + " 1", terms(1, 1) + strings.Repeat(" ", 8<<10) + "x",
		`[{"matchFields":[{"key":"metadata.name","operator":"In","values":["kip-0"]}]}]`,
		`[{"matchExpression":[{"key":"a","operator":"Exists"}]}]`,
		`[{"matchExpressions":[{"key":"a","operator":"exists"}]}]`,
		`[{"matchExpressions":[{"key":"a","operator":"In"}]}]`,
		`[{"matchExpressions":[{"key":"a","operator":"Exists","values":["b"]}]}]`,
		`[{"matchExpressions":[{"key":"a","operator":"Gt","values":["five"]}]}]`,
		`[{"matchExpressions":[{"key":"a b","operator":"Exists"}]}]`,
		`[{"matchExpressions":[{"key":"a","operator":"In","values":["no value!"]}]}]`,
	} {
		_, err := ParseAnnotations(map[string]string{AnnotationRequirements: bad})
		var invalid *InvalidAnnotationError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), "want a JSON list of node selector terms such as [{") {
			t.Errorf("%.80s: %v, want what is allowed", bad, err)
		} else if invalid.Why == nil || !strings.Contains(err.Error(), "is not valid: "+shortened(invalid.Why.Error())+": want") {
			t.Errorf("%.80s: %v, want what is wrong with it: %v", bad, err, invalid.Why)
		} else if len(err.Error()) > 900 {
			t.Errorf("%.80s: an error of %d bytes, for an Event that may have 1024", bad, len(err.Error()))
		}
	}
}

// The oracle is what the scheduler uses.
func TestRequirementsMeanWhatNodeAffinityMeans(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	keys := []string{"karpenter.k8s.aws/instance-family", "karpenter.k8s.aws/instance-cpu", LabelCapacityType, corev1.LabelTopologyZone,
		corev1.LabelInstanceTypeStable, "nvidia.com/gpu.count", "team", "none"}
	values := []string{"c5", "m5", "2", "4", "8", "spot", "on-demand", "a", "b", "c5.large", "1"}
	ops := []corev1.NodeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}
	p := placer(t, labelled(), Config{}).OnNode(map[string]string{"team": "a"})
	c := &choice{Placer: p}
	held, seen := 0, 0
	for range 7_000 {
		var terms []corev1.NodeSelectorTerm
		for range 1 + rng.IntN(3) {
			var exprs []corev1.NodeSelectorRequirement
			for range 1 + rng.IntN(3) {
				e := expr(keys[rng.IntN(len(keys))], ops[rng.IntN(len(ops))])
				switch e.Operator {
				case "In", "NotIn":
					e.Values = []string{values[rng.IntN(len(values))], values[rng.IntN(len(values))]}
				case "Gt", "Lt":
					e.Values = []string{[]string{"1", "3", "5"}[rng.IntN(3)]}
				}
				exprs = append(exprs, e)
			}
			terms = append(terms, term(exprs...))
		}
		selector, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: terms})
		if err != nil {
			t.Fatal(err)
		}
		value, err := EncodeTerms(terms)
		if err != nil {
			t.Fatal(err)
		}
		requirements, err := ParseRequirements(value)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*capacityType{&p.onDemand, &p.spots} {
			r := &m.rows[rng.IntN(len(m.rows))]
			zone := r.offerings[rng.IntN(len(r.offerings))].zone
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "a", LabelCapacityType: string(m.launchType),
				corev1.LabelTopologyZone: p.zones[zone]}}}
			for key, value := range labelsOf(&p.types[r.typ]) {
				node.Labels[key] = value
			}
			want := selector.Match(node)
			if got := requirements.hold(c.machine(r, zone)); got != want {
				t.Fatalf("%s on %v: %t, and node affinity says %t", value, node.Labels, got, want)
			}
			seen++
			if want {
				held++
			}
		}
	}
	if held*10 < seen || held*10 > seen*9 {
		t.Errorf("%d of %d hold: such a test says little", held, seen)
	}
}
