package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// both runs a test against each kind of store.
func both(t *testing.T, f func(t *testing.T, s *Store)) {
	t.Run("etcd", func(t *testing.T) { f(t, open(t, t.TempDir())) })
	t.Run("memory", func(t *testing.T) { f(t, Memory(nil)) })
}

func put(t *testing.T, s *Store, key, name string, revision int64) int64 {
	t.Helper()
	r, err := s.Put(t.Context(), key, item{name}, revision)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// contents are all records as "key=name", in order.
func contents(t *testing.T, s *Store) string {
	t.Helper()
	var all []string
	err := s.List(t.Context(), "", func(key string, data []byte, _ int64) error {
		all = append(all, key+"="+strings.TrimSuffix(strings.TrimPrefix(string(data), `{"Name":"`), `"}`))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func TestApplyIsAllOrNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes func(a, b int64) []Change // a and b are the revisions of those records
		want    string                    // the records after it, before: a=1 b=1
		err     string
	}{
		{"creates, updates, deletes", func(a, b int64) []Change {
			return []Change{{"a", item{"2"}, a}, {"b", nil, b}, {"c", item{"1"}, 0}}
		}, "a=2 c=1", ""},
		{"one is old", func(a, b int64) []Change {
			return []Change{{"a", item{"2"}, a}, {"b", item{"2"}, b - 1}}
		}, "a=1 b=1", "b in the store"},
		{"one exists already", func(a, b int64) []Change {
			return []Change{{"c", item{"2"}, 0}, {"b", item{"2"}, 0}}
		}, "a=1 b=1", "b in the store"},
		{"an update of what is gone", func(a, b int64) []Change {
			return []Change{{"c", item{"2"}, a}, {"b", item{"2"}, b}}
		}, "a=1 b=1", "c in the store"},
		{"a deletion at an old revision", func(a, b int64) []Change {
			return []Change{{"c", item{"2"}, 0}, {"b", nil, b - 1}}
		}, "a=1 b=1", "b in the store"},
		{"a deletion of what is gone", func(a, b int64) []Change {
			return []Change{{"c", nil, a}, {"d", nil, 0}, {"b", item{"2"}, b}}
		}, "a=1 b=2", ""},
		{"a deletion of what is gone, and a conflict", func(a, b int64) []Change {
			return []Change{{"c", nil, a}, {"b", item{"2"}, a}}
		}, "a=1 b=1", "b in the store"},
		{"only deletions of what is gone", func(a, b int64) []Change {
			return []Change{{"c", nil, a}, {"d", nil, b}}
		}, "a=1 b=1", ""},
		{"nothing", func(a, b int64) []Change { return nil }, "a=1 b=1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, s *Store) {
				s = s.Within("k/")
				a := put(t, s, "a", "1", 0)
				b := put(t, s, "b", "1", 0)
				revision, err := s.Apply(t.Context(), c.changes(a, b)...)
				if c.err == "" && err != nil || c.err != "" && (!errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), c.err)) {
					t.Fatalf("the error is %v, want one with %q", err, c.err)
				}
				if got := contents(t, s); got != c.want {
					t.Fatalf("the store holds %q, want %q", got, c.want)
				}
				if err := s.List(t.Context(), "", func(key string, _ []byte, r int64) error {
					if r != a && r != b && r != revision {
						return fmt.Errorf("%s is at revision %d, Apply said %d", key, r, revision)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestApplyTakesUpToMaxChanges(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		changes := make([]Change, MaxChanges+1)
		for i := range changes {
			changes[i] = Change{Key: fmt.Sprintf("%03d", i), Value: item{"x"}}
		}
		if _, err := s.Apply(t.Context(), changes...); err == nil || !strings.Contains(err.Error(), "the most is 100") {
			t.Fatalf("one too many: %v", err)
		}
		if _, err := s.Apply(t.Context(), changes[:MaxChanges]...); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Apply(t.Context(), changes[:MaxChanges]...); !errors.Is(err, ErrConflict) {
			t.Fatalf("again: %v, want ErrConflict", err)
		}
		if _, err := s.Apply(t.Context(), Change{"k", item{}, 0}, Change{"k", nil, 0}); err == nil ||
			!strings.Contains(err.Error(), "k in the store: it is changed twice") {
			t.Fatalf("one key twice: %v", err)
		}
		if _, err := s.Put(t.Context(), "k", nil, 0); err == nil {
			t.Fatal("a nil value was put")
		}
		if _, err := s.Put(t.Context(), "k", func() {}, 0); err == nil {
			t.Fatal("a value that is no JSON was put")
		}
	})
}

func TestListGoesOnAfterAPage(t *testing.T) {
	s := open(t, t.TempDir())
	const n = pageSize + pageSize/2
	for i := 0; i < n; i += MaxChanges {
		var changes []Change
		for j := i; j < i+MaxChanges; j++ {
			changes = append(changes, Change{Key: fmt.Sprintf("%06d", j), Value: item{"x"}})
		}
		if _, err := s.Apply(t.Context(), changes...); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	if err := s.List(t.Context(), "", func(key string, _ []byte, _ int64) error {
		if key != fmt.Sprintf("%06d", seen) {
			return fmt.Errorf("record %d is %s", seen, key)
		}
		if seen == 0 { // what comes later is not in this listing
			put(t, s, "999999", "x", 0)
		}
		seen++
		return nil
	}); err != nil || seen != n {
		t.Fatalf("listed %d of %d records: %v", seen, n, err)
	}
	stop := errors.New("enough")
	if err := s.List(t.Context(), "", func(string, []byte, int64) error { return stop }); err != stop {
		t.Fatalf("the listing ended with %v", err)
	}
}

func TestMemoryCallsItsHook(t *testing.T) {
	var calls []string
	failing := ""
	fails := errors.New("cut off")
	s := Memory(func(op, key string) error {
		calls = append(calls, op+" "+key)
		if op == failing {
			return fails
		}
		return nil
	}).Within("me/")
	first := put(t, s, "a", "1", 0)
	if err := s.Delete(t.Context(), "a", first); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(t.Context(), Change{"a", item{"2"}, 0}, Change{"b", item{"2"}, 0}); err != nil {
		t.Fatal(err)
	}
	want := "[put me/a applied me/a delete me/a applied me/a apply me/a,me/b applied me/a,me/b]"
	if fmt.Sprint(calls) != want {
		t.Fatalf("the hook was called %v, want %s", calls, want)
	}

	failing = "put"
	if _, err := s.Put(t.Context(), "c", item{"1"}, 0); !errors.Is(err, fails) {
		t.Fatal(err)
	}
	if got := contents(t, s); got != "a=2 b=2" {
		t.Fatalf("a write that the hook refused left %q", got)
	}
	failing = "applied"
	if _, err := s.Put(t.Context(), "c", item{"1"}, 0); !errors.Is(err, fails) {
		t.Fatal(err)
	}
	if got := contents(t, s); got != "a=2 b=2 c=1" {
		t.Fatalf("a write whose answer was lost left %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Put(ctx, "d", item{"1"}, 0); !errors.Is(err, context.Canceled) {
		t.Fatalf("with a cancelled context: %v", err)
	}
}

func TestMemoryFromOutsideABubbleLetsItsTimePass(t *testing.T) {
	s := Memory(nil)
	synctest.Test(t, func(t *testing.T) {
		put(t, s, "a", "1", 0)
		select {
		case <-s.Done():
			t.Error("it is done")
		case <-time.After(time.Hour):
		}
	})
}

func TestAReadOfMemoryFailsWithWhatItsHookSays(t *testing.T) {
	fails := errors.New("cut off")
	failing := ""
	s := MemoryWith(nil, func(key string) error {
		if key == failing {
			return fails
		}
		return nil
	}).Within("me/")
	put(t, s, "a", "1", 0)
	each := func(string, []byte, int64) error { return nil }
	failing = "me/a"
	var got item
	if _, err := s.Get(t.Context(), "a", &got); !errors.Is(err, fails) {
		t.Fatalf("Get: %v, want what the hook said", err)
	}
	if err := s.List(t.Context(), "", each); err != nil {
		t.Fatalf("List of what does not fail: %v", err)
	}
	failing = "me/"
	if err := s.List(t.Context(), "", each); !errors.Is(err, fails) {
		t.Fatalf("List: %v, want what the hook said", err)
	}
	if _, err := s.Get(t.Context(), "a", &got); err != nil || got != (item{"1"}) {
		t.Fatalf("Get of what does not fail: %v, %v", got, err)
	}
}

func TestATransactionIsBoundedInBytes(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		const each = MaxBytes / 4
		var changes []Change
		for n := range 4 {
			changes = append(changes, Change{Key: fmt.Sprintf("record-%d", n), Value: item{strings.Repeat("x", each)}})
		}
		_, err := s.Apply(t.Context(), changes...)
		if !errors.Is(err, ErrTooBig) {
			t.Errorf("%d bytes and their keys: %v", 4*each, err)
		}
		if got := contents(t, s); got != "" {
			t.Errorf("it has written %d bytes all the same", len(got))
		}
		// What is just within the bound etcd takes.
		changes[3].Value = item{strings.Repeat("x", each-1000)}
		if _, err := s.Apply(t.Context(), changes...); err != nil {
			t.Errorf("within the bound: %v", err)
		}
	})
}
