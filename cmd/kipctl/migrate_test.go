package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oldFile is a provider.yaml of 2020.
func oldFile(t *testing.T) (path, text string) {
	t.Helper()
	data, err := os.ReadFile("../../internal/config/testdata/kip-2020.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "provider.yaml")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, string(data)
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestMigratePrintsTodaysFileAndWhatBecameOfEachKey(t *testing.T) {
	path, old := oldFile(t)
	r := run(t, nil, "migrate", "-f", path)
	if want := read(t, "../../internal/config/testdata/kip-2020.migrated.yaml"); r.failed != nil || r.out != want || read(t, path) != old {
		t.Fatalf("%v, printed\n%s", r.failed, r.out)
	}
	golden(t, "migrate", r.err)
	if strings.Contains(r.err, "not-a-secret") {
		t.Error("the report has a secret")
	}
}

func TestMigrateWritesTheFileAndKeepsTheEarlierOne(t *testing.T) {
	path, old := oldFile(t)
	r := run(t, nil, "migrate", "-f", path, "-w")
	if r.failed != nil || r.out != "" || read(t, path+".orig") != old || !strings.Contains(read(t, path), "capacity:") {
		t.Fatalf("%v, printed %q, written\n%s", r.failed, r.out, read(t, path))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	again := run(t, nil, "migrate", "-f", path, "-w")
	if again.failed != nil || !strings.Contains(again.err, "is up to date: it stays as it is") || read(t, path+".orig") != old {
		t.Errorf("the second time: %v, %s", again.failed, again.err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 2 {
		t.Errorf("beside it there are %v, %v", entries, err)
	}
}

func TestMigrateLeavesNothingBehindWhenItFailsToWrite(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "provider.yaml") // which no file replaces
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	err := replaceFile(folder, []byte("old"), []byte("new"))
	if entries, listErr := os.ReadDir(filepath.Dir(folder)); err == nil || listErr != nil || len(entries) != 1 {
		t.Errorf("%v; there are %v, %v", err, entries, listErr)
	}
}

func TestMigrateWritesNothingThatIsNotSafe(t *testing.T) {
	path, old := oldFile(t)
	if err := os.WriteFile(path+".orig", []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, nil, "migrate", "-f", path, "-w")
	if r.failed == nil || !strings.Contains(r.err, "provider.yaml.orig is there already") || read(t, path) != old ||
		read(t, path+".orig") != "mine" {
		t.Errorf("%v: %s", r.failed, r.err)
	}
	wrong := strings.Replace(old, "privateIPOnly: false", "privateIPOnly: maybe\n  privateIPonly: true", 1)
	if err := os.WriteFile(path, []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	r = run(t, nil, "migrate", "-f", path, "-w")
	if r.failed == nil || r.out != "" || read(t, path) != wrong {
		t.Errorf("%v: %s", r.failed, r.out)
	}
	for _, words := range []string{
		"nothing was written", `cells.privateIPOnly: "maybe" is not valid`, "cells.privateIPonly: no such key; did you mean",
	} {
		if !strings.Contains(r.err, words) {
			t.Errorf("%q is not in %s", words, r.err)
		}
	}
	for args, want := range map[string]string{
		"migrate": "say which file", "migrate -f - -w": "--write needs the name of a file", "migrate -f /none/p": "read the configuration: open /none/p",
	} {
		if r := run(t, nil, strings.Fields(args)...); r.failed == nil || !strings.Contains(r.err, want) {
			t.Errorf("%s: %v", args, r.failed)
		}
	}
}
