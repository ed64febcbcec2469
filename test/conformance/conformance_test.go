package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/test/harness"
)

func TestThereAreAsManySpecsAsTheReleaseHas(t *testing.T) {
	specs := lines(specList)
	if len(specs) != 446 || !slices.IsSorted(specs) || len(slices.Compact(slices.Clone(specs))) != 446 {
		t.Errorf("specs.txt has %d specs (sorted: %t); %s has 446, each once", len(specs), slices.IsSorted(specs), Release)
	}
	for _, s := range specs {
		if area(s) == "other" {
			t.Errorf("the area of %q is not known", s)
		}
	}
}

func TestTheSubsetCoversEachArea(t *testing.T) {
	specs, areas := lines(specList), map[string]bool{}
	for _, s := range lines(subsetList) {
		if !slices.Contains(specs, s) {
			t.Errorf("subset.txt names %q, which is not in specs.txt", s)
		}
		areas[area(s)] = true
	}
	for _, s := range specs {
		// Its one spec is whether nodes run on a known architecture.
		if a := area(s); !areas[a] && a != "architecture" {
			t.Errorf("subset.txt has no spec of %s", a)
			areas[a] = true
		}
	}
}

func TestReadsTheListOfARelease(t *testing.T) {
	got, err := listed([]byte("- codename: '[sig-b] two\n    lines'\n  release: v1\n- codename: '[sig-a] one'\n"))
	if err != nil || !slices.Equal(got, []string{"[sig-a] one", "[sig-b] two lines"}) {
		t.Errorf("listed %q, %v", got, err)
	}
	if _, err := listed([]byte("[]")); err == nil {
		t.Error("an empty list is taken")
	}
}

func TestChoosesByResultFocusAndShard(t *testing.T) {
	specs := []string{"a", "b", "c", "d", "e"}
	results := Results{Runs: []Run{{Commit: "old", Ended: complete}, {Commit: "new", Ended: complete}}, Specs: map[string]Result{
		"a": {Attempt: Attempt{State: passed, Run: 1}}, "b": {Attempt: Attempt{State: "failed", Run: 1}},
		"c": {Attempt: Attempt{State: "skipped"}}, "e": {Attempt: Attempt{State: passed}},
	}}
	for name, tc := range map[string]struct {
		c    choice
		want string
	}{
		"what has not passed here": {choice{}, "bcde"},
		"what has failed":          {choice{only: "failed"}, "bc"},
		"what never ran here":      {choice{only: "missing"}, "cde"},
		"all":                      {choice{only: "all"}, "abcde"},
		"some by name":             {choice{only: "all", focus: regexp.MustCompile("a|d")}, "ad"},
		"some not, by name":        {choice{only: "all", skip: regexp.MustCompile("a|d")}, "bce"},
		"the second of two":        {choice{only: "all", shard: shard{2, 2}}, "bd"},
	} {
		if tc.c.shard.n == 0 {
			tc.c.shard = shard{1, 1}
		}
		if got := strings.Join(tc.c.from(specs, results, "new"), ""); got != tc.want {
			t.Errorf("%s: chose %s, want %s", name, got, tc.want)
		}
	}
	// The shards are all specs, each once.
	specs = lines(specList)
	var all []string
	for k := range 7 {
		all = append(all, choice{only: "all", shard: shard{k + 1, 7}}.from(specs, results, "new")...)
	}
	slices.Sort(all)
	if !slices.Equal(all, specs) {
		t.Errorf("seven shards have %d specs, want each of %d once", len(all), len(specs))
	}
}

func TestAShardIsKOfN(t *testing.T) {
	for _, bad := range []string{"", "1", "0/2", "3/2", "a/2", "1/b", "1/2/3"} {
		if err := new(shard).Set(bad); err == nil {
			t.Errorf("%q is taken as a shard", bad)
		}
	}
	var s shard
	if err := s.Set("2/3"); err != nil || s != (shard{2, 3}) {
		t.Errorf("2/3 is %v, %v", s, err)
	}
}

func TestTheFocusIsExactlyTheSpecs(t *testing.T) {
	specs := lines(specList)
	var expressions []*regexp.Regexp
	for _, a := range focusArguments(specs[:300]) {
		if len(a) >= 128<<10 {
			t.Errorf("an argument has %d bytes, the kernel takes %d", len(a), 128<<10)
		}
		expressions = append(expressions, regexp.MustCompile(strings.TrimPrefix(a, "--focus=")))
	}
	for i, s := range specs {
		in := slices.ContainsFunc(expressions, func(e *regexp.Regexp) bool { return e.MatchString(s) })
		if in != (i < 300) {
			t.Errorf("spec %q is in the focus: %t", s, in)
		}
	}
}

func TestReasonsAreOfSpecsThatDoNotPass(t *testing.T) {
	specs := lines(specList)
	reasons, err := readReasons(reasonList, specs)
	if err != nil {
		t.Fatal(err)
	}
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	kip, err := loadResults(options{root: root}.published("kip"), "kip")
	if err != nil {
		t.Fatal(err)
	}
	if len(kip.Specs) != len(specs) { // a file that is missing counts as no results
		t.Fatalf("the published results of Kip have %d specs of %d", len(kip.Specs), len(specs))
	}
	nature := 0
	for s, r := range reasons {
		if kip.Specs[s].State == passed {
			t.Errorf("reasons.yaml says why %q does not pass, and it does", s)
		}
		if r.Nature {
			nature++
		}
	}
	if nature*20 >= len(specs) {
		t.Errorf("%d of %d specs cannot pass by nature, which is 5 %% or more", nature, len(specs))
	}
}

