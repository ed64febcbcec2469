package main

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed quarantine.txt
var quarantineList string

//go:embed skips.txt
var skipList string

//go:embed subtests.txt
var subtestList string

//go:embed uncompiled.txt
var uncompiledList string

// longest is how long a test may be in quarantine.
const longest = 14 * 24 * time.Hour

// fewest is how much of the subtests must come to an end of a test that has them by
// chance, in hundredths. Of any other it is all, so that no table shrinks unseen.
const fewest = 95

// quarantined is a test, or a subtest, that is not run, since it fails at times.
type quarantined struct {
	test
	since time.Time
	why   string
}

// skip is a test that may skip itself in each stage.
type skip struct {
	always bool // and not where the machine or the tree lacks something
	why    string
}

// stageTest is a test as a stage runs it: with -short it may have fewer subtests.
type stageTest struct {
	stage string
	test
}

func (s stageTest) String() string { return s.stage + " " + s.test.String() }

// lists are the tests that may be left out, and how many subtests the others have.
type lists struct {
	quarantine []quarantined
	skips      map[test]skip
	subtests   map[stageTest]subtests
	nowhere    map[string]string // _test.go files that no stage compiles, and why, by their paths from the top
}

// subtests are how many a test has.
type subtests struct {
	n      int
	chance bool // some of them depend on it
}

func (s subtests) String() string {
	if s.chance {
		return fmt.Sprintf("~%d", s.n)
	}
	return strconv.Itoa(s.n)
}

// near says that as many may have run.
func (s subtests) near(n int) bool {
	if s.chance {
		return n*100 >= s.n*fewest
	}
	return n == s.n
}

func readLists(now time.Time) (lists, error) {
	q, err := parseQuarantine(quarantineList, now)
	if err != nil {
		return lists{}, fmt.Errorf("test/tally/quarantine.txt: %w", err)
	}
	s, err := parseSkips(skipList)
	if err != nil {
		return lists{}, fmt.Errorf("test/tally/skips.txt: %w", err)
	}
	n, err := parseSubtests(subtestList)
	if err != nil {
		return lists{}, fmt.Errorf("test/tally/subtests.txt: %w", err)
	}
	nowhere, err := parseUncompiled(uncompiledList)
	if err != nil {
		return lists{}, fmt.Errorf("test/tally/uncompiled.txt: %w", err)
	}
	return lists{q, s, n, nowhere}, nil
}

// entries calls each for the lines of a list with their fields, the last of which is the rest.
func entries(list string, fields int, each func(fields []string) error) error {
	n := 0
	for line := range strings.Lines(list) {
		n++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.SplitN(line, " ", fields)
		if len(f) < fields {
			return fmt.Errorf("line %d is %q: want %d words, and a reason", n, line, fields-1)
		}
		if err := each(f); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return nil
}

func parseQuarantine(list string, now time.Time) (all []quarantined, err error) {
	return all, entries(list, 4, func(f []string) error {
		since, err := time.Parse(time.DateOnly, f[0])
		if err != nil {
			return fmt.Errorf("%q: want the date on which it came, such as 2026-11-22", f[0])
		}
		if age := now.Sub(since); age > longest || age < -24*time.Hour {
			return fmt.Errorf("%s %s is in quarantine since %s: it must be mended within %d days", f[1], f[2], f[0], int(longest.Hours()/24))
		}
		all = append(all, quarantined{test{f[1], f[2]}, since, f[3]})
		return nil
	})
}

func parseSkips(list string) (map[test]skip, error) {
	all := map[test]skip{}
	return all, entries(list, 4, func(f []string) error {
		if f[2] != "always" && f[2] != "sometimes" {
			return fmt.Errorf("%q: want always, or sometimes if it depends on the machine or the tree", f[2])
		}
		all[test{f[0], f[1]}] = skip{f[2] == "always", f[3]}
		return nil
	})
}

func parseSubtests(list string) (map[stageTest]subtests, error) {
	all := map[stageTest]subtests{}
	return all, entries(list, 4, func(f []string) error {
		number, chance := strings.CutPrefix(f[3], "~")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return fmt.Errorf("%q: want how many subtests ran, 1 or more, with ~ before it if they depend on chance", f[3])
		}
		t := stageTest{f[0], test{f[1], f[2]}}
		if _, twice := all[t]; twice {
			return fmt.Errorf("%s is there twice", t)
		}
		all[t] = subtests{n, chance}
		return nil
	})
}

