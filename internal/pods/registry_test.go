package pods

import (
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

func TestAPodThatIsDeletedWhileNobodyWatchesIsForgotten(t *testing.T) {
	h := newHarness(t)
	h.place = func(*corev1.Pod) ([]offering.Offering, error) { return nil, errors.New("no") }
	p := pod("a")
	h.put(p)
	h.must("a")
	if len(h.c.core.registry.seen) != 1 {
		t.Fatalf("%d pods are known, so nothing can be forgotten", len(h.c.core.registry.seen))
	}
	h.c.ends.watching.deleted(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: p}) // as the informer tells it, after a list
	if len(h.c.core.registry.seen) != 0 || !slices.Equal(h.forgotten, []types.UID{p.UID}) {
		t.Fatalf("still known: %v; forgotten: %v", h.c.core.registry.seen, h.forgotten)
	}
	if name, _ := h.c.core.loop.queue.Get(); name != (cache.ObjectName{Namespace: "ns", Name: "a"}) {
		t.Fatalf("%s is looked at, want the pod, whose cell is to be let go", name)
	}
}

func TestWhatIsToldBeforeThePodsAreListedIsKeptOfThoseThatAreThere(t *testing.T) {
	h := newHarness(t)
	h.unlisted = true
	there, gone := pod("a", running), pod("b", running)
	at := h.clock.Now().Add(2 * time.Minute)
	for _, p := range []*corev1.Pod{there, gone} {
		h.c.CellInterrupted(cells.Cell{ID: "cell-" + p.Name, Pod: apiv1.Ref(p), Phase: apiv1.Bound, Notice: cells.Notice{Interrupted: at}})
	}
	h.put(there)
	h.unlisted = false
	h.c.core.registry.forgetUnlisted()
	if known := h.c.attends.attending.rescuing.contacts.get(there.UID); !known.interrupted.Equal(at) || len(h.c.core.registry.seen) != 1 {
		t.Errorf("known: %+v, want what was told of %s alone", h.c.core.registry.seen, there.Name)
	}
}

func TestNothingIsKeptOfAPodThatGoesWhileItIsLookedAt(t *testing.T) {
	h := newHarness(t)
	p := pod("a")
	h.place = func(*corev1.Pod) ([]offering.Offering, error) {
		// It is deleted just now.
		if err := h.informer.GetStore().Delete(p); err != nil {
			t.Fatal(err)
		}
		h.c.ends.watching.forget(p.UID)
		return nil, errors.New("no")
	}
	h.put(p)
	h.must("a")
	h.c.CellChanged(cells.Cell{ID: "cell-a", Pod: apiv1.Ref(p), Phase: apiv1.Gone})
	h.c.CellSilent(cells.Cell{ID: "cell-a", Pod: apiv1.Ref(p)}, time.Time{})
	if len(h.c.core.registry.seen) != 0 {
		t.Fatalf("still known: %v", h.c.core.registry.seen)
	}
}

func TestNotesAreOfPodsThatExistAndGoWithThem(t *testing.T) {
	h := newHarness(t)
	r := h.c.core.registry
	first, second := newNotes[int](r), newNotes[string](r)
	here, absent := pod("here"), pod("absent")
	h.put(here)
	for _, p := range []*corev1.Pod{here, absent} {
		first.note(apiv1.Ref(p), func(n *int) { *n++ })
		first.note(apiv1.Ref(p), func(n *int) { *n++ })
	}
	if n := first.get(here.UID); n != 2 {
		t.Errorf("of a pod that exists %d is noted, want 2", n)
	}
	if n := first.get(absent.UID); n != 0 || len(r.seen) != 1 {
		t.Errorf("of a pod that does not exist %d is noted; seen %v", n, r.seen)
	}
	// What one part saw first counts for all.
	seen := r.seen[here.UID]
	h.clock.Step(time.Minute)
	second.note(apiv1.Ref(here), func(s *string) { *s = "b" })
	if !r.seen[here.UID].Equal(seen) {
		t.Errorf("seen first at %s, then at %s", seen, r.seen[here.UID])
	}
	r.forget(here.UID)
	if first.get(here.UID) != 0 || second.get(here.UID) != "" || len(r.seen) != 0 {
		t.Errorf("of a pod that is forgotten %d and %q are noted; seen %v", first.get(here.UID), second.get(here.UID), r.seen)
	}
}
