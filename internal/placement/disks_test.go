package placement

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/catalog"
)

func TestAPodsDisksFitItsMachine(t *testing.T) {
	var types []catalog.InstanceType
	for i, most := range []int64{1, 3, 0} { // 0 is not bounded
		types = append(types, catalog.InstanceType{
			Name:        []string{"one", "three", "any"}[i],
			MilliCPU:    1000,
			MemoryBytes: 4 * gib,
			MaxDisks:    most,
			Arch:        "amd64",
			Offerings:   []catalog.PurchaseOption{{Zone: "a", PricePerHour: float64(i + 1)}},
		})
	}
	p := placer(t, types, Config{})
	bounded := placer(t, types[:2], Config{})
	small := podOf("cpu=500m")
	for _, c := range []struct {
		disks int
		want  string
	}{{0, "one three any"}, {1, "one three any"}, {2, "three any"}, {4, "any"}} {
		for _, pod := range []*corev1.Pod{podOf(), small} {
			got, err := p.Offerings(WithDisks(pod, c.disks), nil)
			var names []string
			for _, g := range got {
				names = append(names, g.InstanceType)
			}
			if err != nil || strings.Join(names, " ") != c.want {
				t.Errorf("%d disks: %v, %v: want %s", c.disks, names, err, c.want)
			}
		}
	}
	named := annotated(podOf(), AnnotationInstanceType, "one")
	for _, from := range []*Placer{bounded, p} {
		if got, err := from.Offerings(WithDisks(named, 2), nil); err == nil {
			t.Errorf("a type that was named and takes one disk: %v", got)
		}
	}
	var none *UnplaceableError
	if _, err := bounded.Offerings(WithDisks(small, 4), nil); !errors.As(err, &none) ||
		!strings.Contains(err.Error(), "2 have room for fewer than the 4 disks of the pod's volumes (largest: three with 3)") {
		t.Errorf("more than any takes: %v", err)
	}
	if small.Spec.Overhead != nil {
		t.Error("the pod was changed")
	}
}

// Disks are made in whole GiB. One for 8Gi of storage has some 9Gi: see diskFor.
func TestTheRootDiskHasRoomForTheSwapBesides(t *testing.T) {
	types := []catalog.InstanceType{{
		Name: "any", MilliCPU: 1000, MemoryBytes: 4 * gib, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 1}},
	}}
	p := placer(t, types, Config{DefaultDiskBytes: 5 * gib})
	for _, c := range []struct {
		storage, volume, swap string
		want                  int64 // GiB
	}{
		{"", "", "", 5},
		{"", "", "2Gi", 7},
		{"", "", "100Mi", 6},
		{"", "20Gi", "2Gi", 22},
		{"8Gi", "", "", 9},
		{"8Gi", "", "2Gi", 11},
		{"8Gi", "20Gi", "2Gi", 22},
		{"", "1Gi", "100Gi", 105},
	} {
		pod := podOf("cpu=500m")
		if c.storage != "" {
			pod = podOf("cpu=500m", "ephemeral-storage="+c.storage)
		}
		var asked []string
		for name, value := range map[string]string{AnnotationVolumeSize: c.volume, AnnotationSwap: c.swap} {
			if value != "" {
				asked = append(asked, name, value)
			}
		}
		got, err := p.Offerings(annotated(pod, asked...), nil)
		if err != nil || got[0].DiskBytes != c.want*gib {
			t.Errorf("%+v: %+v, %v, want a disk of %d GiB", c, got, err, c.want)
		}
	}
	if got, err := p.Offerings(annotated(podOf("cpu=500m"), AnnotationVolumeSize, "64Ti", AnnotationSwap, "1Gi"), nil); err == nil {
		t.Errorf("a disk that is larger than clouds make: %+v", got)
	}
}
