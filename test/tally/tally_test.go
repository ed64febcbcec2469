package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const a = "example.com/m/a"

// tree writes files and returns the folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEachTestOfTheTreeIsFound(t *testing.T) {
	const imports = "package a\nimport \"testing\"\n"
	dir := tree(t, map[string]string{
		"go.mod": "module example.com/m\n",
		"a/a_test.go": imports + `func TestOne(t *testing.T) {}
func Test(t *testing.T) {}
func FuzzIt(f *testing.F) {}
func TestMain(m *testing.M) {}
func Testify(t *testing.T) {}
func TestWith(t *testing.T, more int) {}
func BenchmarkIt(b *testing.B) {}
func BenchmarkOf(t *testing.T) {}
func Example_says() { // Output: what it says
}
func ExampleNothing() { // Output:
}
func ExampleOnlyCompiled() {}
func (s suite) TestMethod(t *testing.T) {}
`,
		"a/tagged_test.go":          "//go:build e2e\n\n" + imports + "func TestTagged(t *testing.T) {}\n",
		"a/untagged_test.go":        "//go:build !e2e && !race && !cgo\n\n" + imports + "func TestUntagged(t *testing.T) {}\n",
		"a/both_test.go":            "//go:build linux && (e2e || !slow) && cgo\n\n" + imports + "func TestBoth(t *testing.T) {}\n",
		"a/never_test.go":           "//go:build e2e && !e2e\n\n" + imports + "func TestNever(t *testing.T) {}\n",
		"a/ignored_test.go":         "//go:build ignore\n\n" + imports + "func TestIgnored(t *testing.T) {}\n",
		"a/foreign_test.go":         "//go:build windows || !unix\n\n" + imports + "func TestForeign(t *testing.T) {}\n",
		"a/named_windows_test.go":   imports + "func TestNamed(t *testing.T) {}\n",
		"a/listed_test.go":          imports + "func TestListed(t *testing.T) {}\n",
		"a/testdata/x/x_test.go":    imports + "func TestData(t *testing.T) {}\n",
		".hidden/h_test.go":         imports + "func TestHidden(t *testing.T) {}\n",
		"inner/go.mod":              "module example.com/other\n",
		"inner/deep/deeper_test.go": imports + "func TestInner(t *testing.T) {}\n",
		"a/a.go":                    "package a\nfunc TestNot() {}\n",
	})
	got, err := inTree(dir, map[string]string{"a/listed_test.go": "it is known"})
	if err != nil {
		t.Fatal(err)
	}
	want := []test{
		{a, "BenchmarkIt"}, {a, "ExampleNothing"}, {a, "Example_says"}, {a, "FuzzIt"}, {a, "Test"}, {a, "TestBoth"}, {a, "TestOne"},
		{a, "TestTagged"}, {a, "TestUntagged"}, {"example.com/other/deep", "TestInner"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	if _, err := inTree(tree(t, map[string]string{"go.mod": "module m\n", "a_test.go": "package"}), nil); err == nil {
		t.Error("a file that cannot be read has no tests")
	}
}

// read returns what lines of JSON say, with ' for ".
func read(t *testing.T, lines ...string) *ends {
	t.Helper()
	file := filepath.Join(tree(t, map[string]string{"run.json": strings.ReplaceAll(strings.Join(lines, "\n"), "'", `"`) + "\n"}), "run.json")
	e := newEnds()
	if err := e.read(file); err != nil {
		t.Fatal(err)
	}
	return e
}

func says(action, name string, output ...string) string {
	return `{'Action':'` + action + `','Package':'` + a + `','Test':'` + name + `','Output':'` + strings.Join(output, "") + `'}`
}

func TestARunThatLeftATestOutFails(t *testing.T) {
	want := []test{{a, "TestOne"}, {a, "TestTwo"}}
	whole := []string{says("pass", "TestOne"), says("output", "TestTwo", "--- SKIP"), says("output", "TestTwo", "needs root"),
		says("skip", "TestTwo"), says("pass", "TestOne/part")}
	for name, tc := range map[string]struct {
		lines []string
		fails string
	}{
		"whole":                          {whole, ""},
		"one is missing":                 {whole[:1], "1 did not run:\n  " + a + " TestTwo"},
		"none ran":                       {[]string{`{'Action':'pass','Package':'` + a + `'}`}, "2 did not run"},
		"one began and did not end":      {append(whole[:1:1], says("run", "TestTwo")), "1 did not run"},
		"one failed":                     {append(whole[:1:1], says("fail", "TestTwo")), "1 failed:\n  " + a + " TestTwo"},
		"its TestMain failed after them": {append(whole[:len(whole):len(whole)], `{'Action':'fail','Package':'`+a+`'}`), "1 failed:\n  " + a},
		"it ran at another time": {append(whole[:len(whole):len(whole)],
			`{'Action':'output','Package':'`+a+`','Output':'ok  \t`+a+`\t(cached)\n'}`),
			"go test's cache, and did not run: run them with -count=1:\n  " + a},
		"a subtest failed, and no one said": {append(whole[:len(whole):len(whole)], says("fail", "TestOne/part")), "TestOne/part"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := oneRun("unit", want, read(t, tc.lines...), lists{}, &out)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("it ended with %v, want %q", err, tc.fails)
			}
			if name == "whole" && out.String() != "unit: 1 of 2 tests ran and passed, with 1 subtests\nunit: skipped "+a+" TestTwo: needs root\n"+
				"unit: 1 ran with more subtests than test/tally/subtests.txt has, which make tally-update writes:\n  unit "+a+" TestOne: 1, want 0\n" {
				t.Errorf("it said %q", out.String())
			}
		})
	}
	quarantine := lists{quarantine: []quarantined{{test: want[1], why: "it fails at times"}}}
	var out strings.Builder
	if err := oneRun("unit", want, read(t, whole[:1]...), quarantine, &out); err != nil ||
		!strings.Contains(out.String(), "in quarantine since") {
		t.Errorf("with a test in quarantine: %v, %q", err, out.String())
	}
}

