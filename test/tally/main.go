package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	if err := command(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "tally:", err)
		}
		os.Exit(1)
	}
}

const usage = `tally -quarantined               prints an expression for go test -skip
tally -fuzz                      prints the fuzz targets
tally -fuzzed FILE               what go test -json wrote of their fuzzing, each alone: each tried new inputs
tally -benchmarks                prints the packages that have benchmarks
tally [-tags T] FILE PACKAGE...  one run: FILE, STAGE.json, is what go test -json wrote;
                                 with -benchmarks it is one of benchmarks
                                 with -shard S it is one of a part of their tests
tally -names -shard S [-tags T] PACKAGE...
                                 prints an expression for go test -run of that part
tally -all FOLDER                all runs, FOLDER/*.json: each test of the tree in one of them;
                                 with -update it writes test/tally/subtests.txt of them,
                                 with -shrink also where they have become fewer
`

func command(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("tally", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	all := fs.String("all", "", "check that each test of the tree is in one of the `folder`'s files")
	tags := fs.String("tags", "", "build `tags` of the run")
	fuzz := fs.Bool("fuzz", false, "print the fuzz targets of the module: package and name")
	fuzzed := fs.String("fuzzed", "", "check that each fuzz target of the tree tried new inputs in this `file`")
	quarantined := fs.Bool("quarantined", false, "print an expression that matches the tests in quarantine")
	benchmarks := fs.Bool("benchmarks", false, "the run is one of benchmarks; without a run, print the packages of the module that have some")
	part := fs.String("shard", "", "a `part` of the tests: together (t.Parallel), alone, or alone:K/N")
	names := fs.Bool("names", false, "with -shard: print an expression that matches its tests")
	update := fs.Bool("update", false, "with -all: when none has failed, write how many subtests they have into test/tally/subtests.txt")
	shrink := fs.Bool("shrink", false, "with -update: also where they are fewer than before")
	if err := fs.Parse(args); err != nil {
		return err
	}
	l, err := readLists(time.Now())
	if err != nil {
		return err
	}
	switch {
	case *fuzz:
		return fuzzTargets(l, out)
	case *fuzzed != "":
		return fuzzedTargets(*fuzzed, l, out)
	case *benchmarks && fs.NArg() == 0:
		return benchmarkPackages(l, out)
	case *quarantined:
		fmt.Fprintln(out, l.quarantineExpression())
		return nil
	case *all != "":
		return everything(*all, *update, *shrink, l, out)
	case *names:
		return printNames(*part, *tags, fs.Args(), out)
	case fs.NArg() < 2:
		fs.Usage()
		return errors.New("want a file and packages")
	}
	want, files, err := inPackages(*part, *tags, fs.Args()[1:])
	if err != nil {
		return err
	}
	// Whether it passes or not: what it compiled it has compiled.
	if err := os.WriteFile(compiledBy(fs.Arg(0)), []byte(strings.Join(files, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	want = slices.DeleteFunc(want, func(t test) bool { return t.isBenchmark() != *benchmarks })
	if len(want) == 0 {
		return fmt.Errorf("the packages %s have no tests", strings.Join(fs.Args()[1:], " "))
	}
	ran := newEnds()
	if err := ran.read(fs.Arg(0)); err != nil {
		return err
	}
	return oneRun(stageOf(fs.Arg(0)), want, ran, l, out)
}

var ofPart = regexp.MustCompile(`-[0-9]+$`)

// stageOf is the stage that a file of events is of. Its parts, NAME-1, NAME-2 and so on, are
// one, since a new test may move others from part to part.
func stageOf(file string) string {
	return ofPart.ReplaceAllString(strings.TrimSuffix(filepath.Base(file), ".json"), "")
}

// printNames prints an expression that matches the tests of a part of packages' tests.
func printNames(part, tags string, patterns []string, out io.Writer) error {
	tests, _, err := inPackages(part, tags, patterns)
	if err != nil {
		return err
	}
	if len(tests) == 0 {
		return fmt.Errorf("the packages %s have no tests that are %q", strings.Join(patterns, " "), part)
	}
	fmt.Fprintln(out, expression(tests))
	return nil
}

// inPackages returns the tests, of a shard, that the packages have with these build tags,
// and the files that those of all shards are in, by their whole paths.
func inPackages(part, tags string, patterns []string) (want []test, files []string, err error) {
	s, err := parseShard(part)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("go", append([]string{"list", "-tags=" + tags, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Stderr = os.Stderr
	data, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list the packages %s: %w", strings.Join(patterns, " "), err)
	}
	alone := map[test]bool{}
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("list the packages %s: %w", strings.Join(patterns, " "), err)
		}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			files = append(files, filepath.Join(p.Dir, file))
			parsed, err := parse(files[len(files)-1])
			if err != nil {
				return nil, nil, err
			}
			for _, name := range inFile(parsed) {
				want = append(want, test{p.ImportPath, name})
			}
			for _, name := range goAlone(parsed) {
				alone[test{p.ImportPath, name}] = true
			}
		}
	}
	slices.SortFunc(want, compare)
	slices.Sort(files)
	return s.of(want, alone), files, nil
}

// oneRun says what a run executed, and fails when that is less than its packages have.
func oneRun(stage string, want []test, ran *ends, l lists, out io.Writer) error {
	fmt.Fprintf(out, "%s: %d of %d tests ran and passed, with %d subtests\n", stage, ran.tops(), len(want), ran.parts())
	for _, t := range ran.skips() {
		fmt.Fprintf(out, "%s: skipped %s: %s\n", stage, t, ran.why[t])
	}
	for _, q := range l.quarantine {
		if slices.Contains(want, q.test.top()) {
			fmt.Fprintf(out, "%s: in quarantine since %s %s: %s\n", stage, q.since.Format(time.DateOnly), q.test, q.why)
		}
	}
	counted := l.miscounted(stage, ran)
	if counted != nil && !l.has(stage) {
		// A new stage: make tally fails, and make tally-update adds it.
		fmt.Fprintf(out, "%s: %v\n", stage, counted)
		counted = nil
	}
	return errors.Join(failures(ran), listed("did not run", missing(want, ran, l)), counted, unquarantined(ran, l))
}

// unquarantined fails when a test ran that is in quarantine: then its name there is wrong.
func unquarantined(ran *ends, l lists) error {
	var names []string
	for _, q := range l.quarantine {
		if ran.passed[q.test] || ran.failed[q.test] || ran.skipped[q.test] {
			names = append(names, q.test.String())
		}
	}
	return listed("ran, and are in test/tally/quarantine.txt", names)
}

// missing are the tests that came to no end, but for those in quarantine.
func missing(want []test, ran *ends, l lists) (names []string) {
	for _, t := range want {
		if !ran.passed[t] && !ran.skipped[t] && !ran.failed[t] && !l.quarantines(t) {
			names = append(names, t.String())
		}
	}
	return names
}

func failures(ran *ends) error {
	var failed []string
	for t := range ran.failed {
		failed = append(failed, t.String())
	}
	for pkg := range ran.failedPackages {
		failed = append(failed, pkg)
	}
	return errors.Join(listed("failed", failed),
		listed("were taken from go test's cache, and did not run: run them with -count=1", slices.Collect(maps.Keys(ran.cached))))
}

func listed(what string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("%d %s:\n  %s", len(names), what, strings.Join(names, "\n  "))
}

// everything fails unless each test of the tree has run to its end in one of the
// folder's files, or is in one of the lists.
func everything(folder string, update, shrink bool, l lists, out io.Writer) error {
	root, err := repository()
	if err != nil {
		return err
	}
	want, err := inTree(root, l.nowhere)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	stages := map[string]*ends{}
	for _, file := range files {
		stage := stageOf(file)
		if stages[stage] == nil {
			stages[stage] = newEnds()
		}
		if err := stages[stage].read(file); err != nil {
			return err
		}
	}
	if !update {
		compiled, err := compiledIn(files)
		if err != nil {
			return err
		}
		return errors.Join(compareAll(want, stages, l, out), l.uncompiled(root, compiled))
	}
	for stage, ran := range stages {
		if err := failures(ran); err != nil {
			return fmt.Errorf("%s: %w", stage, err)
		}
	}
	after, kept := l.updated(want, stages, shrink)
	if err := os.WriteFile(filepath.Join(root, "test", "tally", "subtests.txt"), []byte(subtestsFile(after)), 0o644); err != nil {
		return err
	}
	return listed("ran with fewer subtests than before, and keep their lines; SHRINK=1 takes that away", kept)
}

// updated is the list of subtests after stages have run. What did not pass in one, and
// what other stages have, stays; so does, but with shrink, what became fewer, which kept
// names. What the tree has no more goes.
func (l lists) updated(tree []test, stages map[string]*ends, shrink bool) (all map[stageTest]subtests, kept []string) {
	all = maps.Clone(l.subtests)
	if all == nil {
		all = map[stageTest]subtests{}
	}
	maps.DeleteFunc(all, func(t stageTest, _ subtests) bool { return !slices.Contains(tree, t.test) })
	for stage, ran := range stages {
		counts := l.counts(ran)
		for t := range ran.passed {
			at := stageTest{stage, t}
			was, known := all[at]
			n := counts[t]
			switch {
			case t != t.top() || !slices.Contains(tree, t) || n == was.n || was.chance && was.near(n) && n < was.n:
			case n < was.n && !shrink:
				kept = append(kept, fmt.Sprintf("%s: %d, want %s", at, n, was))
			case n == 0 && known:
				delete(all, at)
			default:
				all[at] = subtests{n, was.chance}
			}
		}
	}
	return all, kept
}

func compareAll(want []test, stages map[string]*ends, l lists, out io.Writer) error {
	ran := newEnds()
	var counted []error
	for _, stage := range slices.Sorted(maps.Keys(stages)) {
		ran.add(stages[stage])
		counted = append(counted, l.miscounted(stage, stages[stage]))
	}
	stale := l.stale(ran)
	for t := range l.subtests {
		switch ran := stages[t.stage]; {
		case ran == nil:
			stale = append(stale, fmt.Sprintf("test/tally/subtests.txt: %s: there is no such stage", t))
		case len(missing([]test{t.test}, ran, l)) > 0: // another stage may run less of it
			stale = append(stale, fmt.Sprintf("test/tally/subtests.txt: %s: it did not run there", t))
		}
	}
	var skipped []string
	for _, t := range ran.skips() {
		if ran.passed[t] {
			continue // elsewhere
		}
		if s, may := l.skips[t]; may {
			fmt.Fprintf(out, "skipped, as test/tally/skips.txt allows: %s: %s (%s)\n", t, ran.why[t], s.why)
			continue
		}
		skipped = append(skipped, fmt.Sprintf("%s: %s", t, ran.why[t]))
	}
	fmt.Fprintf(out, "%d tests of %d in the tree ran and passed, with %d subtests\n", ran.tops(), len(want), ran.parts())
	return errors.Join(
		failures(ran),
		listed("ran in no target", missing(want, ran, l)),
		notFuzzed(want, ran, l),
		listed("were skipped everywhere, and test/tally/skips.txt does not have them", skipped),
		errors.Join(counted...),
		listed("are in a list and should not be", stale),
		unquarantined(ran, l),
		l.unknown(want))
}

// stale says which skips are none.
func (l lists) stale(ran *ends) (names []string) {
	for t, s := range l.skips {
		switch {
		case s.always && ran.passed[t]:
			names = append(names, fmt.Sprintf("test/tally/skips.txt: %s: it ran, and is always skipped", t))
		case !ran.passed[t] && !ran.skipped[t] && !ran.failed[t] && ran.passed[t.top()]:
			names = append(names, fmt.Sprintf("test/tally/skips.txt: %s: there is no such subtest", t))
		}
	}
	return names
}

// benchmarkPackages prints those of the module that have some.
func benchmarkPackages(l lists, out io.Writer) error {
	root, err := repository()
	if err != nil {
		return err
	}
	all, err := inTree(root, l.nowhere)
	var packages []string
	for _, t := range all {
		if t.isBenchmark() {
			packages = append(packages, t.pkg)
		}
	}
	for _, p := range slices.Compact(packages) {
		fmt.Fprintln(out, p)
	}
	return err
}

// fuzzTargets prints those of the module.
func fuzzTargets(l lists, out io.Writer) error {
	targets, err := targetsOfTree(l)
	for _, t := range targets {
		fmt.Fprintln(out, t)
	}
	return err
}

func targetsOfTree(l lists) ([]test, error) {
	root, err := repository()
	if err != nil {
		return nil, err
	}
	all, err := inTree(root, l.nowhere)
	return slices.DeleteFunc(all, func(t test) bool { return !t.isFuzzTarget() }), err
}

// fuzzedTargets says of each fuzz target of the tree what it ran, and fails unless that
// was more than its corpus.
func fuzzedTargets(file string, l lists, out io.Writer) error {
	targets, err := targetsOfTree(l)
	if err != nil {
		return err
	}
	ran := newEnds()
	if err := ran.read(file); err != nil {
		return err
	}
	for _, t := range targets {
		fmt.Fprintf(out, "fuzz: %s: %s\n", t, ran.fuzzed[t])
	}
	return errors.Join(failures(ran), notFuzzed(targets, ran, lists{}))
}

// notFuzzed fails when a fuzz target passed in no run in which it tried new inputs: that
// go test runs its corpus, as a test, says little.
func notFuzzed(want []test, ran *ends, l lists) error {
	var names []string
	for _, t := range want {
		if t.isFuzzTarget() && !l.quarantines(t) && !(ran.passed[t] && ran.fuzzed[t].triedNew()) {
			names = append(names, fmt.Sprintf("%s: %s", t, ran.fuzzed[t]))
		}
	}
	return listed("were not fuzzed: they ran no input but their corpus, if that; where that takes so long, a larger FUZZTIME helps, or fewer inputs in its testdata/fuzz", names)
}

// repository is the folder with the module's go.mod, from the working folder.
func repository() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the top of the repository: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
