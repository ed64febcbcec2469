package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"path"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// importedAs are the packages that a file imports, by the names that it has them by.
func importedAs(f *ast.File) map[string]string {
	all := map[string]string{}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue // the parser has read it
		}
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		all[name] = p
	}
	return all
}

// asserted returns where a cloud, or what one can do, is asked for its type: by a type of
// package cloud or of one below, or, in a file that knows clouds, by methods alone.
func asserted(all []source) (out []string) {
	for _, s := range all {
		packages, knows := importedAs(s.file), false
		ofClouds := func(name string) bool {
			dir, ours := own(packages[name])
			return ours && within(dir, cloudContract)
		}
		for name := range packages {
			knows = knows || ofClouds(name)
		}
		look := func(e ast.Expr) {
			if pointer, ok := e.(*ast.StarExpr); ok {
				e = pointer.X
			}
			what := ""
			switch e := e.(type) {
			case *ast.SelectorExpr:
				if x, ok := e.X.(*ast.Ident); ok && (ofClouds(x.Name) || knows && packages[x.Name] == "io") {
					what = x.Name + "." + e.Sel.Name
				}
			case *ast.InterfaceType:
				// Errors that are several have a method, and no type.
				if knows && e.Methods.NumFields() > 0 && e.Methods.List[0].Names != nil && e.Methods.List[0].Names[0].Name != "Unwrap" {
					what = "a type with the method " + e.Methods.List[0].Names[0].Name
				}
			}
			if what != "" {
				out = append(out, fmt.Sprintf("%s:%d asserts that something is %s: what a cloud can do is said by cloud.Features, "+
					"which what is around a cloud hands on, and a type is lost there", s.path, s.line(e.Pos()), what))
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeAssertExpr:
				if n.Type != nil { // or a switch, whose cases come below
					look(n.Type)
				}
			case *ast.TypeSwitchStmt:
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						look(e)
					}
				}
			}
			return true
		})
	}
	return out
}

func TestNoCloudIsAskedForItsType(t *testing.T) {
	report(t, asserted(parsed(t, parser.SkipObjectResolution)))
}

func TestAssertionsOnCloudsAreFound(t *testing.T) {
	code := func(imports []string, statements ...string) *fstest.MapFile {
		text := "package x\n"
		for _, i := range imports {
			text += "\nimport " + i
		}
		return &fstest.MapFile{Data: []byte(text + "\n\nfunc f(c any) {\n\t" + strings.Join(statements, "\n\t") + "\n}\n")}
	}
	const theContract, theLocal = `"` + module + `/internal/cloud"`, `"` + module + `/internal/cloud/local"`
	const closer = "_, _ = c.(interface{ Close() error })"
	all, err := sources(fstest.MapFS{
		"internal/a/literal.go": code([]string{theContract}, closer),
		"internal/b/none.go":    code([]string{`"io"`}, closer, "_ = c.(io.Closer)", "switch c.(type) {\n\tcase io.Reader:\n\t}"),
		"internal/c/feature.go": code([]string{"machines " + theContract}, "_, ok := c.(machines.Stopper)"),
		"internal/d/a_test.go":  code([]string{theLocal, `"io"`}, "switch c := c.(type) {\n\tcase nil, *local.Cloud:\n\tcase io.Closer:\n\t}"),
		"internal/e/errors.go": code([]string{theContract},
			"_ = c.(interface{ Unwrap() []error })", "_ = c.(string)", "_ = c.(*own)", "_ = c.(any)"),
		"internal/f/other.go": code([]string{`cloud "` + module + `/internal/clouds"`}, "_ = c.(cloud.Stopper)"),
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, asserted(all), "internal/a/literal.go:6 asserts that something is a type with the method Close",
		"internal/c/feature.go:6 asserts that something is machines.Stopper", "internal/d/a_test.go:8 asserts that something is local.Cloud",
		"internal/d/a_test.go:9 asserts that something is io.Closer")
}
