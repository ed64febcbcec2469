package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestTheSpecsBeyondConformanceAreChosenByExpressions(t *testing.T) {
	release, err := listedTests("The following spec names can be used with 'ginkgo run --focus/skip':\n" +
		"    k8s.io/kubernetes@v1.36.3/test/e2e/a.go:12: [sig-node] b: two [Slow]\n    ../e2e/a.go:9: [sig-node] a\n" +
		"    a.go:10: [sig-node] b: two\n    a.go:11: [sig-auth] c\n    a.go:13: [sig-node] d Windows\n\n")
	if err != nil || len(release) != 5 {
		t.Fatalf("the release has %q, %v", release, err)
	}
	choose := func(text string) ([]string, error) {
		b, err := readBeyond([]byte(text))
		if err == nil {
			err = b.choose(release)
		}
		if err != nil {
			return nil, err
		}
		return b.specs, nil
	}
	got, err := choose("take: ['^\\[sig-node\\]', b]\nleave: [{specs: Windows, why: w}, {specs: '\\[Slow\\]', why: w}]\n" +
		"differ: [{specs: two, why: w, change: c}]\nnodes: [{specs: 'a$', why: w}]\n")
	if err != nil || !slices.Equal(got, []string{"[sig-node] a", "[sig-node] b: two"}) {
		t.Errorf("chose %q, %v", got, err)
	}
	for name, text := range map[string]string{
		"an expression for none":         "take: [node, nothing]",
		"an exception for none":          "take: [node]\nleave: [{specs: nothing, why: w}]",
		"a difference of what is left":   "take: [node]\nleave: [{specs: Windows, why: w}]\ndiffer: [{specs: Windows, why: w, change: c}]",
		"no reason":                      "take: [node]\nleave: [{specs: Windows}]",
		"a difference that nothing ends": "take: [node]\ndiffer: [{specs: two, why: w}]",
		"no expression":                  "take: ['(']",
		"no expression of an exception":  "take: [node]\nleave: [{specs: '(', why: w}]",
		"an unknown key":                 "take: [node]\nskip: []",
	} {
		if got, err := choose(text); err == nil {
			t.Errorf("%s is taken: %q", name, got)
		}
	}
	if _, err := listedTests("no tests\n"); err == nil {
		t.Error("a list without tests is taken")
	}
}

func TestTheFileOfWhatIsBeyondConformanceIsRead(t *testing.T) {
	b, err := readBeyond(beyondList)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range lines(specList) {
		if _, left := named(b.Leave, s); !left {
			t.Errorf("%q is of conformance, and is not left out", s)
		}
	}
}

