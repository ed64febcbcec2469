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
	eventReason = regexp.MustCompile(`^[A-Z][A-Za-z]*[a-z]$`)
	// tellers are the functions by which an Event is reported.
	tellers = []string{"warn", "tell", "tellOnce", "tellDisk", "report", "waits", "fail", "Event", "Eventf", "event"}
	// reporters are the packages that report Events.
	reporters = []string{"internal/pods", "internal/cells", "internal/isolation", "internal/provisioner", "internal/kip"}
)

// eventReasons are the reasons of Events: the constants of internal/events, each of
// which is called as it reads.
func eventReasons(all []source) (reasons, misspelt []string) {
	for _, s := range all {
		if s.dir() != "internal/events" || s.isTest() {
			continue
		}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i, id := range v.Names {
					reason, ok := "", false
					if i < len(v.Values) {
						reason, ok = literalOf(v.Values[i])
					}
					if !ok || reason != id.Name {
						misspelt = append(misspelt, fmt.Sprintf("%s:%d: constant %s is %q: a reason is called as it reads",
							s.path, s.line(id.Pos()), id.Name, reason))
						continue
					}
					reasons = append(reasons, reason)
				}
			}
		}
	}
	slices.Sort(reasons)
	return reasons, misspelt
}

// literalReasons returns the literals that are reasons of Events outside of
// internal/events: those that a reporter passes to one who tells, or that it assigns
// to a variable called reason, and any in its packages that reads like a known one.
func literalReasons(all []source, known []string) []string {
	var out []string
	for _, s := range all {
		if s.isTest() || !withinAny(s.dir(), reporters...) {
			continue
		}
		reported := map[token.Pos]bool{}
		suspect := func(e ast.Expr) { reported[e.Pos()] = true }
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(tellers, f.Sel.Name) {
					for _, a := range n.Args {
						suspect(a)
					}
				}
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					if id, ok := to.(*ast.Ident); ok && id.Name == "reason" && len(n.Lhs) == len(n.Rhs) {
						suspect(n.Rhs[i])
					}
				}
			case *ast.BasicLit:
				text, ok := literalOf(n)
				if ok && (slices.Contains(known, text) || reported[n.Pos()] && eventReason.MatchString(text)) {
					const rule = "reasons are constants of internal/events, where one sees them all"
					out = append(out, fmt.Sprintf("%s:%d: %q is the reason of an Event: %s", s.path, s.line(n.Pos()), text, rule))
				}
			}
			return true
		})
	}
	return out
}

// unexplained returns the reasons that have no row in the document.
func unexplained(document string, reasons []string) []string {
	var out []string
	for _, r := range reasons {
		if !strings.Contains(document, "\n| `"+r+"` |") {
			const rule = "each reason that Kip gives a user is explained there"
			out = append(out, fmt.Sprintf("Event reason %s has no row in docs/troubleshooting.md: %s", r, rule))
		}
	}
	return out
}

func TestEachEventReasonIsExplained(t *testing.T) {
	all := parsed(t, parser.SkipObjectResolution)
	reasons, misspelt := eventReasons(all)
	report(t, misspelt)
	if !slices.Contains(reasons, "CellRequested") {
		t.Fatalf("reason CellRequested is not among those of internal/events (%v): the test no longer sees them", reasons)
	}
	document, err := os.ReadFile(top(t) + "/docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	report(t, unexplained(string(document), reasons))
	report(t, literalReasons(all, reasons))
}

func TestUnexplainedAndLiteralReasonsAreFound(t *testing.T) {
	all, err := sources(fstest.MapFS{
		"internal/events/events.go": {Data: []byte(`package events

const (
	OneReason = "OneReason"
	Three     = "Three"
	Four      = "Five"
)
`)},
		"internal/pods/pods.go": {Data: []byte(`package pods

func f() {
	c.warn(x, "NewReason", "Not this: %s", y)
	c.cfg.Event(x, kind, events.OneReason, "text")
	wait, reason := 1, "Another"
	condition := Condition{Reason: "Three"}
	log.Info("NotThis")
}
`)},
		"internal/pods/pods_test.go": {Data: []byte("package pods\n\nvar x = \"OneReason\"\n")},
		"internal/node/node.go":      {Data: []byte("package node\n\nvar x = \"Three\"\n")},
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	reasons, misspelt := eventReasons(all)
	if want := []string{"OneReason", "Three"}; !slices.Equal(reasons, want) {
		t.Fatalf("found %v, want %v", reasons, want)
	}
	expect(t, misspelt, `internal/events/events.go:6: constant Four is "Five"`)
	expect(t, literalReasons(all, reasons), `internal/pods/pods.go:4: "NewReason"`, `:6: "Another"`, `:7: "Three"`)
	expect(t, unexplained("# x\n| `OneReason` | it is so |\nThree\n", reasons), "Three")
}
