package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"os"
	"path"
	"slices"
	"strconv"
	"testing"
	"testing/fstest"
)

// clouds are the names of clouds, in provider.yaml and of their folders below
// internal/cloud. What else is there is for all of them.
var (
	clouds    = []string{"aws", "azure", "gce", "local", "qemu", "sim"}
	forClouds = []string{"cloudtest", "host", "remote"}
)

// mayNameClouds are the folders and files that may name a cloud: its own, what reads
// provider.yaml, the one file that opens the cloud it names with the one that lets the
// local cloud start its machines, what publishes images in a cloud, and what never ships: such as what reads the figures
// that catalogues are made of, which have another form for each cloud.
var mayNameClouds = []string{
	"internal/config", "internal/kip/clouds.go", "cmd/kip-image/publish.go", "dev", "test", "hack/catalog",
}

// otherWords are what is called like a cloud and is none.
var otherWords = map[string]string{
	"internal/volumes/kinds.go": "local", // a kind of PersistentVolume
}

const cloudsRule = "only internal/cloud/NAME, internal/config and what opens a cloud know a cloud's name: " +
	"what differs is said by the contract, so that the next cloud is a folder and no search"

// namedClouds returns where a cloud is named that should not be, and the excuses that
// nothing needs.
func namedClouds(all []source, excused []string, words map[string]string) []string {
	var out []string
	needed := map[string]bool{}
	for _, s := range all {
		if s.isTest() {
			continue
		}
		found := cloudsNamedIn(s, "")
		if word, ok := words[s.path]; ok {
			left := cloudsNamedIn(s, word)
			needed[s.path] = len(left) < len(found)
			found = left
		}
		if len(found) == 0 {
			continue
		}
		n := slices.IndexFunc(excused, func(e string) bool { return within(s.path, e) })
		if n < 0 {
			out = append(out, found...)
			continue
		}
		needed[excused[n]] = true
	}
	for _, e := range slices.Concat(excused, keys(words)) {
		if !needed[e] {
			out = append(out, e+" is excused and names no cloud: an excuse that nothing needs hides the next breach")
		}
	}
	return out
}

// cloudsNamedIn returns where a file names a cloud that is not its own: the package
// imported, the key in the configuration read, or the name in quotes. word is none.
func cloudsNamedIn(s source, word string) []string {
	keys := map[string]bool{"AWS": true, "Azure": true, "GCE": true, "Local": true, "QEMU": true, "Sim": true}
	folder := func(cloud string) string { return path.Join("internal/cloud", cloud) }
	var out []string
	for _, i := range s.imports {
		dir, ours := own(i.path)
		for _, cloud := range clouds {
			if ours && within(dir, folder(cloud)) && !within(s.dir(), folder(cloud)) {
				out = append(out, fmt.Sprintf("%s:%d imports cloud %s: %s", s.path, i.line, cloud, cloudsRule))
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			name, err := strconv.Unquote(n.Value)
			if err == nil && slices.Contains(clouds, name) && word != name && !within(s.dir(), folder(name)) {
				out = append(out, fmt.Sprintf("%s says %q, a cloud's name: %s", s.path, name, cloudsRule))
			}
		case *ast.SelectorExpr:
			if above, ok := n.X.(*ast.SelectorExpr); ok && above.Sel.Name == "Cloud" && keys[n.Sel.Name] {
				out = append(out, fmt.Sprintf("%s reads Cloud.%s of the configuration: %s", s.path, n.Sel.Name, cloudsRule))
			}
		}
		return true
	})
	return out
}

func TestNothingNamesACloudButWhatOpensIt(t *testing.T) {
	report(t, namedClouds(parsed(t, parser.SkipObjectResolution), mayNameClouds, otherWords))
}

func TestEachFolderBelowCloudIsACloudOrForAll(t *testing.T) {
	entries, err := os.ReadDir(top(t) + "/internal/cloud")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(clouds, e.Name()) && !slices.Contains(forClouds, e.Name()) {
			t.Errorf("internal/cloud/%s is neither a cloud nor for all of them: say which, so that nothing else names it if it is one", e.Name())
		}
	}
}

func TestNamesOfCloudsAreFound(t *testing.T) {
	const kip = module + "/"
	code := func(imports, statement string) *fstest.MapFile {
		return &fstest.MapFile{Data: fmt.Appendf(nil, "package x\n\nimport _ %q\n\nfunc f(c config) { %s }\n", imports, statement)}
	}
	all, err := sources(fstest.MapFS{
		"internal/kip/clouds.go":          code(kip+"internal/cloud/local", `_ = "local"`),
		"internal/cells/a.go":             code("fmt", `_ = c.name == "aws"`),
		"internal/cells/a_test.go":        code(kip+"internal/cloud/sim", `_ = "sim"`),
		"internal/cloud/host/b.go":        code(kip+"internal/cloud/local/sizes", ``),
		"internal/cloud/local/c.go":       code(kip+"internal/cloud/local/sizes", `_ = "local"`),
		"internal/cloud/local/sizes/d.go": code(kip+"internal/cloud/host", `_ = "sim"`),
		"internal/config/e.go":            code(kip+"internal/cloud/local/sizes", `_ = "azure"`),
		"internal/pods/f.go":              code(kip+"internal/cloud/remote", `_ = c.Cloud.Local`),
		"internal/volumes/kinds.go":       code("fmt", `_, _ = "local", "gce"`),
	}, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	excused := []string{"internal/config", "internal/kip/clouds.go", "cmd/gone.go"}
	words := map[string]string{"internal/volumes/kinds.go": "local", "internal/cells/a.go": "sim"}
	expect(t, namedClouds(all, excused, words),
		`internal/cells/a.go says "aws"`, "internal/cloud/host/b.go:3 imports cloud local", `internal/cloud/local/sizes/d.go says "sim"`,
		"internal/pods/f.go reads Cloud.Local", `internal/volumes/kinds.go says "gce"`,
		"cmd/gone.go is excused", "internal/cells/a.go is excused")
}
