package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// ginkgo is a suite whose ginkgo is a shell script.
func ginkgo(t *testing.T, script string) suite {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ginkgo"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return suite{tools: dir, procs: 2, log: filepath.Join(dir, "logs", "suite.log")}
}

const oneHasPassed = "printf '%s\\n' '" + delimiter + "' '• [1.000 seconds]' '" + one + " [label]' '" + delimiter + "'\n"

func TestTheSuiteTellsEachSpecAsItEnds(t *testing.T) {
	s := ginkgo(t, oneHasPassed)
	var told []string
	if err := s.run(t.Context(), []string{one, two}, func(o outcome) { told = append(told, o.spec+" "+o.State) }); err != nil {
		t.Error(err)
	}
	if !slices.Equal(told, []string{one + " passed"}) {
		t.Errorf("told %q", told)
	}
	if log, err := os.ReadFile(s.log); err != nil || !strings.Contains(string(log), one) {
		t.Errorf("its log has %q, %v", log, err)
	}
}

func TestASuiteThatRunsNothingFails(t *testing.T) {
	s := ginkgo(t, "echo no cluster\nexit 1\n")
	if err := s.run(t.Context(), []string{one}, func(outcome) {}); err == nil || !strings.Contains(err.Error(), s.log) {
		t.Errorf("its error is %v, want one that names its log", err)
	}
	s.tools = filepath.Join(s.tools, "nowhere")
	if err := s.run(t.Context(), []string{one}, func(outcome) {}); err == nil {
		t.Error("a ginkgo that is not there runs")
	}
}

func TestASuiteWhoseEndItsSpecsDoNotExplainFails(t *testing.T) {
	oneHasFailed := strings.Replace(oneHasPassed, "• [1.000", "• [FAILED] [1.000", 1)
	oneWasSkipped := strings.Replace(oneHasPassed, "• [1.000", "S [SKIPPED] [1.000", 1)
	for script, fails := range map[string]string{
		oneHasPassed:                              "",
		oneHasPassed + "exit 1\n":                 "ended with exit status 1", // as when AfterSuite fails
		oneHasPassed + "exit 197\n":               "ended with exit status 197",
		oneHasPassed + "kill -KILL $$\n":          "ended with signal: killed",
		oneHasFailed + "exit 1\n":                 "",
		oneHasFailed:                              "ended well though",
		oneHasFailed + "exit 2\n":                 "ended with exit status 2",
		oneHasFailed + "kill -SEGV $$\n":          "ended with signal: segmentation fault",
		oneWasSkipped:                             "", // the run fails, since it did not pass
		oneWasSkipped + "exit 1\n":                "ended with exit status 1",
		"echo Ran 0 of 7579 Specs in 1 seconds\n": "no spec had run: exit status 0",
	} {
		s := ginkgo(t, script)
		err := s.run(t.Context(), []string{one, two}, func(outcome) {})
		if (err == nil) != (fails == "") || err != nil && (!strings.Contains(err.Error(), fails) || !strings.Contains(err.Error(), s.log)) {
			t.Errorf("%s: it ended with %v, want %q and its log", script, err, fails)
		}
	}
}

func TestASuiteEndsWithItsContextAndItsCluster(t *testing.T) {
	t.Run("context", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		// It cleans up when it is interrupted.
		s := ginkgo(t, "trap 'echo cleaned; exit 1' INT\n"+oneHasPassed+"while :; do sleep 0.01; done\n")
		err := s.run(ctx, []string{one}, func(outcome) { stop() })
		if log, _ := os.ReadFile(s.log); !errors.Is(err, context.Canceled) || !strings.Contains(string(log), "cleaned") {
			t.Errorf("it ended with %v, having said %q", err, log)
		}
	})
	t.Run("cluster", func(t *testing.T) {
		crashed := make(chan struct{})
		s := ginkgo(t, "trap '' INT TERM\n"+oneHasPassed+"while :; do sleep 0.01; done\n")
		s.crashed = crashed
		if err := s.run(t.Context(), []string{one}, func(outcome) { close(crashed) }); !errors.Is(err, errCrashed) {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Run("a process that it left", func(t *testing.T) {
		s := ginkgo(t, oneHasPassed+"sleep 1000 &\nexit 0\n")
		if err := s.run(t.Context(), []string{one}, func(outcome) {}); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatWasUnderWayAtACrashWasInterrupted(t *testing.T) {
	// In one write: what comes after the first spec's end may never be written.
	twoBegins := strings.TrimSuffix(oneHasPassed, "\n") + " '" + two + " [label]'\n"
	const forever = "while :; do sleep 0.01; done\n"
	// As ginkgo's own processes do when they are asked.
	const process = `process() {
	sh -c 'trap "echo; echo \"  $1 (Spec Runtime: 1.2s)\"" USR1; : >$0.$2; while :; do sleep 0.01; done' $0 "$1" $2 &
	while [ ! -e $0.$2 ]; do sleep 0.01; done
}
`
	for name, tc := range map[string]struct {
		script string
		procs  int
		want   []string
	}{
		"one at a time": {twoBegins + forever, 1, []string{one + " passed", two + " interrupted"}},
		"between two":   {oneHasPassed + forever, 1, []string{one + " passed"}},
		"several at once": {process + "process '" + two + "' 2; process '" + three + "' 3\n" + oneHasPassed + forever, 3, []string{
			one + " passed", three + " interrupted", two + " interrupted"}},
		"ginkgo dies": {twoBegins + "kill -KILL $$\n", 1, []string{one + " passed", two + " interrupted"}},
	} {
		t.Run(name, func(t *testing.T) {
			crashed := make(chan struct{})
			s := ginkgo(t, "trap '' INT TERM\n"+tc.script)
			s.crashed, s.procs = crashed, tc.procs
			var told []string
			err := s.run(t.Context(), []string{one, two, three}, func(o outcome) {
				told = append(told, o.spec+" "+o.State)
				if o.State == interrupted && o.Failure == "" {
					t.Errorf("%s does not say why", o.spec)
				}
				if strings.Contains(tc.script, forever) && len(told) == 1 {
					close(crashed)
				}
			})
			slices.Sort(told[1:])
			slices.Sort(tc.want[1:])
			if !slices.Equal(told, tc.want) {
				t.Errorf("it ended with %v and told %q, want %q", err, told, tc.want)
			}
		})
	}
}

// As on a full disk: it would wait for ever for somebody to read what it prints.
func TestASuiteWhoseOutputCannotBeKeptEnds(t *testing.T) {
	s := ginkgo(t, oneHasPassed+"while :; do echo more; done\n")
	s.log = "/dev/full"
	if err := s.run(t.Context(), []string{one}, func(outcome) {}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("it ended with %v", err)
	}
}
