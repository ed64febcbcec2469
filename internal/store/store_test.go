package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type item struct{ Name string }

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := OpenEmbedded(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestRecordsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenEmbedded(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	rev, err := s.Put(t.Context(), "cells/a", item{"a"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	var got item
	again, err := s.Get(t.Context(), "cells/a", &got)
	if err != nil || again != rev || got.Name != "a" {
		t.Fatalf("after a restart: revision %d (want %d), %+v, %v", again, rev, got, err)
	}
}

func TestASecondKipOnTheSameFolderIsRefusedAndHarmless(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := OpenEmbedded(t.Context(), dir, ""); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Fatalf("the second: %v, want who has the folder", err)
	}
	if _, err := s.Put(t.Context(), "x", item{"1"}, 0); err != nil {
		t.Fatalf("the first no longer works: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "peer.sock")); err != nil {
		t.Fatalf("the first lost its socket: %v", err)
	}
}

func TestNobodyElseCanReachTheEmbeddedEtcd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	open(t, dir)
	info, err := os.Stat(filepath.Join(dir, "peer.sock"))
	if err != nil {
		t.Fatalf("the peer listener is not the socket in the store's folder: %v", err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		t.Fatalf("peer.sock is a %s", info.Mode())
	}
	if folder, err := os.Stat(dir); err != nil || folder.Mode().Perm()&0o077 != 0 {
		t.Fatalf("the folder is open to others: %v, %v", folder.Mode(), err)
	}
}

func TestOnlyTheWriterThatSawTheLatestRevisionWins(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := t.Context()
	first, err := s.Put(ctx, "x", item{"1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "x", item{"2"}, 0); !errors.Is(err, ErrConflict) {
		t.Fatalf("a second create: %v, want ErrConflict", err)
	}
	second, err := s.Put(ctx, "x", item{"3"}, first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "x", item{"4"}, first); !errors.Is(err, ErrConflict) {
		t.Fatalf("a write at an old revision: %v, want ErrConflict", err)
	}
	if err := s.Delete(ctx, "x", first); !errors.Is(err, ErrConflict) {
		t.Fatalf("a delete at an old revision: %v, want ErrConflict", err)
	}
	if err := s.Delete(ctx, "x", second); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, "x", second); err != nil {
		t.Fatalf("a delete of what is gone: %v, want none", err)
	}
}

func TestListSeesOnlyItsPrefix(t *testing.T) {
	s := open(t, t.TempDir())
	w := s.Within("k/")
	for i := range 3 {
		if _, err := w.Put(t.Context(), fmt.Sprintf("cells/%d", i), item{fmt.Sprint(i)}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Put(t.Context(), "cells/other", item{"other"}, 0); err != nil {
		t.Fatal(err)
	}
	var keys []string
	if err := w.List(t.Context(), "cells/", func(key string, _ []byte, _ int64) error {
		keys = append(keys, key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(keys) != "[cells/0 cells/1 cells/2]" {
		t.Fatalf("listed %v", keys)
	}
}

func TestStoredGarbageIsAnErrorThatNamesTheKey(t *testing.T) {
	s := open(t, t.TempDir())
	if _, err := s.backend.(etcd).client.Put(t.Context(), root+"bad", "{"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "bad", &item{}); err == nil || !strings.Contains(err.Error(), "read bad from the store") {
		t.Errorf("garbage was read: %v, want an error that names bad", err)
	}
	// A list is decoded by who asks for it: the key comes with each record, and the
	// error is handed on.
	err := s.List(t.Context(), "b", func(key string, data []byte, _ int64) error {
		if err := json.Unmarshal(data, &item{}); err != nil {
			return fmt.Errorf("decode %s: %w", key, err)
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "decode bad: ") {
		t.Errorf("garbage was listed: %v, want an error that names bad", err)
	}
}
