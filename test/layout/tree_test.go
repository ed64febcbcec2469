// Package layout holds the house rules of the source tree: who may import whom,
// that each package says what it owns, that links between documents lead
// somewhere, and that documents name only what exists. It reads sources and
// starts nothing but `go list`.
package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the path of the module; what is below it is our own.
const module = "github.com/elotl/kip"

// source is a Go file.
type source struct {
	path    string // from the top of the tree, with slashes
	file    *ast.File
	imports []imported
	set     *token.FileSet
}

// imported is a package that a file imports, and in which line.
type imported struct {
	path string
	line int
}

func (s source) dir() string  { return path.Dir(s.path) }
func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// line is that of a position in the file.
func (s source) line(at token.Pos) int { return s.set.Position(at).Line }

// own is the folder of a package of this module, false for another's.
func own(importPath string) (dir string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// within reports whether a folder, or an import path, is top or lies below it.
func within(dir, top string) bool {
	return dir == top || strings.HasPrefix(dir, top+"/")
}

func withinAny(dir string, tops ...string) bool {
	return slices.ContainsFunc(tops, func(top string) bool { return within(dir, top) })
}

// files returns the paths of the tree's files with an extension. Folders that
// git ignores, and those that the go command does, are left out.
func files(tree fs.FS, extension string) ([]string, error) {
	var found []string
	err := fs.WalkDir(tree, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || p == "bin"):
			return fs.SkipDir
		case !d.IsDir() && path.Ext(p) == extension:
			found = append(found, p)
		}
		return nil
	})
	return found, err
}

// sources parses every Go file of the tree, whatever its build constraints.
func sources(tree fs.FS, mode parser.Mode) ([]source, error) {
	paths, err := files(tree, ".go")
	if err != nil {
		return nil, err
	}
	var all []source
	set := token.NewFileSet()
	for _, p := range paths {
		text, err := fs.ReadFile(tree, p)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(set, p, text, mode)
		if err != nil {
			return nil, err
		}
		s := source{path: p, file: f, set: set}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: import %s: %w", p, i.Path.Value, err)
			}
			s.imports = append(s.imports, imported{name, s.line(i.Pos())})
		}
		all = append(all, s)
	}
	return all, nil
}

// top is the folder that holds go.mod.
func top(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		t.Fatal("no go.mod above the test's folder")
	}
}

// parsed is the repository's own Go files, with at least the packages that the
// rules are about: a check that reads nothing finds nothing.
func parsed(t *testing.T, mode parser.Mode) []source {
	t.Helper()
	all, err := sources(os.DirFS(top(t)), mode)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{
		"internal/kip", "internal/placement", "internal/cells", "internal/pods", "internal/cloud/local", "internal/agent/components",
		"cmd/itzo", "dev/cluster",
	} {
		if !slices.ContainsFunc(all, func(s source) bool { return s.dir() == dir }) {
			t.Fatalf("no Go file of %s was found: if it moved, the rules here move with it", dir)
		}
	}
	return all
}

// report fails the test with each violation.
func report(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}

// expect compares the violations that a sample has with words that one each must
// contain, in order.
func expect(t *testing.T, violations []string, words ...string) {
	t.Helper()
	if len(violations) != len(words) {
		t.Fatalf("%d violations, want %d:\n%s", len(violations), len(words), strings.Join(violations, "\n"))
	}
	for i, w := range words {
		if !strings.Contains(violations[i], w) {
			t.Errorf("violation %q does not say %q", violations[i], w)
		}
	}
}
