package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	s := ginkgo(t, oneHasPassed+"exit 1\n")
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