func parseUncompiled(list string) (map[string]string, error) {
	all := map[string]string{}
	return all, entries(list, 2, func(f []string) error {
		if all[f[0]] != "" {
			return fmt.Errorf("%s is there twice", f[0])
		}
		all[f[0]] = f[1]
		return nil
	})
}

const subtestsHead = `# How many subtests each test has in each stage, one a line. A run in which another
# number comes to an end fails. Where it depends on chance, a ~ before it, by hand, lets
# 95 % of it pass, and more. "make tally-update" writes the lines of what has passed
# since in .kip/checks. It takes nothing away but with SHRINK=1: that is tested no longer.
`

// subtestsFile is the text of test/tally/subtests.txt.
func subtestsFile(all map[stageTest]subtests) string {
	var lines []string
	for t, n := range all {
		lines = append(lines, fmt.Sprintf("%s %s\n", t, n))
	}
	slices.Sort(lines)
	return subtestsHead + strings.Join(lines, "")
}

// quarantines says that a test, or all that is above a subtest, is not run.
func (l lists) quarantines(t test) bool {
	return slices.ContainsFunc(l.quarantine, func(q quarantined) bool {
		return q.test == t || q.pkg == t.pkg && strings.HasPrefix(t.name, q.name+"/")
	})
}

// quarantineExpression is for go test -skip: alternatives, whose parts between slashes
// are for the levels of subtests. It is empty, which skips nothing, when none is in
// quarantine. It knows no packages: a test of the same name elsewhere is not run either,
// and is then missed there.
func (l lists) quarantineExpression() string {
	var all []string
	for _, q := range l.quarantine {
		var parts []string
		for part := range strings.SplitSeq(q.name, "/") {
			parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
		}
		all = append(all, strings.Join(parts, "/"))
	}
	return strings.Join(all, "|")
}

// counts are those of a stage. What is in quarantine counts as if it had run.
func (l lists) counts(ran *ends) map[test]int {
	counts := ran.counts()
	for _, q := range l.quarantine {
		if q.test != q.test.top() {
			counts[q.test.top()]++
		}
	}
	return counts
}

// miscounted fails when a test of a stage has other subtests than the list says, or the
// list does not have it. What did not run whole is judged elsewhere.
func (l lists) miscounted(stage string, ran *ends) error {
	counts := l.counts(ran)
	var less, more []string
	for t, want := range l.subtests {
		n := counts[t.test]
		if t.stage != stage || !ran.passed[t.test] || want.near(n) {
			continue
		}
		if text := fmt.Sprintf("%s: %d, want %s", t, n, want); n < want.n {
			less = append(less, text)
		} else {
			more = append(more, text)
		}
	}
	for t, n := range counts {
		if _, known := l.subtests[stageTest{stage, t}]; !known && !l.quarantines(t) {
			more = append(more, fmt.Sprintf("%s: %d, want 0", stageTest{stage, t}, n))
		}
	}
	return errors.Join(listed("ran with too few subtests", less),
		listed("ran with more subtests than test/tally/subtests.txt has, which make tally-update writes", more))
}

// has says that the list has lines of a stage.
func (l lists) has(stage string) bool {
	for t := range l.subtests {
		if t.stage == stage {
			return true
		}
	}
	return false
}

// unknown fails when a list names a test that the tree does not have.
func (l lists) unknown(tree []test) error {
	var names []string
	look := func(t test) {
		if !slices.Contains(tree, t.top()) {
			names = append(names, t.String())
		}
	}
	for _, q := range l.quarantine {
		look(q.test)
	}
	for t := range l.skips {
		look(t)
	}
	for t := range l.subtests {
		look(t.test)
	}
	slices.Sort(names)
	return listed("are in test/tally's lists and not in the tree", slices.Compact(names))
}

// skips are the tests and subtests that were skipped, in order.
func (e *ends) skips() []test { return slices.SortedFunc(maps.Keys(e.skipped), compare) }
