package watches

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var secretKind = &Kind{
	Resource: corev1.SchemeGroupVersion.WithResource("secrets"), Name: "Secret",
	New: func() APIObject { return &corev1.Secret{} },
}

func secretAt(name string, rv uint64, labels map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, ResourceVersion: strconv.FormatUint(rv, 10),
		Labels: labels}}
}

func mustObject(t testing.TB, name string, rv uint64) *Object {
	t.Helper()
	o, err := NewObject(secretKind, secretAt(name, rv, nil))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// told returns what a watch from rv is told, "expired" when it cannot be told.
func told(c *Collection, rv uint64) []string {
	next, ok := c.Seek(rv)
	if !ok {
		return []string{"expired"}
	}
	events, _, _, _ := c.Since(next)
	lines := []string{}
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("%s %s@%d", e.Kind, e.Object.GetName(), e.Object.RV))
	}
	return lines
}

func TestCollectionTellsAWatchWhatItHasNotSeen(t *testing.T) {
	filled := func(t *testing.T) *Collection {
		c := NewCollection(secretKind, 3)
		c.Become([]*Object{mustObject(t, "a", 5), mustObject(t, "b", 7)}, 10)
		return c
	}
	for name, tc := range map[string]struct {
		change func(*testing.T, *Collection)
		want   map[uint64][]string
	}{
		"nothing has changed": {
			change: func(*testing.T, *Collection) {},
			want:   map[uint64][]string{9: {"expired"}, 10: {}, 11: {"expired"}},
		},
		"changes": {
			change: func(t *testing.T, c *Collection) {
				c.Put(mustObject(t, "a", 11))
				c.Put(mustObject(t, "c", 14))
				c.Remove(mustObject(t, "b", 15))
			},
			want: map[uint64][]string{
				9: {"expired"}, 10: {"MODIFIED a@11", "ADDED c@14", "DELETED b@15"}, 11: {"ADDED c@14", "DELETED b@15"},
				12: {"ADDED c@14", "DELETED b@15"}, 15: {}, 16: {"expired"},
			},
		},
		"the same version again": {
			change: func(t *testing.T, c *Collection) { c.Put(mustObject(t, "a", 5)) },
			want:   map[uint64][]string{10: {}},
		},
		"a bookmark": {
			change: func(_ *testing.T, c *Collection) { c.UpdateResourceVersion("20") },
			want:   map[uint64][]string{10: {}, 20: {}, 21: {"expired"}},
		},
		"more than the history keeps": {
			change: func(t *testing.T, c *Collection) {
				for rv := uint64(11); rv < 17; rv++ {
					c.Put(mustObject(t, "a", rv))
				}
			},
			want: map[uint64][]string{10: {"expired"}, 12: {"expired"}, 13: {"MODIFIED a@14", "MODIFIED a@15", "MODIFIED a@16"},
				15: {"MODIFIED a@16"}},
		},
		"a list with changes and deletions": {
			change: func(t *testing.T, c *Collection) {
				c.Become([]*Object{mustObject(t, "d", 13), mustObject(t, "c", 12)}, 20)
			},
			// A watch that breaks off after the first deletion resumes from 10
			// and is told all again.
			want: map[uint64][]string{10: {"DELETED a@10", "DELETED b@10", "ADDED c@12", "ADDED d@13"}, 12: {"ADDED d@13"}, 13: {}, 20: {}},
		},
		"a list with deletions only": {
			change: func(_ *testing.T, c *Collection) { c.Become(nil, 20) },
			want:   map[uint64][]string{10: {"DELETED a@10", "DELETED b@10"}, 20: {}},
		},
		"a list that goes back in time": {
			change: func(t *testing.T, c *Collection) { c.Become([]*Object{mustObject(t, "a", 3)}, 4) },
			want:   map[uint64][]string{3: {"expired"}, 4: {}, 10: {"expired"}},
		},
		"an object that goes back in time": {
			change: func(t *testing.T, c *Collection) { c.Put(mustObject(t, "z", 8)) },
			want:   map[uint64][]string{7: {"expired"}, 8: {}, 10: {"expired"}},
		},
		"a deletion whose version is not known": {
			change: func(t *testing.T, c *Collection) { c.Remove(mustObject(t, "a", 5)) },
			want:   map[uint64][]string{10: {"DELETED a@10"}},
		},
		"emptied": {
			change: func(_ *testing.T, c *Collection) { c.StartEmpty(30) },
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
	c := NewCollection(secretKind, 8)
	c.Become(nil, 1)
	for rv := uint64(2); rv < 1000; rv++ {
		c.Put(mustObject(t, "a", rv))
		if n := len(c.events); n >= 16 {
			t.Fatalf("%d events are kept, the limit is 8 and twice that between cuts", n)
		}
	}
}
