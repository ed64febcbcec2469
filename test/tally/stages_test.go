package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// scripts is a folder with the Makefile and hack/ of the tree, but for the
// prerequisites, and with further files.
func scripts(t *testing.T, files map[string]string) string {
	t.Helper()
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	files["hack/prerequisites"] = "#!/bin/sh\n"
	for _, name := range []string{"Makefile", "go.mod", "hack/stages", "hack/lint"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(data)
	}
	dir := tree(t, files)
	for name, text := range files {
		if strings.HasPrefix(text, "#!") {
			if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// in runs a command in a folder, as nobody's child: not make's, which may run this test.
func in(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "MAKE") && !strings.HasPrefix(e, "MFLAGS") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// probe is a make that says with which variables its targets are made.
const probe = `#!/bin/sh
exec make -f probe.mk "$@"
`

func TestNoEnvironmentMakesMakeTestSmaller(t *testing.T) {
	dir := scripts(t, map[string]string{"probe": probe, "probe.mk": `FAULTS_SEED ?= 7
FUZZTIME ?= 7
probe.mk: ;
%:
	@echo "made $@ with $$STEPS $(FAULTS_SEED) $(FUZZTIME) $$FUZZ_SEED $$FUZZ_PODS; GOFLAGS=$$GOFLAGS GORACE=$$GORACE ARGS=$(ARGS) GO=$(GO)"
`})
	var want []string
	for _, stage := range strings.Fields("build lint unit unit-kubernetes faults fuzz e2e tutorial conformance-subset tally") {
		want = append(want, "made "+stage+" with 100000 1 20 1 40; GOFLAGS=-buildvcs=false GORACE= ARGS= GO=go")
	}
	for _, given := range [][]string{
		nil,
		{"STEPS=1", "FAULTS_SEED=9", "FUZZTIME=1", "FUZZ_SEED=5", "FUZZ_PODS=1", "GOFLAGS=-run=^$", "GORACE=exitcode=0", "ARGS=-list", "GO=true",
			"STAGES=build", "BOUNDS=STEPS=1"},
	} {
		for where, run := range map[string]func() (string, error){
			"the environment": func() (string, error) {
				return in(dir, given, "make", "--no-print-directory", "test", "MAKE="+dir+"/probe")
			},
			"the arguments": func() (string, error) {
				return in(dir, nil, "make", append([]string{"--no-print-directory", "test", "MAKE=" + dir + "/probe"}, given...)...)
			},
		} {
			out, err := run()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if made := regexp.MustCompile(`(?m)^made .*`).FindAllString(out, -1); strings.Join(made, "\n") != strings.Join(want, "\n") {
				t.Errorf("with %q in %s it\n%s\nwant\n%s", given, where, strings.Join(made, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

func TestAStageThatFailsOrDoesNothingEndsTheRest(t *testing.T) {
	dir := scripts(t, map[string]string{"probe": probe, "there": "", "probe.mk": `.PHONY: good bad idle last
good last:
	@echo did $@
bad:
	@echo what went wrong; exit 3
idle:
there:
	@echo never said
`})
	for target, says := range map[string]string{
		"good": "",
		"bad": "make bad failed with 2; the stages after it did not run. What it said is in " + dir +
			"/.kip/stages/bad.log, and ends with:\n  what went wrong",
		"idle": "make idle did nothing", "there": "make there did nothing", "nowhere": "No rule to make target",
	} {
		out, err := in(dir, []string{"MAKE=" + dir + "/probe", "MAKEFLAGS=i", "GNUMAKEFLAGS=-i"}, "hack/stages", "A=1", "good", target, "last")
		if (err == nil) != (says == "") || !strings.Contains(out, says) || strings.Contains(out, "did last") != (says == "") ||
			!strings.Contains(out, "did good") {
			t.Errorf("with %s it ended with %v, want %q, and said\n%s", target, err, says, out)
		}
		if rows := regexp.MustCompile(`(?m)^(good|`+target+`|all) +\d+:\d\d +\d+:\d\d$`).FindAllString(out, -1); len(rows) < 3 &&
			target != "good" {
			t.Errorf("with %s its table has %q", target, rows)
		}
	}
	if out, err := in(dir, nil, "hack/stages", "A=1"); err == nil {
		t.Errorf("without stages it passes: %s", out)
	}
}

func TestMakeForgivesNoStage(t *testing.T) {
	dir := scripts(t, map[string]string{"hack/stages": "#!/bin/sh\nexit 1\n"})
	stages := filepath.Join(dir, "hack", "stages")
	if err := os.WriteFile(stages, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, env := range []string{"A=i", "MAKEFLAGS=i", "MAKEFLAGS=ki", "GNUMAKEFLAGS=-i", "MAKEFLAGS=--ignore-errors"} {
		if out, err := in(dir, []string{env}, "make", "test", "B=i"); err == nil {
			t.Errorf("with %s a stage that fails passes: %s", env, out)
		}
	}
	if out, err := in(dir, []string{"A=i"}, "make", "--no-print-directory", "help", "B=i"); err != nil {
		t.Errorf("without it: %v, %s", err, out)
	}
}

func TestSourcesAreLookedAtWithoutGit(t *testing.T) {
	const good = "package a\n"
	for name, tc := range map[string]struct {
		files map[string]string
		says  string
	}{
		"all is well":               {map[string]string{"a/a.go": good, "bin/x.go": "package  x", ".kip/x.go": "package  x"}, ""},
		"one is not formatted":      {map[string]string{"a/a.go": good, "test/deep/b.go": "package   b\n"}, "test/deep/b.go"},
		"in a module of its own":    {map[string]string{"a/a.go": good, "m/go.mod": "module m", "m/b.go": "package   b\n"}, "m/b.go"},
		"one cannot be read":        {map[string]string{"a/a.go": good, "b.go": "pack"}, "gofmt cannot read"},
		"a script cannot be read":   {map[string]string{"a/a.go": good, ".ci/run": "#!/usr/bin/env bash\nif true; then\n"}, ".ci/run"},
		"there is nothing to check": {map[string]string{}, "no Go files"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := scripts(t, tc.files)
			// As when a tarball is unpacked in another's checkout.
			if out, err := in(filepath.Dir(dir), nil, "git", "init", "-q"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := in(dir, nil, "hack/lint")
			if (err == nil) != (tc.says == "") || !strings.Contains(out, tc.says) {
				t.Errorf("it ended with %v, want %q, and said\n%s", err, tc.says, out)
			}
		})
	}
}
