package placement

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/offering"
)

const gib = int64(1) << 30

// resources is a list of "cpu=1", "memory=1Gi", …
func resources(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, p := range pairs {
		name, q, _ := strings.Cut(p, "=")
		l[corev1.ResourceName(name)] = apiresource.MustParse(q)
	}
	return l
}

func container(requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

// podOf has one container that requests the given resources.
func podOf(pairs ...string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container(resources(pairs...), nil)}}}
}

func annotated(pod *corev1.Pod, pairs ...string) *corev1.Pod {
	pod.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		pod.Annotations[pairs[i]] = pairs[i+1]
	}
	return pod
}

func selecting(pod *corev1.Pod, label, value string) *corev1.Pod {
	if pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = map[string]string{}
	}
	pod.Spec.NodeSelector[label] = value
	return pod
}

func requiring(pod *corev1.Pod, terms ...corev1.NodeSelectorTerm) *corev1.Pod {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
	return pod
}

func term(exprs ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: exprs}
}

func expr(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
}

// shop is a catalogue in which each thing that placement looks at differs.
func shop() []catalog.InstanceType {
	at := func(price float64, zones ...string) (o []catalog.PurchaseOption) {
		for _, z := range zones {
			o = append(o, catalog.PurchaseOption{Zone: z, PricePerHour: price})
		}
		return o
	}
	return []catalog.InstanceType{
		{Name: "c.large", MilliCPU: 2000, MemoryBytes: 4 * gib, Arch: "amd64",
			Offerings: append(at(0.10, "a", "b"), catalog.PurchaseOption{Zone: "a", Spot: true, PricePerHour: 0.03})},
		{Name: "m.large", MilliCPU: 2000, MemoryBytes: 8 * gib, Arch: "amd64", Offerings: at(0.12, "a", "b", "c")},
		{Name: "arm.large", MilliCPU: 2000, MemoryBytes: 8 * gib, Arch: "arm64", Offerings: at(0.08, "a", "b")},
		{Name: "t.large", MilliCPU: 2000, BaselineMilliCPU: 400, CreditPerCPUHour: 0.05, MemoryBytes: 8 * gib, Arch: "amd64",
			Offerings: at(0.09, "a", "b")},
		{Name: "d.large", MilliCPU: 2000, MemoryBytes: 8 * gib, DiskBytes: 100 * gib, Arch: "amd64", Offerings: at(0.15, "a")},
		{Name: "g.xlarge", MilliCPU: 4000, MemoryBytes: 16 * gib, Arch: "amd64", GPUs: []catalog.GPU{{Model: "t4", Count: 1}},
			Offerings: at(0.50, "b")},
		{Name: "g.8xlarge", MilliCPU: 32000, MemoryBytes: 128 * gib, Arch: "amd64", GPUs: []catalog.GPU{{Model: "t4", Count: 4}},
			Offerings: at(4, "b")},
	}
}

// rank returns the offerings for a pod with what they are ordered by.
func rank(p *Placer, pod *corev1.Pod, unavailable func(offering.Key) bool) ([]ranked, error) {
	all, err := p.choicesFor(pod)
	if err != nil {
		return nil, err
	}
	return all[0].rank(unavailable)
}