func TestATestThatIsSkippedEverywhereFailsUnlessItIsListed(t *testing.T) {
	want := []test{{a, "TestOne"}, {a, "TestTwo"}}
	here, there := []string{says("pass", "TestOne"), says("output", "TestTwo", "needs root"), says("skip", "TestTwo")}, says("pass", "TestTwo")
	skips := func(name string, always bool) lists {
		return lists{skips: map[test]skip{{a, name}: {always, "only on that machine"}}}
	}
	listed := skips("TestTwo", false)
	for name, tc := range map[string]struct {
		lines []string
		l     lists
		fails string
	}{
		"everywhere":                {here, lists{}, "TestTwo: needs root"},
		"everywhere, and listed":    {here, listed, ""},
		"elsewhere it ran":          {append(here, there), lists{}, ""},
		"it is nowhere":             {here[:1:1], listed, "1 ran in no target:\n  " + a + " TestTwo"},
		"a subtest is":              {append([]string{there, says("skip", "TestTwo/sub")}, here[0]), lists{}, "TestTwo/sub: without a reason"},
		"a subtest ran elsewhere":   {append([]string{there, says("skip", "TestTwo/sub"), says("pass", "TestTwo/sub")}, here[0]), lists{}, ""},
		"a list names none of it":   {append(here, there), skips("TestGone/sub", true), "not in the tree:\n  " + a + " TestGone"},
		"it ran, and is to do so":   {append(here, there), listed, ""},
		"it ran, and never is to":   {append(here, there), skips("TestTwo", true), "TestTwo: it ran, and is always skipped"},
		"a subtest of a list is":    {append(here, there, says("skip", "TestOne/sub")), skips("TestOne/sub", true), ""},
		"a subtest of a list isn't": {append(here, there), skips("TestOne/sub", false), "TestOne/sub: there is no such subtest"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			tc.l.subtests = map[stageTest]subtests{{"unit", want[0]}: {1, true}, {"unit", want[1]}: {1, true}}
			stages := map[string]*ends{"unit": read(t, append(tc.lines, says("pass", "TestOne/first"), says("pass", "TestTwo/first"))...)}
			err := compareAll(want, stages, tc.l, &out)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("it ended with %v, want %q", err, tc.fails)
			}
		})
	}
}