func TestBadReasonsAreRefused(t *testing.T) {
	good := "- {spec: a, why: w, change: c}\n"
	if _, err := readReasons([]byte(good), []string{"a"}); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"an unknown spec": "- {spec: b, why: w, change: c}", "no why": "- {spec: a, change: c}", "no change": "- {spec: a, why: w}",
		"one twice": good + good, "an unknown key": "- {spec: a, why: w, change: c, when: d}",
	} {
		if _, err := readReasons([]byte(text), []string{"a"}); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestThePageIsUpToDate(t *testing.T) {
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	want, err := options{root: root}.page()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "docs", "conformance.md"))
	if err != nil || string(got) != want {
		t.Errorf("docs/conformance.md is not what the results and reasons say (%v): make conformance-page", err)
	}
}

func TestThePageSaysWhatPassesAndWhyTheRestDoesNot(t *testing.T) {
	const four = "[sig-node] Fourth [Conformance]"
	runs := []Run{{
		Commit:  "c0ffee",
		Date:    "2026-11-21T10:00:00Z",
		Flags:   "-mode=x -procs=3",
		Specs:   4,
		Seconds: 90,
		Ended:   "kip-1 | crashed",
	}, {Commit: "beef"}}
	nodes := Results{Mode: "nodes", Runs: runs, Specs: map[string]Result{
		one:   {Attempt{State: passed}, 3, []Attempt{{State: "failed", Failure: "at first", Run: 1}, {State: "failed", Failure: "then"}}},
		two:   {Attempts: 1, Attempt: Attempt{State: passed}},
		three: {Attempts: 1, Attempt: Attempt{State: "skipped", Failure: "not on this platform"}},
	}}
	kip := Results{Mode: "kip", Runs: []Run{{Commit: "beef", Ended: complete}}, Specs: map[string]Result{
		one:   {Attempts: 1, Attempt: Attempt{State: passed}},
		two:   {Attempts: 1, Attempt: Attempt{State: "failed", Failure: "boom `x`\nmore " + strings.Repeat("é", 200)}},
		three: {Attempts: 1, Attempt: Attempt{State: "failed"}},
	}}
	reasons := map[string]Reason{three: {Spec: three, Nature: true, Why: "a pod\nalone", Change: "nothing."}}
	text := page([]string{one, two, three, four}, nodes, kip, reasons)
	if first, _, _ := strings.Cut(text, "\n"); first != "Conformance "+Release+": ordinary nodes 2 of 4, Kip 1 of 4"+
		"; they are of different commits, ordinary nodes of c0ffee and Kip of beef; ordinary nodes: 1 specs have not run"+
		"; ordinary nodes: 3 specs are in doubt, by how their run ended; Kip: 1 specs have not run" {
		t.Errorf("the first line is %q", first)
	}
	for _, want := range []string{
		"- " + escape(three) + "\n  - Why: a pod alone\n  - What would change it: nothing.",
		"- " + escape(two) + "\n  - Why: not known yet; failed, `boom 'x' more éé",
		"| commit | c0ffee | beef |",
		`2026-11-21T10:00:00Z: -mode=x -procs=3; 4 specs in 1m30s; ended: kip-1 \| crashed`,
		"| attempts in all | 5 | 3 |",
		"| specs that needed more than one attempt | 1 | 0 |",
		"| specs that have not run | 1 | 1 |",
		"- " + escape(one) + ": passed, attempts 3; the first failure of which is known, on beef: failed, `at first`",
		"- " + escape(three) + ": skipped, `not on this platform`",
		"| " + escape(one) + " | passed, attempts 3 | passed |",
		"| " + escape(four) + " | not run | not run |",
		"### node: ordinary nodes 1 of 2, Kip 1 of 2",
		"| " + escape(two) + " | passed | failed |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not have %q:\n%s", want, text)
		}
	}
}

func TestAnImagesFilesAreInItsArchive(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("code"), 0o700); err != nil {
		t.Fatal(err)
	}
	data, err := archiveOf([]file{
		{path: "usr/bin/program", mode: 0o6755, from: program}, {path: "usr/bin/other", link: "program"},
		{path: "tmp", mode: 0o1777, dir: true}, {path: "tmp/text", mode: 0o644, data: "hello"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname+string(text)))
	}
	want := []string{"drwxr-xr-x usr/", "drwxr-xr-x usr/bin/", "ugrwxr-xr-x usr/bin/program code", "Lrwxrwxrwx usr/bin/other program",
		"dtrwxrwxrwx tmp/", "-rw-r--r-- tmp/text hello"}
	for i := range got {
		if i == 3 {
			got[i] = strings.Replace(got[i], "L---------", "Lrwxrwxrwx", 1) // a link's mode means nothing
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the archive has\n%q, want\n%q", got, want)
	}
}

func TestAnImageIsMadeAgainWhenItsPartsChange(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	stampOf := func(text string) string {
		t.Helper()
		if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		s, err := stamp([]image{{names: []string{"a:1"}, files: []file{{path: "p", from: program}}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if first := stampOf("one"); stampOf("three") == first {
		t.Error("an image of another program has the same stamp")
	}
	if _, err := stamp([]image{{files: []file{{from: program + "-missing"}}}}, nil); err == nil {
		t.Error("an image of a program that is missing has a stamp")
	}
}
