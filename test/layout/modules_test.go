package layout

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/mod/modfile"
)

// apart are the modules of the tree that choose for themselves: what they are made of is little, or they
// want other versions than Kubernetes has.
var apart = []string{"hack/tools", "image/cni", "image/runc", "test/bench/karpenter", "test/metricsserver"}

// others are, by module of the tree, those of which it wants another version than Kubernetes does: what is
// made of them is little, or is made in that module alone.
var others = map[string][]string{
	"dev/dns/coredns": {"github.com/golang-jwt/jwt/v5", "github.com/miekg/dns", "github.com/prometheus/client_golang",
		"github.com/prometheus/common", "github.com/prometheus/procfs", "github.com/mdlayher/socket", "github.com/mdlayher/vsock",
		"google.golang.org/genproto/googleapis/rpc"},
}

// versions are what each go.mod of the tree requires, by its folder: of each module the version that is
// named and, where another stands for it, that. The compiler's cache goes by both.
func versions(tree fs.FS) (map[string]map[string]string, error) {
	names, err := files(tree, ".mod")
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]string{}
	for _, name := range names {
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, data, nil)
		if err != nil {
			return nil, err
		}
		of := map[string]string{}
		for _, r := range file.Require {
			of[r.Mod.Path] = r.Mod.Version
		}
		for _, r := range file.Replace {
			if v, is := of[r.Old.Path]; is && v != r.New.Version {
				of[r.Old.Path] = v + " => " + r.New.Version
			}
		}
		all[path.Dir(name)] = of
	}
	return all, nil
}

// twice are the modules of which another go.mod of the tree names another version than that at its top:
// what depends on them, and that may be all of Kubernetes, is compiled once more for it.
func twice(tree fs.FS, apart []string, others map[string][]string) (out []string, err error) {
	versions, err := versions(tree)
	if err != nil {
		return nil, err
	}
	for _, dir := range append(slices.Clone(apart), ".") {
		if versions[dir] == nil {
			out = append(out, dir+" has no go.mod, or it was not read")
		}
	}
	for dir, of := range versions {
		if dir == "." || slices.Contains(apart, dir) {
			continue
		}
		shared := 0
		for _, module := range others[dir] {
			if of[module] == "" || versions["."][module] == "" {
				out = append(out, fmt.Sprintf("%s/go.mod or go.mod has no %s: an exception is for nothing", dir, module))
			}
		}
		for module, version := range of {
			main, is := versions["."][module]
			switch excepted := slices.Contains(others[dir], module); {
			case !is:
			case excepted && main == version:
				out = append(out, fmt.Sprintf("%s/go.mod has %s as go.mod has it: an exception is for nothing", dir, module))
			case excepted:
			case main != version:
				out = append(out, fmt.Sprintf("%s/go.mod has %s %s, go.mod %s: want one version, so that what depends on it is compiled once",
					dir, module, version, main))
			default:
				shared++
			}
		}
		if shared == 0 {
			out = append(out, dir+"/go.mod shares no module with go.mod: this test does not see what it compares")
		}
	}
	slices.Sort(out)
	return out, nil
}

func TestModulesOfTheTreeShareWhatTheyAreMadeOf(t *testing.T) {
	bad, err := twice(os.DirFS(top(t)), apart, others)
	if err != nil {
		t.Fatal(err)
	}
	report(t, bad)
}

func TestASecondVersionOfAModuleIsFound(t *testing.T) {
	const top = "module a\n\nrequire (\n\tx.example/b v1.0.0\n\tx.example/c v1.0.0\n)\n\nreplace x.example/c => x.example/c v0.9.0\n"
	tree := fstest.MapFS{
		"go.mod":       {Data: []byte(top)},
		"same/go.mod":  {Data: []byte(strings.Replace(top, "module a", "module same", 1))},
		"other/go.mod": {Data: []byte("module other\n\nrequire x.example/b v1.0.0\n\nrequire x.example/c v0.9.0 // indirect\n")},
		"more/go.mod":  {Data: []byte("module more\n\nrequire x.example/b v1.0.0\n\nrequire x.example/c v0.9.0\n")},
		"none/go.mod":  {Data: []byte("module none\n")},
		"apart/go.mod": {Data: []byte("module apart\n\nrequire x.example/b v1.0.2\n")},
		".kip/go.mod":  {Data: []byte("module kept\n\nrequire x.example/b v1.0.3\n")},
	}
	got, err := twice(tree, []string{"apart", "gone"}, map[string][]string{"more": {"x.example/b", "x.example/c", "x.example/d"}})
	want := []string{
		"gone has no go.mod, or it was not read",
		"more/go.mod has x.example/b as go.mod has it: an exception is for nothing",
		"more/go.mod or go.mod has no x.example/d: an exception is for nothing",
		"more/go.mod shares no module with go.mod: this test does not see what it compares",
		"none/go.mod shares no module with go.mod: this test does not see what it compares",
		"other/go.mod has x.example/c v0.9.0, go.mod v1.0.0 => v0.9.0: want one version, so that what depends on it is compiled once",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("found %q (%v), want %q", got, err, want)
	}
}
