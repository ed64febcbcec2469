//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud/host"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// standby returns the cells that no pod has.
func standby(ctx context.Context) (map[string]apiv1.Cell, error) {
	list, err := world.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	cells := map[string]apiv1.Cell{}
	for _, item := range list.Items {
		cell, err := namespace.AsCell(&item)
		if err != nil {
			return nil, err
		}
		if cell.Status.Pod.Name == "" {
			cells[cell.Name] = *cell
		}
	}
	return cells, nil
}

// waitStandby waits for a full pool of ready cells and returns them.
func (s *space) waitStandby(n int) (ready map[string]apiv1.Cell) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%d standby cells are ready", n), func(ctx context.Context) (err error) {
		if ready, err = standby(ctx); err != nil {
			return err
		}
		for name, cell := range ready {
			if cell.Status.Phase != apiv1.Ready {
				return fmt.Errorf("cell %s is %s (%s)", name, cell.Status.Phase, cell.Status.Waiting)
			}
		}
		if len(ready) != n {
			return fmt.Errorf("there are %d", len(ready))
		}
		return nil
	})
	return ready
}

// Not parallel: it starts Kip with other settings.
func TestPodsTakeStandbyCellsWhichAreReplaced(t *testing.T) {
	s := newSpace(t)
	restore := reconfigure(t, map[string]any{"standbyCells": []any{map[string]any{"instanceType": "small", "count": 2}}})
	kept := s.waitStandby(2)

	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	taken := s.CellOf("a")
	if _, was := kept[taken.Name]; !was {
		t.Fatalf("pod a runs on cell %s, none of the standby cells", taken.Name)
	}
	s.WaitEvent("a", "StandbyCellTaken", taken.Name)
	again := s.waitStandby(2)
	if out := s.tells(world.Socket, "get", "standby"); !slices.Equal(row(out, "small"), []string{"small", "2", "2", "0", "<none>"}) {
		t.Errorf("kipctl get standby prints\n%s", out)
	}
	if _, is := again[taken.Name]; is {
		t.Fatalf("cell %s runs a pod and is on standby", taken.Name)
	}

	// A pod of another size gets a cell of its own.
	s.Apply(namespace.Bare("b", `  containers:
  - {name: main, image: "busybox:1.36", command: [sleep, "1000"], resources: {requests: {memory: 1500Mi}}}
`))
	s.WaitReady("b")
	if _, is := again[s.CellOf("b").Name]; is {
		t.Fatal("a pod that needs more was put on a standby cell")
	}

	// Kip dies; the pool neither grows nor shrinks, nor does the pod notice.
	killKip(t)
	startKip(t)
	// What the dead Kip left in the API is there at once; what the new one does with
	// it is seen when a pod takes a cell.
	s.Apply(namespace.Sleeper("c"))
	s.WaitReady("c")
	third := s.CellOf("c").Name
	if _, was := again[third]; !was {
		t.Errorf("pod c runs on cell %s, which is new after a restart: the standby cells were %v", third, again)
	}
	after := s.waitStandby(2)
	for name := range again {
		if _, is := after[name]; !is && name != third {
			t.Errorf("standby cell %s is gone after a restart", name)
		}
	}
	if machines, err := machinesOnDisk(); err != nil || len(machines) != 5 {
		t.Errorf("the instances are %v (%v), want those of pods a, b and c and of two standby cells", machines, err)
	}
	if got := s.CellOf("a"); got.Name != taken.Name {
		t.Errorf("pod a moved to cell %s", got.Name)
	}

	restore()
	s.Eventually("the standby cells are gone", func(ctx context.Context) error {
		left, err := standby(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are left", len(left))
		}
		return err
	})
}

// Not parallel: it starts Kip with other settings.
func TestAStoppedStandbyCellStartsForItsPod(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	restore := reconfigure(t, map[string]any{"standbyCells": []any{map[string]any{"instanceType": "small", "count": 1, "stopped": true}}})
	kept := s.waitStandby(1)
	s.Eventually("its machine has no process", func(context.Context) error {
		for _, cell := range kept {
			side, err := host.Inspect(localCloud(), cell.Status.InstanceID)
			if err != nil {
				return err
			}
			if side.PID != 0 {
				return fmt.Errorf("instance %s is %s, process %d", cell.Status.InstanceID, side.State, side.PID)
			}
		}
		return nil
	})
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	if _, was := kept[s.CellOf("a").Name]; !was {
		t.Fatalf("pod a runs on cell %s, not on the standby cell", s.CellOf("a").Name)
	}
	restore()
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
}
