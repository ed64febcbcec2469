package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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
tally [-tags T] FILE PACKAGE...  one run: FILE is what go test -json wrote
tally -all FOLDER                all runs, FOLDER/*.json: each test of the tree in one of them
`

func command(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("tally", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	all := fs.String("all", "", "check that each test of the tree is in one of the `folder`'s files")
	tags := fs.String("tags", "", "build `tags` of the run")
	fuzz := fs.Bool("fuzz", false, "print the fuzz targets of the module: package and name")
	quarantined := fs.Bool("quarantined", false, "print an expression that matches the tests in quarantine")
	if err := fs.Parse(args); err != nil {
		return err
	}
	l, err := readLists(time.Now())
	if err != nil {
		return err
	}
	switch {
	case *fuzz:
		return fuzzTargets(out)
	case *quarantined:
		fmt.Fprintln(out, l.quarantineExpression())
		return nil
	case *all != "":
		return everything(*all, l, out)
	case fs.NArg() < 2:
		fs.Usage()
		return errors.New("want a file and packages")
	}
	want, err := inPackages(*tags, fs.Args()[1:])
	if err != nil {
		return err
	}
	ran := newEnds()
	if err := ran.read(fs.Arg(0)); err != nil {
		return err
	}
	return oneRun(strings.TrimSuffix(filepath.Base(fs.Arg(0)), ".json"), want, ran, l, out)
}

// inPackages returns the tests that the packages have with these build tags.
func inPackages(tags string, patterns []string) ([]test, error) {
	cmd := exec.Command("go", append([]string{"list", "-tags=" + tags, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Stderr = os.Stderr
	data, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages %s: %w", strings.Join(patterns, " "), err)
	}
	var want []test
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("list the packages %s: %w", strings.Join(patterns, " "), err)
		}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			names, err := inFile(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				want = append(want, test{p.ImportPath, name})
			}
		}
	}
	if len(want) == 0 {
		return nil, fmt.Errorf("the packages %s have no tests", strings.Join(patterns, " "))
	}
	slices.SortFunc(want, compare)
	return want, nil
}

// oneRun says what a run executed, and fails when that is less than its packages have.
func oneRun(stage string, want []test, ran *ends, l lists, out io.Writer) error {
	fmt.Fprintf(out, "%s: %d of %d tests ran and passed, with %d subtests\n", stage, len(ran.passed), len(want), len(ran.subtests))
	for _, t := range ran.skips() {
		fmt.Fprintf(out, "%s: skipped %s: %s\n", stage, t, ran.why[t])
	}
	for _, q := range l.quarantine {
		if slices.Contains(want, q.test) {
			fmt.Fprintf(out, "%s: in quarantine since %s %s: %s\n", stage, q.since.Format(time.DateOnly), q.test, q.why)
		}
	}
	return errors.Join(failures(ran), listed("did not run", missing(want, ran, l)))
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
	return listed("failed", failed)
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
func everything(folder string, l lists, out io.Writer) error {
	root, err := repository()
	if err != nil {
		return err
	}
	want, err := inTree(root)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	ran := newEnds()
	for _, file := range files {
		if err := ran.read(file); err != nil {
			return err
		}
	}
	return compareAll(want, ran, l, out)
}

func compareAll(want []test, ran *ends, l lists, out io.Writer) error {
	var skipped []string
	needless := l.unknown(want)
	for _, t := range ran.skips() {
		if ran.passed[t] || ran.subtests[t] {
			continue // elsewhere
		}
		if why, may := l.skips[t]; may {
			fmt.Fprintf(out, "skipped, as test/tally/skips.txt allows: %s: %s (%s)\n", t, ran.why[t], why)
			continue
		}
		skipped = append(skipped, fmt.Sprintf("%s: %s", t, ran.why[t]))
	}
	fmt.Fprintf(out, "%d tests of %d in the tree ran and passed, with %d subtests\n", len(ran.passed), len(want), len(ran.subtests))
	return errors.Join(failures(ran), listed("ran in no target", missing(want, ran, l)), listed("were skipped everywhere, and test/tally/skips.txt does not have them", skipped), needless)
}

// fuzzTargets prints those of the module.
func fuzzTargets(out io.Writer) error {
	root, err := repository()
	if err != nil {
		return err
	}
	all, err := inTree(root)
	for _, t := range all {
		if strings.HasPrefix(t.name, "Fuzz") {
			fmt.Fprintln(out, t)
		}
	}
	return err
}

// repository is the folder with the module's go.mod, from the working folder.
func repository() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the top of the repository: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
