package main

import (
	"os"
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
func (s suite) TestMethod(t *testing.T) {}
`,
		"a/tagged_test.go":          "//go:build e2e\n\n" + imports + "func TestTagged(t *testing.T) {}\n",
		"a/foreign_test.go":         "//go:build windows\n\n" + imports + "func TestForeign(t *testing.T) {}\n",
		"a/testdata/x/x_test.go":    imports + "func TestData(t *testing.T) {}\n",
		".hidden/h_test.go":         imports + "func TestHidden(t *testing.T) {}\n",
		"inner/go.mod":              "module example.com/other\n",
		"inner/deep/deeper_test.go": imports + "func TestInner(t *testing.T) {}\n",
		"a/a.go":                    "package a\nfunc TestNot() {}\n",
	})
	got, err := inTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []test{{a, "FuzzIt"}, {a, "Test"}, {a, "TestOne"}, {a, "TestTagged"}, {"example.com/other/deep", "TestInner"}}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	if _, err := inTree(tree(t, map[string]string{"go.mod": "module m\n", "a_test.go": "package"})); err == nil {
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
	whole := []string{says("pass", "TestOne"), says("output", "TestTwo", "--- SKIP"), says("output", "TestTwo", "needs root"), says("skip", "TestTwo"), says("pass", "TestOne/part")}
	for name, tc := range map[string]struct {
		lines []string
		fails string
	}{
		"whole":                             {whole, ""},
		"one is missing":                    {whole[:1], "1 did not run:\n  " + a + " TestTwo"},
		"none ran":                          {[]string{`{'Action':'pass','Package':'` + a + `'}`}, "2 did not run"},
		"one began and did not end":         {append(whole[:1:1], says("run", "TestTwo")), "1 did not run"},
		"one failed":                        {append(whole[:1:1], says("fail", "TestTwo")), "1 failed:\n  " + a + " TestTwo"},
		"its TestMain failed after them":    {append(whole[:len(whole):len(whole)], `{'Action':'fail','Package':'`+a+`'}`), "1 failed:\n  " + a},
		"a subtest failed, and no one said": {append(whole[:len(whole):len(whole)], says("fail", "TestOne/part")), "TestOne/part"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := oneRun("unit", want, read(t, tc.lines...), lists{}, &out)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("it ended with %v, want %q", err, tc.fails)
			}
			if name == "whole" && out.String() != "unit: 1 of 2 tests ran and passed, with 1 subtests\nunit: skipped "+a+" TestTwo: needs root\n" {
				t.Errorf("it said %q", out.String())
			}
		})
	}
	quarantine := lists{quarantine: []quarantined{{test: want[1], why: "it fails at times"}}}
	var out strings.Builder
	if err := oneRun("unit", want, read(t, whole[:1]...), quarantine, &out); err != nil || !strings.Contains(out.String(), "in quarantine since") {
		t.Errorf("with a test in quarantine: %v, %q", err, out.String())
	}
}

func TestATestThatIsSkippedEverywhereFailsUnlessItIsListed(t *testing.T) {
	want := []test{{a, "TestOne"}, {a, "TestTwo"}}
	here, there := []string{says("pass", "TestOne"), says("output", "TestTwo", "needs root"), says("skip", "TestTwo")}, says("pass", "TestTwo")
	listed := lists{skips: map[test]string{want[1]: "only on that machine"}}
	for name, tc := range map[string]struct {
		lines []string
		l     lists
		fails string
	}{
		"everywhere":              {here, lists{}, "TestTwo: needs root"},
		"everywhere, and listed":  {here, listed, ""},
		"elsewhere it ran":        {append(here, there), lists{}, ""},
		"it is nowhere":           {here[:1], listed, "1 ran in no target:\n  " + a + " TestTwo"},
		"a subtest is":            {append([]string{there, says("skip", "TestTwo/sub")}, here[0]), lists{}, "TestTwo/sub: without a reason"},
		"a subtest ran elsewhere": {append([]string{there, says("skip", "TestTwo/sub"), says("pass", "TestTwo/sub")}, here[0]), lists{}, ""},
		"a list names none of it": {append(here, there), lists{skips: map[test]string{{a, "TestGone/sub"}: "was"}}, "not in the tree:\n  " + a + " TestGone"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := compareAll(want, read(t, tc.lines...), tc.l, &out)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("it ended with %v, want %q", err, tc.fails)
			}
		})
	}
}

func TestQuarantineEndsAfterTwoWeeks(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	got, err := parseQuarantine("# comment\n\n2026-11-09 "+a+" TestOne it fails at times\n", now)
	if err != nil || len(got) != 1 || got[0].test != (test{a, "TestOne"}) || got[0].why != "it fails at times" {
		t.Errorf("read %+v, %v", got, err)
	}
	if e := (lists{quarantine: got}).quarantineExpression(); e != "^(TestOne)$" {
		t.Errorf("the expression is %q", e)
	}
	for _, bad := range []string{"2026-11-07 " + a + " TestOne old", "2026-12-24 " + a + " TestOne not yet", "yesterday " + a + " TestOne x", "2026-11-22 " + a + " TestOne"} {
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
	tests, err := inTree(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.unknown(tests); err != nil || !slices.Contains(tests, test{"github.com/elotl/kip/test/tally", t.Name()}) {
		t.Errorf("%d tests, this one among them: %v", len(tests), err)
	}
}
