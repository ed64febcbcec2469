package cells

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// hasGPUs is a node with these; -1 for one that has not been told of the resource.
func hasGPUs(count int64) *corev1.Node {
	node := &corev1.Node{}
	if count >= 0 {
		node.Status.Allocatable = corev1.ResourceList{agentapi.ResourceGPU: *resource.NewQuantity(count, resource.DecimalSI)}
		// Those that the machine has, and that do not work, are no reason to show the pod.
		node.Status.Capacity = corev1.ResourceList{agentapi.ResourceGPU: *resource.NewQuantity(8, resource.DecimalSI)}
	}
	return node
}

func (b *bubble) requestGPUs(pod string, count int64) {
	b.Helper()
	r := nano(pod)
	r.GPUs = count
	if _, err := b.cells.Request(b.Context(), r); err != nil {
		b.Fatal(err)
	}
}

// boundBy are the pods that a cell's kubelet was shown.
func (b *bubble) boundBy(cell string) []types.UID {
	link := b.links.of(cell)
	link.mu.Lock()
	defer link.mu.Unlock()
	return slices.Clone(link.bound)
}

func (b *bubble) shown(pod string) int {
	cell, _ := b.cells.ForPod(ref(pod).UID)
	return len(b.boundBy(cell.ID))
}

func TestThePodIsShownWhenTheKubeletHasItsGPUs(t *testing.T) {
	for name, restart := range map[string]bool{"": false, "with a restart in between": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
				b.requestGPUs("a", 2)
				for _, has := range []int64{-1, 0, 1} {
					b.links.node.Store(hasGPUs(has))
					b.later(20 * time.Second)
					if got := b.phase("a"); got != apiv1.Ready || b.shown("a") != 0 {
						t.Fatalf("with %d GPUs of 2 the cell is %s, and its pod was shown %d times: want Ready, never", has, got, b.shown("a"))
					}
				}
				said := b.said("Warning GPUsNotReady", "1 of 2 nvidia.com/gpu")
				if all := b.said("GPUsNotReady"); len(said) != 1 || len(all) > 2 {
					t.Errorf("that the GPUs are not there was said as %q", all)
				}
				if cell, _ := b.cells.ForPod(ref("a").UID); cell.GPUs != 2 {
					t.Errorf("the record has %d GPUs: want 2", cell.GPUs)
				}
				if restart {
					b.restartsReady("a")
				}
				b.links.node.Store(hasGPUs(2))
				b.later(time.Second)
				if got := b.phase("a"); got != apiv1.Bound || b.shown("a") == 0 {
					t.Errorf("with its GPUs the cell is %s, and its pod was shown %d times; it was said %q", got, b.shown("a"), b.said())
				}
			})
		})
	}
}

func TestAMachineWithoutGPUsIsNotPaidForLong(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.links.node.Store(hasGPUs(-1))
		b.requestGPUs("a", 1)
		b.later(gpuTimeout - 10*time.Second)
		if left := b.cloud.running(); len(left) != 1 {
			t.Errorf("before its time was over, %v were left", left)
		}
		b.later(time.Minute)
		if left := b.cloud.running(); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
		if cell, has := b.cells.ForPod(ref("a").UID); has {
			t.Errorf("the cell is %s: %s", cell.Phase, cell.Reason)
		}
		if said := b.said("CellNotReady", "was given up: its GPUs were not there in 5m0s", "0 of 1 nvidia.com/gpu"); len(said) != 1 {
			t.Errorf("that it ended was said as %q", b.said())
		}
	})
}