func placer(t testing.TB, catalogue []catalog.InstanceType, c Config) *Placer {
	t.Helper()
	p, err := New(catalogue, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// names are "TYPE/ZONE", with "/SUBNET" where there is one and "/spot" of what is spot.
func names(cs []offering.Offering) string {
	var s []string
	for _, c := range cs {
		n := c.InstanceType + "/" + c.Zone
		if c.Subnet != "" {
			n += "/" + c.Subnet
		}
		if c.Spot {
			n += "/spot"
		}
		s = append(s, n)
	}
	return strings.Join(s, " ")
}

func TestChoice(t *testing.T) {
	local := Config{DefaultInstanceType: "nano", ReservedMemoryBytes: 64 << 20}
	localTypes := sizes.Types("amd64")
	shopping := Config{DefaultInstanceType: "t.large", DefaultArch: "amd64", DefaultDiskBytes: 5 * gib}
	for _, c := range []struct {
		name   string
		types  []catalog.InstanceType
		config Config
		pod    *corev1.Pod
		want   string // names of the first candidates
		reason string // of the first
	}{
		{"smallest that fits", localTypes, local, podOf("cpu=500m", "memory=256Mi"), "micro/local small/local medium/local",
			"cheapest of 6 types that fit cpu 500m, memory 256Mi (+64Mi for the cell)"},
		{"the cell's own need counts", localTypes, local, podOf("memory=256Mi"), "micro/local",
			"cheapest of 6 types that fit memory 256Mi (+64Mi for the cell)"},
		{"just what is left beside the cell's own need", localTypes, local, podOf("memory=192Mi"), "nano/local", ""},
		{"no resources: the default", localTypes, local, podOf(), "nano/local", "the default instance type, since the pod asks for no resources"},
		{"no resources, no default: the cheapest", localTypes, Config{}, podOf(), "nano/local", "cheapest of 7 types that fit no resources"},
		{"only one fits", localTypes, local, podOf("cpu=8"), "2xlarge/local",
			"cheapest of 1 type that fits cpu 8, memory 0 (+64Mi for the cell)"},
		{"exact type", localTypes, local, annotated(podOf(), AnnotationInstanceType, "large"), "large/local",
			"named by pod.elotl.co/instance-type"},
		{"exact type, the default's name", localTypes, local, annotated(podOf(), AnnotationInstanceType, "nano"), "nano/local",
			"named by pod.elotl.co/instance-type"},
		{"exact type whatever the resources", localTypes, local, annotated(podOf("cpu=4"), AnnotationInstanceType, "nano"), "nano/local",
			"named by pod.elotl.co/instance-type, though too small for cpu 4, memory 0 (+64Mi for the cell)"},
		{"pattern: the cheapest match that fits", localTypes, local, annotated(podOf("cpu=1"), AnnotationInstanceType, "*xlarge"),
			"xlarge/local 2xlarge/local",
			"cheapest of 2 types named *xlarge that fit cpu 1, memory 0 (+64Mi for the cell)"},
		{"pattern without resources", localTypes, local, annotated(podOf(), AnnotationInstanceType, "m*"), "micro/local medium/local", ""},

		{"the default's architecture", shop(), shopping, podOf("memory=6Gi"),
			"t.large/a t.large/b m.large/a m.large/b m.large/c d.large/a g.xlarge/b g.8xlarge/b", ""},
		{"nodeSelector of an architecture", shop(), shopping, selecting(podOf("memory=6Gi"), corev1.LabelArchStable, "arm64"),
			"arm.large/a arm.large/b",
			"cheapest of 1 type that fits memory 6Gi"},
		{"the old label of an architecture", shop(), shopping, selecting(podOf("memory=6Gi"), "beta.kubernetes.io/arch", "arm64"),
			"arm.large/a", ""},
		{"affinity to an architecture", shop(), shopping, requiring(podOf("memory=6Gi"),
			term(expr(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "arm64", "amd64"))), "arm.large/a arm.large/b t.large/a", ""},
		{"a named type needs no architecture", shop(), shopping, annotated(podOf(), AnnotationInstanceType, "arm.large"),
			"arm.large/a arm.large/b", ""},
		{"zone", shop(), shopping, selecting(podOf("memory=6Gi"), corev1.LabelTopologyZone, "c"), "m.large/c",
			"cheapest of 1 type that fits memory 6Gi"},
		{"not in a zone", shop(), shopping, requiring(podOf("memory=6Gi"),
			term(expr(corev1.LabelTopologyZone, corev1.NodeSelectorOpNotIn, "a", "b"))), "m.large/c", ""},
		{"either term", shop(), shopping, requiring(podOf("memory=6Gi"),
			term(expr(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "c"), expr(corev1.LabelArchStable, corev1.NodeSelectorOpExists)),
			term(expr(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "b"), expr(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "arm64"))),
			"arm.large/b m.large/c", ""},
		{"selector and affinity together", shop(), shopping, selecting(requiring(podOf("memory=6Gi"),
			term(expr(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "a", "c"))), corev1.LabelTopologyZone, "c"), "m.large/c", ""},
		{"other labels are the scheduler's business", shop(), shopping, selecting(requiring(podOf("memory=12Gi"),
			term(expr("type", corev1.NodeSelectorOpIn, "virtual-kubelet"))), "type", "virtual-kubelet"), "g.xlarge/b g.8xlarge/b", ""},
		{"a term without our labels allows all", shop(), shopping, requiring(podOf("memory=12Gi"),
			term(expr("type", corev1.NodeSelectorOpIn, "x")), term(expr(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "a"))),
			"g.xlarge/b g.8xlarge/b", ""},

		{"burstable is cheapest within its baseline", shop(), shopping, podOf("cpu=400m"), "t.large/a t.large/b c.large/a",
			"cheapest of 6 types that fit cpu 400m"},
		{"credits above the baseline are priced", shop(), shopping, podOf("cpu=1600m"),
			"c.large/a c.large/b m.large/a m.large/b m.large/c d.large/a t.large/a t.large/b", ""},
		{"spot", shop(), shopping, annotated(podOf("cpu=1"), AnnotationLaunchType, "Spot"), "c.large/a/spot",
			"cheapest of 1 type offered as spot that fits cpu 1"},
		{"on demand, said aloud", shop(), shopping, annotated(podOf("memory=12Gi"), AnnotationLaunchType, "on-demand"),
			"g.xlarge/b g.8xlarge/b", ""},
		{"GPU", shop(), shopping, &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container(nil,
			resources("nvidia.com/gpu=1"))}}}, "g.xlarge/b g.8xlarge/b",
			"cheapest of 2 types that fit nvidia.com/gpu 1"},
		{"GPUs of all containers", shop(), shopping, &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			container(nil, resources("nvidia.com/gpu=1")), container(nil, resources("nvidia.com/gpu=1"))}}}, "g.8xlarge/b", ""},
		{"a disk larger than the default", shop(), shopping, podOf("cpu=100m", "ephemeral-storage=20Gi"), "t.large/a t.large/b c.large/a",
			"cheapest of 6 types that fit cpu 100m, ephemeral-storage 20Gi"},
		{"a disk, and nothing else", localTypes, local, podOf("ephemeral-storage=1Gi"), "nano/local micro/local small/local", ""},
		{"what a disk has besides counts", localTypes, local, podOf("ephemeral-storage=4Gi"), "micro/local small/local", ""},
		{"a limit of a disk", localTypes, local, &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container(
			resources("ephemeral-storage=1Gi"), resources("ephemeral-storage=9Gi"))}}}, "small/local", ""},
		{"a disk as large as the pod says", shop(), shopping, annotated(podOf("cpu=100m", "ephemeral-storage=20Gi"), AnnotationVolumeSize,
			"21Gi"), "t.large/a t.large/b c.large/a", ""},
		{"a disk larger than the type's", shop(), shopping, annotated(podOf("cpu=100m", "memory=6Gi"), AnnotationVolumeSize, "200Gi"),
			"t.large/a t.large/b m.large/a m.large/b m.large/c g.xlarge/b", ""},
		{"swap is on the type's disk, beside the pod's storage", localTypes, local, annotated(podOf("ephemeral-storage=3Gi"), AnnotationSwap,
			"1Gi"), "micro/local small/local", ""},
		{"swap of a pod without storage", localTypes, local, annotated(podOf("cpu=100m"), AnnotationSwap, "4Gi"), "micro/local small/local",
			"cheapest of 6 types that fit cpu 100m, memory 0 (+64Mi for the cell), swap 4Gi"},
		{"swap is no resource", localTypes, local, annotated(podOf(), AnnotationSwap, "1Gi"), "nano/local", ""},
		{"other extended resources are nobody's", shop(), shopping, podOf("memory=12Gi", "example.com/licence=3"), "g.xlarge/b g.8xlarge/b", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := placer(t, c.types, c.config).Offerings(c.pod, nil)
			if err != nil {
				t.Fatal(err)
			}
			if s := names(got); s != c.want && !strings.HasPrefix(s, c.want+" ") {
				t.Errorf("candidates %s\nwant      %s …", s, c.want)
			}
			if c.reason != "" && got[0].Reason != c.reason {
				t.Errorf("reason %q, want %q", got[0].Reason, c.reason)
			}
		})
	}
}

