package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// Release is the release of Kubernetes whose tests these are.
const Release = "v1.36.3"

// specList has the names of all specs that conformance consists of, one a line,
// as the release lists them: conformance -specs writes it.
//
//go:embed specs.txt
var specList string

// subsetList has the names of those that make test-all runs.
//
//go:embed subset.txt
var subsetList string

// lines are the lines of a list, without comments.
func lines(list string) []string {
	var out []string
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// listed reads what e2e.test prints for --list-conformance-tests.
func listed(data []byte) ([]string, error) {
	var tests []struct {
		Codename string `json:"codename"`
	}
	if err := yaml.Unmarshal(data, &tests); err != nil {
		return nil, fmt.Errorf("read the list of conformance tests: %w", err)
	}
	var names []string
	for _, t := range tests {
		names = append(names, t.Codename)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("the list of conformance tests is empty")
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

var sig = regexp.MustCompile(`^\[sig-([a-z-]+)\]`)

// area is the part of Kubernetes that a spec is about: node, network, storage ….
func area(spec string) string {
	m := sig.FindStringSubmatch(spec)
	if m == nil {
		return "other"
	}
	return m[1]
}

// shard says which part of the specs is run: the k-th of n.
type shard struct{ k, n int }

// Set reads k/n.
func (s *shard) Set(text string) error {
	k, n, _ := strings.Cut(text, "/")
	var errs [2]error
	s.k, errs[0] = strconv.Atoi(k)
	s.n, errs[1] = strconv.Atoi(n)
	if errs[0] != nil || errs[1] != nil || s.k < 1 || s.k > s.n {
		return fmt.Errorf("%q: want k/n with k from 1 to n, such as 2/3", text)
	}
	return nil
}

func (s *shard) String() string { return fmt.Sprintf("%d/%d", s.k, s.n) }

// choice says which specs are run.
type choice struct {
	only  string // of the results so far; see choices
	focus *regexp.Regexp
	skip  *regexp.Regexp // optional
	shard shard
	// fine reports whether a spec ended as it may, where that is not only to pass. Optional.
	fine func(spec string, a Attempt) bool
}

// choices are what only can be: which specs, by their result so far and whether
// it is of the commit that is there now.
var choices = map[string]func(result Result, ran, here bool) bool{
	"":        func(r Result, _, here bool) bool { return !here || r.State != passed },
	"failed":  func(r Result, ran, _ bool) bool { return ran && r.State != passed },
	"missing": func(_ Result, _, here bool) bool { return !here },
	"never":   func(_ Result, ran, _ bool) bool { return !ran },
	"other":   func(r Result, _, here bool) bool { return !here || r.State != passed },
	"all":     func(Result, bool, bool) bool { return true },
}

// from returns those of the specs that are to be run on a commit.
func (c choice) from(specs []string, results Results, commit string) []string {
	var out []string
	doubtful := results.doubtful(commit)
	for i, s := range specs {
		r, ran := results.Specs[s]
		if ran && c.fine != nil && c.only != "failed" && c.fine(s, r.Attempt) {
			r.State = passed
		}
		here := ran && results.commit(s) == commit && !slices.Contains(doubtful, s)
		if i%c.shard.n == c.shard.k-1 && choices[c.only](r, ran, here) && (c.focus == nil || c.focus.MatchString(s)) &&
			(c.skip == nil || !c.skip.MatchString(s)) {
			out = append(out, s)
		}
	}
	return out
}
