package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// passed is the state of a spec that did; the others are ginkgo's: failed,
// timedout, panicked, interrupted, skipped.
const (
	passed  = "passed"
	skipped = "skipped"
)

// How a run ends that does not fail. A run that was killed stays interrupted.
const (
	complete    = "complete"
	interrupted = "interrupted"
)

// Run is one command that ran specs.
type Run struct {
	// Commit is what was tested; see tree.
	Commit string `json:"commit"`
	// Date is its beginning, in UTC.
	Date string `json:"date"`
	// Flags are all that has an influence, also those that nobody gave.
	Flags string `json:"flags"`
	// Specs says how many were chosen.
	Specs   int     `json:"specs"`
	Seconds float64 `json:"seconds"`
	// Ended is complete, interrupted, or what went wrong.
	Ended string `json:"ended"`
	// Left are those of its specs that came to no end in it.
	Left []string `json:"left,omitempty"`
}

// whole says that the run came to its end.
func (r Run) whole() bool { return strings.HasPrefix(r.Ended, complete) }

// Attempt is one end of a spec.
type Attempt struct {
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	// Failure is what it said, shortened.
	Failure string `json:"failure,omitempty"`
	// Run is its index in Results.Runs.
	Run int `json:"run"`
}

// Result is what became of a spec when it last ran.
type Result struct {
	Attempt
	// Attempts says how often it ran, with this one.
	Attempts int `json:"attempts"`
	// History has the attempts before this one, the first first.
	History []Attempt `json:"history,omitempty"`
}

// maxHistory bounds Result.History; the first one and the last ones are kept.
const maxHistory = 10

// firstFailure is the first attempt that did not pass, if its end was kept.
func (r Result) firstFailure() (Attempt, bool) {
	for _, a := range append(slices.Clone(r.History), r.Attempt) {
		if a.State != passed {
			return a, true
		}
	}
	return Attempt{}, false
}

// Results are those of one mode, by the names of the specs.
type Results struct {
	Release string            `json:"release"`
	Mode    string            `json:"mode"`
	Runs    []Run             `json:"runs"`
	Specs   map[string]Result `json:"specs"`
	// Missing are the chosen specs that have never run. Only in what is published of SUITE=beyond.
	Missing []string `json:"missing,omitempty"`
}

// loadResults reads results; a missing file holds none.
func loadResults(path, mode string) (Results, error) {
	r := Results{Release: Release, Mode: mode, Specs: map[string]Result{}}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read the results in %s: %w", path, err)
	}
	if r.Release != Release || r.Mode != mode {
		return r, fmt.Errorf("the results in %s are of %s, %s; want %s, %s: move the file away", path, r.Release, r.Mode, Release, mode)
	}
	for spec, result := range r.Specs {
		for _, a := range append(slices.Clone(result.History), result.Attempt) {
			if a.Run < 0 || a.Run >= len(r.Runs) {
				return r, fmt.Errorf("the results in %s do not say which run %q is of, as those of an older runner: move the file away", path, spec)
			}
		}
	}
	return r, nil
}

// commit is what a spec last ran on.
func (r Results) commit(spec string) string { return r.Runs[r.Specs[spec].Run].Commit }

// add notes how a spec ended.
func (r Results) add(spec string, now Attempt) {
	result := Result{Attempt: now, Attempts: 1}
	// Only what had passed starts afresh, and only on another commit: otherwise running
	// it until it passes would leave no trace.
	if before, ran := r.Specs[spec]; ran && (before.State != passed || r.commit(spec) == r.Runs[now.Run].Commit) {
		result.Attempts = before.Attempts + 1
		result.History = append(slices.Clone(before.History), before.Attempt)
		if len(result.History) > maxHistory {
			result.History = slices.Delete(result.History, 1, 2)
		}
	}
	r.Specs[spec] = result
}

// passing says how many of the specs have passed.
func (r Results) passing(specs []string) int {
	n := 0
	for _, s := range specs {
		if r.Specs[s].State == passed {
			n++
		}
	}
	return n
}

