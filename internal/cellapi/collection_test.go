package cellapi

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

func secretAt(name string, rv uint64, labels map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, ResourceVersion: strconv.FormatUint(rv, 10), Labels: labels}}
}

func mustObject(t testing.TB, name string, rv uint64) *object {
	t.Helper()
	o, err := newObject(secretKind, secretAt(name, rv, nil))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// told returns what a watch from rv is told, "expired" when it cannot be told.
func told(c *collection, rv uint64) []string {
	next, ok := c.seek(rv)
	if !ok {
		return []string{"expired"}
	}
	events, _, _, _ := c.since(next)
	lines := []string{}
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("%s %s@%d", e.kind, e.object.GetName(), e.object.rv))
	}
	return lines
}

func TestCollectionTellsAWatchWhatItHasNotSeen(t *testing.T) {
	filled := func(t *testing.T) *collection {
		c := newCollection(secretKind, 3)
		c.replace([]*object{mustObject(t, "a", 5), mustObject(t, "b", 7)}, 10)
		return c
	}
	for name, tc := range map[string]struct {
		change func(*testing.T, *collection)
		want   map[uint64][]string
	}{
		"nothing has changed": {
			change: func(*testing.T, *collection) {},
			want:   map[uint64][]string{9: {"expired"}, 10: {}, 11: {"expired"}},
		},
		"changes": {
			change: func(t *testing.T, c *collection) {
				c.put(mustObject(t, "a", 11))
				c.put(mustObject(t, "c", 14))
				c.remove(mustObject(t, "b", 15))
			},
			want: map[uint64][]string{
				9: {"expired"}, 10: {"MODIFIED a@11", "ADDED c@14", "DELETED b@15"}, 11: {"ADDED c@14", "DELETED b@15"},
				12: {"ADDED c@14", "DELETED b@15"}, 15: {}, 16: {"expired"},
			},
		},
		"the same version again": {
			change: func(t *testing.T, c *collection) { c.put(mustObject(t, "a", 5)) },
			want:   map[uint64][]string{10: {}},
		},
		"a bookmark": {
			change: func(_ *testing.T, c *collection) { c.UpdateResourceVersion("20") },
			want:   map[uint64][]string{10: {}, 20: {}, 21: {"expired"}},
		},
		"more than the history keeps": {
			change: func(t *testing.T, c *collection) {
				for rv := uint64(11); rv < 17; rv++ {
					c.put(mustObject(t, "a", rv))
				}
			},
			want: map[uint64][]string{10: {"expired"}, 12: {"expired"}, 13: {"MODIFIED a@14", "MODIFIED a@15", "MODIFIED a@16"}, 15: {"MODIFIED a@16"}},
		},
		"a list with changes and deletions": {
			change: func(t *testing.T, c *collection) {
				c.replace([]*object{mustObject(t, "d", 13), mustObject(t, "c", 12)}, 20)
			},
			// A watch that breaks off after the first deletion resumes from 10
			// and is told all again.
			want: map[uint64][]string{10: {"DELETED a@10", "DELETED b@10", "ADDED c@12", "ADDED d@13"}, 12: {"ADDED d@13"}, 13: {}, 20: {}},
		},
		"a list with deletions only": {
			change: func(_ *testing.T, c *collection) { c.replace(nil, 20) },
			want:   map[uint64][]string{10: {"DELETED a@10", "DELETED b@10"}, 20: {}},
		},
		"a list that goes back in time": {
			change: func(t *testing.T, c *collection) { c.replace([]*object{mustObject(t, "a", 3)}, 4) },
			want:   map[uint64][]string{3: {"expired"}, 4: {}, 10: {"expired"}},
		},
		"an object that goes back in time": {
			change: func(t *testing.T, c *collection) { c.put(mustObject(t, "z", 8)) },
			want:   map[uint64][]string{7: {"expired"}, 8: {}, 10: {"expired"}},
		},
		"a deletion whose version is not known": {
			change: func(t *testing.T, c *collection) { c.remove(mustObject(t, "a", 5)) },
			want:   map[uint64][]string{10: {"DELETED a@10"}},
		},
		"emptied": {
			change: func(_ *testing.T, c *collection) { c.startEmpty(30) },
			want:   map[uint64][]string{10: {"expired"}, 29: {"expired"}, 30: {}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := filled(t)
			tc.change(t, c)
			for rv, want := range tc.want {
				if got := told(c, rv); !slices.Equal(got, want) {
					t.Errorf("a watch from %d is told %q, want %q", rv, got, want)
				}
			}
		})
	}
}