func TestNothingElseIsOffered(t *testing.T) {
	p := placer(t, shop(), Config{DefaultInstanceType: "c.large"})
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"default":  {podOf(), "c.large/a c.large/b"},
		"exact":    {annotated(podOf("cpu=1"), AnnotationInstanceType, "m.large"), "m.large/a m.large/b m.large/c"},
		"pattern":  {annotated(podOf("cpu=4"), AnnotationInstanceType, "*.*large"), "g.xlarge/b g.8xlarge/b"},
		"affinity": {requiring(podOf("cpu=1"), term(expr(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "c"))), "m.large/c"},
	} {
		got, err := p.Offerings(c.pod, nil)
		if err != nil || names(got) != c.want {
			t.Errorf("%s: candidates %s, %v, want %s", name, names(got), err, c.want)
		}
	}
}

func TestReasonsSayRankCapacityAndCredits(t *testing.T) {
	p := placer(t, shop(), Config{DefaultArch: "amd64"})
	got, err := p.Offerings(podOf("cpu=500m", "memory=6Gi"), func(o offering.Key) bool {
		return o.InstanceType == "m.large" &&
			o.Zone == "a"
	})
	if err != nil {
		t.Fatal(err)
	}
	of := " of 5 types that fit cpu 500m, memory 6Gi"
	for i, want := range []struct{ candidate, reason string }{
		{"t.large/a", "cheapest" + of + "; with $0.0050 an hour for CPU above its baseline"},
		{"t.large/b", "cheapest" + of + "; with $0.0050 an hour for CPU above its baseline"},
		{"m.large/b", "2nd cheapest with capacity now" + of},
		{"m.large/c", "2nd cheapest with capacity now" + of},
		{"d.large/a", "3rd cheapest with capacity now" + of},
	} {
		if s := names(got[i : i+1]); s != want.candidate || got[i].Reason != want.reason {
			t.Errorf("candidate %d is %s, %q\nwant %s, %q", i, s, got[i].Reason, want.candidate, want.reason)
		}
	}
	if d := got[0].CostPerHour() - 0.095; math.Abs(d) > 1e-9 {
		t.Errorf("cost %v, want the price 0.09 and 0.1 CPU of credits at 0.05", got[0].CostPerHour())
	}
}

