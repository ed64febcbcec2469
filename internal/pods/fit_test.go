package pods

import (
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A machine that had too little is believed once: the next is larger than what promises as
// much, and is taken as it is.
func TestAPodWhoseMachineWasTooSmallGetsALargerOneOnce(t *testing.T) {
	const gib = 1 << 30
	h := newHarness(t)
	h.restarted(func(c *Config) { c.MaxAttempts = 1 })
	h.place = func(p *corev1.Pod) ([]offering.Offering, error) {
		var fitting []offering.Offering
		for _, o := range []offering.Offering{
			{InstanceType: "small", MilliCPU: 2000, MemoryBytes: 8 * gib, Reason: "cheapest"},
			{InstanceType: "as-small", MilliCPU: 2000, MemoryBytes: 8 * gib, Reason: "second"},
			{InstanceType: "large", MilliCPU: 4000, MemoryBytes: 16 * gib, Reason: "third"},
		} {
			if placement.ResourcesOf(p).MemoryBytes <= o.MemoryBytes {
				fitting = append(fitting, o)
			}
		}
		return fitting, nil
	}
	h.put(pod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("7800Mi"),
		}
	}))
	for n, want := range []struct{ instanceType, reason string }{
		{"small", "cheapest"},
		{"large", "third; larger than before, since it was small"},
		{"large", "third; larger than before, since it was small"},
	} {
		h.must("a")
		cell, has := h.cells.ForPod("uid-a")
		if !has || cell.Offering().InstanceType != want.instanceType || cell.Offering().Reason != want.reason {
			t.Fatalf("cell %d is %+v (%t), want %+v", n, cell.Offering(), has, want)
		}
		r, err := h.c.Choose(h.Context(), pod("a", func(p *corev1.Pod) { p.Spec = h.placed.Spec }))
		if err != nil || r.Needs.None() != (n > 0) {
			t.Errorf("cell %d is to have %+v, %v", n, r.Needs, err)
		}
		cell.Phase, cell.Instance, cell.Cause, cell.Reason = apiv1.Gone, &cloud.Instance{ID: "i-1"}, cells.CauseTooSmall, "it was small"
		cell.Measured = catalog.Resources{MilliCPU: 2000, MemoryBytes: 7 * gib}
		if n > 0 {
			cell.Cause, cell.Reason = cells.CauseInterrupted, "gone"
		}
		h.cells.gone("uid-a")
		h.c.CellChanged(cell)
		h.clock.Step(time.Hour)
	}
	if all := strings.Join(h.events, " "); strings.Contains(all, "CellsNotReady") {
		t.Errorf("it counts as a failure of the pod: %s", all)
	}
}

// A machine that has what its type promises may have too few huge pages.
func TestAPodWhoseMachineHadTooFewHugePagesGetsALargerOne(t *testing.T) {
	const gib = 1 << 30
	h := newHarness(t)
	h.place = func(p *corev1.Pod) (fitting []offering.Offering, _ error) {
		for _, o := range []offering.Offering{
			{InstanceType: "small", MilliCPU: 2000, MemoryBytes: 8 * gib},
			{InstanceType: "as-small", MilliCPU: 2000, MemoryBytes: 8 * gib},
			{InstanceType: "large", MilliCPU: 2000, MemoryBytes: 9 * gib},
		} {
			if placement.ResourcesOf(p).MemoryBytes <= o.MemoryBytes {
				fitting = append(fitting, o)
			}
		}
		return fitting, nil
	}
	asks := pod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("1Gi"), "hugepages-2Mi": resource.MustParse("2Gi"),
		}
	})
	h.put(asks)
	h.must("a")
	r, err := h.c.Choose(t.Context(), asks)
	cell, has := h.cells.ForPod("uid-a")
	if err != nil || !has || cell.Offering().InstanceType != "small" || r.Needs.MemoryBytes != 3*gib || len(r.HugePages) != 1 {
		t.Fatalf("it has %+v (%t), of %+v, %v", cell.Offering(), has, r, err)
	}
	cell.Needs, cell.HugePages, cell.Measured = r.Needs, r.HugePages, catalog.Resources{MilliCPU: 2000, MemoryBytes: 8 * gib}
	cell.Phase, cell.Instance, cell.Cause, cell.Reason = apiv1.Gone, &cloud.Instance{ID: "i-1"}, cells.CauseTooSmall, "it found 3 of 4"
	h.cells.gone("uid-a")
	h.c.CellChanged(cell)
	h.clock.Step(time.Minute)
	h.must("a")
	r, err = h.c.Choose(t.Context(), asks)
	if cell, has = h.cells.ForPod("uid-a"); err != nil || !has || cell.Offering().InstanceType != "large" || !r.Needs.None() {
		t.Errorf("then it has %+v (%t), of %+v, %v", cell.Offering(), has, r, err)
	}
}

// A type that is named, and a pod that asks for nothing, take what there is.
func TestAPodThatNamesItsTypeTakesAnyRoom(t *testing.T) {
	asks := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	}
	named := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{placement.AnnotationInstanceType: name} }
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		none bool
	}{
		"asks":            {pod("a", asks), false},
		"asks for none":   {pod("a"), true},
		"names a type":    {pod("a", asks, named(" nano ")), true},
		"names a pattern": {pod("a", asks, named("n*")), false},
	} {
		r, err := newHarness(t).c.Choose(t.Context(), c.pod)
		if err != nil || r.Needs.None() != c.none {
			t.Errorf("%s: needs %+v, %v", name, r.Needs, err)
		}
	}
}

// One machine that has less is no reason to wait for ever where no type is larger.
func TestAPodWhoseMachineWasTooSmallIsPlacedAsBeforeWhereNothingIsLarger(t *testing.T) {
	const gib = 1 << 30
	h := newHarness(t)
	h.place = func(p *corev1.Pod) ([]offering.Offering, error) {
		if placement.ResourcesOf(p).MemoryBytes > 8*gib {
			return nil, &placement.UnplaceableError{Need: "more"}
		}
		return []offering.Offering{{InstanceType: "largest", MilliCPU: 2000, MemoryBytes: 8 * gib, Reason: "cheapest"}}, nil
	}
	h.put(pod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("7800Mi")}
	}))
	h.must("a")
	cell, _ := h.cells.ForPod("uid-a")
	cell.Phase, cell.Instance, cell.Cause, cell.Reason = apiv1.Gone, &cloud.Instance{ID: "i-1"}, cells.CauseTooSmall, "it was small"
	cell.Measured = catalog.Resources{MilliCPU: 2000, MemoryBytes: 7 * gib}
	h.cells.gone("uid-a")
	h.c.CellChanged(cell)
	h.clock.Step(time.Minute)
	h.must("a")
	cell, has := h.cells.ForPod("uid-a")
	if !has || cell.Offering().InstanceType != "largest" || cell.Offering().Reason != "cheapest" {
		t.Errorf("it has %+v (%t)", cell, has)
	}
	if r, err := h.c.Choose(h.Context(), pod("a", func(p *corev1.Pod) { p.Spec = h.placed.Spec })); err != nil || !r.Needs.None() {
		t.Errorf("its next cell is to have %+v, %v: it would be as small", r.Needs, err)
	}
}
