package store

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/store/storetest"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func external(t *testing.T) *Store {
	t.Helper()
	s, err := OpenExternal(t.Context(), External{Endpoints: []string{storetest.Serve(t, nil).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func backup(t *testing.T, s *Store) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := s.Backup(t.Context(), &file, noon); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestABackupOfAnyKindRestoresToAnyKind(t *testing.T) {
	kinds := map[string]func(*testing.T) *Store{
		"embedded": func(t *testing.T) *Store { return open(t, t.TempDir()) },
		"external": external,
		"memory":   func(*testing.T) *Store { return Memory(nil) },
	}
	for from, source := range kinds {
		for to, target := range kinds {
			t.Run(from+" to "+to, func(t *testing.T) {
				all := source(t)
				put(t, all, "other", "not mine", 0)
				s := all.Within("me/")
				if err := s.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				for i := 0; i < pageSize+50; i += 50 {
					var changes []Change
					for j := i; j < i+50; j++ {
						changes = append(changes, Change{Key: fmt.Sprintf("%05d", j), Value: item{fmt.Sprint(j)}})
					}
					if _, err := s.Apply(t.Context(), changes...); err != nil {
						t.Fatal(err)
					}
				}
				file := backup(t, s)
				d := target(t).Within("you/")
				if err := d.Restore(t.Context(), bytes.NewReader(file), false); err != nil {
					t.Fatal(err)
				}
				if want, got := contents(t, s), contents(t, d); got != want || strings.Contains(got, "not mine") {
					t.Fatalf("restored %s", got)
				}
				if err := d.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				if again := backup(t, d); !bytes.Equal(records(again), records(file)) {
					t.Fatal("a backup of what was restored differs")
				}
			})
		}
	}
}

// records is a backup without its header and trailer.
func records(file []byte) []byte {
	lines := bytes.SplitAfter(file, []byte("\n"))
	return bytes.Join(lines[1:len(lines)-2], nil)
}

func TestRestoreOverwritesOnlyWhenAsked(t *testing.T) {
	s := Memory(nil)
	put(t, s, "a", "1", 0)
	b := put(t, s, "b", "1", 0)
	file := backup(t, s)
	put(t, s, "b", "2", b)
	put(t, s, "c", "new", 0)
	if err := s.Restore(t.Context(), bytes.NewReader(file), false); err == nil || !strings.Contains(err.Error(), "it has 3 records") {
		t.Fatalf("over records: %v", err)
	}
	if got := contents(t, s); got != "a=1 b=2 c=new" {
		t.Fatalf("a refused restore left %s", got)
	}
	if err := s.Restore(t.Context(), bytes.NewReader(file), true); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, s); got != "a=1 b=1" {
		t.Fatalf("restored %s", got)
	}
}

func TestADamagedBackupIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	s := Memory(nil)
	put(t, s, "a", "1", 0)
	put(t, s, "b", "1", 0)
	file := backup(t, s)
	writes := 0
	target := Memory(func(string, string) error { writes++; return nil })
	refused := func(damaged []byte) {
		t.Helper()
		if err := target.Restore(t.Context(), bytes.NewReader(damaged), true); err == nil {
			t.Fatalf("restored:\n%s", damaged)
		}
	}
	for i := range file { // cut short, or one bit turned, anywhere
		refused(file[:i])
		turned := bytes.Clone(file)
		turned[i] ^= 1
		refused(turned)
	}
	lines := bytes.SplitAfter(file, []byte("\n"))
	refused(bytes.Join([][]byte{lines[0], lines[1], lines[3]}, nil))                     // a record lost
	refused(bytes.Join([][]byte{lines[0], lines[2], lines[1], lines[3]}, nil))           // swapped
	refused(bytes.Join([][]byte{lines[0], lines[1], lines[1], lines[2], lines[3]}, nil)) // doubled
	refused(append(bytes.Clone(file), file...))
	refused([]byte("{}\n"))
	if writes != 0 {
		t.Fatalf("%d writes", writes)
	}
	if err := target.Restore(t.Context(), bytes.NewReader(file), false); err != nil || writes == 0 {
		t.Fatalf("the whole file: %v, %d calls", err, writes)
	}
}

func TestABackupOfANewerKipIsRefused(t *testing.T) {
	s := Memory(nil)
	if err := s.migrate(t.Context(), append([]migration{double}, migrations...), "v9"); err != nil {
		t.Fatal(err)
	}
	file := backup(t, s)
	err := Memory(nil).Restore(t.Context(), bytes.NewReader(file), true)
	if want := fmt.Sprintf("the backup has schema %d, and this Kip knows schemas up to %d", schemaVersion+1, schemaVersion); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Fatal(err)
	}
	file = []byte(strings.Replace(string(file), `"kipBackup":1`, `"kipBackup":2,"more":true`, 1))
	if err := Memory(nil).Restore(t.Context(), bytes.NewReader(file), true); err == nil || !strings.Contains(err.Error(), "format 2") {
		t.Fatal(err)
	}
}