func TestUnplaceable(t *testing.T) {
	local := Config{DefaultInstanceType: "nano", ReservedMemoryBytes: 64 << 20}
	shopping := Config{DefaultArch: "amd64", DefaultDiskBytes: 5 * gib}
	localTypes := sizes.Types("amd64")
	for _, c := range []struct {
		name   string
		types  []catalog.InstanceType
		config Config
		pod    *corev1.Pod
		want   string
	}{
		{"too much cpu", localTypes, local, podOf("cpu=64", "memory=1Gi"),
			"needs cpu 64, memory 1Gi (+64Mi for the cell): 7 types considered: 7 have too little cpu (largest: 2xlarge with 8)"},
		{"the cell's own need is what is too much", localTypes, local, podOf("cpu=1500m", "memory=16Gi"),
			"needs cpu 1500m, memory 16Gi (+64Mi for the cell): 7 types considered: 4 have too little cpu (largest: medium with 1), 3 have too little memory (largest: 2xlarge with 16Gi)"},
		{"no round number", localTypes, local, podOf("memory=300G"),
			"needs memory 279.4Gi (+64Mi for the cell): 7 types considered: 7 have too little memory (largest: 2xlarge with 16Gi)"},
		{"GPU where none is", localTypes, Config{}, podOf("nvidia.com/gpu=1"),
			"needs nvidia.com/gpu 1: 7 types considered: 7 have too few GPUs"},
		{"huge pages", localTypes, Config{SharedKernel: true}, podOf("hugepages-2Mi=4Mi"),
			"needs hugepages-2Mi 4Mi: 7 types considered: 7 have no hugepages-2Mi " +
				"(machines share the kernel of their host)"},
		{"huge pages, and a type", localTypes, Config{SharedKernel: true}, annotated(podOf("hugepages-2Mi=4Mi"),
			AnnotationInstanceType, "large"),
			"needs hugepages-2Mi 4Mi: 1 type considered: 1 has no hugepages-2Mi (machines share the kernel of their host)"},
		{"huge pages of no kernel", localTypes, local, podOf("memory=1Gi", "hugepages-3Mi=6Mi", "hugepages-2Mi=2Mi"),
			"needs memory 1Gi (+64Mi for the cell), hugepages-2Mi 2Mi, hugepages-3Mi: 7 types considered: 7 have no hugepages-3Mi " +
				"(no running kernel reserves pages of this size)"},
		{"huge pages of another architecture", localTypes, local, podOf("hugepages-32Mi=64Mi"),
			"needs memory 0 (+64Mi for the cell), hugepages-32Mi 64Mi: 7 types considered: 7 have no hugepages-32Mi (amd64)"},
		{"more huge pages than memory", localTypes, local, podOf("memory=1Gi", "hugepages-2Mi=15Gi"),
			"needs memory 1Gi (+64Mi for the cell), hugepages-2Mi 15Gi: 7 types considered: 7 have too little memory " +
				"(largest: 2xlarge with 16Gi)"},
		{"more huge pages than a named type's memory", localTypes, local, annotated(podOf("hugepages-2Mi=4Gi"),
			AnnotationInstanceType, "large"),
			"needs memory 0 (+64Mi for the cell), hugepages-2Mi 4Gi: 1 type considered: 1 has too little memory (largest: large with 4Gi)"},
		{"a page of 1Gi", localTypes, local, podOf("hugepages-1Gi=1Gi"),
			"needs memory 0 (+64Mi for the cell), hugepages-1Gi: 7 types considered: 7 have no hugepages-1Gi " +
				"(no running kernel reserves pages of this size)"},
		{"more huge pages than can be counted", localTypes, Config{}, podOf("memory=1Gi", "hugepages-2Mi=9223372036854775807"),
			"needs memory 1Gi, hugepages-2Mi 8589934592.0Gi: 7 types considered: 7 have too little memory (largest: 2xlarge with 16Gi)"},
		{"fixed disks", localTypes, Config{}, podOf("ephemeral-storage=1Ti"),
			"needs ephemeral-storage 1Ti: 7 types considered: 7 have too small a disk (largest: 2xlarge with 128Gi)"},
		{"a disk larger than a named type's", localTypes, local, annotated(podOf(), AnnotationInstanceType, "nano", AnnotationVolumeSize,
			"100Gi"),
			"needs memory 0 (+64Mi for the cell), a disk of 100Gi: 1 type considered: 1 has too small a disk (largest: nano with 4Gi)"},
		{"more swap than a named type's disk has room for", localTypes, local, annotated(podOf(), AnnotationInstanceType, "nano", AnnotationSwap,
			"4Gi"),
			"needs memory 0 (+64Mi for the cell), swap 4Gi: 1 type considered: 1 has too small a disk (largest: nano with 4Gi)"},
		{"architecture", localTypes, local, selecting(podOf("cpu=1"), corev1.LabelArchStable, "arm64"),
			"needs cpu 1, memory 0 (+64Mi for the cell): 7 types considered: 7 have an architecture that the pod cannot run on (amd64)"},
		{"default type of another architecture", localTypes, local, selecting(podOf(), corev1.LabelArchStable, "arm64"),
			"needs memory 0 (+64Mi for the cell): 1 type considered: 1 has an architecture that the pod cannot run on (amd64)"},
		{"zone", localTypes, local, selecting(podOf("cpu=1"), corev1.LabelTopologyZone, "us-east-1a"),
			"needs cpu 1, memory 0 (+64Mi for the cell): 7 types considered: 7 have no offering in a zone where the pod may run (offered in local)"},
		{"no spot", localTypes, local, annotated(podOf("cpu=1"), AnnotationLaunchType, "spot"),
			"needs cpu 1, memory 0 (+64Mi for the cell): 7 types considered: 7 are not offered as spot"},
		{"no dedicated instances", localTypes, local, annotated(podOf(), AnnotationLaunchType, "dedicated"),
			"needs memory 0 (+64Mi for the cell): 1 type considered: 1 is not offered as dedicated instances"},
		{"an empty catalogue", nil, Config{}, podOf("cpu=1"), "needs cpu 1: 0 types considered: the cloud offers none"},
		{"pattern", localTypes, local, annotated(podOf("cpu=2"), AnnotationInstanceType, "n*"),
			"needs cpu 2, memory 0 (+64Mi for the cell): 1 type considered: 1 has too little cpu (largest: nano with 250m)"},
		{"each for its own reason", shop(), shopping, selecting(podOf("cpu=2", "memory=6Gi", "ephemeral-storage=70Ti"),
			corev1.LabelTopologyZone, "b"),
			"needs cpu 2, memory 6Gi, ephemeral-storage 70Ti: 7 types considered: 1 has an architecture that the pod cannot run on (arm64), " +
				"1 has no offering in a zone where the pod may run (offered in a), 1 has too little memory (largest: c.large with 4Gi), " +
				"4 have too small a disk (largest: g.8xlarge with 64Ti)"},
		{"more than can be counted", localTypes, Config{}, &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			container(resources("cpu=9223372036854775807", "memory=9223372036854775807"), nil),
			container(resources("cpu=9223372036854775807", "memory=9223372036854775807"), nil)}}},
			"needs cpu 9223372036854775807m, memory 8589934592.0Gi: 7 types considered: 7 have too little cpu (largest: 2xlarge with 8)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := placer(t, c.types, c.config).Offerings(c.pod, nil)
			var u *UnplaceableError
			if !errors.As(err, &u) {
				t.Fatalf("candidates %s, error %v, want an UnplaceableError", names(got), err)
			}
			if u.Error() != c.want {
				t.Errorf("got  %s\nwant %s", u, c.want)
			}
		})
	}
}

