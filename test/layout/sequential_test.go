package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// starters are packages that call what they are given on goroutines of theirs.
var starters = []string{"testing/synctest", "net/http", "golang.org/x/sync", "k8s.io/client-go/tools", "k8s.io/client-go/informers",
	"github.com/aws/aws-sdk-go-v2", module + "/internal/cloud/cloudtest", goleak}

// concurrent returns what may run beside something else in packages that make unit tests
// without the race detector, and those of them that are not there.
func concurrent(all []source, sequential []string) (out []string) {
	found := map[string]bool{}
	for _, s := range all {
		if !slices.Contains(sequential, s.dir()) {
			continue
		}
		found[s.dir()] = found[s.dir()] || s.isTest()
		for _, i := range s.imports {
			if withinAny(i.path, starters...) {
				out = append(out, fmt.Sprintf("%s imports %s, which starts goroutines: its package is none of SEQUENTIAL", s.path, i.path))
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			_, plain := n.(*ast.GoStmt)
			if plain || isCallOf(n, "Go", 1) || isCallOf(n, "AfterFunc", 2) || isCallOf(n, "Parallel", 0) {
				out = append(out, fmt.Sprintf("%s:%d starts a goroutine: its package is none of SEQUENTIAL", s.path, s.line(n.Pos())))
			}
			return true
		})
	}
	for _, dir := range sequential {
		if !found[dir] {
			out = append(out, "SEQUENTIAL of the Makefile names "+dir+", which has no tests")
		}
	}
	return out
}

// sequentialOf reads the list of the Makefile.
func sequentialOf(makefile string) []string {
	_, list, found := strings.Cut(makefile, "\nSEQUENTIAL := $(addprefix $(MODULE)/,")
	list, _, ended := strings.Cut(list, ")\n")
	if !found || !ended {
		return nil
	}
	return strings.Fields(strings.ReplaceAll(list, "\\\n", " "))
}

func TestWhatIsTestedWithoutTheRaceDetectorStartsNoGoroutine(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(top(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	sequential := sequentialOf(string(makefile))
	if len(sequential) == 0 {
		t.Fatal("the Makefile has no SEQUENTIAL: this test does not see what it looks at")
	}
	report(t, concurrent(parsed(t, parser.SkipObjectResolution), sequential))
}

func TestPackagesThatAreNotSequentialAreFound(t *testing.T) {
	all, err := sources(fstest.MapFS{
		"a/a.go":      {Data: []byte("package x\n\nfunc f() { go f() }\n")},
		"a/a_test.go": {Data: []byte("package x\n")},
		"b/b.go":      {Data: []byte("package x\n")},
		"b/b_test.go": {Data: []byte("package x\n\nfunc f() { all.Go(func() {}) }\n")},
		"c/c.go":      {Data: []byte("package x\n")},
		"c/c_test.go": {Data: []byte("package x\n\nimport _ \"net/http/httptest\"\n")},
		"d/d.go":      {Data: []byte("package x\n")},
		"e/e_test.go": {Data: []byte("package x\n\nfunc f() { t.Parallel() }\n")},
		"f/f_test.go": {Data: []byte("package x\n\nfunc f() { time.AfterFunc(1, f) }\n")},
		"g/g_test.go": {Data: []byte("package x\n")},
		"h/h_test.go": {Data: []byte("package x\n\nfunc f() { go f() }\n")},
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, concurrent(all, sequentialOf("X := y\nSEQUENTIAL := $(addprefix $(MODULE)/,a b c \\\n\td e f g)\nh\n")),
		"a/a.go:3 starts", "b/b_test.go:3 starts", "net/http/httptest", "e/e_test.go:3 starts", "f/f_test.go:3 starts", "names d")
}