func TestWhatIsExplainedFailsNoRunBeyondConformance(t *testing.T) {
	b, err := readBeyond([]byte("differ: [{specs: known, why: w, change: c}]\nnodes: [{specs: nowhere, why: w}]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		mode, spec, state string
		beyond            *beyond
		want              bool
	}{
		{"kip", "x", passed, nil, true}, {"kip", "x", skipped, nil, false}, {"kip", "known", "failed", nil, false},
		{"kip", "x", passed, b, true}, {"kip", "x", skipped, b, true}, {"kip", "x", "failed", b, false},
		{"kip", "known", "failed", b, true}, {"nodes", "known", "failed", b, false},
		{"kip", "nowhere", "failed", b, true}, {"nodes", "nowhere", "timedout", b, true},
	} {
		o := options{mode: tc.mode, beyond: tc.beyond}
		if got := o.fine(tc.spec, Attempt{State: tc.state}); got != tc.want {
			t.Errorf("mode %s, %s that %s, beyond conformance: %t: fine is %t", tc.mode, tc.spec, tc.state, tc.beyond != nil, got)
		}
	}
	// What is fine is not run again, but on another commit or when it is asked for.
	results := Results{Runs: []Run{{Commit: "c", Ended: complete}}, Specs: map[string]Result{
		"known": {Attempt: Attempt{State: "failed"}}, "s": {Attempt: Attempt{State: skipped}}, "x": {Attempt: Attempt{State: "failed"}},
	}}
	specs := []string{"known", "s", "x", "y"}
	for only, want := range map[string]string{"": "x y", "failed": "known s x", "all": "known s x y", "missing": "y", "never": "y"} {
		c := choice{only: only, shard: shard{1, 1}, fine: options{mode: "kip", beyond: b}.fine}
		if got := strings.Join(c.from(specs, results, "c"), " "); got != want {
			t.Errorf("-only=%s chose %q, want %q", only, got, want)
		}
	}
}

func TestOneModeRunsWhatTheOtherDidNotPass(t *testing.T) {
	o := options{root: t.TempDir(), mode: "kip", beyond: &beyond{}}
	results := Results{Release: Release, Mode: "kip", Runs: []Run{{Commit: "c"}}, Specs: map[string]Result{
		"a": {Attempt: Attempt{State: passed}}, "b": {Attempt: Attempt{State: "failed"}}, "c": {Attempt: Attempt{State: skipped}},
	}}
	if err := results.save(o.results()); err != nil {
		t.Fatal(err)
	}
	o.mode = "nodes"
	if got, err := o.differing([]string{"a", "b", "c", "d"}); err != nil || !slices.Equal(got, []string{"b"}) {
		t.Errorf("chose %q, %v", got, err)
	}
}

func TestPartsBeyondConformanceArePublished(t *testing.T) {
	b, err := readBeyond([]byte("take: [node]\nleave: [{specs: Windows, why: w}]"))
	if err != nil {
		t.Fatal(err)
	}
	o := options{root: t.TempDir(), mode: "kip", beyond: b}
	if err := os.MkdirAll(filepath.Join(o.root, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	results := Results{Release: Release, Mode: "kip", Runs: []Run{{Commit: "a", Left: []string{"z"}}, {Commit: "b"}, {Commit: "c"}},
		Specs: map[string]Result{
			"[sig-node] x":         {Attempt: Attempt{State: passed, Run: 2}, Attempts: 2, History: []Attempt{{State: "failed"}}},
			"[sig-node] y":         {Attempt: Attempt{State: "failed", Failure: "boom", Run: 1}, Attempts: 1},
			"[sig-node] w":         {Attempt: Attempt{State: skipped, Failure: "needs <3> zones", Run: 1}, Attempts: 1},
			"[sig-node] z Windows": {Attempt: Attempt{State: "failed"}, Attempts: 1},
		}}
	if err := results.save(o.results()); err != nil {
		t.Fatal(err)
	}
	script(t, o.dir("bin", "e2e.test"), "echo specs:; for s in w x y 'z Windows' new; do echo \"    a.go:1: [sig-node] $s\"; done\n")
	if err := o.publishBeyond(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := loadResults(o.published("kip"), "kip")
	if err != nil || len(got.Runs) != 2 || len(got.Specs) != 3 || got.on() != "b, c" || got.commit("[sig-node] x") != "c" ||
		got.commit("[sig-node] y") != "b" {
		t.Errorf("published %+v, %v", got, err)
	}
	page, err := os.ReadFile(filepath.Join(o.root, "docs", "conformance-beyond.md"))
	if err != nil || !regexp.MustCompile(`(?m)^\| node \| 1 \| 1 \| 1 \| 0 \| 0 \| 0 \|$`).Match(page) || !strings.Contains(string(page),
		"boom") || !strings.Contains(string(page), "chooses 4 specs") || !strings.Contains(string(page), "\n3 have run") ||
		!strings.Contains(string(page), "\n| needs &lt;3&gt; zones | 1 |\n") ||
		!strings.Contains(string(page), "\n## What has not run yet\n\n- \\[sig-node\\] new\n") {
		t.Errorf("the page is %v\n%s", err, page)
	}
	results.Runs[2].Commit += dirty
	if err := results.save(o.results()); err != nil {
		t.Fatal(err)
	}
	if err := o.publishBeyond(t.Context()); err == nil {
		t.Error("results of a tree with changes are published")
	}
}