func TestNoCapacityIsToldApartFromUnplaceable(t *testing.T) {
	p := placer(t, sizes.Types("amd64"), Config{})
	none := func(offering.Key) bool { return true }
	_, err := p.Offerings(podOf("cpu=2"), none)
	var n *NoCapacityError
	if !errors.As(err, &n) {
		t.Fatalf("error %v, want a NoCapacityError", err)
	}
	if want := "no capacity now for any of the 3 types that fit cpu 2: large, xlarge, 2xlarge"; n.Error() != want {
		t.Errorf("got  %s\nwant %s", n, want)
	}
	if _, err := p.Offerings(podOf("cpu=1m"), none); err == nil ||
		!strings.HasSuffix(err.Error(), ": nano, micro, small, medium, large and 2 more") {
		t.Errorf("error %v, want the first five names", err)
	}
	_, err = p.Offerings(annotated(podOf("cpu=2"), AnnotationInstanceType, "large"), none)
	if want := "no capacity now for large, the only type that may be chosen for cpu 2"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var u *UnplaceableError
	if _, err := p.Offerings(podOf("cpu=64"), none); !errors.As(err, &u) {
		t.Errorf("error %v, want an UnplaceableError: nothing fits, whatever the capacity", err)
	}
}

func TestUnavailableOfferingsAreLeftOut(t *testing.T) {
	p := placer(t, shop(), Config{DefaultArch: "amd64"})
	got, err := p.Offerings(podOf("cpu=1", "memory=6Gi"), func(o offering.Key) bool {
		if o.Spot {
			t.Errorf("asked for %+v, which the pod does not want", o)
		}
		return o.InstanceType == "t.large" || o.Zone == "a"
	})
	if err != nil || names(got) != "m.large/b m.large/c g.xlarge/b g.8xlarge/b" {
		t.Errorf("candidates %s, %v", names(got), err)
	}
}

