package layout

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/elotl/kip/internal/placement"
)

// annotationNames are the constants Annotation… of a file, each Prefix + "name".
func annotationNames(f *ast.File) ([]string, error) {
	var names []string
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, id := range v.Names {
				if !strings.HasPrefix(id.Name, "Annotation") {
					continue
				}
				sum, ok := v.Values[i].(*ast.BinaryExpr)
				if !ok {
					return nil, fmt.Errorf("constant %s is not Prefix + a string", id.Name)
				}
				literal, ok := sum.Y.(*ast.BasicLit)
				if !ok {
					return nil, fmt.Errorf("constant %s is not Prefix + a string", id.Name)
				}
				name, err := strconv.Unquote(literal.Value)
				if err != nil {
					return nil, fmt.Errorf("constant %s: %w", id.Name, err)
				}
				names = append(names, placement.Prefix+name)
			}
		}
	}
	return names, nil
}

var annotationName = regexp.MustCompile(regexp.QuoteMeta(placement.Prefix) + `[a-z0-9-]+`)

// annotationGaps compares a document with the annotations that the code knows:
// each has a row of a table that says what is allowed, and no other is named.
func annotationGaps(document string, known map[string]string) []string {
	const rule = "docs/annotations.md has a row for each annotation that internal/placement knows, with what it allows, and names no other"
	rows := map[string]string{}
	var out []string
	for line := range strings.Lines(document) {
		for _, name := range annotationName.FindAllString(line, -1) {
			if _, ok := known[name]; !ok {
				out = append(out, fmt.Sprintf("%s is in the document and unknown to the code: %s", name, rule))
			}
		}
		if first, _, ok := strings.Cut(strings.TrimPrefix(line, "|"), "|"); ok && strings.HasPrefix(line, "|") {
			rows[strings.Trim(strings.TrimSpace(first), "`")] = line
		}
	}
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		row, ok := rows[name]
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s has no row: %s", name, rule))
		case !strings.Contains(row, known[name]):
			out = append(out, fmt.Sprintf("the row of %s does not say %q: %s", name, known[name], rule))
		}
	}
	return out
}

func TestEachAnnotationIsDocumentedAsTheCodeReadsIt(t *testing.T) {
	known := map[string]string{}
	for _, s := range parsed(t, 0) {
		if s.dir() != "internal/placement" || s.isTest() {
			continue
		}
		names, err := annotationNames(s.file)
		if err != nil {
			t.Fatalf("%s: %v", s.path, err)
		}
		for _, name := range names {
			// A lone comma is no value of any of them: the error says what is.
			_, err := placement.ParseAnnotations(map[string]string{name: ","})
			var invalid *placement.InvalidAnnotationError
			if !errors.As(err, &invalid) || invalid.Allowed == "" {
				t.Fatalf("%s: the code does not say what is allowed for %s: %v", s.path, name, err)
			}
			known[name] = invalid.Allowed
		}
	}
	if len(known) == 0 {
		t.Fatal("no annotation was found in internal/placement")
	}
	document, err := os.ReadFile(top(t) + "/docs/annotations.md")
	if err != nil {
		t.Fatal(err)
	}
	report(t, annotationGaps(string(document), known))
}

func TestAnnotationGapsAreFound(t *testing.T) {
	known := map[string]string{"pod.elotl.co/a": "a letter", "pod.elotl.co/b": "a number"}
	expect(t, annotationGaps("| `pod.elotl.co/a` | a letter |\n| `pod.elotl.co/b` | a number | it works |\n", known))
	expect(t, annotationGaps("| `pod.elotl.co/a` | a word |\npod.elotl.co/b is a number, and pod.elotl.co/c too\n", known),
		"pod.elotl.co/c is in the document", `the row of pod.elotl.co/a does not say "a letter"`, "pod.elotl.co/b has no row")
}

var testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]*\b`)

// missingTests returns the tests that documents name and no file has.
func missingTests(documents map[string]string, all []source) []string {
	have := map[string]bool{}
	for _, s := range all {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.isTest() && f.Recv == nil {
				have[f.Name.Name] = true
			}
		}
	}
	var paths, out []string
	for p := range documents {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		for _, name := range testName.FindAllString(documents[p], -1) {
			if !have[name] {
				out = append(out, fmt.Sprintf("%s names %s: there is no such test: what a document promises, a test that exists holds", p, name))
			}
		}
	}
	return out
}

func documents(t *testing.T, tree fs.FS) map[string]string {
	t.Helper()
	paths, err := files(tree, ".md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, p := range paths {
		b, err := fs.ReadFile(tree, p)
		if err != nil {
			t.Fatal(err)
		}
		texts[p] = string(b)
	}
	return texts
}

func TestDocumentsNameTestsThatExist(t *testing.T) {
	report(t, missingTests(documents(t, os.DirFS(top(t))), parsed(t, parser.SkipObjectResolution)))
}

func TestMissingTestsAreFound(t *testing.T) {
	all, err := sources(fstest.MapFS{
		"a/a_test.go": {Data: []byte("package a\nfunc TestHere() {}\nfunc (x) TestMethod() {}\n")},
		"a/a.go":      {Data: []byte("package a\nfunc TestNotInATest() {}\n")},
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, missingTests(map[string]string{"d.md": "`TestHere`, `TestGone` (`TestMethod`), TestNotInATest. Testing is no test."}, all),
		"d.md names TestGone", "TestMethod", "TestNotInATest")
}

var (
	eventReason = regexp.MustCompile(`^[A-Z][a-z]+(?:[A-Z][a-z]+)*$`)
	// tellers are the functions by which an Event is reported.
	tellers = []string{"warn", "tell", "waits", "fail", "Event", "event"}
)

// eventReasons are the reasons of the Events that the files report: literals that
// are passed to one who reports, or assigned to a variable called reason.
func eventReasons(all []source) []string {
	found := map[string]bool{}
	literal := func(e ast.Expr) {
		if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil && eventReason.MatchString(s) {
				found[s] = true
			}
		}
	}
	for _, s := range all {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(tellers, f.Sel.Name) {
					for _, a := range n.Args {
						literal(a)
					}
				}
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					if id, ok := to.(*ast.Ident); ok && id.Name == "reason" && len(n.Lhs) == len(n.Rhs) {
						literal(n.Rhs[i])
					}
				}
			}
			return true
		})
	}
	var out []string
	for r := range found {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

// unexplained returns the reasons that have no row in the document.
func unexplained(document string, reasons []string) []string {
	var out []string
	for _, r := range reasons {
		if !strings.Contains(document, "\n| `"+r+"` |") {
			out = append(out, fmt.Sprintf("Event reason %s has no row in docs/troubleshooting.md: each reason that Kip gives a user is explained there", r))
		}
	}
	return out
}

func TestEachEventReasonIsExplained(t *testing.T) {
	var all []source
	for _, s := range parsed(t, parser.SkipObjectResolution) {
		if withinAny(s.dir(), "internal/cells", "internal/pods") {
			all = append(all, s)
		}
	}
	reasons := eventReasons(all)
	for _, known := range []string{"CellRequested", "NoCapacity", "Unplaceable", "CellLost"} {
		if !slices.Contains(reasons, known) {
			t.Fatalf("reason %s is not found in the code (found: %v): the test no longer sees how Events are reported", known, reasons)
		}
	}
	document, err := os.ReadFile(top(t) + "/docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	report(t, unexplained(string(document), reasons))
}

func TestUnexplainedReasonsAreFound(t *testing.T) {
	all, err := sources(fstest.MapFS{"a/a.go": {Data: []byte(`package a

func f() {
	c.warn(x, "OneReason", "Not this: %s", y)
	c.cfg.Event(x, kind, "TwoReason", "text")
	reason := "Three"
	wait, reason := 1, "FourReason"
	log.Info("NotThis")
}
`)}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	reasons := eventReasons(all)
	if want := []string{"FourReason", "OneReason", "Three", "TwoReason"}; !slices.Equal(reasons, want) {
		t.Fatalf("found %v, want %v", reasons, want)
	}
	expect(t, unexplained("# x\n| `OneReason` | it is so |\n| `Three` | yes |\nTwoReason\n", reasons), "FourReason", "TwoReason")
}
