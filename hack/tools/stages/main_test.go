package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// inTree makes a git repository with a command that stands for make, and makes
// it the working directory.
func inTree(t *testing.T, script string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"fake-make": "#!/bin/bash\ntarget=$2\n" + script, ".gitignore": ".kip/\n"} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"commit", "-q", "--allow-empty", "-m", "first"}} {
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
}

// stages runs the command and returns what it printed.
func stages(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := command(append([]string{"-make", "./fake-make"}, args...), &out)
	return out.String(), err
}

// wantAll fails the test unless the text has each of the words.
func wantAll(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("it does not print %q, but\n%s", w, text)
		}
	}
}

const events = `cat >"$EVENTS/run.json" <<END
{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":7}
{"Action":"run","Package":"p","Test":"TestBad"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    bad_test.go:3: two is not three\n"}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":1}
{"Action":"run","Package":"p","Test":"TestSkipped"}
{"Action":"output","Package":"p","Test":"TestSkipped","Output":"    skip.go:9: no GPU here\n"}
{"Action":"skip","Package":"p","Test":"TestSkipped"}
{"Action":"run","Package":"p","Test":"TestDear"}
{"Action":"output","Package":"p","Test":"TestDear","Output":"    tier.go:20: runs in make test-all\n"}
{"Action":"skip","Package":"p","Test":"TestDear"}
{"Action":"fail","Package":"p","Elapsed":9}
END
`

func TestAllStagesRunAndAllFailuresAreReported(t *testing.T) {
	inTree(t, `case $target in
	tests) `+events+` exit 1 ;;
	lint) echo "main.go:1: a linter's finding"; exit 2 ;;
	esac
	echo "$target has run"`)
	out, err := stages(t, "lint", "tests", "last")
	if err == nil || !strings.Contains(err.Error(), "2 of 3 stages did not pass: lint, tests") {
		t.Errorf("the error is %v", err)
	}
	wantAll(t, out, "last has run", "a linter's finding", "p TestBad (1.0s)", "two is not three", "Skipped: no GPU here\n  p TestSkipped",
		"1 tests that only make test-all runs", "7.0s  p TestGood", "1 passed, 1 failed, 2 skipped")
	if n := strings.Count(out, "a linter's finding"); n != 2 {
		t.Errorf("the finding is printed %d times: want it when it is found and in the summary", n)
	}
}

func TestARunThatReachesItsDeadlineSaysWhatDidNotFinish(t *testing.T) {
	inTree(t, `case $target in hangs)
	echo '{"Action":"run","Package":"p","Test":"TestHangs"}' >"$EVENTS/run.json"
	trap 'echo it is interrupted; exit 1' INT
	: >.kip/hangs
	sleep 300 & wait
	esac`)
	for deadline := 2 * time.Second; ; deadline *= 2 {
		out, err := stages(t, "-deadline", deadline.String(), "good", "hangs", "after")
		if _, missing := os.Stat(".kip/hangs"); missing != nil && deadline < 5*time.Minute {
			continue // a busy machine had not come so far
		}
		if err == nil || !strings.Contains(err.Error(), "hangs, after") {
			t.Errorf("the error is %v", err)
		}
		wantAll(t, out, "it is interrupted", "UNFINISHED: make hangs: the run reached its deadline of "+deadline.String(), "p TestHangs",
			"NOT RUN: make after")
		return
	}
}

