package store

import (
	"errors"
	"testing"
)

func TestAFenceInMemoryFallsWithItsRecord(t *testing.T) {
	s := Memory(nil)
	first, err := s.Put(t.Context(), "leader", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	fenced := s.Fenced(s.Prefix()+"leader", first)
	revision, err := fenced.Put(t.Context(), "a", "by the first", 0)
	if err := errors.Join(err, fenced.Leads(t.Context())); err != nil {
		t.Fatalf("while it stands: %v", err)
	}
	if _, err := s.Put(t.Context(), "leader", 2, first); err != nil {
		t.Fatal(err)
	}
	_, put := fenced.Put(t.Context(), "a", "late", revision)
	for what, err := range map[string]error{
		"a write": put, "a deletion": fenced.Delete(t.Context(), "a", revision), "the question": fenced.Leads(t.Context()),
	} {
		if !errors.Is(err, ErrNotLeader) {
			t.Errorf("%s after it has fallen: %v", what, err)
		}
	}
	var got string
	if _, err := fenced.Get(t.Context(), "a", &got); err != nil || got != "by the first" {
		t.Errorf("a read after it has fallen: %q, %v", got, err)
	}
}
