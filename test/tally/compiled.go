package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// compiledBy is where a run says which _test.go files it compiled, a line each: beside
// the file of its events.
func compiledBy(events string) string { return strings.TrimSuffix(events, ".json") + ".files" }

// compiledIn returns the files that the runs of these events compiled.
func compiledIn(events []string) (map[string]bool, error) {
	all := map[string]bool{}
	for _, file := range events {
		data, err := os.ReadFile(compiledBy(file))
		if errors.Is(err, os.ErrNotExist) {
			continue // fuzzing compiles what the units do; a run that failed early, nothing
		}
		if err != nil {
			return nil, fmt.Errorf("read what was compiled: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			all[strings.TrimSpace(line)] = true
		}
	}
	return all, nil
}

// uncompiled fails when a _test.go file below root was compiled by no run: its build
// constraints keep it from all of them, and what it would find nobody sees. The list
// knows those for which that is right.
func (l lists) uncompiled(root string, compiled map[string]bool) error {
	var files []string
	err := eachTestFile(root, func(file, _ string) error {
		if !compiled[filepath.Join(root, file)] && l.nowhere[file] == "" {
			files = append(files, file)
		}
		return nil
	})
	var stale []string
	for file := range l.nowhere {
		if compiled[filepath.Join(root, file)] {
			stale = append(stale, file+": it was compiled")
		}
	}
	return errors.Join(err, l.goneFiles(root),
		listed("are _test.go files that no stage compiles, and test/tally/uncompiled.txt does not say why", files),
		listed("are in test/tally/uncompiled.txt and should not be", stale))
}

// neverCompiled fails when no set of build tags has this system compile a _test.go file
// below root. Unlike uncompiled it wants no run, and forgives a tag that no stage gives.
func (l lists) neverCompiled(root string) error {
	var files []string
	err := eachTestFile(root, func(file, _ string) error {
		parsed, err := parse(filepath.Join(root, file))
		if err != nil {
			return err
		}
		some, err := compiles(filepath.Join(root, file), parsed)
		if err == nil && !some && l.nowhere[file] == "" {
			files = append(files, file)
		}
		return err
	})
	return errors.Join(err, l.goneFiles(root),
		listed("are _test.go files that this system compiles with no set of build tags, and test/tally/uncompiled.txt does not say why", files))
}

// goneFiles fails when the list of what is compiled nowhere names what is not there.
func (l lists) goneFiles(root string) error {
	var gone []string
	for file := range l.nowhere {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil || !strings.HasSuffix(file, "_test.go") {
			gone = append(gone, file)
		}
	}
	return listed("are in test/tally/uncompiled.txt and no _test.go file of the tree", gone)
}
