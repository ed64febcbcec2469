package layout

import (
	"go/ast"
	"go/parser"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// leastKept is how many inputs a fuzz target has kept at least: go test runs them each
// time, and the fuzzer begins with them.
const leastKept = 3

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
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") || len(f.Type.Params.List) != 1 {
				continue
			}
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
