package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// event is a line of `go test -json`: see `go doc test2json`.
type event struct {
	Time    time.Time
	Action  string
	Package string
	Test    string
	Output  string
}

// ends are how tests ended.
type ends struct {
	passed, skipped, failed map[test]bool
	subtests                map[test]bool   // that passed, below those
	why                     map[test]string // what a test said that was skipped, subtests' too
	skippedSubtests         []test
	failedPackages          map[string]bool
}

func newEnds() *ends {
	return &ends{passed: map[test]bool{}, subtests: map[test]bool{}, skipped: map[test]bool{}, failed: map[test]bool{}, why: map[test]string{}, failedPackages: map[string]bool{}}
}

// read adds what a file of events says.
func (e *ends) read(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read what ran: %w", err)
	}
	defer f.Close()
	said := map[test][]string{}
	in := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what ran: %s: line %d: %w", file, n, err)
		}
		var ev event
		if err := json.Unmarshal(line, &ev); err != nil {
			return fmt.Errorf("read what ran: %s: line %d: %w", file, n, err)
		}
		e.add(ev, said)
	}
}

func (e *ends) add(ev event, said map[test][]string) {
	t := test{ev.Package, ev.Test}
	if ev.Test == "" {
		if ev.Action == "fail" {
			e.failedPackages[ev.Package] = true
		}
		return
	}
	top := !strings.Contains(ev.Test, "/")
	switch ev.Action {
	case "output":
		if line := strings.TrimSpace(ev.Output); line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said[t] = append(said[t], line)
		}
	case "pass":
		if top {
			e.passed[t] = true
		} else {
			e.subtests[t] = true
		}
	case "skip":
		e.why[t] = "without a reason"
		if words := said[t]; len(words) > 0 {
			e.why[t] = words[len(words)-1]
		}
		if top {
			e.skipped[t] = true
		} else {
			e.skippedSubtests = append(e.skippedSubtests, t)
		}
	case "fail":
		e.failed[t] = true
	}
}
