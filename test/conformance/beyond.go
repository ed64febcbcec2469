package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// beyondList says which of upstream's specs SUITE=beyond runs, and why what does not pass does not.
//
//go:embed beyond.yaml
var beyondList []byte

// beyond are upstream's specs that no conformance asks for and that an ordinary node passes here.
type beyond struct {
	// Take are expressions for the names of specs that are run.
	Take []string `json:"take"`
	// Leave are those that are not, though Take takes them.
	Leave []exception `json:"leave"`
	// Differ are those that an ordinary node passes and Kip does not.
	Differ []exception `json:"differ"`
	// Nodes are those that an ordinary node does not pass here either.
	Nodes []exception `json:"nodes"`

	specs []string // what is run, in order
}

// exception is an expression for the names of specs, and what holds of them.
type exception struct {
	Specs string `json:"specs"`
	// Nature is true when Kip cannot pass them, since each pod has a machine of its own.
	Nature bool   `json:"nature,omitempty"`
	Why    string `json:"why"`
	// Change is what would let them pass. For Differ only.
	Change string `json:"change,omitempty"`

	names *regexp.Regexp
}

// readBeyond reads beyond.yaml.
func readBeyond(data []byte) (*beyond, error) {
	b := &beyond{}
	if err := yaml.UnmarshalStrict(data, b); err != nil {
		return nil, fmt.Errorf("beyond.yaml: %w", err)
	}
	for key, list := range map[string][]exception{"leave": b.Leave, "differ": b.Differ, "nodes": b.Nodes} {
		for i := range list {
			e := &list[i]
			var err error
			if e.names, err = regexp.Compile(e.Specs); err != nil {
				return nil, fmt.Errorf("beyond.yaml: %s: item %d: %w", key, i+1, err)
			}
			if e.Specs == "" || e.Why == "" || (key == "differ") != (e.Change != "") {
				return nil, fmt.Errorf("beyond.yaml: %s: item %d: it needs specs and why, and in differ change", key, i+1)
			}
		}
	}
	return b, nil
}

// choose keeps those of a release's specs that are run. It fails when an expression names none.
func (b *beyond) choose(release []string) error {
	var errs []error
	unused := func(key, expression string, of []string, names *regexp.Regexp) {
		if !slices.ContainsFunc(of, names.MatchString) {
			errs = append(errs, fmt.Errorf("beyond.yaml: %s: %q names no spec", key, expression))
		}
	}
	taken := map[string]bool{}
	for _, text := range b.Take {
		names, err := regexp.Compile(text)
		if err != nil {
			return fmt.Errorf("beyond.yaml: take: %w", err)
		}
		unused("take", text, release, names)
		for _, s := range release {
			taken[s] = taken[s] || names.MatchString(s)
		}
	}
	for _, e := range b.Leave {
		unused("leave", e.Specs, release, e.names)
	}
	b.specs = nil
	for _, s := range release {
		if _, left := named(b.Leave, s); taken[s] && !left {
			b.specs = append(b.specs, s)
		}
	}
	for _, e := range b.Differ {
		unused("differ", e.Specs, b.specs, e.names)
	}
	for _, e := range b.Nodes {
		unused("nodes", e.Specs, b.specs, e.names)
	}
	return errors.Join(errs...)
}

// named is the first of the exceptions that a spec is one of.
func named(list []exception, spec string) (exception, bool) {
	i := slices.IndexFunc(list, func(e exception) bool { return e.names.MatchString(spec) })
	if i < 0 {
		return exception{}, false
	}
	return list[i], true
}

// suiteNamed is nil for conformance.
func suiteNamed(name string) (*beyond, error) {
	switch name {
	case "conformance":
		return nil, nil
	case "beyond":
		return readBeyond(beyondList)
	}
	return nil, fmt.Errorf("-suite is %q: want conformance or beyond", name)
}

// chooseBeyond asks e2e.test for its specs, and keeps what is run of them.
func (o options) chooseBeyond(ctx context.Context) error {
	out, err := o.output(ctx, o.dir("bin", "e2e.test"), "--list-tests")
	if err != nil {
		return fmt.Errorf("ask e2e.test for its specs (is it built? `make conformance-tools`): %w", err)
	}
	release, err := listedTests(out)
	if err != nil {
		return err
	}
	return o.beyond.choose(release)
}

