package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestResultsOutliveTheirProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kip", "results.json")
	r, err := loadResults(file, "kip")
	if err != nil || len(r.Specs) != 0 {
		t.Fatalf("without a file: %v, %v", r, err)
	}
	r.Runs = []Run{{Commit: "a", Ended: complete}}
	r.add(one, Attempt{State: "failed", Failure: "so"})
	r.add(one, Attempt{State: passed, Seconds: 2})
	r.add(two, Attempt{State: passed})
	if err := r.save(file); err != nil {
		t.Fatal(err)
	}
	got, err := loadResults(file, "kip")
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("read %+v, %v; want %+v", got, err, r)
	}
	if got.passing([]string{one, two, three}) != 2 {
		t.Errorf("%d of %+v pass, want 2", got.passing([]string{one, two, three}), got)
	}
	if _, err := loadResults(file, "nodes"); err == nil {
		t.Error("the results of another mode are taken")
	}
}

func TestResultsOfAnOlderRunnerAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	old := `{"release": "` + Release +
		`", "mode": "kip", "specs": {"a": {"state": "passed", "seconds": 1, "attempts": 1, "kip": "01c11f76db77"}}}`
	if err := os.WriteFile(file, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadResults(file, "kip"); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "older") {
		t.Errorf("its error is %v, want one that names the file", err)
	}
}

func TestEachAttemptIsCounted(t *testing.T) {
	fail := func(run int, text string) Attempt { return Attempt{State: "failed", Failure: text, Run: run} }
	pass := func(run int) Attempt { return Attempt{State: passed, Run: run} }
	for name, tc := range map[string]struct {
		attempts []Attempt
		want     int
		first    string // failure
	}{
		"passed":                           {[]Attempt{pass(0)}, 1, ""},
		"failed, then passed":              {[]Attempt{fail(0, "x"), fail(0, "y"), pass(0)}, 3, "x"},
		"passed twice on one commit":       {[]Attempt{pass(0), pass(1)}, 2, ""},
		"failed after it passed":           {[]Attempt{pass(0), fail(1, "x"), pass(1)}, 3, "x"},
		"passed on two commits":            {[]Attempt{pass(0), pass(2)}, 1, ""},
		"failed and passed, then another":  {[]Attempt{fail(0, "x"), pass(0), pass(2)}, 1, ""},
		"failed on the commit before this": {[]Attempt{fail(0, "x"), pass(2)}, 2, "x"},
	} {
		r := Results{Runs: []Run{{Commit: "a"}, {Commit: "a"}, {Commit: "b"}}, Specs: map[string]Result{}}
		for _, a := range tc.attempts {
			r.add(one, a)
		}
		if first, _ := r.Specs[one].firstFailure(); r.Specs[one].Attempts != tc.want || first.Failure != tc.first {
			t.Errorf("%s: %+v, want %d attempts and the first failure %q", name, r.Specs[one], tc.want, tc.first)
		}
	}
	r := Results{Runs: []Run{{Commit: "a"}}, Specs: map[string]Result{}}
	r.add(one, fail(0, "the first"))
	for range 100 {
		r.add(one, fail(0, "another"))
	}
	if got := r.Specs[one]; len(got.History) != maxHistory || got.History[0].Failure != "the first" || got.Attempts != 101 {
		t.Errorf("after 101 attempts it is %+v", got)
	}
}

// of are results of specs that passed on these commits.
func of(mode string, specs []string, commits ...string) Results {
	r := Results{Release: Release, Mode: mode, Specs: map[string]Result{}}
	for _, c := range commits {
		r.Runs = append(r.Runs, Run{Commit: c, Ended: complete})
	}
	for i, s := range specs {
		r.add(s, Attempt{State: passed, Run: min(i, len(commits)-1)})
	}
	return r
}