// doubtful are the specs of a commit, in order, whose results a run that did not end well
// leaves open, and that have not been run since: what it left, and what it interrupted.
// Where that is nothing, as with a panic that a log tells of at the end, it is all that it ran.
func (r Results) doubtful(commit string) []string {
	doubt := map[string]bool{}
	for n, run := range r.Runs {
		if run.Commit != commit || run.whole() {
			continue
		}
		var open, ran []string
		for spec, result := range r.Specs {
			switch {
			case result.Run > n:
			case slices.Contains(run.Left, spec), result.Run == n && result.State == interrupted:
				open = append(open, spec)
			case result.Run == n:
				ran = append(ran, spec)
			}
		}
		if len(run.Left) == 0 && run.Ended != interrupted && !r.interrupts(n) {
			open = ran
		}
		for _, spec := range open {
			doubt[spec] = true
		}
	}
	return slices.Sorted(maps.Keys(doubt))
}

// interrupts says that the n-th run has interrupted a spec.
func (r Results) interrupts(n int) bool {
	for _, result := range r.Specs {
		for _, a := range append(slices.Clone(result.History), result.Attempt) {
			if a.Run == n && a.State == interrupted {
				return true
			}
		}
	}
	return false
}

// checkEnds refuses results of a commit that a run which did not end well leaves in doubt.
func (r Results) checkEnds(commit string) error {
	open := r.doubtful(commit)
	if len(open) == 0 {
		return nil
	}
	var ends []string
	for _, run := range r.Runs {
		if run.Commit == commit && !run.whole() {
			ends = append(ends, run.Ended)
		}
	}
	return fmt.Errorf("the results of mode %[1]s on %[2]s are in doubt for %[3]d specs, such as %[4]q, since a run ended with: %[5]s: "+
		"on that commit, `make conformance MODE=%[1]s` runs them", r.Mode, commit, len(open), open[0], strings.Join(ends, "; "))
}

// commits counts the results by commit.
func (r Results) commits() map[string]int {
	commits := map[string]int{}
	for spec := range r.Specs {
		commits[r.commit(spec)]++
	}
	return commits
}

// check refuses results that cannot be published: what they are of could not be
// had again.
func (r Results) check() error {
	commits := r.commits()
	var of []string
	bad := len(commits) > 1
	for _, c := range slices.Sorted(maps.Keys(commits)) {
		of = append(of, fmt.Sprintf("%d of %s", commits[c], c))
		bad = bad || c == noCommit || strings.HasSuffix(c, dirty)
	}
	if bad {
		return fmt.Errorf("the results of mode %[1]s are %[2]s, and must be of one commit without changes: in a clean checkout, "+
			"`make conformance MODE=%[1]s ONLY=missing` runs all that has not run on its commit", r.Mode, strings.Join(of, ", "))
	}
	return nil
}

// checkAll refuses results that cannot be published, lack some of the specs, or are in doubt.
func (r Results) checkAll(specs []string) error {
	if err := r.check(); err != nil {
		return err
	}
	for commit := range r.commits() {
		if err := r.checkEnds(commit); err != nil {
			return err
		}
	}
	for _, s := range specs {
		if _, ran := r.Specs[s]; !ran {
			return fmt.Errorf("the results of mode %[1]s (%[2]s) are of %[3]d of %[4]d specs: on that commit, `make conformance MODE=%[1]s ONLY=missing` runs the rest",
				r.Mode, strings.Join(slices.Sorted(maps.Keys(r.commits())), ", "), len(r.Specs), len(specs))
		}
	}
	return nil
}

func (r Results) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", " ")
	return append(data, '\n'), err
}

// isIn says whether a file holds just these results.
func (r Results) isIn(path string) (bool, error) {
	data, err := r.encode()
	if err != nil {
		return false, err
	}
	there, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return bytes.Equal(there, data), err
}

// save writes the results so that a kill leaves the old ones or the new ones.
func (r Results) save(path string) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	return nil
}
