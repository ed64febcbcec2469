package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// passed is the state of a spec that did; the others are ginkgo's: failed,
// timedout, panicked, interrupted, skipped.
const passed = "passed"

// Result is what became of a spec when it last ran.
type Result struct {
	State string `json:"state"`
	// Seconds that it took.
	Seconds float64 `json:"seconds"`
	// Attempts says how often it ran until it passed, or so far.
	Attempts int `json:"attempts"`
	// Failure is what it said, shortened.
	Failure string `json:"failure,omitempty"`
	// Kip is the commit that was tested.
	Kip string `json:"kip"`
}

// Results are those of one mode, by the names of the specs.
type Results struct {
	Release string            `json:"release"`
	Mode    string            `json:"mode"`
	Specs   map[string]Result `json:"specs"`
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
	return r, nil
}

// add notes how a spec ended.
func (r Results) add(spec string, now Result) {
	now.Attempts = 1
	// A spec that had passed is run again only afresh.
	if before, ran := r.Specs[spec]; ran && before.State != passed {
		now.Attempts = before.Attempts + 1
	}
	r.Specs[spec] = now
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

// save writes the results so that a kill leaves the old ones or the new ones.
func (r Results) save(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	return nil
}
