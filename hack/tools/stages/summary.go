package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"gotest.tools/gotestsum/testjson"
)

const (
	slowest = 15                      // how many of the slowest tests are listed
	lines   = 60                      // how many lines of a failed test's output are shown
	outside = 3                       // how many lines a failed package prints that say nothing more
	tail    = 25                      // how many lines of a failed stage's log are shown
	tierAll = "runs in make test-all" // what test/tier gives as the reason of a skip
)

// result is how a stage ended.
type result string

const (
	ok           result = "ok"
	failed       result = "FAILED"
	unfinished   result = "UNFINISHED"
	notRun       result = "NOT RUN"
	passedBefore result = "passed before"
)

// stage is one target of the Makefile, and how it ended.
type stage struct {
	target    string
	log       string // the file with what it printed
	events    string // the folder with what `go test -json` wrote, NAME.json for each run
	result    result
	err       error // why the result is not ok
	took, cpu time.Duration
	tests     tests // that ran
}

// summarize prints how each stage ended, the failed tests with their output, the
// skipped tests with their reasons, and the slowest tests. It returns an error
// unless each stage has passed.
func summarize(out io.Writer, stages []stage, took time.Duration) error {
	var bad []string
	var all tests
	fmt.Fprintf(out, "\n##### Summary\n\n%-22s %-14s %8s %8s %7s\n", "stage", "result", "min:s", "CPU", "tests")
	failures := new(strings.Builder)
	var cpu time.Duration
	for _, s := range stages {
		cpu += s.cpu
		fmt.Fprintf(out, "%-22s %-14s %8s %8s %7d\n", s.target, s.result, clock(s.took), clock(s.cpu), s.tests.passed)
		all.add(s.tests)
		if s.result == ok && s.err == nil || s.result == passedBefore {
			continue
		}
		bad = append(bad, s.target)
		s.explain(failures)
	}
	fmt.Fprintf(out, "%-22s %-14s %8s %8s %7d\n", "all", "", clock(took), clock(cpu), all.passed)
	all.printSlowest(out)
	all.printSkipped(out)
	fmt.Fprint(out, failures)
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", all.passed, len(all.failed), len(all.skipped)+all.tierAll)
	if len(bad) > 0 {
		return fmt.Errorf("%d of %d stages did not pass: %s", len(bad), len(stages), strings.Join(bad, ", "))
	}
	return nil
}

// clock formats a duration as minutes and seconds.
func clock(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

// explain writes why a stage did not pass: its failed tests or, without any, the
// end of its log.
func (s *stage) explain(w io.Writer) {
	fmt.Fprintf(w, "\n%s: make %s: %v\n", s.result, s.target, s.err)
	for _, f := range s.tests.failed {
		fmt.Fprintf(w, "\n  %s (%s)\n%s", f.name, f.duration(), indent(f.output, lines))
	}
	if len(s.tests.failed) > 0 || s.result == notRun {
		return
	}
	log, err := os.ReadFile(s.log)
	if err != nil {
		fmt.Fprintf(w, "  its log cannot be read: %v\n", err)
		return
	}
	fmt.Fprintf(w, "  the end of %s:\n%s", s.log, indent(strings.SplitAfter(string(log), "\n"), tail))
}

// indent returns the last n lines, indented.
func indent(all []string, n int) string {
	all = slices.DeleteFunc(slices.Clone(all), func(line string) bool { return strings.TrimSpace(line) == "" })
	b := new(strings.Builder)
	if more := len(all) - n; more > 0 {
		fmt.Fprintf(b, "    … %d lines before\n", more)
		all = all[more:]
	}
	for _, line := range all {
		fmt.Fprintf(b, "    %s\n", strings.TrimRight(line, "\n"))
	}
	return b.String()
}

// test is a test that ended, or that began and did not end.
type test struct {
	name   string // package and test; the package alone if it failed outside of its tests
	took   time.Duration
	output []string
}

// duration is how long the test took.
func (t test) duration() string {
	if t.took < 0 {
		return "did not end"
	}
	return fmt.Sprintf("%.1fs", t.took.Seconds())
}

// tests are what one or several runs of `go test -json` wrote.
type tests struct {
	passed  int    // tests and subtests
	failed  []test // without tests that failed only by their subtests
	skipped []test // without those of another tier
	tierAll int    // skipped tests that `make test-all` runs
	top     []test // all that ended and are no subtests
}

func (t *tests) add(more tests) {
	t.passed += more.passed
	t.tierAll += more.tierAll
	t.failed = append(t.failed, more.failed...)
	t.skipped = append(t.skipped, more.skipped...)
	t.top = append(t.top, more.top...)
}

// readTests reads the files of events in a folder, which may be missing.
func readTests(folder string) (tests, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return tests{}, err
	}
	var all tests
	for _, file := range files {
		one, err := readFile(file)
		if err != nil {
			return all, fmt.Errorf("read the test events in %s: %w", file, err)
		}
		all.add(one)
	}
	return all, nil
}

