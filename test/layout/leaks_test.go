package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"slices"
	"testing"
	"testing/fstest"
)

// goleak finds the goroutines that are left when tests have ended.
const goleak = "go.uber.org/goleak"

// unwatched returns the packages of internal that start goroutines and have tests, none of
// which looks for those that are left.
func unwatched(all []source) (out []string) {
	starts, tested, looks := map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, s := range all {
		if !within(s.dir(), "internal") {
			continue
		}
		if s.isTest() {
			tested[s.dir()] = true
			looks[s.dir()] = looks[s.dir()] || slices.ContainsFunc(s.imports, func(i imported) bool { return i.path == goleak })
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			_, plain := n.(*ast.GoStmt)
			if plain || isCallOf(n, "Go", 1) {
				starts[s.dir()] = fmt.Sprintf("%s:%d", s.path, s.line(n.Pos()))
			}
			return true
		})
	}
	for _, dir := range keys(starts) {
		if tested[dir] && !looks[dir] {
			out = append(out, fmt.Sprintf("%s starts a goroutine, and no test of its package looks for those that are left: "+
				"its TestMain calls %s", starts[dir], goleak))
		}
	}
	return out
}

func TestGoroutinesThatAreLeftAreLookedFor(t *testing.T) {
	report(t, unwatched(parsed(t, parser.SkipObjectResolution)))
}

func TestPackagesThatLookForNoLeaksAreFound(t *testing.T) {
	const starts, group, looks = "package x\n\nfunc f() { go f() }\n", "package x\n\nfunc f() { all.Go(func() {}) }\n",
		"package x\n\nimport _ \"" + goleak + "\"\n"
	all, err := sources(fstest.MapFS{
		"internal/a/a.go":      {Data: []byte(starts)},
		"internal/a/a_test.go": {Data: []byte("package x\n")},
		"internal/b/b.go":      {Data: []byte(group)},
		"internal/b/b_test.go": {Data: []byte("package x\n")},
		"internal/c/c.go":      {Data: []byte(starts)},
		"internal/c/c_test.go": {Data: []byte(looks)},
		"internal/c/d_test.go": {Data: []byte("package x\n")},
		"internal/d/d.go":      {Data: []byte(starts)},
		"internal/e/e_test.go": {Data: []byte(starts)},
		"dev/f/f.go":           {Data: []byte(starts)},
		"dev/f/f_test.go":      {Data: []byte("package x\n")},
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, unwatched(all), "internal/a/a.go:3 starts", "internal/b/b.go:3 starts")
}
