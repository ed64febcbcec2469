package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed quarantine.txt
var quarantineList string

//go:embed skips.txt
var skipList string

// longest is how long a test may be in quarantine.
const longest = 14 * 24 * time.Hour

// quarantined is a test that is not run, since it fails at times.
type quarantined struct {
	test
	since time.Time
	why   string
}

// lists are the tests that may be left out.
type lists struct {
	quarantine []quarantined
	skips      map[test]string
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
	return lists{q, s}, nil
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

func parseSkips(list string) (map[test]string, error) {
	all := map[test]string{}
	return all, entries(list, 3, func(f []string) error {
		all[test{f[0], f[1]}] = f[2]
		return nil
	})
}

func (l lists) quarantines(t test) bool {
	return slices.ContainsFunc(l.quarantine, func(q quarantined) bool { return q.test == t })
}

// quarantineExpression is for go test -skip; it matches nothing when none is in quarantine.
func (l lists) quarantineExpression() string {
	var names []string
	for _, q := range l.quarantine {
		names = append(names, regexp.QuoteMeta(q.name))
	}
	if len(names) == 0 {
		return ""
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// unknown fails when a list names a test that the tree does not have.
func (l lists) unknown(tree []test) error {
	var names []string
	look := func(t test) {
		t.name, _, _ = strings.Cut(t.name, "/")
		if !slices.Contains(tree, t) {
			names = append(names, t.String())
		}
	}
	for _, q := range l.quarantine {
		look(q.test)
	}
	for t := range l.skips {
		look(t)
	}
	return listed("are in test/tally's lists and not in the tree", names)
}

// skips are the tests and subtests that were skipped, in order.
func (e *ends) skips() []test {
	all := slices.Clone(e.skippedSubtests)
	for t := range e.skipped {
		all = append(all, t)
	}
	slices.SortFunc(all, compare)
	return slices.Compact(all)
}
