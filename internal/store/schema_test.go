package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// double is a migration that must not be done twice to a record.
func double(_ string, data []byte) ([]byte, error) {
	name := strings.TrimSuffix(strings.TrimPrefix(string(data), `{"Name":"`), `"}`)
	if name == "drop" {
		return nil, nil
	}
	return fmt.Appendf(nil, `{"Name":"%s"}`, name+name), nil
}

func TestANewStoreHasTheCurrentSchema(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		for range 2 {
			if err := s.migrate(t.Context(), []migration{double}, "v1.1.0"); err != nil {
				t.Fatal(err)
			}
			var is schema
			if _, err := s.Get(t.Context(), schemaKey, &is); err != nil || is != (schema{Version: 2, Kip: "v1.1.0"}) {
				t.Fatalf("%+v, %v", is, err)
			}
		}
		if err := s.Within("other/").Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// first makes a new store one of the first schema.
func first(t *testing.T, s *Store) {
	t.Helper()
	if err := s.migrate(t.Context(), nil, "v1.0.0"); err != nil {
		t.Fatal(err)
	}
}

func TestAnOldStoreIsMigratedInOrder(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s.Within("other/"), "a", "not mine", 0)
		s = s.Within("me/")
		first(t, s)
		put(t, s, "a", "x", 0)
		put(t, s, "b", "drop", 0)
		put(t, s, "c", "y", 0)
		bang := func(_ string, data []byte) ([]byte, error) {
			return []byte(strings.Replace(string(data), `"}`, `!"}`, 1)), nil
		}
		if err := s.migrate(t.Context(), []migration{double, bang}, "v1.2.0"); err != nil {
			t.Fatal(err)
		}
		if got, want := contents(t, s), `a=xx! c=yy! schema={"version":3,"kip":"v1.2.0`; got != want {
			t.Fatalf("the store holds %s, want %s", got, want)
		}
	})
}

func TestAMigrationGoesOnAfterACrashAtAnyPoint(t *testing.T) {
	const n = 3*MaxChanges + 7
	crash := errors.New("crash")
	for _, moment := range []string{"apply", "applied"} { // before the effect, and after it
		for at := 1; ; at++ {
			writes, armed := 0, false
			s := Memory(func(op, _ string) error {
				if op == moment && armed {
					if writes++; writes == at {
						return crash
					}
				}
				return nil
			})
			first(t, s)
			for i := range n {
				put(t, s, fmt.Sprintf("%04d", i), "x", 0)
			}
			armed = true
			migrations := []migration{double, double}
			err := s.migrate(t.Context(), migrations, "v2")
			crashed := errors.Is(err, crash)
			if err != nil && !crashed {
				t.Fatal(err)
			}
			if crashed {
				var is schema
				if _, err := s.Get(t.Context(), schemaKey, &is); err != nil {
					t.Fatal(err)
				}
				if is.To > 0 {
					if err := s.migrate(t.Context(), migrations[:is.To-2], "v1"); err == nil {
						t.Fatalf("a Kip that does not know schema %d took a store on its way to it", is.To)
					}
				}
				if err := s.migrate(t.Context(), migrations, "v2"); err != nil {
					t.Fatal(err)
				}
			}
			want := strings.Builder{}
			for i := range n {
				fmt.Fprintf(&want, "%04d=xxxx ", i)
			}
			want.WriteString(`schema={"version":3,"kip":"v2`)
			if got := contents(t, s); got != want.String() {
				t.Fatalf("after a crash at write %d (%s): %s", at, moment, got)
			}
			if !crashed {
				if at < 8 {
					t.Fatalf("only %d writes: nothing was proved", at)
				}
				break
			}
		}
	}
}

func TestANewerStoreIsRefused(t *testing.T) {
	s := Memory(nil)
	if err := s.migrate(t.Context(), []migration{double, double}, "v3.0.0"); err != nil {
		t.Fatal(err)
	}
	err := s.migrate(t.Context(), []migration{double}, "v2.0.0")
	if err == nil {
		t.Fatal("a store of schema 3 was taken by a Kip of schema 2")
	}
	for _, want := range []string{"schema 3", "up to 2", "run Kip v3.0.0 or newer"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

func TestRecordsOfNoSchemaAreRefused(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s, "me/a", "x", 0)
		if err := s.Within("other/").Migrate(t.Context()); err != nil {
			t.Errorf("a view without records: %v", err)
		}
		s = s.Within("me/")
		for _, migrations := range [][]migration{nil, {double}} {
			err := s.migrate(t.Context(), migrations, "v1")
			if err == nil || !strings.Contains(err.Error(), "does not say of which schema") || !strings.Contains(err.Error(), "kipctl restore") {
				t.Errorf("with %d migrations: %v", len(migrations), err)
			}
		}
		if got := contents(t, s); got != "a=x" {
			t.Errorf("the store holds %s", got)
		}
	})
}

func TestAMigrationThatCannotReadARecordNamesIt(t *testing.T) {
	s := Memory(nil)
	first(t, s)
	put(t, s, "cells/a", "x", 0)
	bad := errors.New("what is this")
	err := s.migrate(t.Context(), []migration{func(string, []byte) ([]byte, error) { return nil, bad }}, "v2")
	if !errors.Is(err, bad) || !strings.Contains(err.Error(), "from schema 1 to 2: record cells/a") {
		t.Fatal(err)
	}
}