func TestOnlyResultsOfOneCleanCommitArePublished(t *testing.T) {
	specs := lines(specList)
	crashed := of("kip", specs, "aaaa")
	crashed.Runs[0].Ended = "kip-1 ended by itself"
	for name, tc := range map[string]struct {
		results Results
		says    []string // nothing where it is published
		page    bool     // whether it is shown when it is in the repository
	}{
		"complete":        {results: of("kip", specs, "aaaa"), page: true},
		"a dirty tree":    {results: of("kip", specs, "aaaa-dirty"), says: []string{"mode kip", "446 of aaaa-dirty", "MODE=kip"}},
		"several commits": {results: of("kip", specs, "aaaa", "bbbb"), says: []string{"mode kip", "1 of aaaa", "445 of bbbb", "MODE=kip"}},
		"no checkout":     {results: of("kip", specs, noCommit), says: []string{"mode kip", "446 of unknown"}},
		"specs never ran": {results: of("kip", specs[:440], "aaaa"), says: []string{"mode kip", "aaaa", "440 of 446", "MODE=kip ONLY=missing"},
			page: true},
		"of a crash": {results: crashed, says: []string{"mode kip", "in doubt for 446 specs", "kip-1 ended by itself", "MODE=kip"},
			page: true},
		"of ordinary ones": {results: of("nodes", specs[:1], "aaaa"), says: []string{"mode nodes", "1 of 446"}, page: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{root: t.TempDir(), mode: tc.results.Mode}
			if err := os.MkdirAll(filepath.Join(o.root, "docs"), 0o755); err != nil {
				t.Fatal(err)
			}
			other := options{root: o.root, mode: map[string]string{"kip": "nodes", "nodes": "kip"}[o.mode]}
			save := func(r Results, path string) {
				t.Helper()
				if err := r.save(path); err != nil {
					t.Fatal(err)
				}
			}
			save(tc.results, o.results())
			save(of(other.mode, specs, "cccc"), other.results())
			refused := func(what string, err error, want []string) {
				t.Helper()
				if (err != nil) != (len(want) > 0) {
					t.Fatalf("%s: its error is %v", what, err)
				}
				for _, text := range want {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("%s: the error %q does not have %q", what, err, text)
					}
				}
			}
			refused("publish", o.publishResults(), tc.says)
			for _, mode := range []string{o.mode, other.mode} {
				if _, err := os.Stat(o.published(mode)); (err == nil) != (len(tc.says) == 0) {
					t.Errorf("the results of mode %s are published: %t", mode, err == nil)
				}
			}
			// What is there already is no news; only what it is of counts.
			save(tc.results, o.published(o.mode))
			says := tc.says
			if tc.page {
				says = nil
			}
			refused("publish what is there", o.publishResults(), says)
			refused("page", o.writePage(), says)
		})
	}
}