// spotShop is a shop with more spot offerings, in other zones than on demand.
func spotShop() []catalog.InstanceType {
	types := shop()
	for i, t := range types {
		switch t.Name {
		case "m.large", "d.large":
			types[i].Offerings = append(t.Offerings, catalog.PurchaseOption{Zone: "b", Spot: true, PricePerHour: 0.04})
		case "g.xlarge":
			types[i].Offerings = []catalog.PurchaseOption{{Zone: "c", Spot: true, PricePerHour: 0.2}}
		}
	}
	return types
}

func TestAPodFallsBackInItsOrderOfPreference(t *testing.T) {
	p := placer(t, spotShop(), Config{DefaultArch: "amd64", DefaultInstanceType: "t.large"})
	spotIsOut := func(o offering.Key) bool { return o.Spot }
	for _, c := range []struct {
		name, launchType string
		pod              *corev1.Pod
		unavailable      func(offering.Key) bool
		want             string
		reasons          []string // of the first of each launch type
	}{
		{"spot first, each in order of price", "spot,on-demand", podOf("memory=6Gi"), nil,
			"d.large/b/spot m.large/b/spot g.xlarge/c/spot t.large/a t.large/b m.large/a m.large/b m.large/c d.large/a g.8xlarge/b",
			[]string{"cheapest of 3 types offered as spot that fit memory 6Gi",
				"on demand, the fall-back from spot: cheapest of 4 types that fit memory 6Gi"}},
		{"spot is out", "spot,on-demand", podOf("memory=6Gi"), spotIsOut,
			"t.large/a t.large/b m.large/a m.large/b m.large/c d.large/a g.8xlarge/b",
			[]string{"on demand, the fall-back from spot: cheapest of 4 types that fit memory 6Gi"}},
		{"no type that fits is offered as spot", "spot,on-demand", podOf("memory=30Gi"), nil,
			"g.8xlarge/b", []string{"on demand, the fall-back from spot: cheapest of 1 type that fits memory 30Gi"}},
		{"no fall-back is needed", "spot,on-demand", podOf("memory=12Gi", "cpu=4"), func(o offering.Key) bool { return !o.Spot },
			"g.xlarge/c/spot", []string{"cheapest of 1 type offered as spot that fits cpu 4, memory 12Gi"}},
		{"the other way about", "on-demand,spot", podOf("memory=12Gi"), nil,
			"g.8xlarge/b g.xlarge/c/spot", []string{"cheapest of 1 type that fits memory 12Gi",
				"as spot, the fall-back from on-demand: cheapest of 1 type offered as spot that fits memory 12Gi"}},
		{"what nobody sells is passed over", "dedicated, spot, on-demand", podOf("memory=12Gi"), nil,
			"g.xlarge/c/spot g.8xlarge/b",
			[]string{"as spot, the fall-back from dedicated: cheapest of 1 type offered as spot that fits memory 12Gi",
				"on demand, the fall-back from dedicated or spot: cheapest of 1 type that fits memory 12Gi"}},
		{"a named type", "spot,on-demand", annotated(podOf("cpu=1"), AnnotationInstanceType, "c.large"), nil,
			"c.large/a/spot c.large/a c.large/b", []string{"named by pod.elotl.co/instance-type",
				"on demand, the fall-back from spot: named by pod.elotl.co/instance-type"}},
		{"the zone counts for both", "spot,on-demand", selecting(podOf("memory=6Gi"), corev1.LabelTopologyZone, "c"), nil,
			"g.xlarge/c/spot m.large/c", nil},
		{"none is asked for where the pod does not say", "", podOf("memory=30Gi"), nil, "g.8xlarge/b",
			[]string{"cheapest of 1 type that fits memory 30Gi"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.launchType != "" {
				name := c.pod.Annotations[AnnotationInstanceType]
				annotated(c.pod, AnnotationLaunchType, c.launchType)
				if name != "" {
					c.pod.Annotations[AnnotationInstanceType] = name
				}
			}
			got, err := p.Offerings(c.pod, c.unavailable)
			if err != nil || names(got) != c.want {
				t.Fatalf("candidates %s, %v\nwant      %s", names(got), err, c.want)
			}
			for i, next := range got {
				if len(c.reasons) > 0 && (i == 0 || next.Spot != got[i-1].Spot) {
					if next.Reason != c.reasons[0] {
						t.Errorf("candidate %d: reason %q\nwant %q", i, next.Reason, c.reasons[0])
					}
					c.reasons = c.reasons[1:]
				}
			}
			if len(c.reasons) > 0 {
				t.Errorf("nothing for the reasons %q", c.reasons)
			}
		})
	}
}

