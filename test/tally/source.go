package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/build/constraint"
	"go/doc"
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

// test is a test, a fuzz target, an example with output or a benchmark, or one of
// their subtests.
type test struct {
	pkg  string // import path
	name string
}

func (t test) String() string { return t.pkg + " " + t.name }

// top is the test of which t is a part, or t itself.
func (t test) top() test {
	t.name, _, _ = strings.Cut(t.name, "/")
	return t
}

func compare(a, b test) int {
	return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.name, b.name))
}

// inTree returns the tests of all modules below root, in order: of every _test.go
// file that is compiled on this system with some set of build tags, but for those that
// the list knows to be compiled nowhere.
func inTree(root string, uncompiled map[string]string) ([]test, error) {
	var found []test
	err := eachTestFile(root, func(file, pkg string) error {
		parsed, err := parse(filepath.Join(root, file))
		if err != nil || uncompiled[file] != "" {
			return err
		}
		some, err := compiles(filepath.Join(root, file), parsed)
		if err != nil || !some {
			return err
		}
		for _, name := range inFile(parsed) {
			found = append(found, test{pkg, name})
		}
		return nil
	})
	slices.SortFunc(found, compare)
	return found, err
}

// eachTestFile calls each with all _test.go files of all modules below root, whatever
// their build constraints say: their paths from there, and those of their packages.
func eachTestFile(root string, each func(file, pkg string) error) error {
	modules := map[string]string{} // by folder
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if file != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") ||
				file == filepath.Join(root, "bin")) {
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
		below, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return each(below, modules[filepath.Dir(file)])
	})
}

func parse(file string) (*ast.File, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("find the tests of %s: %w", file, err)
	}
	return parsed, nil
}

// compiles says whether a file is compiled on this system with any of the tags of its
// constraint set or not: the one with e2e is, and so is the one with !e2e.
func compiles(file string, parsed *ast.File) (bool, error) {
	tags, err := tagsOf(parsed)
	if err != nil {
		return false, fmt.Errorf("%s: %w", file, err)
	}
	if len(tags) > 10 {
		return false, fmt.Errorf("%s: its build constraint has %d tags, want 10 at most", file, len(tags))
	}
	for set := range 1 << len(tags) {
		with := build.Default
		with.CgoEnabled, with.BuildTags = false, nil
		for i, tag := range tags {
			switch {
			case set&(1<<i) == 0 || tag == "ignore": // what nobody sets
			case tag == "cgo":
				with.CgoEnabled = true
			case !systems[tag]: // what go/build knows by itself
				with.BuildTags = append(with.BuildTags, tag)
			}
		}
		matches, err := with.MatchFile(filepath.Dir(file), filepath.Base(file))
		if err != nil || matches {
			return matches, err
		}
	}
	return false, nil
}

// systems are the tags of operating systems and architectures that one may name.
var systems = map[string]bool{
	"aix": true, "android": true, "darwin": true, "dragonfly": true, "freebsd": true, "illumos": true, "ios": true, "js": true, "netbsd": true,
	"openbsd": true, "plan9": true, "solaris": true, "wasip1": true, "windows": true, "linux": true, "unix": true,
	"386": true, "amd64": true, "arm": true, "arm64": true, "loong64": true, "mips64le": true, "ppc64le": true, "riscv64": true,
	"s390x": true, "wasm": true,
	"gc": true, "gccgo": true,
}

// tagsOf are the tags that a file's build constraint names.
func tagsOf(parsed *ast.File) (tags []string, err error) {
	var names func(constraint.Expr)
	names = func(e constraint.Expr) {
		switch e := e.(type) {
		case *constraint.TagExpr:
			tags = append(tags, e.Tag)
		case *constraint.NotExpr:
			names(e.X)
		case *constraint.AndExpr:
			names(e.X)
			names(e.Y)
		case *constraint.OrExpr:
			names(e.X)
			names(e.Y)
		}
	}
	for _, group := range parsed.Comments {
		for _, c := range group.List {
			if group.Pos() > parsed.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			if err != nil {
				return nil, err
			}
			names(expr)
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags), nil
}

// inFile returns the names of a file's tests.
func inFile(parsed *ast.File) (names []string) {
	for _, decl := range parsed.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && isTest(f) {
			names = append(names, f.Name.Name)
		}
	}
	for _, e := range doc.Examples(parsed) {
		if e.Output != "" || e.EmptyOutput { // the others are only compiled
			names = append(names, "Example"+e.Name)
		}
	}
	return names
}

// isTest says that go test runs a function, with -bench if it is a benchmark.
func isTest(f *ast.FuncDecl) bool {
	kind := ""
	for prefix, typ := range map[string]string{"Test": "T", "Fuzz": "F", "Benchmark": "B"} {
		rest, ok := strings.CutPrefix(f.Name.Name, prefix)
		if first, _ := utf8.DecodeRuneInString(rest); ok && (rest == "" || !unicode.IsLower(first)) {
			kind = typ
		}
	}
	if kind == "" || f.Name.Name == "TestMain" || f.Type.Params.NumFields() != 1 {
		return false
	}
	pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	switch typ := pointer.X.(type) {
	case *ast.SelectorExpr:
		return typ.Sel.Name == kind
	case *ast.Ident:
		return typ.Name == kind
	}
	return false
}

func (t test) isBenchmark() bool { return strings.HasPrefix(t.name, "Benchmark") }

func (t test) isFuzzTarget() bool { return strings.HasPrefix(t.name, "Fuzz") && t == t.top() }