func TestATableThatIsNotAsCountedFails(t *testing.T) {
	want := []test{{a, "TestOne"}, {a, "TestTwo"}}
	run := func(parts int) *ends {
		lines := []string{says("pass", "TestOne"), says("pass", "TestTwo")}
		for i := range parts {
			name := fmt.Sprintf("TestOne/part/%d", i)
			lines = append(lines, says("pass", name), says("pass", name)) // with -count=2
		}
		return read(t, append(lines, says("skip", "TestOne/part/skipped"))...)
	}
	one, two := stageTest{"unit", want[0]}, stageTest{"unit", want[1]}
	list := func(text string) lists {
		all, err := parseSubtests(strings.ReplaceAll(text, "TestO", a+" TestO"))
		if err != nil {
			t.Fatal(err)
		}
		return lists{subtests: all}
	}
	const more = "subtests.txt has, which make tally-update writes:\n  unit " + a + " TestOne: "
	part := []quarantined{{test: test{a, "TestOne/part/1"}}}
	for name, tc := range map[string]struct {
		parts int // besides the one that is skipped
		l     lists
		fails string // in the stage, and over all
		all   string // over all only
	}{
		"as many":                     {39, list("unit TestOne 40"), "", ""},
		"one has left":                {38, list("unit TestOne 40"), "too few subtests:\n  unit " + a + " TestOne: 39, want 40", ""},
		"one has come":                {40, list("unit TestOne 40"), more + "41, want 40", ""},
		"by chance as many":           {39, list("unit TestOne ~40"), "", ""},
		"by chance some less":         {37, list("unit TestOne ~40"), "", ""},
		"by chance too few":           {36, list("unit TestOne ~40"), "TestOne: 37, want ~40", ""},
		"by chance more":              {80, list("unit TestOne ~40"), "", ""},
		"they were a wish":            {0, lists{subtests: map[stageTest]subtests{one: {n: 1}, two: {n: 1}}}, "TestTwo: 0, want 1", ""},
		"nobody counted":              {1, lists{}, "", more + "2, want 0"},
		"nobody counted them here":    {1, list("e2e TestOne 2"), "", more + "2, want 0"},
		"only others were counted":    {1, lists{subtests: map[stageTest]subtests{{"unit", test{a, "TestX"}}: {n: 1}}}, more + "2, want 0", ""},
		"another stage's":             {1, list("unit TestOne 2\ne2e TestOne 1"), "", "e2e " + a + " TestOne: there is no such stage"},
		"in quarantine":               {1, lists{quarantine: part, subtests: list("unit TestOne 3").subtests}, "", ""},
		"in quarantine, and one left": {1, lists{quarantine: part, subtests: list("unit TestOne 4").subtests}, "3, want 4", ""},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(where, fails string, err error) {
				if (err == nil) != (fails == "") || err != nil && !strings.Contains(err.Error(), fails) {
					t.Errorf("%s ended with %v, want %q", where, err, fails)
				}
			}
			allowed := map[test]skip{{a, "TestOne/part/skipped"}: {true, "for good"}}
			check("the stage", tc.fails, oneRun("unit", want, run(tc.parts), tc.l, io.Discard))
			tc.l.skips = allowed
			check("the whole", cmp.Or(tc.fails, tc.all), compareAll(want, map[string]*ends{"unit": run(tc.parts)}, tc.l, io.Discard))
		})
	}
	for _, bad := range []string{"unit " + a + " TestOne", "unit " + a + " TestOne many", "unit " + a + " TestOne 0",
		"unit " + a + " TestOne ~", "unit " + a + " TestOne 1\nunit " + a + " TestOne 2"} {
		if _, err := parseSubtests(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Where a test leaves a stage, another may run it with -short.
func TestATestThatLeavesItsStageFails(t *testing.T) {
	one, two := test{a, "TestOne"}, test{a, "TestTwo"}
	l := lists{subtests: map[stageTest]subtests{{"faults", one}: {n: 1}, {"race", one}: {n: 1}}}
	whole := []string{says("pass", "TestOne"), says("pass", "TestOne/part")}
	for want, faults := range map[string][]string{
		"": append(whole, says("pass", "TestTwo")),
		"subtests.txt: faults " + a + " TestOne: it did not run there": {says("pass", "TestTwo")},
	} {
		err := compareAll([]test{one, two}, map[string]*ends{"faults": read(t, faults...), "race": read(t, whole...)}, l, io.Discard)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("it ended with %v, want %q", err, want)
		}
	}
}

func TestAnUpdateTakesNothingAwayUnlessItIsToShrink(t *testing.T) {
	const before = `e2e a TestGone 1
e2e a TestOne 7
faults a TestOne 3
unit a TestChance ~40
unit a TestFewer 3
unit a TestMore 1
unit a TestNone 2
unit a TestOften ~2
unit a TestSeldom ~9
`
	tree := []test{}
	for _, name := range []string{"Chance", "Fewer", "More", "New", "None", "Often", "One", "Seldom"} {
		tree = append(tree, test{"a", "Test" + name})
	}
	ran := newEnds()
	for name, n := range map[string]int{"TestChance": 39, "TestFewer": 2, "TestMore": 2, "TestNew": 1, "TestNone": 0, "TestOften": 3,
		"TestSeldom": 1} {
		ran.passed[test{"a", name}] = true
		for i := range n {
			ran.passed[test{"a", fmt.Sprintf("%s/%d", name, i)}] = true
		}
	}
	half := newEnds() // of a test that did not come to its end
	half.passed[test{"a", "TestOne/0"}] = true
	all, err := parseSubtests(before)
	if err != nil {
		t.Fatal(err)
	}
	for shrink, want := range map[bool]struct{ text, kept string }{
		false: {`e2e a TestOne 7
faults a TestOne 3
unit a TestChance ~40
unit a TestFewer 3
unit a TestMore 2
unit a TestNew 1
unit a TestNone 2
unit a TestOften ~3
unit a TestSeldom ~9
`, "unit a TestFewer: 2, want 3; unit a TestNone: 0, want 2; unit a TestSeldom: 1, want ~9"},
		true: {`e2e a TestOne 7
faults a TestOne 3
unit a TestChance ~40
unit a TestFewer 2
unit a TestMore 2
unit a TestNew 1
unit a TestOften ~3
unit a TestSeldom ~1
`, ""},
	} {
		after, kept := lists{subtests: all}.updated(tree, map[string]*ends{"unit": ran, "faults": half}, shrink)
		slices.Sort(kept)
		if text := strings.TrimPrefix(subtestsFile(after), subtestsHead); text != want.text || strings.Join(kept, "; ") != want.kept {
			t.Errorf("with shrink %t it writes\n%s and keeps %q, want\n%s and %q", shrink, text, kept, want.text, want.kept)
		}
	}
}

func TestABenchmarkRanWhenItsPackagePassed(t *testing.T) {
	want := []test{{a, "BenchmarkOne"}, {a, "BenchmarkTwo"}}
	both := []string{says("run", "BenchmarkOne"), says("run", "BenchmarkOne/part"), says("output", "BenchmarkOne/part", "1 ns/op"),
		says("run", "BenchmarkTwo")}
	passes, fails := `{'Action':'pass','Package':'`+a+`'}`, `{'Action':'fail','Package':'`+a+`'}`
	for name, tc := range map[string]struct {
		lines []string
		fails string
	}{
		"both":           {append(both, passes), ""},
		"one did not":    {append(both[:3:3], passes), "1 did not run:\n  " + a + " BenchmarkTwo"},
		"one failed":     {append(both, says("fail", "BenchmarkTwo"), fails), "BenchmarkTwo"},
		"no end is told": {both, "2 did not run"},
	} {
		if err := oneRun("benchmarks", want, read(t, tc.lines...), lists{}, io.Discard); (err == nil) != (tc.fails == "") || err != nil &&
			!strings.Contains(err.Error(), tc.fails) {
			t.Errorf("%s: it ended with %v, want %q", name, err, tc.fails)
		}
	}
	if got := read(t, append(both, passes)...).counts(); !maps.Equal(got, map[test]int{want[0]: 1}) {
		t.Errorf("they have subtests: %v", got)
	}
}

func TestAFuzzTargetThatTriesNothingNewFails(t *testing.T) {
	const (
		begins   = "fuzz: elapsed: 0s, gathering baseline coverage: 0/41 completed"
		baseline = "fuzz: elapsed: 3s, gathering baseline coverage: 41/41 completed, now fuzzing with 1 workers"
		execs    = "fuzz: elapsed: 20s, execs: %d (12468/sec), new interesting: 391 (total: 432)"
	)
	it, passes := test{a, "FuzzIt"}, says("pass", "FuzzIt")
	run := func(lines ...string) (all []string) {
		for _, line := range lines {
			all = append(all, says("output", "FuzzIt", line))
		}
		return all
	}
	for name, tc := range map[string]struct {
		lines []string
		fails string
	}{
		"it tried new inputs":    {append(run(begins, baseline, fmt.Sprintf(execs, 42)), passes), ""},
		"it ran its corpus only": {append(run(begins, baseline, fmt.Sprintf(execs, 41)), passes), "FuzzIt: 41 inputs, 41 of them its corpus"},
		"the time went for that": {append(run(begins), passes), "FuzzIt: 0 inputs, 41 of them"},
		"it was not led by coverage": {append(run("fuzz: elapsed: 0s, testing seed corpus: 0/41 completed", fmt.Sprintf(execs, 42)), passes),
			"42 inputs, 0 of them its corpus, not led"},
		"it ran as a test":           {[]string{says("pass", "FuzzIt/seed"), passes}, "FuzzIt: 0 inputs, 0 of them"},
		"it printed that by itself":  {append(run("so much for fuzz: elapsed: 3s, execs: 9 (1/sec)"), passes), "FuzzIt: 0 inputs"},
		"it failed after new inputs": {append(run(begins, baseline, fmt.Sprintf(execs, 42)), says("fail", "FuzzIt")), "1 failed"},
		"it came to no end":          {run(begins, baseline, fmt.Sprintf(execs, 42)), "1 were not fuzzed"},
	} {
		ran := read(t, tc.lines...)
		err := compareAll([]test{it}, map[string]*ends{"fuzz": ran}, lists{}, io.Discard)
		if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
			t.Errorf("%s: it ended with %v, want %q", name, err, tc.fails)
		}
	}
	if err := notFuzzed([]test{it}, newEnds(), lists{quarantine: []quarantined{{test: it}}}); err != nil {
		t.Errorf("in quarantine: %v", err)
	}
}

