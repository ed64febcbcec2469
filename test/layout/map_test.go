package layout

import (
	"fmt"
	"go/parser"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/local/sizes"
)

var codeInRow = regexp.MustCompile("`([^`]+)`")

// mapGaps compares the table of folders in CONTRIBUTING.md with the tree: each
// folder of code is in it, by itself or by one above, and no other is.
func mapGaps(contributing string, tree fs.FS, folders []string) []string {
	const rule = "the table of folders in CONTRIBUTING.md has each folder, so that a newcomer finds what is where"
	var out []string
	named := map[string]bool{}
	for line := range strings.Lines(contributing) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.Contains(cells[1], "make ") {
			continue
		}
		for _, m := range codeInRow.FindAllStringSubmatch(cells[1], -1) {
			if named[m[1]] {
				out = append(out, fmt.Sprintf("%s has two rows in the table: whoever reads one misses the other", m[1]))
			}
			named[m[1]] = true
			if info, err := fs.Stat(tree, path.Clean(m[1])); err != nil || !info.IsDir() {
				out = append(out, fmt.Sprintf("%s is in the table and no folder: %s", m[1], rule))
			}
		}
	}
	for _, dir := range folders {
		found := false
		for above := dir; above != "."; above = path.Dir(above) {
			// What is below cmd, internal and test has a row of its own.
			found = found || named[above]
		}
		if !found {
			out = append(out, fmt.Sprintf("%s is not in the table: %s", dir, rule))
		}
	}
	return out
}

func TestEachFolderIsOnTheMap(t *testing.T) {
	var folders []string
	for _, s := range parsed(t, parser.PackageClauseOnly) {
		if !slices.Contains(folders, s.dir()) {
			folders = append(folders, s.dir())
		}
	}
	contributing, err := os.ReadFile(top(t) + "/CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	report(t, mapGaps(string(contributing), os.DirFS(top(t)), folders))
}

func TestGapsOfTheMapAreFound(t *testing.T) {
	tree := fstest.MapFS{"a/b/b.go": {}, "c/c.go": {}, "d.go": {}}
	const table = "| `a` | letters |\n| `c`, `gone` | more |\n| `make c` | no folder |\n| `a` | again |\n"
	expect(t, mapGaps(table, tree, []string{"a/b", "c", "e/f"}),
		"gone is in the table", "a has two rows", "e/f is not in the table")
}

// nameInFile is a name and a link to the Go file that is said to declare it.
var nameInFile = regexp.MustCompile("`(\\w+)`\\s+in\\s+\\[[^\\]]+\\]\\(([^)#]+\\.go)\\)")

// misplaced returns the names that a document says are in a file that does not
// declare them.
func misplaced(document string, all []source) []string {
	declares := map[string][]string{}
	for _, s := range all {
		for _, d := range declared(s) {
			declares[s.path] = append(declares[s.path], d.names...)
		}
	}
	var out []string
	for _, m := range nameInFile.FindAllStringSubmatch(document, -1) {
		if !slices.Contains(declares[m[2]], m[1]) {
			out = append(out, fmt.Sprintf("%s is not declared in %s: a map that leads elsewhere is worse than none", m[1], m[2]))
		}
	}
	return out
}

func TestTheMapNamesFilesThatHaveWhatItSays(t *testing.T) {
	contributing, err := os.ReadFile(top(t) + "/CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	if nameInFile.FindStringIndex(string(contributing)) == nil {
		t.Fatal("CONTRIBUTING.md names nothing in a file: this test does not see how it does")
	}
	report(t, misplaced(string(contributing), parsed(t, parser.ParseComments|parser.SkipObjectResolution)))
}

func TestMisplacedNamesAreFound(t *testing.T) {
	all, err := sources(fstest.MapFS{
		"a/a.go": {Data: []byte("package a\n\nfunc F() {}\n\nfunc (t T) m() {}\n\ntype T struct{}\n")},
		"a/b.go": {Data: []byte("package a\n\nfunc g() {}\n")},
	}, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, misplaced("`F` in [a](a/a.go), `m` in\n   [a](a/a.go), `g` in [a](a/a.go), `F` in [b](a/b.go), `F` in [c](a/c.go).", all),
		"g is not declared in a/a.go", "F is not declared in a/b.go", "F is not declared in a/c.go")
}

var (
	makeInProse = regexp.MustCompile("`make ([a-z0-9-]+)")
	makeInBlock = regexp.MustCompile(`^make ([a-z0-9-]+)`)
)

// makeTargets are the targets that a document tells to make.
func makeTargets(document string) []string {
	var found []string
	inBlock := false
	for line := range strings.Lines(document) {
		target := makeInProse
		if fence.MatchString(line) {
			inBlock = !inBlock
		} else if inBlock {
			target = makeInBlock
		}
		for _, m := range target.FindAllStringSubmatch(line, -1) {
			found = append(found, m[1])
		}
	}
	return found
}

// missingTargets returns the targets of make that documents name and the Makefile
// does not have.
func missingTargets(documents map[string]string, makefile string) []string {
	var paths, out []string
	for p := range documents {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		for _, target := range makeTargets(documents[p]) {
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`).MatchString(makefile) {
				out = append(out, fmt.Sprintf("%s names make %s, which the Makefile does not have: what a document tells to type works", p, target))
			}
		}
	}
	return out
}

func TestDocumentsNameTargetsThatExist(t *testing.T) {
	makefile, err := os.ReadFile(top(t) + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	report(t, missingTargets(documents(t, os.DirFS(top(t))), string(makefile)))
}

func TestMissingTargetsAreFound(t *testing.T) {
	document := "`make run` or `make fly`, or\nmake do.\n```\nmake swim ARGS=1\n./make it\n```\n"
	expect(t, missingTargets(map[string]string{"d.md": document}, "run: build\n\techo\n"),
		"make fly", "make swim")
}

// typeRows are the rows of a table of instance types, one each.
func typeRows(types []catalog.InstanceType) []string {
	var rows []string
	for _, it := range types {
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s |", it.Name,
			resource.NewMilliQuantity(it.MilliCPU, resource.DecimalSI), resource.NewQuantity(it.MemoryBytes, resource.BinarySI),
			resource.NewQuantity(it.DiskBytes, resource.BinarySI), strconv.FormatFloat(it.Offerings[0].PricePerHour, 'g', 4, 64)))
	}
	return rows
}

func TestTheLocalTypesAreDocumentedAsTheyAre(t *testing.T) {
	document, err := os.ReadFile(top(t) + "/docs/placement.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(typeRows(sizes.Types("amd64")), "\n"); !strings.Contains(string(document), want) {
		t.Errorf("docs/placement.md does not have the types of the local cloud as internal/cloud/local/sizes has them:\n%s", want)
	}
}