func TestCollectionHistoryIsBounded(t *testing.T) {
	c := newCollection(secretKind, 8)
	c.replace(nil, 1)
	for rv := uint64(2); rv < 1000; rv++ {
		c.put(mustObject(t, "a", rv))
		if n := len(c.events); n >= 16 {
			t.Fatalf("%d events are kept, the limit is 8 and twice that between cuts", n)
		}
	}
}

// follower is a client that keeps a copy of what it is told through a filter.
type follower struct {
	filter *filter
	copy   map[string]uint64
	rv     uint64 // what it would resume from
	next   uint64
	open   bool
}

func (f *follower) step(c *collection, rng *rand.Rand, cut bool) {
	if cut {
		f.open = false
	}
	if !f.open {
		next, ok := c.seek(f.rv)
		if f.rv == 0 || !ok {
			objects, rv, next := c.snapshot()
			f.copy = map[string]uint64{}
			for _, o := range objects {
				if f.filter.matches(o) {
					f.copy[o.GetName()] = o.rv
				}
			}
			f.rv, f.next, f.open = rv, next, true
			return
		}
		f.next, f.open = next, true
	}
	events, _, _, ok := c.since(f.next)
	if !ok {
		f.open, f.rv = false, 0
		return
	}
	// Take some of them only: a connection may break anywhere.
	take := rng.IntN(len(events) + 1)
	for _, e := range events[:take] {
		f.next++
		switch f.filter.seen(e) {
		case watch.Added, watch.Modified:
			f.copy[e.object.GetName()] = e.object.rv
			f.rv = e.object.rv
		case watch.Deleted:
			delete(f.copy, e.object.GetName())
			f.rv = e.object.rv
		}
	}
}

// Random changes, relists included, against clients that break off and resume at
// any point: each ends with what the collection holds and its filter lets through.
func TestCollectionFollowersAgreeWithIt(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := newCollection(secretKind, 1+int(seed%20))
		rv := uint64(10)
		c.replace(nil, rv)
		truth := map[string]*corev1.Secret{}
		red := labels.SelectorFromSet(labels.Set{"colour": "red"})
		followers := []*follower{
			{filter: &filter{kind: secretKind, all: true}},
			{filter: &filter{kind: secretKind, labels: red, fields: fields.Everything()}},
			{filter: &filter{kind: secretKind, labels: labels.Everything(), fields: fields.OneTermEqualSelector("metadata.name", "s1")}},
		}
		change := func() *corev1.Secret {
			rv += 1 + rng.Uint64N(3)
			colour := []string{"red", "blue"}[rng.IntN(2)]
			s := secretAt(fmt.Sprintf("s%d", rng.IntN(4)), rv, map[string]string{"colour": colour})
			truth[s.Name] = s
			return s
		}
		names := func() []string { return slices.Sorted(maps.Keys(truth)) }
		for range 100 {
			switch rng.IntN(6) {
			case 0, 1, 2:
				if err := c.Add(change().DeepCopy()); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			case 3:
				if len(truth) == 0 {
					break
				}
				name := names()[rng.IntN(len(truth))]
				rv++
				gone := truth[name].DeepCopy()
				gone.ResourceVersion = strconv.FormatUint(rv, 10)
				delete(truth, name)
				if err := c.Delete(gone); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			case 4: // the watch upstream was lost for a while
				for range rng.IntN(4) {
					change()
				}
				for _, name := range names() {
					if rng.IntN(3) == 0 {
						delete(truth, name)
						rv++
					}
				}
				var list []any
				for _, name := range names() {
					list = append(list, truth[name].DeepCopy())
				}
				rv++
				if err := c.Replace(list, strconv.FormatUint(rv, 10)); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			case 5:
				rv++
				c.UpdateResourceVersion(strconv.FormatUint(rv, 10))
			}
			for _, f := range followers {
				f.step(c, rng, rng.IntN(4) == 0)
			}
		}
		for i, f := range followers {
			for settled := 0; settled < 50; settled++ {
				f.step(c, rng, false)
				if f.open {
					if events, _, _, ok := c.since(f.next); ok && len(events) == 0 {
						break
					}
				}
			}
			want := map[string]uint64{}
			for name, s := range truth {
				o, err := newObject(secretKind, s.DeepCopy())
				if err != nil {
					t.Fatal(err)
				}
				if f.filter.matches(o) {
					want[name] = o.rv
				}
			}
			if !maps.Equal(f.copy, want) {
				t.Fatalf("seed %d, follower %d has %v, want %v", seed, i, f.copy, want)
			}
		}
	}
}