func TestASkipSaysWhetherItIsAlways(t *testing.T) {
	got, err := parseSkips(a + " TestOne/sub always for good\n" + a + " TestTwo sometimes without root\n")
	want := map[test]skip{{a, "TestOne/sub"}: {true, "for good"}, {a, "TestTwo"}: {false, "without root"}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("read %v, %v", got, err)
	}
	for _, bad := range []string{a + " TestOne for good", a + " TestOne always"} {
		if _, err := parseSkips(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestWhatIsInQuarantineIsNotRunAndNoMore(t *testing.T) {
	dir := tree(t, map[string]string{"go.mod": "module example.com/m\n\ngo 1.26\n", "a/a_test.go": `package a
import "testing"
func TestOne(t *testing.T) {
	for _, n := range []string{"some part", "other (part)", "last"} { t.Run(n, func(t *testing.T) { t.Run("deep", func(t *testing.T) {}) }) }
}
func TestOneMore(t *testing.T) {}
func TestTwo(t *testing.T) {}
`})
	l := lists{quarantine: []quarantined{{test: test{a, "TestTwo"}}, {test: test{a, "TestOne/other_(part)"}},
		{test: test{a, "TestOne/last/deep"}}}}
	cmd := exec.Command("go", "test", "-trimpath", "-json", "-skip", l.quarantineExpression(), "./a")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0") // as the programs are compiled
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ran := read(t, strings.ReplaceAll(strings.TrimSpace(string(out)), "'", ""))
	want := []test{{a, "TestOne"}, {a, "TestOne/last"}, {a, "TestOne/some_part"}, {a, "TestOne/some_part/deep"}, {a, "TestOneMore"}}
	if got := slices.SortedFunc(maps.Keys(ran.passed), compare); !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v", got, want)
	}
	if err := unquarantined(ran, l); err != nil {
		t.Error(err)
	}
	l.quarantine[0].name = "TestOneMore"
	if err := unquarantined(ran, l); err == nil || !strings.Contains(err.Error(), "TestOneMore") {
		t.Errorf("a test in quarantine that ran: %v", err)
	}
	if e := (lists{}).quarantineExpression(); e != "" {
		t.Errorf("without any it skips %q", e)
	}
}

func TestQuarantineEndsAfterTwoWeeks(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	got, err := parseQuarantine("# comment\n\n2026-11-09 "+a+" TestOne it fails at times\n", now)
	if err != nil || len(got) != 1 || got[0].test != (test{a, "TestOne"}) || got[0].why != "it fails at times" {
		t.Errorf("read %+v, %v", got, err)
	}
	for _, bad := range []string{"2026-11-07 " + a + " TestOne old", "2026-12-24 " + a + " TestOne not yet", "yesterday " + a + " TestOne x",
		"2026-11-22 " + a + " TestOne"} {
		if _, err := parseQuarantine(bad, now); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestTheListsOfTheTreeAreRead(t *testing.T) {
	l, err := readLists(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	tests, err := inTree(root, l.nowhere)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.neverCompiled(root); err != nil {
		t.Error(err)
	}
	l.subtests = nil // make tally-update, which wants tests that pass, takes away what has moved
	if err := l.unknown(tests); err != nil || !slices.Contains(tests, test{"github.com/elotl/kip/test/tally", t.Name()}) {
		t.Errorf("%d tests, this one among them: %v", len(tests), err)
	}
}

func TestThePartsOfAStageAreOne(t *testing.T) {
	for file, want := range map[string]string{
		"/checks/e2e-alone-1.json":      "e2e-alone",
		"/checks/e2e-alone-12.json":     "e2e-alone",
		"/checks/e2e.json":              "e2e",
		"/checks/unit-kubernetes.json":  "unit-kubernetes",
		"/checks/benchmarks-local.json": "benchmarks-local",
	} {
		if got := stageOf(file); got != want {
			t.Errorf("%s is of stage %q, want %q", file, got, want)
		}
	}
}

func TestAPartOfTheTestsRunsInAProcessOfItsOwn(t *testing.T) {
	dir := tree(t, map[string]string{
		"go.mod": "module example.com/m\n",
		"a/a_test.go": `package a
import "testing"
func TestA(t *testing.T) { t.Log("alone") }
func TestB(t *testing.T) { t.Helper(); t.Parallel() }
func TestC(t *testing.T) { t.Run("part", func(t *testing.T) { t.Parallel() }) }
func TestD(t *testing.T) { t.Parallel() }
func TestE(t *testing.T) { if testing.Short() { t.Parallel() } }
`,
	})
	t.Chdir(dir)
	got := map[string]string{}
	for _, part := range []string{"", "together", "alone", "alone:1/2", "alone:2/2", "alone:4/4"} {
		var out strings.Builder
		if err := printNames(part, "", []string{"./a"}, &out); err != nil {
			out.WriteString(err.Error() + "\n")
		}
		got[part] = strings.TrimSuffix(out.String(), "\n")
	}
	if want := map[string]string{
		"": "^(TestA|TestB|TestC|TestD|TestE)$", "together": "^(TestB|TestD)$", "alone": "^(TestA|TestC|TestE)$",
		"alone:1/2": "^(TestA|TestE)$", "alone:2/2": "^(TestC)$", "alone:4/4": `the packages ./a have no tests that are "alone:4/4"`,
	}; !maps.Equal(got, want) {
		t.Errorf("the parts are %q, want %q", got, want)
	}
	for _, bad := range []string{"serial", "together:1/2", "alone:", "alone:0/2", "alone:3/2", "alone:1", "alone:1/x", ":1/2"} {
		if _, err := parseShard(bad); err == nil || !strings.Contains(err.Error(), "-shard="+bad) {
			t.Errorf("%q is taken as a part: %v", bad, err)
		}
	}
}