func TestErrorsSayEachLaunchTypeThatWasTried(t *testing.T) {
	p := placer(t, spotShop(), Config{DefaultArch: "amd64"})
	none := func(offering.Key) bool { return true }
	for _, c := range []struct {
		launchType string
		pod        *corev1.Pod
		want       string
	}{
		{"spot,on-demand", podOf("memory=6Gi"),
			"no capacity now as spot or on demand for any of the 5 types that fit memory 6Gi: d.large, m.large, g.xlarge, t.large, g.8xlarge"},
		{"spot", podOf("memory=6Gi"), "no capacity now as spot for any of the 3 types that fit memory 6Gi: d.large, m.large, g.xlarge"},
		{"spot,dedicated", podOf("memory=30Gi"),
			"needs memory 30Gi: 7 types considered: 3 are not offered as spot or as dedicated instances, 4 have too little memory (largest: g.xlarge with 16Gi)"},
		{"spot,on-demand", podOf("memory=300Gi"),
			"needs memory 300Gi: 7 types considered: 1 has an architecture that the pod cannot run on (arm64), 6 have too little memory (largest: g.8xlarge with 128Gi)"},
		{"spot", selecting(podOf("cpu=1"), corev1.LabelTopologyZone, "d"),
			"needs cpu 1: 7 types considered: 3 are not offered as spot, 4 have no offering in a zone where the pod may run (offered in a, b, c)"},
	} {
		_, err := p.Offerings(annotated(c.pod, AnnotationLaunchType, c.launchType), none)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v\nwant %s", c.launchType, err, c.want)
		}
	}
}

func TestATypeThatIsNotSoldToTheAccountSaysWhy(t *testing.T) {
	const plan = "the Free plan has only m.large"
	types := shop()
	for i := range types {
		if types[i].Name != "m.large" {
			types[i].Offerings, types[i].Withheld = nil, plan
		}
	}
	p := placer(t, types, Config{DefaultArch: "amd64", DefaultInstanceType: "t.large"})
	if got, err := p.Offerings(podOf("cpu=1"), nil); err != nil || len(got) == 0 || got[0].InstanceType != "m.large" {
		t.Errorf("what is sold: %v, %v", got, err)
	}
	for want, pod := range map[string]*corev1.Pod{
		"7 types considered: 6 are not sold to this account (" + plan + "), 1 has too little memory (largest: m.large with 8Gi)": podOf("memory=64Gi"),
		"1 type considered: 1 is not sold to this account (" + plan + ")":                                                        podOf(), // the default
	} {
		if _, err := p.Offerings(pod, nil); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v\nwant …%s", err, want)
		}
	}
}

func TestAFallbackIsAmongTheOfferingsHoweverManyComeBefore(t *testing.T) {
	var types []catalog.InstanceType
	for i := range 40 {
		types = append(types, catalog.InstanceType{Name: fmt.Sprintf("t%02d", i), MilliCPU: 1000, MemoryBytes: gib, Arch: "amd64",
			Offerings: []catalog.PurchaseOption{
				{Zone: "a", PricePerHour: float64(i)}, {Zone: "a", Spot: true, PricePerHour: float64(i) / 2},
			}})
	}
	got, err := placer(t, types, Config{}).Offerings(annotated(podOf("cpu=1"), AnnotationLaunchType, "spot,on-demand"), nil)
	if err != nil || len(got) != MaxOfferings {
		t.Fatalf("%d candidates, %v, want %d", len(got), err, MaxOfferings)
	}
	for i, c := range got {
		rank, spot := i, true
		if at := MaxOfferings - fallbackCandidates; i >= at {
			rank, spot = i-at, false
		}
		if want := types[rank].Name; c.InstanceType != want || c.Spot != spot {
			t.Errorf("candidate %d is %s, want %s, spot %t", i, names(got[i:i+1]), want, spot)
		}
	}
	if want := "15th cheapest of 40 types offered as spot that fit cpu 1"; got[14].Reason != want {
		t.Errorf("reason %q, want %q", got[14].Reason, want)
	}
}

func TestEachSubnetIsAnOffering(t *testing.T) {
	p := placer(t, []catalog.InstanceType{{Name: "x", MilliCPU: 1000, MemoryBytes: gib, Offerings: []catalog.PurchaseOption{
		{Zone: "b", Subnet: "s3", PricePerHour: 1}, {Zone: "a", Subnet: "s2", PricePerHour: 1}, {Zone: "a", Subnet: "s1", PricePerHour: 1},
		{Zone: "a", Subnet: "s1", Spot: true, PricePerHour: 0.5},
	}}}, Config{})
	var asked []offering.Key
	got, err := p.Offerings(annotated(podOf("cpu=1"), AnnotationLaunchType, "spot,on-demand"), func(o offering.Key) bool {
		asked = append(asked, o)
		return o.Subnet == "s1" && !o.Spot
	})
	if want := "x/a/s1/spot x/a/s2 x/b/s3"; err != nil || names(got) != want {
		t.Errorf("candidates %s, %v, want %s", names(got), err, want)
	}
	want := []offering.Key{{Zone: "a", Subnet: "s1", Spot: true}, {Zone: "a", Subnet: "s1"}, {Zone: "a", Subnet: "s2"},
		{Zone: "b", Subnet: "s3"}}
	for n := range want {
		want[n].InstanceType, want[n].MilliCPU = "x", 1000
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked about %+v\nwant %+v", asked, want)
	}
}

