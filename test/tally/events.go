package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"strconv"
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
	passed, skipped, failed map[test]bool   // subtests too
	why                     map[test]string // what a test said that was skipped
	failedPackages          map[string]bool
	cached                  map[string]bool // packages that did not run: go test knew how they end
	began                   map[test]bool   // benchmarks of a package that has not ended
	fuzzed                  map[test]fuzzing
}

// fuzzing is what a fuzz target last said of its run as such.
type fuzzing struct {
	corpus int  // inputs that it had to begin with
	execs  int  // inputs that it ran, the corpus included
	guided bool // it was led by what of the code it reached
}

func (f fuzzing) String() string {
	unguided := ""
	if f.execs > 0 && !f.guided {
		unguided = ", not led by what they reached, since its binary was not made for fuzzing"
	}
	return fmt.Sprintf("%d inputs, %d of them its corpus%s", f.execs, f.corpus, unguided)
}

// triedNew says that it ran more than what it had to begin with, led by what that reached.
func (f fuzzing) triedNew() bool { return f.guided && f.execs > f.corpus }

var (
	fuzzCorpus = regexp.MustCompile(`^fuzz: elapsed: \S+, gathering baseline coverage: \d+/(\d+) completed`)
	fuzzExecs  = regexp.MustCompile(`^fuzz: elapsed: \S+, execs: (\d+) `)
)

// line takes a line that go test says of a target while it is fuzzed.
func (f fuzzing) line(text string) fuzzing {
	number := func(of *regexp.Regexp, was int) int {
		if m := of.FindStringSubmatch(text); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil { // of digits only, and fewer than an int has
				return n
			}
		}
		return was
	}
	// A binary without counters of coverage says "testing seed corpus" instead.
	return fuzzing{corpus: number(fuzzCorpus, f.corpus), execs: number(fuzzExecs, f.execs), guided: f.guided || fuzzCorpus.MatchString(text)}
}

func newEnds() *ends {
	return &ends{
		passed:         map[test]bool{},
		skipped:        map[test]bool{},
		failed:         map[test]bool{},
		why:            map[test]string{},
		failedPackages: map[string]bool{},
		cached:         map[string]bool{},
		began:          map[test]bool{},
		fuzzed:         map[test]fuzzing{},
	}
}

// add takes what another run did.
func (e *ends) add(o *ends) {
	maps.Copy(e.passed, o.passed)
	maps.Copy(e.skipped, o.skipped)
	maps.Copy(e.failed, o.failed)
	maps.Copy(e.why, o.why)
	maps.Copy(e.failedPackages, o.failedPackages)
	maps.Copy(e.cached, o.cached)
	maps.Copy(e.fuzzed, o.fuzzed)
}

// tops and parts count the tests that passed, and their subtests.
func (e *ends) tops() (n int) {
	for t := range e.passed {
		if t == t.top() {
			n++
		}
	}
	return n
}

func (e *ends) parts() int { return len(e.passed) - e.tops() }

// counts says of each test how many subtests came to an end. A skip counts: the list
// of skips judges it.
func (e *ends) counts() map[test]int {
	all := maps.Clone(e.passed) // a subtest that ran twice is one
	maps.Copy(all, e.skipped)
	maps.Copy(all, e.failed)
	counts := map[test]int{}
	for t := range all {
		if t != t.top() {
			counts[t.top()]++
		}
	}
	return counts
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
		e.event(ev, said)
	}
}

func (e *ends) event(ev event, said map[test][]string) {
	t := test{ev.Package, ev.Test}
	if ev.Test == "" {
		// go test tells no end of a benchmark that did well.
		for b := range e.began {
			if b.pkg == ev.Package && ev.Action == "pass" && !e.failed[b] && !e.skipped[b] {
				e.passed[b] = true
			}
		}
		if ev.Action == "fail" {
			e.failedPackages[ev.Package] = true
		}
		if ev.Action == "output" && strings.HasPrefix(ev.Output, "ok ") && strings.Contains(ev.Output, "(cached)") {
			e.cached[ev.Package] = true
		}
		return
	}
	switch ev.Action {
	case "run":
		if t.isBenchmark() {
			e.began[t] = true
		}
	case "output":
		if t.isFuzzTarget() && strings.HasPrefix(ev.Output, "fuzz: ") {
			e.fuzzed[t] = e.fuzzed[t].line(ev.Output)
		}
		if line := strings.TrimSpace(ev.Output); line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said[t] = append(said[t], line)
		}
	case "pass":
		e.passed[t] = true
	case "skip":
		e.skipped[t], e.why[t] = true, "without a reason"
		if words := said[t]; len(words) > 0 {
			e.why[t] = words[len(words)-1]
		}
	case "fail":
		e.failed[t] = true
	}
}
