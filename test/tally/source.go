package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/modfile"
)

// test is a test or a fuzz target, or one of their subtests.
type test struct {
	pkg  string // import path
	name string
}

func (t test) String() string { return t.pkg + " " + t.name }

func compare(a, b test) int {
	return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.name, b.name))
}

// inTree returns the tests of all modules below root, in order: of every
// _test.go file, whatever its build constraints but for GOOS.
func inTree(root string) ([]test, error) {
	var found []test
	modules := map[string]string{} // by folder
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if file != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || file == filepath.Join(root, "bin")) {
				return fs.SkipDir
			}
			// Folders are walked before what is in them, so the one above is known.
			modules[file] = path.Join(modules[filepath.Dir(file)], d.Name())
			data, err := os.ReadFile(filepath.Join(file, "go.mod"))
			if err == nil {
				modules[file] = modfile.ModulePath(data)
			} else if !os.IsNotExist(err) {
				return err
			}
			return nil
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		names, err := inFile(file)
		for _, name := range names {
			found = append(found, test{modules[filepath.Dir(file)], name})
		}
		return err
	})
	slices.SortFunc(found, compare)
	return found, err
}

// inFile returns the names of a file's tests. A file for another operating system
// has none here.
func inFile(file string) ([]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("find the tests of %s: %w", file, err)
	}
	for _, group := range parsed.Comments {
		for _, c := range group.List {
			if group.Pos() > parsed.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			// Tags that a target may set are taken as set.
			expr, err := constraint.Parse(c.Text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if !expr.Eval(func(tag string) bool { return tag != "ignore" && tag != "windows" && tag != "darwin" }) {
				return nil, nil
			}
		}
	}
	var names []string
	for _, decl := range parsed.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && isTest(f) {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}

// isTest says that go test runs a function.
func isTest(f *ast.FuncDecl) bool {
	named := func(prefix string) bool {
		rest, ok := strings.CutPrefix(f.Name.Name, prefix)
		first, _ := utf8.DecodeRuneInString(rest)
		return ok && (rest == "" || !unicode.IsLower(first))
	}
	if !named("Test") && !named("Fuzz") || f.Name.Name == "TestMain" || f.Type.Params.NumFields() != 1 {
		return false
	}
	pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	typ, ok := pointer.X.(*ast.SelectorExpr)
	return ok && (typ.Sel.Name == "T" || typ.Sel.Name == "F")
}
