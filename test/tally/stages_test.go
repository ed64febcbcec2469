package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// scripts is a folder with the Makefile and hack/ of the tree, but for what makes
// ready, and with further files.
func scripts(t *testing.T, files map[string]string) string {
	t.Helper()
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"hack/prerequisites", "hack/test-programs"} {
		files[name] = "#!/bin/sh\n"
	}
	for _, name := range []string{"Makefile", "go.mod", "hack/stages", "hack/with-progress", "hack/lint", "hack/fuzz"} {
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
	@echo "made $@ with $$STEPS $(FAULTS_SEED) $(FUZZTIME) $$FUZZ_SEED $$FUZZ_PODS $$HOSTILE_SEED; GOFLAGS=$$GOFLAGS GORACE=$$GORACE ARGS=$(ARGS) GO=$(GO) $(IMAGE_PROGRAMS)"
`})
	var want []string
	for _, stage := range strings.Fields("boot build conformance-subset e2e faults fuzz hostile lint tally tutorial unit unit-kubernetes") {
		want = append(want, "made "+stage+" with 60000 1 10 1 40 1; GOFLAGS=-buildvcs=false GORACE= ARGS= GO=go bin")
	}
	for _, given := range [][]string{
		nil,
		{"STEPS=1", "FAULTS_SEED=9", "FUZZTIME=1", "FUZZ_SEED=5", "FUZZ_PODS=1", "HOSTILE_SEED=0", "GOFLAGS=-run=^$",
			"GORACE=exitcode=0", "ARGS=-list", "IMAGE_ARCH=riscv64", "IMAGE_PROGRAMS=other", "GO=true", "STAGES=build", "BOUNDS=STEPS=1"},
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
			made := regexp.MustCompile(`(?m)^made .*`).FindAllString(out, -1)
			slices.Sort(made) // some are made beside others
			if !slices.Equal(made, want) {
				t.Errorf("with %q in %s it\n%s\nwant\n%s", given, where, strings.Join(made, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

func TestAStageThatFailsOrDoesNothingEndsTheRest(t *testing.T) {
	dir := scripts(t, map[string]string{"probe": probe, "there": "", "probe.mk": `.PHONY: good bad listed idle last
good last:
	@echo did $@
bad:
	@echo what went wrong; exit 3
listed:
	@seq 50; echo '=== Failed'; echo '=== FAIL: a TestOne (1.00s)'; echo '    a_test.go:1: why'; seq 50; exit 3
idle:
there:
	@echo never said
`})
	for target, says := range map[string]string{
		"good": "",
		"bad": "make bad failed with 2; the stages after it did not run. What it said is in " + dir +
			"/.kip/stages/bad.log, and ends with:\n  what went wrong",
		"listed": "make listed failed with 2; the stages after it did not run. What it said is in " + dir +
			"/.kip/stages/listed.log, and ends with:\n  === Failed\n  === FAIL: a TestOne (1.00s)\n      a_test.go:1: why\n  1\n",
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

// TestWhatIsMadeBesideOthersCountsAsTheyDo is of stages with what the CPUs have left.
func TestWhatIsMadeBesideOthersCountsAsTheyDo(t *testing.T) {
	dir := scripts(t, map[string]string{"probe": probe, "probe.mk": `.PHONY: good idle later bad last
good later last:
	@echo did $@
idle:
	@while [ ! -e go ]; do sleep 0.01; done; chrt --pid $$$$; cat /proc/self/autogroup || echo nice 19; echo did $@
# Says that idle may end, which must be beside it.
release:
	@echo did $@; touch go
bad:
	@while [ ! -e go ]; do sleep 0.01; done; exit 3
wrong:
	@touch go; while [ ! -s pid ]; do sleep 0.01; done; exit 4
hangs:
	@touch go; echo $$$$ >pid; exec sleep 1h
`})
	for _, tc := range []struct {
		stages string
		says   []string // in this order
		not    string
		fails  bool
	}{
		{"good beside:idle beside:later release last",
			[]string{"did good", "did release", "policy: SCHED_IDLE", "nice 19", "did idle", "did later", "did last",
				"\nidle ", "\nlater ", "\nlast "}, "", false},
		{"beside:bad beside:later release last", []string{"did release", "make bad failed with 2"}, "did l", true},
		{"beside:hangs wrong last", []string{"make wrong failed with 2"}, "did last", true},
		{"good beside:later", []string{"the last target, beside:later, has none beside it"}, "did", true},
		{"beside:later good beside:idle release last", []string{"does not stand together: idle"}, "did last", true},
	} {
		_ = os.Remove(filepath.Join(dir, "go"))
		out, err := in(dir, []string{"MAKE=" + dir + "/probe"}, "hack/stages", append([]string{"A=1"}, strings.Fields(tc.stages)...)...)
		if (err != nil) != tc.fails {
			t.Errorf("%s ended with %v, and said\n%s", tc.stages, err, out)
		}
		if strings.Contains(tc.stages, "hangs") {
			pid, err := os.ReadFile(filepath.Join(dir, "pid"))
			if err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // with what the CPUs have left
				if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err != nil {
					break
				} else if time.Now().After(end) {
					t.Fatalf("%s left what hangs", tc.stages)
				}
			}
		}
		if tc.not != "" && strings.Contains(out, tc.not) {
			t.Errorf("%s said\n%s\nwant no %q", tc.stages, out, tc.not)
		}
		rest := out
		for _, want := range tc.says {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s said\n%s\nwant %q, after what was wanted before it", tc.stages, out, want)
				break
			}
			rest = after
		}
	}
}

func TestWhatWasSkippedIsSaidLast(t *testing.T) {
	const why = "this is no git checkout, so there is no older Kip to upgrade from"
	dir := scripts(t, map[string]string{"probe": probe, "probe.mk": `.PHONY: unit bad tally
unit:
	@echo 'unit: skipped a TestOne: needs root'
	@echo 'e2e: skipped a TestUpgrade: ` + why + `'
	@echo 'unit: 1 of 2 tests ran and passed, with 0 subtests'
bad:
	@exit 3
tally:
	@echo 'skipped, as test/tally/skips.txt allows: a TestUpgrade: ` + why + ` (in a tarball)'
	@echo '1 tests of 2 in the tree ran and passed'
`})
	for last, want := range map[string]string{
		"tally": "\nskipped, as test/tally/skips.txt allows: a TestUpgrade: " + why + " (in a tarball)\n",
		"unit":  "\nunit: skipped a TestOne: needs root\ne2e: skipped a TestUpgrade: " + why + "\n",
		"bad":   "\nmake bad failed with 2; the stages after it did not run.",
	} {
		out, err := in(dir, []string{"MAKE=" + dir + "/probe"}, "hack/stages", "A=1", "unit", last)
		_, after, _ := strings.Cut(out, "\nall ")
		_, after, _ = strings.Cut(after, "\n") // the rest of that row
		if (err == nil) != (last != "bad") || !strings.HasPrefix("\n"+after, want) {
			t.Errorf("with %s it ended with %v, and said after its table\n%s\nwant\n%s", last, err, after, want)
		}
	}
}

func TestEachFuzzTargetIsRunByItself(t *testing.T) {
	dir := scripts(t, map[string]string{
		// What go builds says how it was run; a target that is named so finds something.
		"path/go": `#!/bin/sh
case "$1 $2" in
"list -f") pwd ;;
"list -m") echo m ;;
"test -c")
	[ ! -e broken ] || exit 1
	[ "$4 $5" = "-gcflags m/...=-d=libfuzzer" ] || exit 1
	shift 8
	echo "compiled $2"; printf '#!/bin/sh\necho "%s $*"\n' "$2" >"$1"; chmod +x "$1" ;;
