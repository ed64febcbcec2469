package instancetypes

import (
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// chosenFor is the type for a pod of so much memory.
func chosenFor(b *bench, placer *placement.Placer, memory string) string {
	b.Helper()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)},
	}}}}}
	candidates, err := placer.Offerings(pod, func(offering.Key) bool { return false })
	if err != nil {
		b.Fatal(err)
	}
	return candidates[0].InstanceType
}

func TestWhatMachinesHaveIsUsedAndOutlivesAKip(t *testing.T) {
	inBubble(t, func(b *bench) {
		list := types(2, 1)
		list[1].MemoryBytes = 2 << 30
		b.sell(list)
		b.cfg.Image = "one"
		s := b.open()
		zone := placement.Limit{Zones: []string{"z"}}
		node := func(s *Provider) *placement.Placer {
			_, p, err := s.OfNode("kip-1", zone)
			if err != nil {
				b.Fatal(err)
			}
			return p
		}
		b.while(s, func() {
			for n := range 3 {
				if got := chosenFor(b, s.Placer(), "1000Mi") + chosenFor(b, node(s), "1000Mi"); got != "t0t0" {
					b.Errorf("after %d machines it is %s", n, got)
				}
				s.Learn("t0", "one", catalog.Resources{MilliCPU: 1000, MemoryBytes: 990 << 20})
				later(time.Second)
			}
			s.Learn("t1", "another", catalog.Resources{MilliCPU: 1000, MemoryBytes: 1 << 20})
			later(time.Second)
			if got := chosenFor(b, s.Placer(), "1000Mi") + chosenFor(b, node(s), "1000Mi"); got != "t1t1" {
				b.Errorf("after 3 machines it is %s", got)
			}
			later(13 * time.Hour) // the catalogue is read anew
			if got := chosenFor(b, s.Placer(), "1000Mi"); got != "t1" || s.Age() > 2*time.Hour {
				b.Errorf("of a catalogue that was read anew it is %s", got)
			}
		})
		next := b.open()
		if got := chosenFor(b, next.Placer(), "1000Mi"); got != "t1" {
			b.Errorf("after a restart it is %s", got)
		}
		b.cfg.Image = "two"
		if got := chosenFor(b, b.open().Placer(), "1000Mi"); got != "t0" {
			b.Errorf("with another image it is %s", got)
		}
		if _, err := b.cfg.Store.Put(b.Context(), learntKey, "no list", next.learntRevision); err != nil {
			b.Fatal(err)
		}
		b.cfg.Image = "one"
		if got := chosenFor(b, b.open().Placer(), "1000Mi"); got != "t0" {
			b.Errorf("where what was learnt cannot be read it is %s", got)
		}
	})
}

// Whoever else wrote, and a store that does not answer, cost nothing for good.
func TestWhatWasNotStoredIsStoredWithWhatIsLearntNext(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := b.open()
		b.while(s, func() {
			if _, err := b.cfg.Store.Put(b.Context(), learntKey, catalog.Learnt{}, 0); err != nil {
				b.Fatal(err)
			}
			for range 2 {
				s.Learn("t0", "", catalog.Resources{MilliCPU: 1000, MemoryBytes: 900 << 20})
				later(time.Second)
			}
		})
		var stored catalog.Learnt
		if _, err := b.cfg.Store.Get(b.Context(), learntKey, &stored); err != nil || len(stored) != 1 || len(stored[0].Machines) != 2 {
			b.Errorf("stored %+v, %v", stored, err)
		}
	})
}

func TestInterruptionsOutliveAKipAndAreForgottenAfterADay(t *testing.T) {
	inBubble(t, func(b *bench) {
		list := types(2, 1)
		for i := range list {
			list[i].Offerings[0].Spot = true
			list[i].Offerings[0].PricePerHour = 1 + float64(i)/10
		}
		b.sell(list)
		b.cfg.InterruptionShare = 0.2
		spot := func(s *Provider) string {
			pod := &corev1.Pod{}
			pod.Annotations = map[string]string{placement.AnnotationLaunchType: "spot"}
			candidates, err := s.Placer().Offerings(pod, nil)
			if err != nil {
				b.Fatal(err)
			}
			return candidates[0].InstanceType
		}
		s := b.open()
		b.while(s, func() {
			before := spot(s)
			s.TakenBack("t0", "z")
			later(time.Second)
			if after := spot(s); before != "t0" || after != "t1" {
				b.Errorf("it is %s, and after an interruption %s", before, after)
			}
		})
		if got := spot(b.open()); got != "t1" {
			b.Errorf("after a restart it is %s", got)
		}
		b.cfg.InterruptionShare = 0
		if got := spot(b.open()); got != "t0" {
			b.Errorf("where it is off it is %s", got)
		}
		b.cfg.InterruptionShare = 0.2
		s = b.open()
		b.while(s, func() {
			later(23 * time.Hour)
			if got := spot(s); got != "t1" {
				b.Errorf("after 23 hours it is %s", got)
			}
			later(2 * time.Hour)
			if got := spot(s); got != "t0" {
				b.Errorf("after 25 hours it is %s", got)
			}
		})
	})
}
