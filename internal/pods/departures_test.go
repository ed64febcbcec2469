package pods

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// comesBack is a pod on a spot node that has nothing for it, whose controller makes another
// whenever it is evicted, which gets to the same node.
type comesBack struct {
	*harness

	owner   string
	waits   time.Duration     // from when one is made until it has the node
	change  func(*corev1.Pod) // of the second
	made    int
	name    cache.ObjectName // of the last
	evicted []time.Time
}

func newComesBack(t *testing.T, waits time.Duration) *comesBack {
	t.Helper()
	b := &comesBack{harness: newHarness(t), owner: "job", waits: waits}
	b.elsewhere = func(context.Context, *corev1.Pod) []string { return []string{"free"} }
	b.turnsAway = func(context.Context, *corev1.Pod) bool { return true }
	b.place = func(p *corev1.Pod) ([]offering.Offering, error) {
		if p.Spec.NodeName == "free" {
			return []offering.Offering{{InstanceType: "nano", Zone: "local"}}, nil
		}
		return nil, &placement.NoCapacityError{Need: "cpu 1", Types: []string{"large"}}
	}
	b.client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		b.evicted = append(b.evicted, b.clock.Now())
		return true, nil, nil
	})
	b.make()
	return b
}

// make has the controller make a pod, which gets to the node.
func (b *comesBack) make() {
	b.Helper()
	at := b.clock.Now()
	b.clock.Step(b.waits)
	b.made++
	b.put(pod(fmt.Sprint("a-", b.made), func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: types.UID(b.owner), Controller: new(true)}}
		p.Spec.NodeName, p.CreationTimestamp = "spot", metav1.NewTime(at)
		p.Status.Conditions = []corev1.PodCondition{{
			Type:               corev1.PodScheduled,
			Status:             corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(b.clock.Now()),
		}}
		if b.change != nil && b.made > 1 {
			b.change(p)
		}
		b.name = cache.MetaObjectToName(p)
	}))
}

// goesOn lets a while pass.
func (b *comesBack) goesOn(long time.Duration) {
	b.Helper()
	for end := b.clock.Now().Add(long); b.clock.Now().Before(end); {
		before := len(b.evicted)
		again, err := b.c.reconcile(b.Context(), b.name)
		if err != nil {
			b.Fatal(err)
		}
		if len(b.evicted) == before {
			b.clock.Step(max(min(again, end.Sub(b.clock.Now())), time.Second))
			continue
		}
		obj, _, err := b.informer.GetStore().GetByKey(b.name.String())
		if err != nil {
			b.Fatal(err)
		}
		if err := b.informer.GetStore().Delete(obj); err != nil {
			b.Fatal(err)
		}
		b.c.ends.watching.deleted(obj)
		b.make()
	}
}

// pauses are the times between evictions.
func (b *comesBack) pauses() (list []time.Duration) {
	for i := range b.evicted[1:] {
		list = append(list, b.evicted[i+1].Sub(b.evicted[i]).Round(time.Minute))
	}
	return list
}

// turned is for how long a pod that can go nowhere else waits for its node to take pods again.
const turned = 80 * time.Second

func TestAPodThatComesBackToItsNodeIsEvictedLessAndLess(t *testing.T) {
	b := newComesBack(t, turned)
	b.goesOn(7 * 24 * time.Hour)
	const m = time.Minute
	want := []time.Duration{20 * m, 40 * m, 80 * m, 160 * m, 320 * m, 640 * m, 1280 * m, 1440 * m, 1440 * m, 1440 * m, 1440 * m, 1440 * m}
	got := b.pauses()
	for i := range min(len(got), len(want)) {
		if got[i] < want[i] || got[i] > want[i]+m {
			t.Errorf("eviction %d is %s after the one before, want %s", i+2, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d evictions in a week, want %d", len(got)+1, len(want)+1)
	}
	if n := len(slices.DeleteFunc(b.events, func(e string) bool { return e != "Warning UnservablePodCameBack" })); n != b.made-1 {
		t.Errorf("%d Events for %d pods that came back", n, b.made-1)
	}
}

func TestPeopleAreToldWhyAPodThatCameBackStays(t *testing.T) {
	b := newComesBack(t, turned)
	b.goesOn(10 * time.Minute)
	until := b.evicted[0].Add(firstReturn).UTC().Format(time.RFC3339)
	want := "evicted from node spot for that once in vain, since no other node could have the pod: it is not evicted before " + until
	uid := types.UID("uid-" + b.name.Name)
	if got := b.c.Waiting(uid); !strings.Contains(got, want) || !strings.HasPrefix(got, "no capacity now for large") {
		t.Errorf("the pod waits since %q, want %q", got, want)
	}
	if i := slices.Index(b.events, "Warning UnservablePodCameBack"); i < 0 || !strings.Contains(b.messages[i], want) ||
		!strings.Contains(b.messages[i], "node free could run it") {
		t.Errorf("the Events are %q, %q", b.events, b.messages)
	}
	b.goesOn(20 * time.Minute)
	until = b.evicted[1].Add(2 * firstReturn).UTC().Format(time.RFC3339)
	if got := b.c.Waiting(types.UID("uid-" + b.name.Name)); len(b.evicted) != 2 || !strings.Contains(got, "2 times in vain") ||
		!strings.Contains(got, until) {
		t.Errorf("after %d evictions the pod waits since %q", len(b.evicted), got)
	}
}

// changed has a pod changed a while after it was bound.
func changed(generation int64, subresource string, after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		at := metav1.NewTime(p.Status.Conditions[0].LastTransitionTime.Add(after))
		p.Generation = generation
		p.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "kube-controller-manager", Time: &p.CreationTimestamp},
			{Manager: "queue", Subresource: subresource, Time: &at},
			{Manager: "unknown"},
		}
	}
}