func TestWhatARunThatEndedBadlyLeavesOpenIsInDoubtUntilItIsRun(t *testing.T) {
	const crash = "kip-1 ended by itself"
	bad, good := Run{Commit: "a", Ended: crash}, Run{Commit: "a", Ended: complete}
	type ends map[string][]Attempt
	pass := func(run int) Attempt { return Attempt{State: passed, Run: run} }
	left := func(ended string, specs ...string) Run { return Run{Commit: "a", Ended: ended, Left: specs} }
	for name, tc := range map[string]struct {
		runs []Run
		ends ends
		want []string
	}{
		"a whole run":                  {[]Run{good}, ends{one: {pass(0)}}, nil},
		"one that says more":           {[]Run{{Commit: "a", Ended: complete + "; more"}}, ends{one: {pass(0)}}, nil},
		"a crash at its end":           {[]Run{bad}, ends{one: {pass(0)}, two: {pass(0)}}, []string{two, one}},
		"all was run since":            {[]Run{bad, good}, ends{one: {pass(0), pass(1)}}, nil},
		"some was run since":           {[]Run{bad, good}, ends{one: {pass(0), pass(1)}, two: {pass(0)}}, []string{two}},
		"a crash before":               {[]Run{good, bad}, ends{one: {pass(0)}}, nil},
		"it passed before a crash":     {[]Run{good, left(crash, one)}, ends{one: {pass(0)}, two: {pass(0), pass(1)}}, []string{one}},
		"and again since":              {[]Run{good, left(crash, one), good}, ends{one: {pass(0), pass(2)}, two: {pass(1)}}, nil},
		"it was under way":             {[]Run{bad}, ends{one: {{State: interrupted}}, two: {pass(0)}}, []string{one}},
		"it was under way, and ran":    {[]Run{bad, good}, ends{one: {{State: interrupted}, pass(1)}, two: {pass(0)}}, nil},
		"a kill, and no result before": {[]Run{left(interrupted, one)}, ends{two: {pass(0)}}, nil},
		"a kill, and one before":       {[]Run{good, left(interrupted, one)}, ends{one: {pass(0)}}, []string{one}},
		"a kill after all":             {[]Run{left(interrupted)}, ends{one: {pass(0)}}, nil},
		"another commit":               {[]Run{{Commit: "b", Ended: crash}, good}, ends{one: {pass(1)}}, nil},
	} {
		r := Results{Mode: "kip", Runs: tc.runs, Specs: map[string]Result{}}
		for spec, attempts := range tc.ends {
			for _, a := range attempts {
				r.add(spec, a)
			}
		}
		if got := r.doubtful("a"); !slices.Equal(got, tc.want) {
			t.Errorf("%s: in doubt are %q, want %q", name, got, tc.want)
		}
		if err := r.checkEnds("a"); (err == nil) != (len(tc.want) == 0) {
			t.Errorf("%s: the check says %v", name, err)
		}
		for _, spec := range tc.want {
			if chosen := (choice{shard: shard{1, 1}}).from([]string{one, two}, r, "a"); !slices.Contains(chosen, spec) {
				t.Errorf("%s: the next run chooses %q", name, chosen)
			}
		}
	}
}

