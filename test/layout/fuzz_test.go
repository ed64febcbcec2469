package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"
)

// leastKept is how many inputs a fuzz target has kept at least: go test runs them each
// time, and the fuzzer begins with them.
const leastKept = 3

// fuzzTargets are those of a file of tests.
func fuzzTargets(s source) (all []*ast.FuncDecl) {
	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") && len(f.Type.Params.List) == 1 {
			all = append(all, f)
		}
	}
	return all
}

// unused returns the arguments of fuzz targets that nothing reads, the test among them: a
// target tries what it is given, and fails.
func unused(all []source) (out []string) {
	for _, s := range all {
		if !s.isTest() || within(s.dir(), "test/tally") {
			continue
		}
		for _, target := range fuzzTargets(s) {
			for _, problem := range idleIn(s, target) {
				const rule = "the fuzzer makes inputs that nothing tries"
				out = append(out, fmt.Sprintf("%s:%d: %s: %s", s.path, s.line(target.Pos()), problem, rule))
			}
		}
	}
	return out
}

// idleIn says what is wrong with what a fuzz target gives to f.Fuzz.
func idleIn(s source, target *ast.FuncDecl) (out []string) {
	// What is imported is not known here, and what is local is.
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	_, _ = (&types.Config{Error: func(error) {}}).Check(s.dir(), s.set, []*ast.File{s.file}, info)
	fuzzed := false
	ast.Inspect(target.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Fuzz" {
			return true
		}
		fuzzed = true
		f, ok := call.Args[0].(*ast.FuncLit)
		if !ok {
			out = append(out, target.Name.Name+" gives f.Fuzz no literal of a function: this test does not see what it does")
			return true
		}
		read := readIn(f.Body, info)
		for _, field := range f.Type.Params.List {
			if len(field.Names) == 0 {
				out = append(out, target.Name.Name+" does not name what it is given")
			}
			for _, name := range field.Names {
				if !read[info.Defs[name]] {
					out = append(out, fmt.Sprintf("%s does not use its argument %s", target.Name.Name, name.Name))
				}
			}
		}
		return true
	})
	if !fuzzed {
		out = append(out, target.Name.Name+" never calls f.Fuzz")
	}
	return out
}

// readIn are the variables that something is done with: not those that are only assigned
// to, or from to nothing.
func readIn(body ast.Node, info *types.Info) map[types.Object]bool {
	idle := map[*ast.Ident]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok {
			return true
		}
		for i, to := range a.Lhs {
			to, ok := to.(*ast.Ident)
			if !ok {
				continue
			}
			idle[to] = a.Tok == token.ASSIGN
			if to.Name == "_" && len(a.Lhs) == len(a.Rhs) {
				if from, ok := ast.Unparen(a.Rhs[i]).(*ast.Ident); ok {
					idle[from] = true
				}
			}
		}
		return true
	})
	read := map[types.Object]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !idle[id] && info.Uses[id] != nil {
			read[info.Uses[id]] = true
		}
		return true
	})
	return read
}

func TestEachFuzzTargetUsesWhatItIsGiven(t *testing.T) {
	report(t, unused(parsed(t, parser.SkipObjectResolution)))
}

func TestUnusedInputsOfFuzzTargetsAreFound(t *testing.T) {
	all, err := sources(fstest.MapFS{
		"a/a.go": {Data: []byte("package a\n\nfunc FuzzNone(f *testing.F) {}\n")},
		"a/a_test.go": {Data: []byte(`package a

import "testing"

func FuzzGood(f *testing.F) {
	users := []string{"a", "b"}
	f.Fuzz(func(t *testing.T, who byte, method, target string) {
		said := users[int(who)%2]
		if err := try(method, func() string { return target }); err != nil {
			t.Fatalf("%s: %v", said, err)
		}
	})
}

func FuzzThree(f *testing.F) {
	f.Fuzz(func(t *testing.T, a, b, c, d []byte) {
		_ = a
		_, _ = (b), t.Name()
		c = nil
		func(d []byte) { try(d) }(nil)
		type s struct{ a, b, c []byte }
		try(s{a: nil, b: nil}.c)
	})
}

func FuzzNoTest(f *testing.F) {
	f.Fuzz(func(_ *testing.T, a []byte) { try(a) })
}

func FuzzUnnamed(f *testing.F) {
	f.Fuzz(func(*testing.T, []byte) {})
}

func FuzzElsewhere(f *testing.F) { f.Fuzz(elsewhere) }

func FuzzNothing(f *testing.F) { f.Add(1) }

func Fuzziness(t *testing.T, a int) {}
`)},
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, unused(all), "FuzzThree does not use its argument a", "its argument b", "its argument c", "its argument d",
		"FuzzNoTest does not use its argument _", "FuzzUnnamed does not name", "FuzzUnnamed does not name",
		"FuzzElsewhere gives f.Fuzz no literal", "a/a_test.go:36: FuzzNothing never calls f.Fuzz")
}

// TestEachFuzzTargetHasAKeptCorpus also finds a corpus whose target has another name
// now: nothing runs it.
func TestEachFuzzTargetHasAKeptCorpus(t *testing.T) {
	tree := os.DirFS("../..")
	all := parsed(t, parser.SkipObjectResolution)
	targets := map[string]bool{}
	for _, s := range all {
		if !s.isTest() || within(s.dir(), "test/tally") { // which has one to read, not to run
			continue
		}
		for _, f := range fuzzTargets(s) {
			corpus := path.Join(s.dir(), "testdata/fuzz", f.Name.Name)
			targets[corpus] = true
			kept, err := fs.ReadDir(tree, corpus)
			if err != nil || len(kept) < leastKept {
				t.Errorf("%s: %s has %d kept inputs (%v): want %d or more", s.path, f.Name.Name, len(kept), err, leastKept)
			}
		}
	}
	if len(targets) == 0 {
		t.Fatal("no fuzz target was found")
	}
	dirs := map[string]bool{}
	for _, s := range all {
		dirs[s.dir()] = true
	}
	for dir := range dirs {
		corpora, err := fs.Glob(tree, path.Join(dir, "testdata/fuzz/*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, corpus := range corpora {
			if !targets[corpus] {
				t.Errorf("%s is of no fuzz target", corpus)
			}
		}
	}
}
