package oddpods

import (
	"os"
	"reflect"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

// first is the first seed: FUZZ_SEED, or 1.
func first(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("FUZZ_SEED")
	if text == "" {
		return 1
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("FUZZ_SEED=%s: %v", text, err)
	}
	return seed
}

func TestASeedMakesOnePod(t *testing.T) {
	for seed := first(t); seed < first(t)+200; seed++ {
		if a, b := Any(seed), Any(seed); !apiequality.Semantic.DeepEqual(a, b) {
			t.Errorf("FUZZ_SEED=%d: two different pods", seed)
		}
		if a, b := Posted(seed, "ns", "p", "kip-0"), Posted(seed, "ns", "p", "kip-0"); !apiequality.Semantic.DeepEqual(a, b) {
			t.Errorf("FUZZ_SEED=%d: two different pods", seed)
		}
	}
}

// TestEveryFieldIsChanged keeps a field of the API from being forgotten, among
// them those that a new release adds.
func TestEveryFieldIsChanged(t *testing.T) {
	want := map[string]bool{}
	for _, typ := range []reflect.Type{reflect.TypeFor[corev1.PodSpec](), reflect.TypeFor[corev1.Container](),
		reflect.TypeFor[corev1.VolumeSource](), reflect.TypeFor[corev1.PodSecurityContext]()} {
		for i := range typ.NumField() {
			want[typ.Name()+"."+typ.Field(i).Name] = true
		}
	}
	for _, name := range kept {
		delete(want, "PodSpec."+name)
	}
	seen := func(v reflect.Value) {
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				delete(want, v.Type().Name()+"."+v.Type().Field(i).Name)
			}
		}
	}
	for seed := uint64(1); seed < 5000 && len(want) > 0; seed++ {
		spec := Posted(seed, "ns", "p", "kip-0").Spec
		seen(reflect.ValueOf(spec))
		for _, c := range spec.Containers {
			seen(reflect.ValueOf(c))
		}
		for _, v := range spec.Volumes {
			seen(reflect.ValueOf(v.VolumeSource))
		}
		if spec.SecurityContext != nil {
			seen(reflect.ValueOf(*spec.SecurityContext))
		}
	}
	for name := range want {
		t.Errorf("%s is never changed", name)
	}
}

// TestPlacementAnswersForAnyPod has no pod make placement panic, hang, or answer
// nothing.
func TestPlacementAnswersForAnyPod(t *testing.T) {
	placer, err := placement.New(sizes.Types("amd64"), placement.Config{DefaultInstanceType: "nano", DefaultArch: "amd64",
		ReservedMemoryBytes: 64 << 20, DefaultDiskBytes: 4 << 30})
	if err != nil {
		t.Fatal(err)
	}
	placed, refused := 0, 0
	for seed := first(t); seed < first(t)+500; seed++ {
		for kind, pod := range map[string]*corev1.Pod{"any": Any(seed), "posted": Posted(seed, "ns", "p", "kip-0")} {
			before := pod.DeepCopy()
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Fatalf("FUZZ_SEED=%d (%s): %v\n%+v", seed, kind, p, pod.Spec)
					}
				}()
				candidates, err := placer.Offerings(pod, func(offering.Key) bool { return false })
				switch {
				case err == nil && len(candidates) == 0:
					t.Errorf("FUZZ_SEED=%d (%s): no candidate and no reason", seed, kind)
				case err != nil && err.Error() == "":
					t.Errorf("FUZZ_SEED=%d (%s): an error that says nothing", seed, kind)
				case err != nil:
					refused++
				default:
					placed++
				}
				for _, c := range candidates {
					if c.Reason == "" {
						t.Errorf("FUZZ_SEED=%d (%s): %+v has no reason", seed, kind, c)
					}
				}
			}()
			if !apiequality.Semantic.DeepEqual(before, pod) {
				t.Errorf("FUZZ_SEED=%d (%s): placement has changed the pod", seed, kind)
			}
		}
	}
	if placed == 0 || refused == 0 {
		t.Errorf("%d placed, %d refused: the pods are all alike", placed, refused)
	}
}
