package cells

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
)

func TestABurstIsLaunchedInFewCalls(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		var burst sync.WaitGroup
		for n := range 120 {
			burst.Go(func() { b.request(fmt.Sprint(n), "nano") })
		}
		burst.Wait()
		b.later(time.Second)
		if n := len(b.cloud.running()); n != 120 {
			t.Fatalf("%d instances", n)
		}
		if n := len(b.cloud.launches); n > 60 {
			t.Fatalf("%d calls for 120 cells", n)
		}
	})
}

// What many ask for in one namespace must not hold up the others, nor what comes again and
// again.
func TestNamespacesTakeTurnsAtBeingLaunched(t *testing.T) {
	q := newLaunchQueue()
	added := map[string]int{}
	add := func(ns string, types ...string) {
		t.Helper()
		for _, kind := range types {
			added[ns]++
			id := fmt.Sprint(ns, added[ns])
			item, err := queuedCellOf(newEntry(Cell{ID: id, Pod: apiv1.PodReference{Namespace: ns}, Offerings: []Offering{{InstanceType: kind}}}, 0))
			if err != nil {
				t.Fatal(err)
			}
			q.add(item)
		}
	}
	next := func(most int) string {
		var ids []string
		for _, e := range q.next(func(offering.Key) int { return cloud.MaxLaunch }, func(n int) int { return min(n, most) }) {
			ids = append(ids, e.id)
		}
		return strings.Join(ids, " ")
	}
	want := func(what string, most int, groups ...string) {
		t.Helper()
		var got []string
		for range groups {
			got = append(got, next(most))
		}
		if !slices.Equal(got, groups) {
			t.Errorf("%s: %q, want %q", what, got, groups)
		}
	}
	add("a", "1", "2", "3", "4", "5", "6")
	add("b", "7", "8")
	want("one has more than another", 1, "a1", "b1", "a2", "b2", "a3")
	add("c", "9")
	add("d", "9")
	want("what comes later is not first", 1, "a4", "c1", "d1")
	add("c", "9")
	want("nor what comes again", 1, "a5", "c2", "a6", "")
	add("a", "1", "1", "1", "2")
	add("b", "1", "2")
	want("those that go along are served as well", 3, "a7 a8 a9", "b3", "a10 b4")
	if len(q.items)+len(q.turns) > 0 || q.full(func(offering.Key) int { return 1 }) {
		t.Errorf("of a queue that is empty %d namespaces are remembered", len(q.turns))
	}
}