// Those that a controller makes besides prefer the node, and can be elsewhere.
func TestAPodLeavesItsNodeUnlessItCameBack(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*comesBack)
		least  time.Duration // between the evictions
	}{
		"it came back":                   {func(*comesBack) {}, firstReturn},
		"no scheduler chose its node":    {func(b *comesBack) { b.change = func(p *corev1.Pod) { p.Status.Conditions = nil } }, firstReturn},
		"it was placed at once":          {func(b *comesBack) { b.waits = passedOver - time.Second }, 0},
		"its gates were lifted late":     {func(b *comesBack) { b.change = changed(2, "", -time.Second) }, 0},
		"they were lifted long before":   {func(b *comesBack) { b.change = changed(2, "", -passedOver) }, firstReturn},
		"its spec is as it was made":     {func(b *comesBack) { b.change = changed(1, "", -time.Second) }, firstReturn},
		"its status was written":         {func(b *comesBack) { b.change = changed(2, "status", -time.Second) }, firstReturn},
		"it was changed on its node":     {func(b *comesBack) { b.change = changed(2, "", time.Second) }, firstReturn},
		"its controller is another":      {func(b *comesBack) { b.owner = "other" }, 0},
		"its controller is another's":    {func(b *comesBack) { b.change = func(p *corev1.Pod) { p.Namespace = "other" } }, 0},
		"those before left another node": {func(b *comesBack) { b.change = func(p *corev1.Pod) { p.Spec.NodeName = "spot-2" } }, 0},
	} {
		b := newComesBack(t, turned)
		c.change(b)
		b.goesOn(shortFor + 2*firstReturn + 10*time.Minute)
		if got := b.pauses(); len(got) == 0 || got[0] < c.least || c.least == 0 && got[0] > b.waits+shortFor+time.Minute {
			t.Errorf("%s: evictions after %s", name, got)
		}
	}
}

func TestThoseThatLeaveTogetherAreInVainOnce(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all, p := departures{}, pod("a", owned)
	at := func(after time.Duration) time.Time { return start.Add(after) }
	all.left(p, at(0))
	all.left(p, at(time.Minute))
	if all.cameBack(p, at(0), at(time.Hour)) != nil {
		t.Error("a pod that was there before has come back")
	}
	// One that was seen before the last had left, and those that were after.
	for i, seen := range []time.Duration{30 * time.Second, 2 * time.Minute, 3 * time.Minute} {
		if d := all.cameBack(p, at(seen), at(4*time.Minute)); d == nil || d.vain != 1 || d.until() != at(time.Minute+firstReturn) {
			t.Errorf("pod %d came back: %+v", i, d)
		}
	}
	all.left(p, at(time.Hour/2))
	if d := all.cameBack(p, at(3*time.Minute), at(time.Hour)); d == nil || d.vain != 1 {
		t.Errorf("that one has left which came back before: %+v", d)
	}
	if d := all.cameBack(p, at(time.Hour), at(time.Hour)); d == nil || d.vain != 2 || d.until() != at(time.Hour/2+2*firstReturn) {
		t.Errorf("the second came back: %+v", d)
	}
	later := time.Hour/2 + 4*firstReturn + 1
	if d := all.cameBack(p, at(later), at(later)); d != nil || len(all) != 0 {
		t.Errorf("one came so much later that nothing counts any more: %+v", d)
	}
}

func TestDeparturesAreBounded(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := departures{}
	of := func(n int) *corev1.Pod {
		return pod("a", owned, func(p *corev1.Pod) { p.OwnerReferences[0].UID = types.UID(strings.Repeat("x", 1<<10) + fmt.Sprint(n)) })
	}
	for i := range mostDepartures + 10 {
		all.left(of(i), start.Add(time.Duration(i)*time.Millisecond))
	}
	later := start.Add(time.Minute)
	if len(all) != mostDepartures || all.cameBack(of(9), later, later) != nil || all.cameBack(of(10), later, later) == nil {
		t.Errorf("%d are kept; of those of the longest ago: %v", len(all), all.cameBack(of(9), later, later))
	}
}