func TestARestoreThatWasCutOffIsDoneAgain(t *testing.T) {
	const n = 3*MaxChanges + 7
	source := Memory(nil)
	for i := range n {
		put(t, source, fmt.Sprintf("%04d", i), "x", 0)
	}
	file, want := backup(t, source), contents(t, source)
	crash := errors.New("crash")
	for _, moment := range []string{"apply", "applied"} {
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
			for i := range 150 { // in part other, in part to be deleted
				put(t, s, fmt.Sprintf("%04d", 2*n-i*4), "old", 0)
			}
			armed = true
			err := s.Restore(t.Context(), bytes.NewReader(file), true)
			if err == nil {
				if at < 5 {
					t.Fatalf("only %d writes: nothing was proved", at)
				}
				break
			}
			if !errors.Is(err, crash) {
				t.Fatal(err)
			}
			switch got := contents(t, s); {
			case got == want: // only the answer was lost
			case !strings.Contains(got, "restoring"):
				if strings.Contains(got, "=x") {
					t.Fatalf("half of a restore and nothing says so: %s", got)
				}
			default:
				if err := s.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "cut off") {
					t.Fatalf("Kip would start on half of a restore: %v", err)
				}
				if err := s.Backup(t.Context(), &bytes.Buffer{}, noon); err == nil {
					t.Fatal("half of a restore was backed up")
				}
				if err := s.Restore(t.Context(), bytes.NewReader(file), false); err != nil {
					t.Fatal(err)
				}
				if got := contents(t, s); got != want {
					t.Fatalf("after a crash at write %d (%s): %s", at, moment, got)
				}
			}
		}
	}
}

func TestABackupIsOfOneRevision(t *testing.T) {
	// Each write changes the first and the last record together; a backup in
	// pages must not see one new and the other old.
	s := open(t, t.TempDir())
	for i := 0; i < pageSize+100; i += MaxChanges {
		var changes []Change
		for j := i; j < i+MaxChanges; j++ {
			changes = append(changes, Change{Key: fmt.Sprintf("m%05d", j), Value: item{"x"}})
		}
		if _, err := s.Apply(t.Context(), changes...); err != nil {
			t.Fatal(err)
		}
	}
	revision, err := s.Apply(t.Context(), Change{"a", item{"0"}, 0}, Change{"z", item{"0"}, 0})
	if err != nil {
		t.Fatal(err)
	}
	between := &tee{}
	between.before = func() { // between the pages: the file is written as they come
		if revision, err = s.Apply(t.Context(), Change{"a", item{"1"}, revision}, Change{"z", item{"1"}, revision}); err != nil {
			t.Error(err)
		}
	}
	if err := s.Backup(t.Context(), between, noon); err != nil {
		t.Fatal(err)
	}
	if between.calls < 2 {
		t.Fatal("nothing was written during the backup")
	}
	m := Memory(nil)
	if err := m.Restore(t.Context(), &between.Buffer, false); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, m); !strings.HasPrefix(got, "a=0 ") || !strings.HasSuffix(got, " z=0") {
		t.Fatalf("from %.10s to %s", got, got[len(got)-4:])
	}
}

type tee struct {
	bytes.Buffer
	before func()
	calls  int
}

func (w *tee) Write(p []byte) (int, error) {
	w.calls++
	w.before()
	return w.Buffer.Write(p)
}
