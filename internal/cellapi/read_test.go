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

	"github.com/elotl/kip/internal/watches"
)

func secretAt(name string, rv uint64, labels map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, ResourceVersion: strconv.FormatUint(rv, 10),
		Labels: labels}}
}

// follower is a client that keeps a copy of what it is told through a filter.
type follower struct {
	filter *filter
	copy   map[string]uint64
	rv     uint64 // what it would resume from
	next   uint64
	open   bool
}

func (f *follower) step(c *watches.Collection, rng *rand.Rand, cut bool) {
	if cut {
		f.open = false
	}
	if !f.open {
		next, ok := c.Seek(f.rv)
		if f.rv == 0 || !ok {
			objects, rv, next := c.Snapshot()
			f.copy = map[string]uint64{}
			for _, o := range objects {
				if f.filter.matches(o) {
					f.copy[o.GetName()] = o.RV
				}
			}
			f.rv, f.next, f.open = rv, next, true
			return
		}
		f.next, f.open = next, true
	}
	events, _, _, ok := c.Since(f.next)
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
			f.copy[e.Object.GetName()] = e.Object.RV
			f.rv = e.Object.RV
		case watch.Deleted:
			delete(f.copy, e.Object.GetName())
			f.rv = e.Object.RV
		}
	}
}

// Random changes, relists included, against clients that break off and resume at
// any point: each ends with what the collection holds and its filter lets through.
func TestWhatAFilterShowsAgreesWithItsCollection(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := watches.NewCollection(secretKind, 1+int(seed%20))
		rv := uint64(10)
		c.Become(nil, rv)
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
					if events, _, _, ok := c.Since(f.next); ok && len(events) == 0 {
						break
					}
				}
			}
			want := map[string]uint64{}
			for name, s := range truth {
				o, err := watches.NewObject(secretKind, s.DeepCopy())
				if err != nil {
					t.Fatal(err)
				}
				if f.filter.matches(o) {
					want[name] = o.RV
				}
			}
			if !maps.Equal(f.copy, want) {
				t.Fatalf("seed %d, follower %d has %v, want %v", seed, i, f.copy, want)
			}
		}
	}
}