func TestAResumedRunSkipsWhatHasPassedOnTheseFiles(t *testing.T) {
	inTree(t, `echo "$target runs"; [ "$target" = good ] && [ ! -e .kip/fails ] || exit 1`)
	run := func() string {
		t.Helper()
		out, err := stages(t, "-resume", "good", "bad")
		if err == nil {
			t.Error("a stage failed, and the run passes")
		}
		return out
	}
	run()
	out := run()
	wantAll(t, out, "bad runs", "passed before")
	if strings.Contains(out, "good runs") {
		t.Errorf("it runs what has passed:\n%s", out)
	}
	if err := os.WriteFile("new.go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wantAll(t, run(), "good runs")
	wantAll(t, run(), "passed before")
	// A run that asks for it runs it, and forgets that it has passed.
	if err := os.WriteFile(".kip/fails", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := stages(t, "good"); err == nil {
		t.Errorf("it fails, and the run passes:\n%s", out)
	}
	if err := os.Remove(".kip/fails"); err != nil {
		t.Fatal(err)
	}
	wantAll(t, run(), "good runs")
}

// Such as a run of make test, which passes -short, before one of make test-all.
func TestATargetThatHasPassedWithOtherSettingsRunsAgain(t *testing.T) {
	inTree(t, `echo "$target runs"`)
	for _, short := range []string{"-short", ""} {
		t.Setenv("SHORT", short)
		for _, want := range []string{"good runs", "passed before"} {
			out, err := stages(t, "-resume", "-settings", "SHORT STEPS", "good")
			if err != nil {
				t.Fatal(err)
			}
			wantAll(t, out, want)
		}
	}
	t.Setenv("SHORT", "-short") // that it has passed with other settings since does not matter
	out, err := stages(t, "-resume", "-settings", "SHORT STEPS", "good")
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, out, "passed before")
}

func TestAStageThatEndsWellWithFailedTestsHasFailed(t *testing.T) {
	inTree(t, `cat >"$EVENTS/run.json" <<END
{"Action":"run","Package":"p","Test":"TestBad"}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":1}
{"Action":"fail","Package":"p","Elapsed":9}
END`)
	for range 2 { // nor does it count as passed in the next run
		out, err := stages(t, "-resume", "tests")
		if err == nil {
			t.Error("a test failed, and the run passes")
		}
		wantAll(t, out, "p TestBad")
	}
}

func TestATargetThatPassesOnFilesThatChangeMeanwhileRunsAgain(t *testing.T) {
	inTree(t, `echo "$target runs"; date +%N >>changes.go`)
	for range 2 {
		out, err := stages(t, "-resume", "good")
		if err != nil {
			t.Fatal(err)
		}
		wantAll(t, out, "good runs")
	}
}

func TestWhereGitHashesNothingAllTargetsRun(t *testing.T) {
	inTree(t, `echo "$target runs"`)
	if err := os.RemoveAll(".git"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, err := stages(t, "-resume", "good")
		if err != nil {
			t.Fatal(err)
		}
		wantAll(t, out, "good runs", "nothing is skipped")
	}
}

func TestWhatAPackageSaysOutsideOfItsTestsIsReported(t *testing.T) {
	inTree(t, `cat >"$EVENTS/run.json" <<END
{"Action":"build-output","ImportPath":"q","Output":"q.go:3: undefined: x\n"}
{"Action":"build-fail","ImportPath":"q"}
{"Action":"run","Package":"p","Test":"TestBad"}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":1}
{"Action":"output","Package":"p","Output":"after the tests: left: instance i-1\n"}
{"Action":"output","Package":"p","Output":"more\n"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL p\n"}
{"Action":"fail","Package":"p","Elapsed":9}
END
exit 1`)
	out, err := stages(t, "tests")
	if err == nil {
		t.Error("a test failed, and the run passes")
	}
	wantAll(t, out, "left: instance i-1", "undefined: x", "p TestBad")
}

func TestAProcessThatAStageLeavesIsKilled(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	inTree(t, `sleep 300 & echo $! >`+pid)
	if out, err := stages(t, "leaves"); err != nil {
		t.Fatal(err, out)
	}
	left, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	for ends := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(left)) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(ends) {
			t.Fatalf("process %s is still there", left)
		}
	}
}

func TestWithoutTargetsItFails(t *testing.T) {
	if _, err := stages(t); err == nil {
		t.Error("no stage ran, and it passes")
	}
}
