package kip

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/store"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

func TestAReplicaThatStandsByKnowsTheMachinesOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, own := t.Context(), store.Memory(nil)
		k := &process{clock: clock.RealClock{}, cfg: &config.Config{Cells: config.Cells{ReservedMemory: resource.MustParse("64Mi")}},
			role: &role{}}
		m := &machines{process: k, own: own}
		put := func(id string, pod types.UID, phase apiv1.Phase, room catalog.Resources) {
			t.Helper()
			if _, err := own.Put(ctx, "cells/"+id, cells.Cell{
				ID: id, Pod: apiv1.PodReference{UID: pod}, Phase: phase, Measured: room,
				Offerings: []offering.Offering{{InstanceType: "nano", MilliCPU: 250, MemoryBytes: 256 << 20}},
			}, 0); err != nil {
				t.Fatal(err)
			}
		}
		is := func(when string, pod types.UID, want admission.Machine, known bool) {
			t.Helper()
			if got, has, err := m.Of(ctx, pod); err != nil || has != known || has && got != want {
				t.Errorf("%s: pod %s has %+v, %t, %v; want %+v, %t", when, pod, got, has, err, want, known)
			}
		}
		nano := admission.Machine{Type: "nano", MilliCPU: 250, MemoryBytes: 192 << 20}
		put("a", "promised", apiv1.Bound, catalog.Resources{})
		put("b", "measured", apiv1.Bound, catalog.Resources{MilliCPU: 240, MemoryBytes: 164 << 20})
		put("c", "booting", apiv1.Booting, catalog.Resources{})
		put("d", "", apiv1.Ready, catalog.Resources{})
		is("at first", "promised", nano, true)
		is("at first", "measured", admission.Machine{Type: "nano", MilliCPU: 240, MemoryBytes: 100 << 20}, true)
		for _, pod := range []types.UID{"booting", "another's", ""} {
			is("at first", pod, admission.Machine{}, false)
		}
		put("e", "later", apiv1.Bound, catalog.Resources{})
		is("as it was read a moment ago", "later", admission.Machine{}, false)
		time.Sleep(machinesAge)
		is("read again", "later", nano, true)
	})
}

// A replica asks a store that fails once in machinesAge, however often it is asked itself.
func TestAStoreThatFailsIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, broken := 0, error(nil)
		own := store.MemoryWith(nil, func(string) error {
			reads++
			return broken
		})
		k := &process{clock: clock.RealClock{}, cfg: &config.Config{Cells: config.Cells{ReservedMemory: resource.MustParse("64Mi")}},
			role: &role{}}
		m := &machines{process: k, own: own}
		if _, err := own.Put(t.Context(), "cells/a", cells.Cell{ID: "a", Pod: apiv1.PodReference{UID: "pod"}, Phase: apiv1.Bound,
			Offerings: []offering.Offering{{InstanceType: "nano", MilliCPU: 250, MemoryBytes: 256 << 20}}}, 0); err != nil {
			t.Fatal(err)
		}
		is := func(when string, known, fails bool, want int) {
			t.Helper()
			_, has, err := m.Of(t.Context(), "pod")
			if has != known || fails != (err != nil) || !errors.Is(err, broken) && fails || reads != want {
				t.Errorf("%s: known %t, %v, after %d reads; want known %t, an error %t, after %d", when, has, err, reads, known, fails, want)
			}
		}
		is("at first", true, false, 1)
		time.Sleep(machinesAge)
		broken = errors.New("the store does not answer")
		is("when the store fails", false, true, 2)
		for range 10 {
			is("soon after", false, false, 2) // and what was read before may be wrong by now
		}
		time.Sleep(machinesAge)
		is("later", false, true, 3)
		broken = nil
		time.Sleep(machinesAge)
		is("when the store answers", true, false, 4)
	})
}