"tool test2json")
	shift 5
	echo "$*"
	case " $* " in
	*' -test.fuzz ^FuzzBad$ '*) printf '%s\n' '{"Output":"what it found\n"}'; exit 1 ;;
	esac
	"$@" ;;
esac
`,
		".kip/tally": `#!/bin/sh
case $1 in
-fuzz) cat targets ;;
-fuzzed) cat $2; [ ! -e idle ] ;;
esac
`,
	})
	env := []string{"PATH=" + filepath.Join(dir, "path") + ":" + os.Getenv("PATH")}
	give := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		targets, made string
		fails         bool
		says          []string
	}{
		{targets: "m/a FuzzOne\nm/b FuzzOne\n", says: []string{"m/a -test", "m/b -test", "-s INT 7 ", "-test.fuzz ^FuzzOne$ "}},
		{targets: "m/a FuzzBad\nm/b FuzzOne\n", fails: true, says: []string{"m/a FuzzBad failed\nwhat it found\n", "m/b FuzzOne\n"}},
		{targets: "m/a FuzzOne\nm/a FuzzTwo\n", says: []string{"m/a FuzzOne\n", "m/a FuzzTwo\n"}},
		{targets: "", fails: true, says: []string{"no fuzz targets"}},
		{targets: "m/a FuzzOne\n", made: "idle", fails: true},
		{targets: "m/a FuzzOne\n", made: "broken", fails: true},
	} {
		give("targets", tc.targets)
		if tc.made != "" {
			give(tc.made, "")
		}
		out, err := in(dir, env, "hack/fuzz", "7")
		if (err != nil) != tc.fails {
			t.Errorf("with %q it ended with %v", tc.targets, err)
		}
		if n := strings.Count(out, "compiled m/a\n"); n > 1 {
			t.Errorf("with %q it compiled m/a %d times", tc.targets, n)
		}
		if tc.made != "" {
			if err := os.Remove(filepath.Join(dir, tc.made)); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range tc.says {
			if !strings.Contains(out, want) {
				t.Errorf("with %q it said\n%s\nwant %q", tc.targets, out, want)
			}
		}
	}
}

func TestEachRunOfFaultsCounts(t *testing.T) {
	dir := scripts(t, map[string]string{"hack/run-tests": "#!/bin/sh\necho \"did $1\"\n[ \"$1\" != \"$BAD\" ]\n"})
	for bad, fails := range map[string]bool{"none": false, "faults-1": true, "faults-3": true, "faults-race": true} {
		out, err := in(dir, []string{"BAD=" + bad}, "make", "--no-print-directory", "faults")
		all := true
		for _, run := range []string{"faults-1", "faults-2", "faults-3", "faults-race"} {
			all = all && strings.Contains(out, "did "+run+"\n")
		}
		if (err != nil) != fails || !all {
			t.Errorf("when %s fails it ended with %v, and said\n%s", bad, err, out)
		}
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
