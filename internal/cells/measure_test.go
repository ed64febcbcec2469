package cells

import (
	"fmt"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const gib = 1 << 30

// machineWith is what a kubelet says of such a machine.
func machineWith(cpu, memory string) *corev1.Node {
	return &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}}}
}

// measured collects the cells whose machines were measured.
type measured struct {
	Unobserved
	mu  sync.Mutex
	all []string
}

func (m *measured) CellMeasured(c Cell) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, fmt.Sprintf("%s %d %dMi", c.Offering().InstanceType, c.Measured.MilliCPU, c.Measured.MemoryBytes>>20))
}

func (m *measured) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprint(m.all)
}

func needing(pod string, memory int64) Request {
	r := nano(pod)
	r.Offerings[0].MilliCPU, r.Offerings[0].MemoryBytes = 2000, 8*gib
	r.Needs = catalog.Resources{MilliCPU: 1000, MemoryBytes: memory}
	return r
}

func TestACellWhoseMachineIsTooSmallEndsBeforeItsPodIsThere(t *testing.T) {
	var told measured
	with := func(s *setup) { s.ReservedMemoryBytes = 64 << 20 }
	inBubble(t, with, nil, func(t *testing.T, b *bubble) {
		b.links.node.Store(machineWith("2", "7800Mi"))
		for pod, memory := range map[string]int64{"fits": 7736 << 20, "lacks": 7736<<20 + 1, "takes-any": 0} {
			if _, err := b.cells.Request(b.Context(), needing(pod, memory)); err != nil {
				t.Fatal(err)
			}
		}
		b.later(10 * time.Second)
		if b.phase("fits") != apiv1.Bound || b.phase("takes-any") != apiv1.Bound {
			t.Errorf("those that fit are %q and %q", b.phase("fits"), b.phase("takes-any"))
		}
		if got := b.phase("lacks"); got != "" || len(b.said("CellTooSmall", "memory 7800Mi", "(+64Mi for the cell)")) != 1 {
			t.Errorf("that which does not fit is %q, said %v", got, b.events)
		}
		if got := told.said(); got != "[nano 2000 7800Mi nano 2000 7800Mi nano 2000 7800Mi]" {
			t.Errorf("machines measured: %s", got)
		}
	}, &told)
}

func TestAMachineIsMeasuredOnceAndNeverMoreThanPromised(t *testing.T) {
	for said, want := range map[*corev1.Node]string{
		machineWith("96", "1e30"):   "[nano 2000 8192Mi]",
		machineWith("1", "7Gi"):     "[nano 1000 7168Mi]",
		machineWith("-1", "7Gi"):    "[]",
		machineWith("2", "0"):       "[]",
		machineWith("2", "-5e-9"):   "[]",
		(*corev1.Node)(nil):         "[]",
		{Spec: corev1.NodeSpec{}}:   "[]",
		machineWith("1e30", "1e19"): "[nano 2000 8192Mi]",
	} {
		var told measured
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			b.links.node.Store(said)
			if _, err := b.cells.Request(b.Context(), needing("a", 0)); err != nil {
				t.Fatal(err)
			}
			b.later(10 * time.Second)
			// Whoever is root there says something else now, and Kip starts anew.
			b.links.node.Store(machineWith("1", "1Gi"))
			b.stop()
			b.run()
			b.later(10 * time.Second)
			if b.phase("a") != apiv1.Bound || told.said() != want {
				t.Errorf("a machine that says %v: %q, measured %s, want %s", said, b.phase("a"), told.said(), want)
			}
		}, &told)
	}
}

func TestAStandbyCellThatIsTooSmallIsNotTaken(t *testing.T) {
	pool := func(s *setup) {
		s.Pools = []Pool{{Name: "nano", Count: 1, Offerings: func() ([]Offering, error) { return needing("", 0).Offerings, nil }}}
		s.Tunnels.(*modelLinks).node.Store(machineWith("2", "7800Mi")) // before it begins
	}
	inBubble(t, pool, nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		b.links.node.Store(nil) // of others nothing is known
		for _, of := range []struct {
			pod     string
			memory  int64
			standby bool
		}{{"lacks", 8 * gib, false}, {"fits", 7 * gib, true}} {
			cell, err := b.cells.Request(b.Context(), needing(of.pod, of.memory))
			if err != nil || (cell.Standby != "") != of.standby {
				t.Errorf("%s: standby %q, %v", of.pod, cell.Standby, err)
			}
			b.later(10 * time.Second)
			if b.phase(of.pod) != apiv1.Bound {
				t.Errorf("%s is %q", of.pod, b.phase(of.pod))
			}
		}
	})
}

// After a crash between the two writes the cell still ends.
func TestACellThatIsTooSmallEndsAfterARestart(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.links.boots = func(string) bool { return false }
		r := needing("a", 8*gib)
		if _, err := b.cells.Request(b.Context(), r); err != nil {
			t.Fatal(err)
		}
		b.later(5 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		b.stop()
		cell.Measured = catalog.Resources{MilliCPU: 2000, MemoryBytes: 7 * gib}
		var stored Cell
		revision, err := b.store.Get(b.Context(), keyPrefix+cell.ID, &stored)
		if err == nil {
			_, err = b.store.Put(b.Context(), keyPrefix+cell.ID, cell, revision)
		}
		if err != nil {
			t.Fatal(err)
		}
		b.links.boots = nil
		seen := &seenEnds{}
		b.also = []Observer{seen}
		b.run()
		b.later(10 * time.Second)
		if b.phase("a") != "" || !seen.has("too_small: the machine of nano in z has cpu 2, memory 7Gi, and the pod needs cpu 1, memory 8Gi (+0 for the cell)") {
			t.Errorf("it is %q, and ended so: %v", b.phase("a"), seen.all)
		}
	})
}