func TestARunSaysHowItEndedAndFailsUnlessAllPassed(t *testing.T) {
	tells := func(end error, outcomes ...outcome) func(context.Context, []string, func(outcome)) error {
		return func(_ context.Context, _ []string, tell func(outcome)) error {
			for _, o := range outcomes {
				tell(o)
			}
			return end
		}
	}
	pass := func(spec string) outcome { return outcome{spec, Attempt{State: passed}} }
	over, stop := context.WithCancel(t.Context())
	stop()
	late, end := context.WithTimeoutCause(t.Context(), 0, fmt.Errorf("%w: 30m", errLimit))
	defer end()
	for name, tc := range map[string]struct {
		ctx   context.Context
		run   func(context.Context, []string, func(outcome)) error
		says  string // the error; nothing for none
		ended string
		kept  int
	}{
		"all passed":  {t.Context(), tells(nil, pass(one), pass(two)), "", complete, 2},
		"one failed":  {t.Context(), tells(nil, pass(one), outcome{two, Attempt{State: "failed"}}), two, complete, 2},
		"one skipped": {t.Context(), tells(nil, pass(one), outcome{two, Attempt{State: "skipped"}}), two, complete, 2},
		"a failure that passes when told again": {t.Context(), tells(nil, pass(one), outcome{two, Attempt{State: "failed"}}, pass(two)),
			two, complete, 2},
		"one left out": {t.Context(), tells(nil, pass(one)), "left out 1 of 2", "left out 1 of 2", 1},
		"all left out": {t.Context(), tells(nil), "left out 2 of 2", "left out 2 of 2", 0},
		"a crash":      {t.Context(), tells(errClusterEnded, pass(one)), errClusterEnded.Error(), errClusterEnded.Error(), 1},
		"a crash after all": {t.Context(), tells(errClusterEnded, pass(one), pass(two)), errClusterEnded.Error(),
			errClusterEnded.Error(), 2},
		"silence":                   {t.Context(), tells(errQuiet, pass(one)), errQuiet.Error(), errQuiet.Error(), 1},
		"an interruption":           {over, tells(nil, pass(one)), "the next run goes on", interrupted, 1},
		"an interruption after all": {over, tells(nil, pass(one), pass(two)), "interrupted, with 0", interrupted, 2},
		"too long": {late, tells(context.Cause(late), pass(one)), "longer than -limit lets it: 30m, with 1 of 2 specs left",
			"longer than -limit", 1},
		"too long to start": {late, tells(errors.New("no node is ready")), "no node is ready",
			"longer than -limit lets it: 30m, with 2 of 2", 0},
		"too long to stop": {late, tells(nil, pass(one), pass(two)), "longer than -limit lets it: 30m, with 0 of 2",
			"longer than -limit", 2},
		"a crash in its end": {over, tells(errClusterEnded, pass(one)), errClusterEnded.Error(), errClusterEnded.Error(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{mode: "kip", procs: 3, choice: choice{only: "all", shard: shard{1, 1}}}
			file := filepath.Join(t.TempDir(), "results.json")
			results, err := loadResults(file, "kip")
			if err != nil {
				t.Fatal(err)
			}
			runs := 0
			err = o.record(tc.ctx, "aaaa", []string{one, two}, &results, file, func(ctx context.Context, specs []string, tell func(outcome)) error {
				runs++
				return tc.run(ctx, specs, tell)
			})
			if (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) || runs != 1 {
				t.Errorf("after %d runs its error is %v, want one run and %q", runs, err, tc.says)
			}
			got, err := loadResults(file, "kip")
			if err != nil || len(got.Specs) != tc.kept || len(got.Runs) != 1 {
				t.Fatalf("it kept %+v, %v", got, err)
			}
			if r := got.Runs[0]; len(r.Left) != 2-tc.kept {
				t.Errorf("its run left %q, and %d of 2 specs are kept", r.Left, tc.kept)
			}
			if r := got.Runs[0]; r.Commit != "aaaa" || r.Specs != 2 || !strings.HasPrefix(r.Flags,
				"-mode=kip -only=all -procs=3 -dump=false; kip-dev --virtual-nodes=2") ||
				!strings.HasSuffix(r.Date, "Z") || !strings.Contains(r.Ended, tc.ended) {
				t.Errorf("its run is %+v", r)
			}
		})
	}
	// A kill leaves what was told, of a run that was interrupted.
	file := filepath.Join(t.TempDir(), "results.json")
	results, _ := loadResults(file, "kip")
	err := options{mode: "kip"}.record(t.Context(), "aaaa", []string{one, two}, &results, file,
		func(_ context.Context, _ []string, tell func(outcome)) error {
			tell(pass(one))
			got, err := loadResults(file, "kip")
			if err != nil || got.Runs[0].Ended != interrupted || got.Specs[one].State != passed {
				t.Errorf("while it runs the file has %+v, %v", got, err)
			}
			return errors.New("enough")
		})
	if err == nil {
		t.Error("its error is lost")
	}
}

func TestResultsNameFilesFromTheRepository(t *testing.T) {
	s := ginkgo(t, oneHasPassed+"printf '%s\\n' '"+two+" [label]'\nexit 197\n")
	o := options{root: filepath.Dir(filepath.Dir(s.log)), mode: "kip"}
	file := filepath.Join(t.TempDir(), "results.json")
	results, err := loadResults(file, "kip")
	if err != nil {
		t.Fatal(err)
	}
	err = o.record(t.Context(), "aaaa", []string{one, two}, &results, file, s.run)
	if err == nil || !strings.Contains(err.Error(), s.log) {
		t.Errorf("its error is %v, want one that names %s: a person is to find it", err, s.log)
	}
	got, err := loadResults(file, "kip")
	if err != nil {
		t.Fatal(err)
	}
	const want = "see logs/suite.log"
	if len(got.Runs) != 1 || !strings.Contains(got.Runs[0].Ended, want) || !strings.Contains(got.Specs[two].Failure, want) {
		t.Errorf("its results are %+v, want both its end and what it interrupted to say %q", got, want)
	}
}