func TestTiesGoToTheSmallerThenByNameThenByZone(t *testing.T) {
	same := []catalog.PurchaseOption{{Zone: "b", PricePerHour: 1}, {Zone: "a", PricePerHour: 1}}
	p := placer(t, []catalog.InstanceType{
		{Name: "z", MilliCPU: 1000, MemoryBytes: gib, Offerings: same},
		{Name: "y", MilliCPU: 1000, MemoryBytes: gib, Offerings: same},
		{Name: "more-memory", MilliCPU: 1000, MemoryBytes: 2 * gib, Offerings: same},
		{Name: "more-cpu", MilliCPU: 2000, MemoryBytes: gib, Offerings: same},
	}, Config{})
	got, err := p.Offerings(podOf("cpu=1"), nil)
	if want := "y/a y/b z/a z/b more-memory/a more-memory/b more-cpu/a more-cpu/b"; err != nil || names(got) != want {
		t.Errorf("candidates %s, %v, want %s", names(got), err, want)
	}
}

func TestUnknownInstanceTypeSaysWhatWasMeant(t *testing.T) {
	p := placer(t, sizes.Types("amd64"), Config{})
	for value, want := range map[string]string{
		"2xlrage":     `annotation pod.elotl.co/instance-type: "2xlrage" is not valid: want a type of this cloud; did you mean 2xlarge?`,
		"c5.18xlarge": `annotation pod.elotl.co/instance-type: "c5.18xlarge" is not valid: want a type of this cloud`,
		"t3.*":        `annotation pod.elotl.co/instance-type: "t3.*" is not valid: want a pattern that the name of a type of this cloud matches`,
	} {
		_, err := p.Offerings(annotated(podOf("cpu=1"), AnnotationInstanceType, value), nil)
		var invalid *InvalidAnnotationError
		if !errors.As(err, &invalid) || err.Error() != want {
			t.Errorf("%s: got %v\nwant %s", value, err, want)
		}
	}
}

func TestNewRefusesAnImpossibleCatalogueOrDefault(t *testing.T) {
	priced := func(p float64) []catalog.InstanceType {
		return []catalog.InstanceType{{Name: "x", Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: p}}}}
	}
	for name, c := range map[string]struct {
		types  []catalog.InstanceType
		config Config
		want   string
	}{
		"unknown default": {sizes.Types("amd64"), Config{DefaultInstanceType: "nanno"},
			`default instance type: this cloud has no type "nanno"; did you mean nano?`},
		"the same twice":   {append(sizes.Types("amd64"), sizes.Types("amd64")[3]), Config{}, "instance type medium is there twice"},
		"negative price":   {priced(-1), Config{}, "instance type x costs -1 an hour in zone a"},
		"no number":        {priced(math.NaN()), Config{}, "costs NaN an hour"},
		"infinitely dear":  {priced(math.Inf(1)), Config{}, "costs +Inf an hour"},
		"default not sold": {nil, Config{DefaultInstanceType: "x"}, `no type "x"`},
	} {
		if _, err := New(c.types, c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want …%s…", name, err, c.want)
		}
	}
	if _, err := New(priced(0), Config{}); err != nil {
		t.Errorf("a type that costs nothing (one's own hardware) is refused: %v", err)
	}
}

func TestTheCatalogueAndThePodAreNotChanged(t *testing.T) {
	types := shop()
	before := fmt.Sprintf("%+v", types)
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{container(resources("cpu=1"), resources("cpu=2"))},
		Resources:  &corev1.ResourceRequirements{Requests: resources("memory=1Gi"), Limits: resources("memory=2Gi")},
	}}
	podBefore := pod.DeepCopy()
	if _, err := placer(t, types, Config{}).Offerings(pod, nil); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprintf("%+v", types) != before {
		t.Error("the catalogue was changed")
	}
	if fmt.Sprintf("%+v", pod) != fmt.Sprintf("%+v", podBefore) {
		t.Error("the pod was changed")
	}
}

func TestAPreferredTypeIsChosenThoughItIsABitDearer(t *testing.T) {
	for _, c := range []struct {
		prefer float64
		want   string
	}{{0, "c5.large"}, {0.05, "c5.large"}, {0.15, "m5.large"}} {
		types := []catalog.InstanceType{
			{Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 * gib, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 1}}},
			{Name: "m5.large", MilliCPU: 2000, MemoryBytes: 8 * gib, Arch: "amd64", Prefer: c.prefer,
				Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 1.1}}},
		}
		got, err := placer(t, types, Config{}).Offerings(podOf("cpu=1"), nil)
		if err != nil || got[0].InstanceType != c.want {
			t.Fatalf("preferred by %v: %s, %v, want %s first", c.prefer, names(got), err, c.want)
		}
		if c.prefer == 0.15 && got[0].PricePerHour != 1.1 {
			t.Errorf("its price is %v", got[0].PricePerHour)
		}
	}
}