func readFile(file string) (tests, error) {
	f, err := os.Open(file)
	if err != nil {
		return tests{}, err
	}
	defer f.Close()
	// The last line of a run that was killed may lack its end.
	run, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: f, IgnoreNonJSONOutputLines: true})
	if err != nil {
		return tests{}, err
	}
	var all tests
	for _, name := range run.Packages() {
		p := run.Package(name)
		all.passed += len(p.Passed)
		for _, tc := range p.TestCases() {
			if !tc.Test.IsSubTest() {
				all.top = append(all.top, test{name: name + " " + tc.Test.Name(), took: tc.Elapsed})
			}
		}
		for _, tc := range p.Skipped {
			output := p.OutputLines(tc)
			if strings.Contains(strings.Join(output, ""), tierAll) {
				all.tierAll++
				continue
			}
			all.skipped = append(all.skipped, test{name + " " + tc.Test.Name(), tc.Elapsed, output})
		}
	}
	for _, tc := range testjson.FilterFailedUnique(run.Failed()) {
		name := strings.TrimSpace(tc.Package + " " + tc.Test.Name())
		all.failed = append(all.failed, test{name, tc.Elapsed, run.OutputLines(tc)})
	}
	// What a package says outside of its tests: what they left, a data race, a panic.
	for _, name := range run.Packages() {
		p := run.Package(name)
		var text strings.Builder
		if err := p.WriteOutputTo(&text, 0); err != nil {
			return tests{}, err
		}
		if said := strings.SplitAfter(text.String(), "\n"); p.Result() == testjson.ActionFail && len(p.Failed) > 0 && len(said) > outside {
			all.failed = append(all.failed, test{name: name + ", outside of its tests", output: said})
		}
	}
	if errs := run.Errors(); len(errs) > 0 {
		all.failed = append(all.failed, test{name: "errors of go test, such as of the compiler", output: errs})
	}
	return all, nil
}

func (t *tests) printSlowest(out io.Writer) {
	if len(t.top) == 0 {
		return
	}
	top := slices.SortedFunc(slices.Values(t.top), func(a, b test) int { return cmp.Compare(b.took, a.took) })
	fmt.Fprintln(out, "\nSlowest tests:")
	for _, s := range top[:min(slowest, len(top))] {
		fmt.Fprintf(out, "  %6.1fs  %s\n", s.took.Seconds(), s.name)
	}
}

// printSkipped lists skipped tests by their reason.
func (t *tests) printSkipped(out io.Writer) {
	if t.tierAll > 0 {
		fmt.Fprintf(out, "\nSkipped: %d tests that only make test-all runs\n", t.tierAll)
	}
	reasons := map[string][]string{}
	for _, s := range t.skipped {
		reasons[s.reason()] = append(reasons[s.reason()], s.name)
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(out, "\nSkipped: %s\n", why)
		for _, name := range reasons[why] {
			fmt.Fprintf(out, "  %s\n", name)
		}
	}
}

// position is what the testing package writes before the text of a log or a skip.
var position = regexp.MustCompile(`^\s+\S+\.go:[0-9]+: `)

// reason returns what a skipped test gave as its reason: the text after the
// last position, as in "    file_test.go:12: text".
func (t test) reason() string {
	for _, line := range slices.Backward(t.output) {
		if at := position.FindString(line); at != "" {
			return strings.TrimSpace(line[len(at):])
		}
	}
	return "it gives no reason"
}
