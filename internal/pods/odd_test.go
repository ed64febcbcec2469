package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/watches"
	"github.com/elotl/kip/test/oddpods"
)

// TestAnyPodGetsACellOrAReason has pods with anything in every field, also in
// their status: the loop does not panic, and each pod gets a cell or a reason.
func TestAnyPodGetsACellOrAReason(t *testing.T) {
	placer, err := placement.New(sizes.Types("amd64"), placement.Config{
		DefaultInstanceType: "nano",
		DefaultArch:         "amd64",
		ReservedMemoryBytes: 64 << 20,
		DefaultDiskBytes:    4 << 30,
	})
	if err != nil {
		t.Fatal(err)
	}
	requested, waits := 0, 0
	for seed := uint64(1); seed < 300; seed++ {
		for kind, p := range map[string]*corev1.Pod{"any": oddpods.Any(seed), "posted": oddpods.Posted(seed, "ns", "p", "kip-0")} {
			h := newHarness(t)
			h.place = func(p *corev1.Pod) ([]offering.Offering, error) { return placer.Offerings(p, nil) }
			p.UID, p.Spec.NodeName = "uid-p", "kip-0"
			if p.DeletionTimestamp != nil && len(p.Finalizers) == 0 {
				p.Finalizers = []string{"test/keep"} // the fake API server wants one
			}
			h.put(p)
			func() {
				defer func() {
					if bad := recover(); bad != nil {
						t.Errorf("seed %d (%s): %v\n%+v", seed, kind, bad, p)
					}
				}()
				if _, err := h.reconcile("p"); err != nil {
					t.Errorf("seed %d (%s): %v", seed, kind, err)
				}
			}()
			switch {
			case len(h.cells.requests) > 0:
				requested++
			case h.c.Waiting(p.UID) != "":
				waits++
			case watches.Ended(p) || p.DeletionTimestamp != nil:
			default:
				t.Errorf("seed %d (%s): neither a cell nor a reason; events %v", seed, kind, h.events)
			}
		}
	}
	if requested == 0 || waits == 0 {
		t.Errorf("%d have cells, %d have reasons: the pods are all alike", requested, waits)
	}
}