func TestAPodRunsWithoutNoAcceleratorThatItAsksFor(t *testing.T) {
	has := func(neurons int64) *corev1.Node {
		node := hasGPUs(1)
		node.Status.Allocatable["amd.com/gpu"] = *resource.NewQuantity(2, resource.DecimalSI)
		if neurons > 0 {
			node.Status.Allocatable["aws.amazon.com/neuron"] = *resource.NewQuantity(neurons, resource.DecimalSI)
		}
		return node
	}
	ask := func(b *bubble, pod string) {
		r := nano(pod)
		r.Accelerators = map[corev1.ResourceName]int64{"amd.com/gpu": 2, "aws.amazon.com/neuron": 3}
		if _, err := b.cells.Request(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	t.Run("it waits", func(t *testing.T) {
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			ask(b, "a")
			for _, node := range []*corev1.Node{hasGPUs(1), has(0), has(2)} {
				b.links.node.Store(node)
				b.later(40 * time.Second)
				if got := b.phase("a"); got != apiv1.Ready || b.shown("a") != 0 {
					t.Fatalf("with %v the cell is %s, and its pod was shown %d times: want Ready, never", node.Status.Allocatable, got, b.shown("a"))
				}
			}
			for _, lacks := range []string{"0 of 2 amd.com/gpu", "0 of 3 aws.amazon.com/neuron", "2 of 3 aws.amazon.com/neuron"} {
				if said := b.said("Warning GPUsNotReady", "The accelerators of cell", lacks, "a device plugin in its image"); len(said) == 0 {
					t.Errorf("of %s it was said %q", lacks, b.said("GPUsNotReady"))
				}
			}
			b.restartsReady("a")
			b.links.node.Store(has(3))
			b.later(time.Second)
			if got := b.phase("a"); got != apiv1.Bound || b.shown("a") == 0 {
				t.Errorf("with all the cell is %s, and its pod was shown %d times; it was said %q", got, b.shown("a"), b.said())
			}
		})
	})
	t.Run("not for long", func(t *testing.T) {
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			b.links.node.Store(has(0))
			ask(b, "a")
			b.later(gpuTimeout + 50*time.Second)
			said := b.said("Warning", "accelerators were not there in 5m0s", "0 of 3 aws.amazon.com/neuron")
			if len(said) != 1 || b.phase("a") != "" {
				t.Errorf("the cell is %q; it was said %q", b.phase("a"), b.said())
			}
		})
	})
	t.Run("on standby", func(t *testing.T) {
		inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
			b.links.node.Store(has(0))
			b.later(10 * time.Second)
			ask(b, "a")
			b.later(10 * time.Second)
			if cell, _ := b.cells.ForPod(ref("a").UID); cell.Standby == "" || cell.Phase != apiv1.Ready || b.shown("a") != 0 {
				t.Errorf("the cell of pool %q is %s, and its pod was shown %d times: want one on standby, Ready, never",
					cell.Standby, cell.Phase, b.shown("a"))
			}
		})
	})
}

func TestACellWhosePodWantsNoGPUWaitsForNone(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.links.node.Store(hasGPUs(0))
		b.request("a", "nano")
		b.later(10 * time.Second)
		if got := b.phase("a"); got != apiv1.Bound {
			t.Errorf("the cell is %s: want Bound", got)
		}
	})
}

func TestAPodThatIsDeletedWaitsForNoGPUs(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.requestGPUs("a", 1)
		b.later(10 * time.Second)
		if !b.cells.ReleaseUnbound(ref("a").UID, "deleted") {
			t.Error("a cell that waits for its GPUs counts as bound")
		}
		b.later(10 * time.Second)
		if left := b.cloud.running(); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
	})
}

func TestAStandbyCellWaitsForTheGPUsOfThePodThatTakesIt(t *testing.T) {
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.links.node.Store(hasGPUs(0))
		b.later(10 * time.Second)
		b.requestGPUs("a", 1)
		b.later(10 * time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if cell.Standby == "" || cell.Phase != apiv1.Ready || cell.GPUs != 1 {
			t.Fatalf("the cell of pool %q is %s, with %d GPUs: want one on standby, Ready, 1", cell.Standby, cell.Phase, cell.GPUs)
		}
		b.links.node.Store(hasGPUs(1))
		b.later(time.Second)
		if got := b.boundBy(cell.ID); !slices.Equal(got, []types.UID{ref("a").UID}) {
			t.Errorf("the cell shows %v; it was said %q", got, b.said())
		}
	})
}
