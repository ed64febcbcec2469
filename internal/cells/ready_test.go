package cells

import (
	"errors"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	corev1 "k8s.io/api/core/v1"
)

func TestAMachineIsReadyOrTooSmall(t *testing.T) {
	has := func(memory int64) catalog.Resources { return catalog.Resources{MilliCPU: 1000, MemoryBytes: memory} }
	start := time.Unix(1e9, 0) // of the machine
	for name, tc := range map[string]struct {
		room     catalog.Resources // as its record says
		node     *corev1.Node      // as its kubelet says
		needs    int64
		told     time.Time // of its boot
		fails    bool      // the store
		phase    apiv1.Phase
		want     catalog.Resources
		measured bool
		booted   bool
	}{
		"its pod takes what there is":     {node: machineWith("1", "700"), phase: apiv1.Ready, want: has(700), measured: true},
		"its pod fits beside the cell":    {node: machineWith("1", "1000"), needs: 900, phase: apiv1.Ready, want: has(1000), measured: true},
		"its pod does not":                {node: machineWith("1", "1000"), needs: 901, phase: apiv1.Terminating, want: has(1000), measured: true},
		"it says more than was promised":  {node: machineWith("9", "9Gi"), needs: 901, phase: apiv1.Terminating, want: has(1000), measured: true},
		"its kubelet says nothing":        {needs: 901, phase: apiv1.Ready},
		"it was measured before":          {room: has(1000), node: machineWith("1", "1"), needs: 900, phase: apiv1.Ready, want: has(1000)},
		"it was, and its pod is another":  {room: has(1000), node: machineWith("1", "9Gi"), needs: 901, phase: apiv1.Terminating, want: has(1000)},
		"its record cannot be written":    {node: machineWith("1", "1000"), fails: true, phase: apiv1.Booting},
		"it has told of its boot":         {told: start.Add(time.Second), phase: apiv1.Ready, booted: true},
		"it has told of the start before": {told: start.Add(-time.Second), phase: apiv1.Ready},
	} {
		b := newBench(t)
		told := &measured{}
		*b.observers = append(*b.observers, told)
		s := &readying{clock: b.clock, records: b.records, observers: b.observers, failures: b.failing(), reserved: 100}
		e := b.booting("c")
		b.edit(e, func(cell *Cell) {
			cell.Measured, cell.Needs, cell.Boot.Told = tc.room, catalog.Resources{MemoryBytes: tc.needs}, tc.told
			cell.Offerings[0].MilliCPU, cell.Offerings[0].MemoryBytes = 1000, 1000
		})
		b.linked(e).all.node.Store(tc.node)
		b.clock.Step(10 * time.Second)
		if tc.fails {
			b.hook = func(string, string) error { return errors.New("no answer") }
		}
		got, err := s.prepare(t.Context(), e)
		cell, want := e.cell(), done
		if tc.phase == apiv1.Terminating {
			want = leave
		}
		if (err != nil) != tc.fails || !tc.fails && got != want || cell.Phase != tc.phase || cell.Measured != tc.want {
			t.Errorf("%s: it is %s with %+v, %+v (%v)", name, cell.Phase, cell.Measured, got, err)
		}
		if (len(told.all) == 1) != tc.measured || (len(b.said) == 1) != (tc.phase == apiv1.Terminating) {
			t.Errorf("%s: observers know of %v, said %v", name, told.all, b.said)
		}
		if ready := cell.StepTime(apiv1.StepReady).Equal(b.clock.Now()); ready != (tc.phase == apiv1.Ready) ||
			cell.Boot.Ready.Equal(b.clock.Now()) != tc.booted || tc.phase == apiv1.Terminating && cell.Cause != CauseTooSmall {
			t.Errorf("%s: ready %t, booted at %s, ends for %q", name, ready, cell.Boot.Ready, cell.Cause)
		}
	}
}
