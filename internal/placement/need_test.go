package placement

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestNeed(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	const mi = 1 << 20
	sidecar := func(c corev1.Container) corev1.Container {
		c.RestartPolicy = &always
		return c
	}
	for _, c := range []struct {
		name string
		spec corev1.PodSpec
		want need
	}{
		{"nothing", corev1.PodSpec{Containers: []corev1.Container{{}}}, need{}},
		{"requests add up", corev1.PodSpec{Containers: []corev1.Container{
			container(resources("cpu=100m", "memory=1Mi"), nil), container(resources("cpu=200m", "memory=2Mi"), nil),
		}}, need{milliCPU: 300, memory: 3 * mi}},
		{"a limit counts where it is higher, each container for itself", corev1.PodSpec{Containers: []corev1.Container{
			container(resources("cpu=1"), nil), container(resources("cpu=100m"), resources("cpu=500m", "memory=8Mi")),
		}}, need{milliCPU: 1500, memory: 8 * mi}},
		{"a request counts where it is higher", corev1.PodSpec{Containers: []corev1.Container{
			container(resources("cpu=2"), resources("cpu=1")),
		}}, need{milliCPU: 2000}},
		{"init containers run one after the other, before the others", corev1.PodSpec{
			InitContainers: []corev1.Container{container(resources("cpu=3", "memory=1Mi"), nil), container(resources("cpu=1", "memory=2Mi"), nil)},
			Containers:     []corev1.Container{container(resources("cpu=1", "memory=3Mi"), nil)},
		}, need{milliCPU: 3000, memory: 3 * mi}},
		{"an init container's limit counts too", corev1.PodSpec{
			InitContainers: []corev1.Container{container(resources("cpu=1"), resources("cpu=4"))},
			Containers:     []corev1.Container{container(resources("cpu=1"), nil)},
		}, need{milliCPU: 4000}},
		{"sidecars run beside all that follows", corev1.PodSpec{
			InitContainers: []corev1.Container{
				container(resources("cpu=2"), nil),
				sidecar(container(resources("cpu=1", "memory=1Mi"), resources("memory=4Mi"))),
				container(resources("cpu=2"), nil),
			},
			Containers: []corev1.Container{container(resources("cpu=1"), nil)},
		}, need{milliCPU: 3000, memory: 4 * mi}},
		{"overhead", corev1.PodSpec{
			Overhead:   resources("cpu=250m", "memory=16Mi"),
			Containers: []corev1.Container{container(resources("cpu=1"), nil)},
		}, need{milliCPU: 1250, memory: 16 * mi}},
		{"pod-level limit bounds the containers", corev1.PodSpec{
			Resources: &corev1.ResourceRequirements{Requests: resources("cpu=1"), Limits: resources("cpu=2")},
			Containers: []corev1.Container{container(resources("cpu=500m"), resources("cpu=2")),
				container(resources("cpu=500m"), resources("cpu=2"))},
		}, need{milliCPU: 2000}},
		{"pod-level request without a limit does not", corev1.PodSpec{
			Resources:  &corev1.ResourceRequirements{Requests: resources("cpu=1", "memory=32Mi")},
			Containers: []corev1.Container{container(nil, resources("cpu=2", "memory=4Mi")), container(resources("cpu=1"), nil)},
		}, need{milliCPU: 3000, memory: 32 * mi}},
		{"what the pod level leaves out adds up over containers", corev1.PodSpec{
			Resources: &corev1.ResourceRequirements{Limits: resources("memory=64Mi")},
			Overhead:  resources("memory=1Mi"),
			Containers: []corev1.Container{container(resources("cpu=1", "nvidia.com/gpu=1"), nil),
				container(resources("cpu=1"), resources("nvidia.com/gpu=2"))},
		}, need{milliCPU: 2000, memory: 65 * mi, gpus: 3}},
		{"parts of a milli-CPU are rounded up", corev1.PodSpec{Containers: []corev1.Container{container(resources("cpu=100u"), nil)}},
			need{milliCPU: 1}},
		{"ephemeral storage", corev1.PodSpec{Containers: []corev1.Container{container(resources("ephemeral-storage=1Mi"),
			resources("ephemeral-storage=2Mi"))}}, need{disk: 2 * mi}},
		{"huge pages of size zero are none", corev1.PodSpec{Containers: []corev1.Container{container(resources("hugepages-2Mi=0"), nil)}},
			need{}},
		{"huge pages, a part of one counts as a whole", corev1.PodSpec{
			InitContainers: []corev1.Container{container(nil, resources("hugepages-2Mi=8Mi"))},
			Containers: []corev1.Container{container(resources("memory=1Mi"), resources("hugepages-2Mi=4Mi", "hugepages-32Mi=32Mi")),
				container(nil, resources("hugepages-2Mi=5Mi", "hugepages-3Mi=3Mi", "hugepages-1Mi=1Mi"))},
		}, need{memory: mi, pages: hugePages{1: 5, 2: 1}, otherPages: "hugepages-1Mi"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := needOf(&corev1.Pod{Spec: c.spec}); got != c.want {
				t.Errorf("need %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestBytesAreWrittenAsPeopleWriteThem(t *testing.T) {
	for b, want := range map[int64]string{
		0: "0", 12: "12", 1024: "1Ki", 1500: "1.5Ki", 256 << 20: "256Mi", 300_000_000: "286.1Mi", 3 << 30: "3Gi", 5_000_000_000: "4.7Gi",
	} {
		if got := bytesText(b); got != want {
			t.Errorf("bytesText(%d) = %q, want %q", b, got, want)
		}
	}
}

func TestWhatRunsBesideThePodCountsWithIt(t *testing.T) {
	const mi = 1 << 20
	extra := resources("cpu=10m", "memory=20Mi")
	small := &corev1.Pod{Spec: corev1.PodSpec{Overhead: resources("memory=1Mi"),
		Containers: []corev1.Container{container(resources("cpu=100m"), resources("memory=8Mi"))}}}
	before := small.DeepCopy()
	if got, want := needOf(With(small, extra)), (need{milliCPU: 110, memory: 29 * mi}); got != want {
		t.Errorf("needs %+v: want %+v", got, want)
	}
	if !small.Spec.Overhead.Memory().Equal(*before.Spec.Overhead.Memory()) || len(small.Spec.Overhead) != 1 {
		t.Errorf("the pod was changed: %v", small.Spec.Overhead)
	}
	nothing := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
	if got := needOf(With(nothing, extra)); !got.none() {
		t.Errorf("a pod that asks for nothing needs %+v: it is to get the default type", got)
	}
	if With(small, nil) != small {
		t.Error("a pod with nothing beside it is copied")
	}
}

func TestTextsAreThoseOfQuantities(t *testing.T) {
	for _, n := range []int64{
		0, 1, 999, 1000, 1001, 1023, 1024, 1500, 2048, 999_999, 1_000_000, 1 << 20, 3 << 20, 1<<20 + 1024, 5 << 30, 1 << 40, 1 << 50, 1 << 60,
		7 << 60, math.MaxInt64,
	} {
		if got, want := cpuText(n), resource.NewMilliQuantity(n, resource.DecimalSI).String(); got != want {
			t.Errorf("%d thousandths of a CPU are %q, want %q", n, got, want)
		}
		if got, want := binaryText(n), resource.NewQuantity(n, resource.BinarySI).String(); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}
