package main

import (
	"io"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFileOfTestsThatNothingCompilesFails(t *testing.T) {
	const imports, nothing = "package a\nimport \"testing\"\n", "package a\n"
	dir := tree(t, map[string]string{
		"go.mod":                 "module example.com/m\n\ngo 1.26\n",
		"a/a.go":                 nothing,
		"a/a_test.go":            imports + "func TestOne(t *testing.T) {}\n",
		"a/tagged_test.go":       "//go:build e2e\n\n" + imports + "func TestTwo(t *testing.T) {}\n",
		"a/odd_test.go":          "//go:build odd\n\n" + nothing,
		"a/away_windows_test.go": nothing,
		"a/testdata/x_test.go":   nothing,
		"inner/go.mod":           "module example.com/other\n\ngo 1.26\n",
		"inner/b_test.go":        "package b\n",
	})
	// The runs of two stages, in the folder that they are run in.
	compiled := map[string]bool{}
	for _, run := range []struct{ folder, tags, pkg string }{{".", "", "./a"}, {".", "e2e", "./a"}, {"inner", "", "."}} {
		t.Chdir(filepath.Join(dir, run.folder))
		file := filepath.Join(dir, "stage.json")
		if err := command([]string{"-tags", run.tags, file, run.pkg}, io.Discard); err == nil {
			t.Fatal("a run without events passes")
		}
		files, err := compiledIn([]string{file, filepath.Join(dir, "fuzz.json")})
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(compiled, files)
	}
	const away, odd = "a/away_windows_test.go", "a/odd_test.go"
	const noStage = "are _test.go files that no stage compiles, and test/tally/uncompiled.txt does not say why:\n  "
	const noTags = "are _test.go files that this system compiles with no set of build tags, and test/tally/uncompiled.txt does not say why:\n  "
	for name, tc := range map[string]struct {
		nowhere       map[string]string
		run, standing string // what the check after a run says, and the one without
	}{
		"two are not":     {nil, "2 " + noStage + away + "\n  " + odd, "1 " + noTags + away},
		"both are listed": {map[string]string{away: "why", odd: "why"}, "", ""},
		"one is compiled": {map[string]string{away: "why", odd: "why", "a/a_test.go": "why"}, "be:\n  a/a_test.go: it was compiled", ""},
		"one is gone":     {map[string]string{away: "why", odd: "why", "a/gone_test.go": "why"}, "a/gone_test.go", "a/gone_test.go"},
		"one is no test":  {map[string]string{away: "why", odd: "why", "a/a.go": "why"}, "tree:\n  a/a.go", "tree:\n  a/a.go"},
	} {
		l := lists{nowhere: tc.nowhere}
		for want, err := range map[string]error{
			"after a run: " + tc.run:  l.uncompiled(dir, compiled),
			"without: " + tc.standing: l.neverCompiled(dir),
		} {
			when, says, _ := strings.Cut(want, ": ")
			if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("%s, %s: it ended with %v, want %q", name, when, err, says)
			}
		}
	}
	for _, bad := range []string{"a/a_test.go", "a/a_test.go why\na/a_test.go why not"} {
		if _, err := parseUncompiled(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