// listLine is one of what e2e.test prints for --list-tests: the place of a spec, and its name.
var listLine = regexp.MustCompile(`^ +\S+\.go:[0-9]+: (.+)$`)

// listedTests reads what e2e.test prints for --list-tests.
func listedTests(text string) ([]string, error) {
	var names []string
	for line := range strings.Lines(text) {
		if m := listLine.FindStringSubmatch(strings.TrimRight(line, "\r\n")); m != nil {
			names = append(names, m[1])
		}
	}
	if len(names) == 0 {
		return nil, errors.New("e2e.test lists no tests")
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// fine reports whether a spec ended in a way that needs nobody's look.
func (o options) fine(spec string, a Attempt) bool {
	if o.beyond == nil || a.State == passed {
		return a.State == passed
	}
	if a.State == skipped { // by itself: this cluster is not one for it
		return true
	}
	if _, known := named(o.beyond.Nodes, spec); known {
		return true
	}
	_, known := named(o.beyond.Differ, spec)
	return known && o.mode == "kip"
}

// differing are those of the specs that did not pass in the other mode.
func (o options) differing(specs []string) ([]string, error) {
	other := o
	other.mode = "kip"
	if o.mode == "kip" {
		other.mode = "nodes"
	}
	results, err := loadResults(other.results(), other.mode)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(specs), func(s string) bool {
		r, ran := results.Specs[s]
		return !ran || r.State == passed || r.State == skipped
	}), nil
}

// publishBeyond takes the results of each mode that has some into the repository, and writes the page. A part of the specs
// is enough, and each may be of another commit: the page says of how many, and which commits.
func (o options) publishBeyond(ctx context.Context) error {
	if err := o.chooseBeyond(ctx); err != nil {
		return err
	}
	for mode := range modes {
		o.mode = mode
		results, err := loadResults(o.results(), mode)
		if err != nil {
			return err
		}
		if len(results.Specs) == 0 {
			continue
		}
		if err := results.clean(); err != nil {
			return err
		}
		if err := o.beyond.brief(results).save(o.published(mode)); err != nil {
			return err
		}
	}
	return o.writeBeyondPage()
}

// clean refuses results of a tree that nobody can have again.
func (r Results) clean() error {
	for commit := range r.commits() {
		if commit == noCommit || strings.HasSuffix(commit, dirty) {
			return fmt.Errorf("results of mode %s are of %s, and must be of commits without changes", r.Mode, commit)
		}
	}
	return nil
}

// brief is what the page needs: the last attempt of each spec that is chosen, the runs that these are of, and for Kip what has
// never run.
func (b *beyond) brief(r Results) Results {
	out := Results{Release: r.Release, Mode: r.Mode, Specs: map[string]Result{}}
	used := map[int]bool{}
	for _, s := range b.specs {
		result, ran := r.Specs[s]
		if !ran {
			if r.Mode == "kip" {
				out.Missing = append(out.Missing, s)
			}
			continue
		}
		result.History = nil
		out.Specs[s], used[result.Run] = result, true
	}
	at := map[int]int{}
	for n, run := range r.Runs {
		if used[n] {
			at[n], run.Left = len(out.Runs), nil
			out.Runs = append(out.Runs, run)
		}
	}
	for s, result := range out.Specs {
		result.Run = at[result.Run]
		out.Specs[s] = result
	}
	return out
}

// list are the names of the specs that have a result, in order.
func (r Results) list() []string {
	names := make([]string, 0, len(r.Specs))
	for s := range r.Specs {
		names = append(names, s)
	}
	slices.Sort(names)
	return names
}

func (o options) writeBeyondPage() error {
	b, err := readBeyond(beyondList)
	if err != nil {
		return err
	}
	both := map[string]Results{}
	for mode := range modes {
		if both[mode], err = loadResults(o.published(mode), mode); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(o.root, "docs", "conformance-beyond.md"), []byte(beyondPage(b, both["nodes"], both["kip"])), 0o644)
}
